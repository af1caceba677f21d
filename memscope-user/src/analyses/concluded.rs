//! Findings about processes that have ended.
//!
//! A trace may outlive any number of programs, so it cannot keep all of them: it keeps those with the most memory, and
//! counts the others.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;

use super::Finding;
use super::answer::Registered;

/// Findings kept of each analysis; at times up to twice as many.
const KEPT: usize = 512;

/// Findings of a kind that were dropped: about ended processes with less memory than the kept ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct LeftOut {
    /// As the field `finding` names them.
    pub kind: &'static str,
    /// Their number.
    pub count: u64,
}

/// Findings, in no order.
#[derive(Debug)]
pub(super) struct Concluded<T> {
    found: Vec<T>,
    left_out: u64,
}

impl<T> Default for Concluded<T> {
    fn default() -> Self {
        Self { found: Vec::new(), left_out: 0 }
    }
}

impl<T: Registered> Concluded<T> {
    /// Adds one.
    pub(super) fn add(&mut self, finding: T) {
        self.found.push(finding);
        if self.found.len() >= 2 * KEPT {
            self.found.select_nth_unstable_by_key(KEPT, |finding| Reverse(finding.weight_bytes()));
            self.left_out += (self.found.len() - KEPT) as u64;
            self.found.truncate(KEPT);
        }
    }

    /// Adds several.
    pub(super) fn extend(&mut self, findings: impl IntoIterator<Item = T>) {
        findings.into_iter().for_each(|finding| self.add(finding));
    }

    /// Takes the findings out, ordered by `key`, and after them the number of dropped ones.
    pub(super) fn take<K: Ord>(&mut self, key: impl Fn(&T) -> K, finding: impl Fn(T) -> Finding) -> Vec<Finding> {
        let Self { mut found, left_out } = std::mem::take(self);
        found.sort_by_key(key);
        let left_out = (left_out > 0).then_some(Finding::LeftOut(LeftOut { kind: T::KIND, count: left_out }));
        found.into_iter().map(finding).chain(left_out).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::{Analysis, HeldAnalysis, LedgerAnalysis, script::Script};
    use crate::backend::ascend::pools;
    use crate::model::{Device, FreeCause, RunEnd};

    /// Ends this many processes, the n-th with n bytes; returns the findings about them.
    fn found(analysis: &mut dyn Analysis, processes: u32) -> Vec<Finding> {
        for pid in 1..=processes {
            let mut script = Script::new(pid, Device::Npu(0));
            script
                .alloc(pools::HAL, 0x1000, u64::from(pid))
                .end(FreeCause::ProcessEnd, pools::HAL, 0x1000)
                .process_end();
            script.events().iter().for_each(|event| analysis.observe(event));
        }
        analysis.finish(&RunEnd::default())
    }

    /// The findings with the most memory are kept, and the others are counted: none is lost.
    #[test]
    fn many_processes() {
        let mut found = found(&mut HeldAnalysis::default(), 10_000);
        let Some(Finding::LeftOut(LeftOut { kind: "held", count })) = found.pop() else { panic!("none is left out") };
        let pids: Vec<u32> = found
            .iter()
            .map(|finding| if let Finding::Held(held) = finding { held.pid } else { panic!("{finding:?}") })
            .collect();
        assert_eq!(pids.len() as u64 + count, 10_000);
        assert!(pids.len() < 2 * KEPT && pids.is_sorted(), "{}", pids.len());
        assert!((10_001 - KEPT as u32..=10_000).all(|pid| pids.binary_search(&pid).is_ok()));
    }

    #[test]
    fn few_processes() {
        for mut analysis in
            [Box::new(HeldAnalysis::default()) as Box<dyn Analysis>, Box::new(LedgerAnalysis::default())]
        {
            let found = found(&mut *analysis, 2 * KEPT as u32 - 1);
            assert_eq!(found.len(), 2 * KEPT - 1);
        }
    }
}
