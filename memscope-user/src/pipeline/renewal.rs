//! A trace that lives for months: call stacks that no live block has are given back, before their table is full.
//!
//! Live blocks move to a further run (`Kept`), and what comes from then on is kept there. Stacks of before stay until the next time, for
//! events that are on their way, and for listeners, which see by the stacks of later events that they have to move their own.

use super::{Pipeline, process::Process};
use crate::{
    hash::HashMap,
    model::{Kept, Stack, Stacks},
};

/// How full the table is when that is worth it.
const WORTH: f64 = 0.5;

/// When it is time.
#[derive(Debug)]
pub(super) struct Renewal {
    fill: f64,
    /// Owns the stacks of before.
    _before: Option<Kept>,
}

impl Renewal {
    pub(super) const fn new() -> Self {
        Self { fill: WORTH, _before: None }
    }
}

impl Pipeline {
    /// Gives stacks back, if it is time.
    pub(super) fn renew_stacks(&mut self) {
        let Self { renewal: Some(renewal), stacks, processes, .. } = self else { return };
        if stacks.kept.fill() < renewal.fill {
            return;
        }
        let Some(before) = stacks.renew() else { return };
        let mut known: HashMap<Stack, Stack> = HashMap::default();
        let mut moved = |stack: Stack| *known.entry(stack).or_insert_with(|| stack.moved_to(&stacks.kept));
        for blocks in processes.values_mut().map(Process::home_mut).map(|home| &mut home.blocks) {
            blocks.change_stacks(|stacks: Stacks| stacks.map(&mut moved));
        }
        // Where live blocks fill it, the next time is not at once.
        *renewal = Renewal { fill: WORTH.max(2.0 * stacks.kept.fill()), _before: Some(before) };
    }
}
