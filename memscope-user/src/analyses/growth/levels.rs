//! The number of live blocks, or of their bytes, over time, in little memory: the lowest level of each of at most 64 windows.
//!
//! Whenever there are too many windows, their length doubles: so between 32 and 64 cover a run of any length.

use super::verdict;

/// Windows at most.
pub(super) const WINDOWS: u64 = 64;
/// The shortest window: 2^20 ns, about a millisecond.
const SHORTEST_SHIFT: u32 = 20;

/// The current window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start_ns: u64,
    /// Number of times the windows were doubled.
    doubled: u32,
    /// Number of the current window.
    window: u64,
}

impl Clock {
    pub(super) const fn new(start_ns: u64) -> Self {
        Self { start_ns, doubled: 0, window: 0 }
    }

    /// Advances to `time_ns`; an earlier time changes nothing.
    pub(super) fn advance(&mut self, time_ns: u64) {
        let elapsed = time_ns.saturating_sub(self.start_ns);
        while elapsed >> (SHORTEST_SHIFT + self.doubled) >= WINDOWS {
            self.doubled += 1;
            self.window /= 2;
        }
        self.window = self.window.max(elapsed >> (SHORTEST_SHIFT + self.doubled));
    }

    pub(super) const fn start_ns(&self) -> u64 {
        self.start_ns
    }

    pub(super) const fn elapsed_ns(&self, time_ns: u64) -> u64 {
        time_ns.saturating_sub(self.start_ns)
    }

    /// Number of times the windows were doubled.
    pub(super) const fn doubled(&self) -> u32 {
        self.doubled
    }

    /// Length of a window.
    pub(super) const fn window_ns(&self) -> u64 {
        1 << (SHORTEST_SHIFT + self.doubled)
    }
}

/// A level and its lows.
#[derive(Debug, Default)]
pub(super) struct Level {
    now: u64,
    /// Lowest in the current window.
    low: u64,
    /// Lowest level of each past window.
    lows: Vec<u64>,
    doubled: u32,
}

impl Level {
    pub(super) const fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn rise(&mut self, by: u64, clock: &Clock) {
        self.catch_up(clock);
        self.now = self.now.saturating_add(by);
    }

    pub(super) fn fall(&mut self, by: u64, clock: &Clock) {
        self.catch_up(clock);
        self.now = self.now.saturating_sub(by);
        self.low = self.low.min(self.now);
    }

    /// Lows of the past windows.
    pub(super) fn lows(&mut self, clock: &Clock) -> &[u64] {
        self.catch_up(clock);
        &self.lows
    }

    /// Rise since the start of a part of the time.
    pub(super) fn since(&mut self, part: usize, clock: &Clock) -> u64 {
        let then = verdict::parts(self.lows(clock)).map_or(0, |parts| parts[part]);
        self.now.saturating_sub(then)
    }

    /// No change since the last call: the windows in between have the level of then.
    fn catch_up(&mut self, clock: &Clock) {
        while self.doubled < clock.doubled {
            self.double();
        }
        while (self.lows.len() as u64) < clock.window {
            self.lows.push(self.low);
            self.low = self.now;
        }
    }

    fn double(&mut self) {
        let pairs = self.lows.len() / 2;
        if self.lows.len() % 2 == 1 {
            // The first half of the current window.
            self.low = self.low.min(self.lows.last().copied().unwrap_or(self.low));
        }
        for pair in 0..pairs {
            self.lows[pair] = self.lows[2 * pair].min(self.lows[2 * pair + 1]);
        }
        self.lows.truncate(pairs);
        self.doubled += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW_NS: u64 = 1 << SHORTEST_SHIFT;

    /// Up three, down one, in windows 0, 1 and 3.
    #[test]
    fn lows_of_windows() {
        let mut clock = Clock::new(1000);
        let mut level = Level::default();
        let mut at = |window: u64, up: bool, level: &mut Level| {
            clock.advance(1000 + window * WINDOW_NS + 5);
            if up {
                level.rise(1, &clock);
            } else {
                level.fall(1, &clock);
            }
            clock
        };
        at(0, true, &mut level);
        at(0, true, &mut level);
        at(1, true, &mut level);
        at(3, false, &mut level);
        let clock = at(4, true, &mut level);
        // Window 0 began with nothing, 1 with two, 2 was quiet at three, 3 went down to two.
        assert_eq!(level.lows(&clock), [0, 2, 3, 2]);
        assert_eq!(level.now(), 3);
    }

    proptest! {
        /// However often windows are doubled, their lows are those of levels kept one by one.
        #[test]
        fn doubling_loses_no_low(steps in prop::collection::vec((0..5 * WINDOW_NS, any::<bool>()), 1..300)) {
            let (mut time, mut clock, mut level) = (0, Clock::new(0), Level::default());
            let mut changes = vec![(0, 0_u64)];
            for (wait, up) in steps {
                time += wait;
                clock.advance(time);
                let last = changes.last().expect("one").1;
                if up { level.rise(1, &clock); } else { level.fall(1, &clock); }
                changes.push((time, if up { last + 1 } else { last.saturating_sub(1) }));
            }
            let length = WINDOW_NS << clock.doubled;
            let lows = level.lows(&clock).to_vec();
            prop_assert!(lows.len() < 64);
            prop_assert_eq!(lows.len() as u64, time / length);
            for (window, low) in lows.iter().enumerate() {
                let (from, to) = (window as u64 * length, (window as u64 + 1) * length);
                let before = changes.iter().rfind(|(at, _)| *at < from).map_or(0, |(_, level)| *level);
                let inside = changes.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, level)| *level);
                prop_assert_eq!(*low, inside.chain([before]).min().expect("one"), "window {} of {:?}", window, changes);
            }
        }
    }
}
