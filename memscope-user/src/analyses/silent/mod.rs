//! Of which processes is the memory unknown? Those attached to that make no call about device memory: a server that is
//! idle may be full.
//!
//! From its first call on the pool reports the bytes it has handed out, and *held at the end* includes the older ones.

mod finding;
mod text;

pub use self::finding::Silent;

use std::collections::BTreeSet;

use super::{Analysis, Finding};
use crate::model::{Event, EventKind, ProcessStart, RunEnd};

/// Most processes kept.
const MAX_PROCESSES: usize = 1024;

/// Keeps the processes that were attached to and have made no call.
#[derive(Debug, Default)]
pub struct SilentAnalysis {
    silent: BTreeSet<u32>,
    ended: Silent,
    left_out: u64,
}

impl Analysis for SilentAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => {
                if self.silent.len() + self.ended.pids.len() < MAX_PROCESSES {
                    self.silent.insert(event.pid);
                } else {
                    self.left_out += 1;
                }
            }
            EventKind::Alloc(_) | EventKind::Free(_) | EventKind::UnknownFree(_) => {
                self.silent.remove(&event.pid);
            }
            EventKind::ProcessEnd if self.silent.remove(&event.pid) => self.ended.pids.push(event.pid),
            _ => {}
        }
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        let mut found = std::mem::take(&mut self.ended);
        found.pids.extend(std::mem::take(&mut self.silent));
        found.pids.sort_unstable();
        found.left_out = self.left_out;
        if found.pids.is_empty() { Vec::new() } else { vec![Finding::Silent(found)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::backend::ascend::pools;
    use crate::model::Device;

    /// A process that was attached to is named, whether or not it ends; not one that makes a call, even a free of an
    /// older block, nor one traced from its start.
    #[test]
    fn who_makes_no_call_is_named() {
        let mut script = Script::new(1, Device::Npu(0));
        for (pid, attached) in [(1, true), (2, true), (3, true), (4, true), (5, false)] {
            let start = ProcessStart { parent: 0, attached, command: "serve".into(), pid_within: None };
            script.on(pid, Device::Npu(0)).event(EventKind::ProcessStart(start));
        }
        script.on(2, Device::Npu(0)).alloc(pools::PTA, 0x1000, 64);
        script.on(3, Device::Npu(0)).unknown_free(pools::PTA, 0x1000, true);
        script.on(4, Device::Npu(0)).process_end();
        let found = run(SilentAnalysis::default(), script.events(), &RunEnd::default());
        assert_eq!(found, [Finding::Silent(Silent { pids: vec![1, 4], left_out: 0 })]);
    }
}
