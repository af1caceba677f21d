//! Does a level grow steadily, or is it a cache that fills, a load that fluctuates, a start that is over?
//!
//! Judged by the lows of equal parts of the time: memory that is given back at some time is not in a low. The first
//! part, the start of the program, is left out. All later ones have to rise, up to the end of the last one, and not
//! markedly slower in the second half than in the first, as the filling of a cache does. Where so few blocks stay that
//! one part may have none by chance, one may stay level.
//!
//! Lows alone do not show that blocks stay: a queue that is served ever more slowly has rising lows, and no old block.
//! So blocks have to stay, too ([`stay`]). And a place that keeps few blocks, between many that are freed, shows in its
//! old blocks before it does in its lows ([`accumulates`]).

use super::GROWTH_PARTS;

/// Fewest windows for a verdict.
pub(super) const MIN_WINDOWS: usize = 24;
/// Fewest blocks that have to be gained, the first part left out.
pub const MIN_BLOCKS: u64 = 8;
/// Fewer blocks than that may be missing from one part by chance.
const FEW_BLOCKS: u64 = 40;
/// From this rise in blocks per part on, each half of the last part has to rise, too.
const STEADY_RISE: u64 = 12;
/// Smallest share of consecutive lows without a fall.
const MIN_SHARE_OF_RISES: f64 = 0.7;
/// A second half that grows by less than this part of the first half is slower.
const SLOWER: f64 = 0.6;
/// Few blocks are weak evidence: the test for slowing growth is stricter.
const MOST: f64 = 0.85;
/// A rise of at least this part of an earlier one is as fast, steps apart.
const STEADY: f64 = 0.75;
/// Fewest blocks for a steady rise between steps.
const FEW_STEADY: u64 = 8;
/// Standard deviations of a difference of counts that may be chance.
const CHANCE: f64 = 2.5;

/// The lows of the parts; `None` if there are too few windows.
pub(super) fn parts(lows: &[u64]) -> Option<[u64; GROWTH_PARTS]> {
    if lows.len() < MIN_WINDOWS {
        return None;
    }
    let low = |part: usize| {
        let (from, to) = (lows.len() * part / GROWTH_PARTS, lows.len() * (part + 1) / GROWTH_PARTS);
        lows[from..to].iter().copied().min().unwrap_or(0)
    };
    Some(std::array::from_fn(low))
}

/// What shows that a place grows: two tests, and by how many blocks it has increased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Evidence {
    /// Its lows rise, and its blocks stay.
    pub(super) stays: bool,
    /// Blocks of each quarter stay.
    pub(super) accumulates: bool,
    /// Blocks since the start of the second part.
    pub(super) increase: u64,
}

/// Weighs a level with these lows, of `low_blocks` in their parts, at `now`, and the ages of its blocks.
pub(super) fn weigh(lows: &[u64], low_blocks: [u64; GROWTH_PARTS], now: u64, ages: [u64; 4]) -> Evidence {
    let increases = [1, 4].map(|part: usize| now.saturating_sub(low_blocks[part]));
    let low_rise = low_blocks[GROWTH_PARTS - 1].saturating_sub(low_blocks[1]);
    Evidence {
        stays: grows(lows) && stay(ages, low_blocks),
        accumulates: accumulates(ages, increases, low_rise),
        increase: increases[0],
    }
}

/// Whether an increase may be more than what the program works with at the end: it has blocks older than a quarter of the time, or many. `ages` as
/// for [`stay`].
pub(super) fn is_increase(increase: u64, ages: [u64; 4]) -> bool {
    increase > ages[0] || increase >= MIN_BLOCKS
}

/// Whether blocks that came since the start of two parts of the time may replace older ones, by the frees of those
/// since, as in a cache that was full before the trace.
pub(super) fn replaces(older_frees: [u64; 2], rises: [u64; 2]) -> bool {
    older_frees.iter().zip(rises).all(|(older_frees, rise)| 2 * older_frees >= rise.max(1))
}

/// Whether a level with these lows keeps growing.
#[expect(clippy::cast_precision_loss, reason = "counts of blocks are far below 2^52")]
pub(super) fn grows(lows: &[u64]) -> bool {
    let Some(parts) = parts(lows) else { return false };
    let rise = |from: usize| parts[from + 1].saturating_sub(parts[from]);
    let grown = parts[GROWTH_PARTS - 1].saturating_sub(parts[1]);
    let idle = (1..GROWTH_PARTS - 1).filter(|part| rise(*part) == 0).count();
    let last_part = &lows[lows.len() * (GROWTH_PARTS - 1) / GROWTH_PARTS..];
    let (early, late) = last_part.split_at(last_part.len() / 2);
    let last_rise = late.iter().min() > early.iter().min();
    let ends = rise(4) == 0 || (rise(4) >= STEADY_RISE && !last_rise);
    if grown < MIN_BLOCKS || idle > usize::from(grown < FEW_BLOCKS) || ends {
        return false;
    }
    let rises = [0, 1, 2, 3, 4].map(|part| rise(part) as f64);
    let tail = &lows[lows.len() / GROWTH_PARTS..];
    let slower = is_slower(rises[1] + rises[2], rises[3] + rises[4]) && !is_steady_below_steps(tail);
    let rises = tail.windows(2).filter(|pair| pair[0] <= pair[1]).count();
    let share = rises as f64 / (tail.len() - 1).max(1) as f64;
    !slower && share >= MIN_SHARE_OF_RISES
}

/// Markedly, and not by chance.
fn is_slower(first: f64, second: f64) -> bool {
    second < SLOWER * first && first - second > CHANCE * (first + second).sqrt()
}

/// Whether a level rises as fast in the second half as in the first, steps left out: requests that fail in an outage
/// leave blocks behind at once, above those that fail now and then. So in each half the third of the windows with the
/// largest rise is ignored.
#[expect(clippy::cast_precision_loss, reason = "counts of blocks are far below 2^52")]
fn is_steady_below_steps(lows: &[u64]) -> bool {
    let mut rises: Vec<u64> = lows.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let middle = rises.len() / 2;
    let (first, second) = rises.split_at_mut(middle);
    let [first, second] = [first, second].map(|half| {
        half.sort_unstable();
        half.iter().take(half.len() * 2 / 3).sum::<u64>()
    });
    second >= FEW_STEADY && second as f64 >= STEADY * first as f64
}

/// Whether the blocks of such a rise are still there: of those that came in the first half, half live at the end.
/// `ages`: live blocks at the end by quarter of the time, the youngest first; all 0 where the end was not seen.
pub(super) fn stay(ages: [u64; 4], parts: [u64; GROWTH_PARTS]) -> bool {
    let older: u64 = ages[1..].iter().sum();
    ages[0] + older == 0 || 2 * older >= parts[GROWTH_PARTS / 2].saturating_sub(parts[1])
}

/// Whether blocks of each of the last three quarters stayed, the youngest not markedly fewer, while the level rose
/// (`increase`, since the start of the second part, and of the fifth) by the blocks that stayed: this excludes a cache
/// that replaces its blocks, and one that fills ever slower. Lows that hardly rose (`low_rise`) are those of work in
/// flight, part of which a stall has made old.
#[expect(clippy::cast_precision_loss, reason = "counts of blocks are far below 2^52")]
pub(super) fn accumulates(ages: [u64; 4], [increase, last_increase]: [u64; 2], low_rise: u64) -> bool {
    let [youngest, young, old, _] = ages;
    let stayed = youngest + young + old;
    // Two fifths of the mean, and more than one.
    let enough = |count: u64| count >= 2 && 15 * count >= 2 * stayed;
    let (first, last) = (old as f64, youngest as f64);
    let slower = last < MOST * first && first - last > (first + last).sqrt();
    // The last third has four thirds of the youngest quarter's blocks; half of that at least.
    let rises = 3 * last_increase >= 2 * youngest;
    let rises = rises && 4 * low_rise >= stayed;
    stayed >= MIN_BLOCKS && rises && 2 * increase >= stayed && [youngest, young, old].into_iter().all(enough) && !slower
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lows(level: impl Fn(u64) -> u64) -> Vec<u64> {
        (0..48).map(level).collect()
    }

    #[test]
    fn steady_growth_is_growth() {
        assert!(grows(&lows(|window| window)));
        assert!(grows(&lows(|window| 1000 + window / 3)));
        // Three in eight windows are one lower than the one before.
        assert!(grows(&lows(|window| 10 * (window / 2) + (window % 2) + 5)));
    }

    /// Ten blocks in each part, and 200 at once in the third of them: requests that failed together left blocks behind.
    /// After a cache that fills ever slower, or a night with few requests, the pattern differs.
    #[test]
    fn steps_above_a_steady_rise() {
        assert!(grows(&lows(|window| window * 10 / 8 + 200 * u64::from(window >= 26))));
        assert!(grows(&lows(|window| window * 10 / 8 + 200 * u64::from(window >= 20))));
        assert!(grows(&lows(|window| window * 10 / 8 + 100 * u64::from(window >= 10))));
        // Of 48 windows half of a cache was filled in a quarter, and its last entries come ever more slowly.
        let filling = |rate: f64| lows(|window| (1000.0 * (1.0 - (-rate * window as f64 / 48.0).exp())) as u64);
        assert!(!is_steady_below_steps(&filling(3.0)[8..]) && !is_steady_below_steps(&filling(2.0)[8..]));
        let by_log = lows(|window| (300.0 * (1.0 + window as f64).ln()) as u64);
        assert!(!is_steady_below_steps(&by_log[8..]));
        // A deployed version, and its cache.
        assert!(!is_steady_below_steps(&lows(|window| 600 * u64::from(window > 12) + 60 * window.min(13))[8..]));
    }

    /// Rising lows of blocks that do not stay are a queue.
    #[test]
    fn growth_needs_survivors() {
        let parts = [0, 8, 16, 24, 32, 40];
        assert!(!stay([52, 0, 0, 0], parts));
        assert!(!stay([45, 7, 0, 0], parts));
        assert!(stay([12, 12, 12, 12], parts));
        assert!(stay([0; 4], parts), "the end was not seen");
    }

    /// Few blocks that stay show in their ages: 3 of each quarter, not 2 of one; a cache has no increase, or ever fewer.
    #[test]
    fn few_blocks_that_stay() {
        assert!(accumulates([3, 3, 3, 4], [9, 4], 6));
        assert!(!accumulates([3, 3, 1, 40], [7, 4], 6));
        assert!(!accumulates([20, 20, 20, 60], [4, 4], 4), "replaced");
        assert!(!accumulates([10, 40, 90, 300], [140, 13], 130), "fills ever slower");
        assert!(!accumulates([20, 28, 36, 40], [84, 26], 70), "fills slower");
        // Full after three quarters of the time, then first in, first out: 22 of 100 after a sixth, 89 after two thirds.
        assert!(!accumulates([33, 33, 33, 0], [78, 11], 70), "full shortly before the end");
        assert!(!accumulates([3, 3, 3, 4], [12, 9], 1), "in flight when a stall began");
        assert!(!accumulates([60, 1, 1, 0], [62, 61], 50), "a burst at the end");
    }

    #[test]
    fn parts_are_lows() {
        assert_eq!(parts(&lows(|window| window)), Some([0, 8, 16, 24, 32, 40]));
        assert_eq!(parts(&lows(|window| 48 - window)), Some([41, 33, 25, 17, 9, 1]));
        assert_eq!(parts(&[1; 23]), None);
    }

    #[test]
    fn what_ends_or_returns_is_none() {
        assert!(!grows(&lows(|_| 100)), "constant");
        assert!(!grows(&lows(|window| 2 * window.min(40))), "a cache that was full shortly before the end");
        assert!(!grows(&lows(|window| (window % 16) * 100)), "a load that comes and goes");
        assert!(!grows(&lows(|window| u64::from(window > 4) * 100)), "a start");
        assert!(!grows(&lows(|window| window / 8)), "five blocks are too few");
        let calm_then_stall = |window: u64| if window < 40 { 2 + window / 8 % 2 * 2 } else { 9 };
        assert!(!grows(&lows(calm_then_stall)), "rises that are falls before");
        // 1000 · (1 − e^(−3t)): a cache of random keys, full at the end to 95 %.
        let filling = |window: u64| (1000.0 * (1.0 - (-3.0 * window as f64 / 48.0).exp())) as u64;
        assert!(!grows(&lows(filling)), "a cache that fills ever slower");
        assert!(!grows(&(0..23).collect::<Vec<_>>()), "too short to say");
    }
}
