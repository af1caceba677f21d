//! How long to wait before the next attempt. Pure.

use std::time::Duration;

/// Before the second attempt.
const FIRST: Duration = Duration::from_secs(1);
/// Longest time, also where a receiver asks for more.
pub(super) const LONGEST: Duration = Duration::from_secs(300);

/// Doubles the time with each failure in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// A failure. `random`: any number, so that nodes which failed together come back one by one: between half and all of the time.
    pub(super) fn next(&mut self, asked: Option<Duration>, random: u64) -> Duration {
        let most = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let half = most / 2;
        let spread = u64::try_from(half.as_millis()).unwrap_or_default() + 1;
        let own = half + Duration::from_millis(random % spread);
        own.max(asked.unwrap_or_default()).min(LONGEST)
    }

    /// How it goes is well: the next failure is the first.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Nothing has failed since the last success.
    pub(super) const fn is_calm(&self) -> bool {
        self.failures == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without chance: half of 1, 2, 4 … s, up to half of five minutes. With the largest number all of it.
    #[test]
    fn times_double_up_to_a_bound() {
        let times = |random| {
            let mut backoff = Backoff::default();
            let times: Vec<u64> = (0..12).map(|_| backoff.next(None, random).as_millis() as u64).collect();
            times
        };
        assert_eq!(times(0)[..9], [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000]);
        assert_eq!(times(0)[9..], [150_000; 3]);
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next(None, 500), Duration::from_secs(1));
        for random in 0..10_000 {
            let mut backoff = Backoff { failures: 3 };
            let time = backoff.next(None, random);
            assert!((Duration::from_secs(4)..=Duration::from_secs(8)).contains(&time), "{time:?}");
        }
    }

    /// What the receiver asks for is the least time, up to the bound.
    #[test]
    fn receivers_ask() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next(Some(Duration::from_secs(30)), 0), Duration::from_secs(30));
        assert_eq!(backoff.next(Some(Duration::from_hours(24)), 0), LONGEST);
        assert_eq!(backoff.next(Some(Duration::ZERO), 0), Duration::from_secs(2));
        backoff.reset();
        assert_eq!((backoff.is_calm(), backoff.next(None, 0)), (true, Duration::from_millis(500)));
    }
}
