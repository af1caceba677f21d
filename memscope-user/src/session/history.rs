//! Earlier values of a figure: for rates and recent changes.

use std::time::Duration;

use crate::analyses::sample::{Change, Past};

/// One figure in the last minute.
#[derive(Debug, Default)]
pub(super) struct History {
    /// 61 moments, one more at times.
    past: Past<1>,
    /// Allocations and frees at the last sample.
    counts: Option<(u64, u64)>,
}

impl History {
    /// The figure at this time of the trace; returns its change. Times never run backwards.
    pub(super) fn bytes(&mut self, now: Duration, bytes: u64) -> Option<Change> {
        self.past.take(now.as_nanos() as u64, bytes)
    }

    /// Allocations and frees up to now; returns the numbers since the last sample. In the first one all of them are.
    pub(super) fn counts(&mut self, allocations: u64, frees: u64) -> (u64, u64) {
        let (before, after) = (self.counts.replace((allocations, frees)).unwrap_or_default(), (allocations, frees));
        (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const fn change(seconds: u64, change_bytes: i64) -> Change {
        Change { span_ns: seconds * 1_000_000_000, change_bytes }
    }

    /// From the first point on, and after a minute from the point a minute ago.
    #[test]
    fn changes_of_the_last_minute() {
        let mut history = History::default();
        assert_eq!(history.bytes(at(10), 100), None);
        assert_eq!(history.bytes(at(11), 70), Some(change(1, -30)));
        assert_eq!(history.bytes(at(70), 400), Some(change(60, 300)));
        // Those of 10 s are more than a minute old; 11 s is a minute before 71 s.
        assert_eq!(history.bytes(at(71), 400), Some(change(60, 330)));
        assert_eq!(history.bytes(at(1000), 0), Some(change(929, -400)));
        assert_eq!(history.bytes(at(1001), u64::MAX), Some(change(930, i64::MAX)));
    }

    /// However often it is asked, a minute is kept in few points.
    #[test]
    fn few_points_are_kept() {
        let mut history = History::default();
        for tenths in 0..100_000 {
            history.bytes(Duration::from_millis(100 * tenths), tenths);
        }
        let points = history.past.bytes().len();
        assert!(points <= 62, "{points}");
        // 9999.9 s: the point at 9939 s is the last one that is a minute old.
        assert_eq!(history.bytes(at(10_000), 100_000).map(|change| change.change_bytes), Some(600));
    }

    #[test]
    fn counts_since_the_last_sample() {
        let mut history = History::default();
        assert_eq!(history.counts(5, 2), (5, 2));
        assert_eq!(history.counts(8, 2), (3, 0));
        // A free that failed after all is taken back.
        assert_eq!(history.counts(8, 1), (0, 0));
    }
}
