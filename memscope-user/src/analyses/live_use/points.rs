//! A figure in the last minute.

use std::collections::VecDeque;

use crate::analyses::sample::Change;

/// Points are at least this far apart, so there are never more than 14.
const APART_NS: u64 = 5_000_000_000;
/// Changes are shown over this time.
const SPAN_NS: u64 = 60_000_000_000;

/// The figure at some moments of the last minute.
#[derive(Clone, Debug, Default)]
pub(super) struct Points(VecDeque<(u64, u64)>);

impl Points {
    /// The figure at this time; gives how it has changed. What is new has changed by all that it has.
    pub(super) fn take(&mut self, time_ns: u64, bytes: u64) -> Option<Change> {
        while self.0.get(1).is_some_and(|(time, _)| time_ns.saturating_sub(*time) >= SPAN_NS) {
            self.0.pop_front();
        }
        let change = self.0.front().map(|&(time, before)| Change {
            span_ns: time_ns.saturating_sub(time),
            change_bytes: i64::try_from(i128::from(bytes) - i128::from(before)).unwrap_or(i64::MAX),
        });
        if self.0.back().is_none_or(|(time, _)| time_ns.saturating_sub(*time) >= APART_NS) {
            self.0.push_back((time_ns, bytes));
        }
        change
    }

    /// The figures, the oldest first.
    pub(super) fn bytes(&self) -> Vec<u64> {
        self.0.iter().map(|(_, bytes)| *bytes).collect()
    }
}
