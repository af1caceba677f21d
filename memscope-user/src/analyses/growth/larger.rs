//! Do the blocks of a place become larger, always as many? A tensor that each request extends (`torch.cat`) is one block at a time.
//!
//! Judged like the number of blocks, by the lows of bytes, in parts of the highest of them. No block stays, so nothing shows whether the memory is
//! needed: the state of one long request looks the same. It is an increase, never a place that grows.

use super::{GROWTH_PARTS, verdict};

/// Parts of the highest low: [`verdict::MIN_BLOCKS`] of them are an eighth.
const UNITS: u128 = 64;
/// Fewer bytes more are not worth a line.
const MIN_BYTES: u64 = 1 << 20;

/// Least bytes in each part of the time, and bytes more since the start of the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Larger {
    pub(super) low_bytes: [u64; GROWTH_PARTS],
    pub(super) more_bytes: u64,
}

/// Whether bytes with these lows, `now_bytes` at the end, become ever more.
pub(super) fn find(lows: &[u64], now_bytes: u64) -> Option<Larger> {
    let low_bytes = verdict::parts(lows)?;
    let more_bytes = now_bytes.saturating_sub(low_bytes[1]);
    let highest = u128::from(lows.iter().copied().max()?.max(1));
    let in_units = |low: &u64| u64::try_from(u128::from(*low) * UNITS / highest).unwrap_or(0);
    let lows: Vec<u64> = lows.iter().map(in_units).collect();
    (more_bytes >= MIN_BYTES && verdict::grows(&lows)).then_some(Larger { low_bytes, more_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn lows(level: impl Fn(u64) -> u64) -> Vec<u64> {
        (0..48).map(level).collect()
    }

    /// A MiB more in each window: 8 of them in a part, 40 since the second one began at 8.
    #[test]
    fn an_extended_tensor_is_found() {
        let expected = Larger { low_bytes: [0, 8, 16, 24, 32, 40].map(|part| part * MIB), more_bytes: 40 * MIB };
        assert_eq!(find(&lows(|window| window * MIB), 48 * MIB), Some(expected));
        // Beside 200 MiB that stay the same: from 208 to 247.
        assert!(find(&lows(|window| (200 + window) * MIB), 248 * MIB).is_some());
    }

    #[test]
    fn what_stays_as_large_is_none() {
        assert_eq!(find(&lows(|_| 900 * MIB), 900 * MIB), None);
        assert_eq!(find(&lows(|window| window % 16 * MIB), 16 * MIB), None, "a batch that is sometimes larger");
        assert_eq!(find(&lows(|window| window.min(24) * MIB), 24 * MIB), None, "the largest request came");
        assert_eq!(find(&lows(|window| (1000 + window) * MIB), 1048 * MIB), None, "less than an eighth");
        assert_eq!(find(&lows(|window| window << 10), 48 << 10), None, "48 KiB");
        assert_eq!(find(&[1, 2, 3], 4 * MIB), None);
    }
}
