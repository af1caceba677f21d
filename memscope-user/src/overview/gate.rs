//! Conditions that make a run fail: for continuous integration.

use super::{Check, Checked, Overview, ProcessOverview, Topic};

/// Checks that a condition can be about.
const TOPICS: [Topic; 3] = [Topic::OutOfMemory, Topic::Leaks, Topic::Growth];

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

/// What the conditions do not show of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// The process.
    pub pid: u32,
    /// Found without a condition of it, or not judged although there is one.
    pub check: Check,
}

impl Gate {
    const fn topic(self) -> Option<Topic> {
        match self {
            Self::Leak => Some(Topic::Leaks),
            Self::Growth => Some(Topic::Growth),
            Self::OutOfMemory => Some(Topic::OutOfMemory),
            Self::Peak(_) => None,
        }
    }
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

    /// What was found without a condition of it, and the conditions that were not judged, process by process: success does not speak of
    /// them.
    #[must_use]
    pub fn unseen_by(&self, gates: &[Gate]) -> Vec<Unseen> {
        let is_asked = |topic: Topic| gates.iter().any(|gate| gate.topic() == Some(topic));
        let is_unseen = |check: &&Check| match check.checked {
            Checked::Found => TOPICS.contains(&check.topic) && !is_asked(check.topic),
            Checked::NotJudged(_) => is_asked(check.topic),
            Checked::Undecided | Checked::NotFound => false,
        };
        let of = |process: &ProcessOverview| {
            let pid = process.pid;
            let unseen = process.checks.iter().filter(is_unseen);
            unseen.map(|check| Unseen { pid, check: *check }).collect::<Vec<_>>()
        };
        self.processes.iter().flat_map(of).collect()
    }
}

impl ProcessOverview {
    fn holds(&self, gate: Gate) -> bool {
        let found = |topic| self.checks.contains(&Check { topic, checked: Checked::Found });
        match gate {
            Gate::Peak(most_bytes) => self.peak_bytes > most_bytes,
            gate => gate.topic().is_some_and(found),
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

    fn golden_leaky() -> Overview {
        let (script, end) = (Script::golden_leaky(), RunEnd::default());
        let mut found = run(StepLeaksAnalysis::default(), script.events(), &end);
        found.extend(run(HeldAnalysis::default(), script.events(), &end));
        Overview::new(&found, &end)
    }

    /// The golden run leaks, does not grow, and has its peak at 132 MiB (128 MiB of weights and a block of each of four steps).
    #[test]
    fn gates_of_a_leaky_run() {
        let overview = golden_leaky();
        let gates = [Gate::Leak, Gate::Growth, Gate::OutOfMemory, Gate::Peak(132 << 20), Gate::Peak((132 << 20) - 1)];
        let expected = [gates[0], gates[4]].map(|gate| Failed { gate, pid: 30057 });
        assert_eq!(overview.failed(&gates), expected);
        assert_eq!(Overview::new(&[], &RunEnd::default()).failed(&gates), []);
    }

    /// A run of 1.5 s leaks and is too short to judge growth: success of another condition hides neither.
    #[test]
    fn other_findings_are_named() {
        let overview = golden_leaky();
        let topics = |gates: &[Gate]| -> Vec<(Topic, bool)> {
            let unseen = overview.unseen_by(gates);
            unseen.iter().map(|unseen| (unseen.check.topic, unseen.check.checked == Checked::Found)).collect()
        };
        assert_eq!(topics(&[Gate::Growth]), [(Topic::Leaks, true), (Topic::Growth, false)]);
        assert_eq!(topics(&[Gate::Leak, Gate::OutOfMemory]), []);
        assert_eq!(topics(&[Gate::Peak(1)]), [(Topic::Leaks, true)]);
    }
}
