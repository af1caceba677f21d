//! A figure in the last minute.

use std::collections::VecDeque;

use super::Change;

/// Changes are shown over this time.
const SPAN_NS: u64 = 60_000_000_000;

/// The figure at moments of the last minute that are at least `APART_S` seconds apart, so that there are few.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past<const APART_S: u64>(VecDeque<(u64, u64)>);

impl<const APART_S: u64> Past<APART_S> {
    /// The figure at this time; returns its change. Times never run backwards.
    pub(crate) fn take(&mut self, time_ns: u64, bytes: u64) -> Option<Change> {
        // The oldest that stays is as old as the span, or a little older.
        while self.0.get(1).is_some_and(|(time, _)| time_ns.saturating_sub(*time) >= SPAN_NS) {
            self.0.pop_front();
        }
        let change = self.0.front().map(|&(time, before)| Change {
            span_ns: time_ns.saturating_sub(time),
            change_bytes: i64::try_from(i128::from(bytes) - i128::from(before)).unwrap_or(i64::MAX),
        });
        if self.0.back().is_none_or(|(time, _)| time_ns.saturating_sub(*time) >= APART_S * 1_000_000_000) {
            self.0.push_back((time_ns, bytes));
        }
        change
    }

    /// The figures, the oldest first.
    pub(crate) fn bytes(&self) -> impl ExactSizeIterator<Item = u64> {
        self.0.iter().map(|(_, bytes)| *bytes)
    }
}
