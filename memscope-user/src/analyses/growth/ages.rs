//! When the live blocks of a place were allocated, in little memory: a count for each of at most 64 windows, as those of
//! the levels.

use super::levels::Clock;

/// Live blocks by the window of their allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Ages {
    counts: Vec<u32>,
    doubled: u32,
}

impl Ages {
    /// A block that was allocated then comes.
    pub(super) fn comes(&mut self, alloc_time_ns: u64, clock: &Clock) {
        let window = self.window(alloc_time_ns, clock);
        if window >= self.counts.len() {
            self.counts.resize(window + 1, 0);
        }
        self.counts[window] = self.counts[window].saturating_add(1);
    }

    /// And goes.
    pub(super) fn goes(&mut self, alloc_time_ns: u64, clock: &Clock) {
        let window = self.window(alloc_time_ns, clock);
        if let Some(count) = self.counts.get_mut(window) {
            *count = count.saturating_sub(1);
        }
    }

    /// Age of the oldest block in nanoseconds, up to a window too high; `None` without blocks.
    pub(super) fn oldest_ns(&mut self, time_ns: u64, clock: &Clock) -> Option<u64> {
        self.catch_up(clock);
        let window = self.counts.iter().position(|count| *count > 0)? as u64;
        Some(clock.elapsed_ns(time_ns).saturating_sub(window * clock.window_ns()))
    }

    /// Blocks by age in quarters of the time, the youngest first.
    pub(super) fn quarters(&mut self, time_ns: u64, clock: &Clock) -> [u64; 4] {
        self.catch_up(clock);
        let elapsed_ns = clock.elapsed_ns(time_ns).max(1);
        let mut quarters = [0; 4];
        for (window, count) in (0_u64..).zip(&self.counts) {
            let middle_ns = window * clock.window_ns() + clock.window_ns() / 2;
            let age = u128::from(elapsed_ns.saturating_sub(middle_ns)) * 4 / u128::from(elapsed_ns);
            quarters[usize::try_from(age).unwrap_or(3).min(3)] += u64::from(*count);
        }
        quarters
    }

    /// Never beyond the windows of the clock: a block is not allocated later than now.
    fn window(&mut self, alloc_time_ns: u64, clock: &Clock) -> usize {
        self.catch_up(clock);
        let window = clock.elapsed_ns(alloc_time_ns) / clock.window_ns();
        usize::try_from(window.min(super::levels::WINDOWS)).unwrap_or(0)
    }

    fn catch_up(&mut self, clock: &Clock) {
        while self.doubled < clock.doubled() {
            let pairs =
                self.counts.chunks(2).map(|pair| pair.iter().fold(0_u32, |sum, count| sum.saturating_add(*count)));
            self.counts = pairs.collect();
            self.doubled += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// One block in each of 100 seconds; the first 30 go. Ages are right to a 32nd of the time, however often windows were
    /// doubled in between.
    #[test]
    fn ages_of_live_blocks() {
        let (mut clock, mut ages) = (Clock::new(SECOND), Ages::default());
        for second in 0..100 {
            clock.advance(SECOND + second * SECOND);
            ages.comes(SECOND + second * SECOND, &clock);
        }
        let now = 101 * SECOND;
        clock.advance(now);
        let near = |age: Option<u64>, expected: u64| {
            age.is_some_and(|age| age.abs_diff(expected * SECOND) <= 100 * SECOND / 32)
        };
        assert!(near(ages.oldest_ns(now, &clock), 100), "{:?}", ages.oldest_ns(now, &clock));
        let quarters = ages.quarters(now, &clock);
        assert!(
            quarters.iter().sum::<u64>() == 100 && quarters.iter().all(|count| count.abs_diff(25) <= 4),
            "{quarters:?}"
        );
        for second in 0..30 {
            ages.goes(SECOND + second * SECOND, &clock);
        }
        assert!(near(ages.oldest_ns(now, &clock), 70), "{:?}", ages.oldest_ns(now, &clock));
        let quarters = ages.quarters(now, &clock);
        assert!(quarters.iter().sum::<u64>() == 70 && quarters[3] == 0, "{quarters:?}");
        for second in 30..100 {
            ages.goes(SECOND + second * SECOND, &clock);
        }
        assert_eq!((ages.oldest_ns(now, &clock), ages.quarters(now, &clock)), (None, [0; 4]));
    }
}
