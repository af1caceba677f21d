//! Conditions that make a run fail: for continuous integration.

use super::{Check, Checked, Overview, ProcessOverview, Topic};

/// A condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// A place leaks.
    Leak,
    /// A place grows.
    Growth,
    /// A request failed.
    OutOfMemory,
    /// More bytes than these were in use on a device at the peak.
    Peak(u64),
}

/// A condition that holds of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The condition.
    pub gate: Gate,
    /// The process.
    pub pid: u32,
}

impl Overview {
    /// The conditions that hold, process by process.
    #[must_use]
    pub fn failed(&self, gates: &[Gate]) -> Vec<Failed> {
        let of = |process: &ProcessOverview| {
            let pid = process.pid;
            let holds = gates.iter().copied().filter(|gate| process.holds(*gate));
            holds.map(move |gate| Failed { gate, pid }).collect::<Vec<_>>()
        };
        self.processes.iter().flat_map(of).collect()
    }
}

impl ProcessOverview {
    fn holds(&self, gate: Gate) -> bool {
        let found = |topic| self.checks.contains(&Check { topic, checked: Checked::Found });
        match gate {
            Gate::Leak => found(Topic::Leaks),
            Gate::Growth => found(Topic::Growth),
            Gate::OutOfMemory => found(Topic::OutOfMemory),
            Gate::Peak(most_bytes) => self.peak_bytes > most_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::{
        HeldAnalysis, StepLeaksAnalysis,
        script::{Script, run},
    };
    use crate::model::RunEnd;

    /// The golden run leaks, does not grow, and has its peak at 132 MiB (128 MiB of weights and a block of each of four steps).
    #[test]
    fn gates_of_a_leaky_run() {
        let (script, end) = (Script::golden_leaky(), RunEnd::default());
        let mut found = run(StepLeaksAnalysis::default(), script.events(), &end);
        found.extend(run(HeldAnalysis::default(), script.events(), &end));
        let overview = Overview::new(&found, &end);
        let gates = [Gate::Leak, Gate::Growth, Gate::OutOfMemory, Gate::Peak(132 << 20), Gate::Peak((132 << 20) - 1)];
        let expected = [gates[0], gates[4]].map(|gate| Failed { gate, pid: 30057 });
        assert_eq!(overview.failed(&gates), expected);
        assert_eq!(Overview::new(&[], &end).failed(&gates), []);
    }
}
