//! Numbers that look like chance, and are the same for the same seed.

use std::time::Duration;

/// A sequence of them: `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    /// The sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Waits for less than this time.
    pub fn wait_below_ms(&mut self, end_ms: u64) {
        std::thread::sleep(Duration::from_micros(self.below(end_ms * 1000)));
    }

    /// One of these.
    pub const fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let at = self.below(of.len() as u64) as usize;
        &of[at]
    }
}

#[cfg(test)]
mod tests {
    use super::Chance;

    /// The first numbers of seed 0, as published with the algorithm.
    #[test]
    fn the_sequence_is_known() {
        let mut chance = Chance::new(0);
        assert_eq!([chance.next(), chance.next()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }
}
