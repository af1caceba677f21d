//! `CLOCK_MONOTONIC` to Unix time, so that times never run backwards within a run.

/// The distance between the two clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    offset_ns: i128,
    last_ns: u64,
}

impl Clock {
    /// Both clocks at the start.
    pub(super) fn new(mono_ns: u64, real_ns: u64) -> Self {
        Self { offset_ns: i128::from(real_ns) - i128::from(mono_ns), last_ns: 0 }
    }

    /// A new pair of both clocks. A wall clock that was set back is ignored: durations stay right, and rows in order.
    pub(super) fn sample(&mut self, mono_ns: u64, real_ns: u64) {
        self.offset_ns = self.offset_ns.max(i128::from(real_ns) - i128::from(mono_ns));
    }

    /// Unix time of a moment; never before an earlier result.
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

    /// Nonsense in a capture overflows nothing.
    #[test]
    fn extremes() {
        assert_eq!(Clock::new(u64::MAX, 0).real(5), 0);
        assert_eq!(Clock::new(0, u64::MAX).real(u64::MAX), u64::MAX);
    }
}
