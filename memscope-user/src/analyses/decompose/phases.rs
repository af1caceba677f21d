//! The phase of a program, as the stacks of its allocations and frees show it.

use super::rules::Counts;
pub(in crate::analyses) use super::rules::Phase;

/// The phase of one process on one device, and the number of starts of each.
#[derive(Debug, Default)]
pub(in crate::analyses) struct Phases {
    now: Option<Phase>,
    /// Of these, `step` counts the marked steps.
    pub(super) counts: Counts,
}

impl Phases {
    /// The program is seen in a phase; `None`: the stack shows none. Returns the phase that it has left, if another
    /// one.
    pub(in crate::analyses) fn enter(&mut self, phase: Option<Phase>) -> Option<Phase> {
        let phase = phase.filter(|phase| self.now != Some(*phase))?;
        let counts = &mut self.counts;
        if self.now == Some(Phase::Optimizer) {
            counts.optimizer_end += 1;
        }
        match phase {
            Phase::Forward => counts.forward += 1,
            Phase::Backward => counts.backward += 1,
            Phase::Optimizer => counts.optimizer += 1,
            Phase::ZeroGrad => {}
        }
        self.now.replace(phase)
    }
}
