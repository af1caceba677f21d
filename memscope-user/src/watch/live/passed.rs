//! Operators without a look, because the program had another handler for the signal, or ignored it. The kernel side
//! counts their sides with the times of the first and the last; their names are in records.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use memscope_common::WatchedProcess;

/// Most operators kept.
const MAX_OPERATORS: usize = 8192;
/// Between a record and the side that it is of.
const SLACK_NS: u64 = 100_000;

/// See above.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// The last operators, with their times.
    operators: VecDeque<(u64, Arc<str>)>,
    /// The count of programs that the process ran before.
    before: u64,
    /// The kernel side's count.
    now: WatchedProcess,
    /// Whether it has grown since the last reading.
    goes_on: bool,
    since_ns: u64,
}

impl Passed {
    /// An operator was called.
    pub(super) fn operator(&mut self, time_ns: u64, name: &str) {
        if self.operators.len() >= MAX_OPERATORS {
            // Of operators without a look the first are kept: they did the harm.
            if self.since_ns != 0 {
                return;
            }
            self.operators.pop_front();
        }
        self.operators.push_back((time_ns, name.into()));
    }

    /// Takes the kernel side's count.
    pub(super) fn took(&mut self, process: &WatchedProcess) {
        self.goes_on = process.unsent > self.now.unsent;
        self.now = *process;
        if self.since_ns == 0 {
            self.since_ns = process.unsent_since_ns;
        }
    }

    /// Its count starts at 0 again.
    pub(super) const fn another_program(&mut self) {
        self.before += self.now.unsent;
        self.now.unsent = 0;
        self.goes_on = false;
    }

    /// Whether the count was growing at the last reading.
    pub(super) const fn is_going_on(&self) -> bool {
        self.goes_on
    }

    /// Sides of operators, and the time of the first.
    pub(super) const fn sides(&self) -> (u64, u64) {
        (self.before + self.now.unsent, self.since_ns)
    }

    /// The operators, each once, in the order of their first missing look, and the number of calls.
    pub(super) fn operators(&self) -> Vec<(Arc<str>, u64)> {
        let mut found: Vec<(Arc<str>, u64)> = Vec::new();
        let mut places: HashMap<Arc<str>, usize> = HashMap::new();
        if self.since_ns == 0 {
            return found;
        }
        let within = self.since_ns.saturating_sub(SLACK_NS)..=self.now.unsent_until_ns;
        for (_, name) in self.operators.iter().filter(|(time_ns, _)| within.contains(time_ns)) {
            let place = *places.entry(Arc::clone(name)).or_insert_with(|| {
                found.push((Arc::clone(name), 0));
                found.len() - 1
            });
            found[place].1 += 1;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators called while no signal was sent are named, each once, and no others.
    #[test]
    fn operators_that_were_not_looked_at() {
        let mut passed = Passed::default();
        for (time_ns, name) in
            [(1_000_000, "a"), (2_000_000, "b"), (3_000_000, "c"), (3_500_000, "b"), (5_000_000, "d")]
        {
            passed.operator(time_ns, name);
        }
        assert_eq!(passed.operators(), []);
        let counted = WatchedProcess {
            unsent: 6,
            unsent_since_ns: 2_000_100,
            unsent_until_ns: 4_000_000,
            ..WatchedProcess::default()
        };
        passed.took(&counted);
        assert!(passed.is_going_on());
        assert_eq!(passed.sides(), (6, 2_000_100));
        assert_eq!(passed.operators(), [("b".into(), 2), ("c".into(), 1)]);
        passed.took(&counted);
        assert!(!passed.is_going_on());
        passed.another_program();
        passed.took(&WatchedProcess { unsent: 1, ..counted });
        assert_eq!(passed.sides().0, 7);
    }
}
