//! `CLOCK_MONOTONIC` to Unix time, so that times never run backwards within a run, unless that run lasts for months.

/// A clock that was set back by more is followed where that is wanted.
const STEP_NS: i128 = 1_000_000_000;

/// The distance between the two clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    offset_ns: i128,
    last_ns: u64,
    follows_back: bool,
}

impl Clock {
    /// Both clocks at the start.
    pub(super) fn new(mono_ns: u64, real_ns: u64) -> Self {
        Self { offset_ns: i128::from(real_ns) - i128::from(mono_ns), ..Self::default() }
    }

    /// Follows a wall clock that was set back, too. A machine that boots with a wrong one gets the right one later, and a run of months would be
    /// ahead of it to its end.
    pub(super) const fn following_back(self, follows_back: bool) -> Self {
        Self { follows_back, ..self }
    }

    /// A new pair of both clocks. A wall clock that was set back is ignored, unless that is followed: durations stay right, and rows in order.
    pub(super) fn sample(&mut self, mono_ns: u64, real_ns: u64) {
        let offset_ns = i128::from(real_ns) - i128::from(mono_ns);
        if self.follows_back && offset_ns + STEP_NS < self.offset_ns {
            (self.offset_ns, self.last_ns) = (offset_ns, 0);
        }
        self.offset_ns = self.offset_ns.max(offset_ns);
    }

    /// Unix time of a moment; never before an earlier result, but where the clock was set back and that is followed.
    pub(super) fn real(&mut self, mono_ns: u64) -> u64 {
        let real = (i128::from(mono_ns) + self.offset_ns).clamp(0, i128::from(u64::MAX)) as u64;
        self.last_ns = self.last_ns.max(real);
        self.last_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_is_added() {
        let mut clock = Clock::new(100, 1_000_100);
        assert_eq!([clock.real(100), clock.real(250)], [1_000_100, 1_000_250]);
    }

    /// A wall clock set forward is followed, one set back is not; both keep times in order.
    #[test]
    fn never_backwards() {
        let mut clock = Clock::new(0, 1000);
        clock.sample(10, 1030);
        assert_eq!(clock.real(10), 1030);
        clock.sample(20, 500);
        assert_eq!([clock.real(20), clock.real(15), clock.real(30)], [1040, 1040, 1050]);
    }

    /// Where it is wanted, a clock that was set back by more than a second is followed.
    #[test]
    fn set_back() {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let mut clock = Clock::new(0, 9 * HOUR_NS).following_back(true);
        assert_eq!(clock.real(5), 9 * HOUR_NS + 5);
        clock.sample(10, HOUR_NS + 10);
        assert_eq!([clock.real(11), clock.real(12)], [HOUR_NS + 11, HOUR_NS + 12]);
        // Less may be the clock's own correction.
        clock.sample(20, HOUR_NS - 500_000_000);
        assert_eq!(clock.real(20), HOUR_NS + 20);
        clock.sample(30, 2 * HOUR_NS);
        assert_eq!(clock.real(30), 2 * HOUR_NS);
    }

    /// Nonsense in a capture overflows nothing.
    #[test]
    fn extremes() {
        assert_eq!(Clock::new(u64::MAX, 0).real(5), 0);
        assert_eq!(Clock::new(0, u64::MAX).real(u64::MAX), u64::MAX);
    }
}
