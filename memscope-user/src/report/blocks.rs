//! Blocks that have ended, and the choice of those that are kept.

use std::cmp::Reverse;

use crate::model::{Name, Stacks};

/// Runs with at most this many blocks of a layer keep every block.
pub(super) const EXACT: usize = 60_000;
/// Larger runs keep this many, those with the most bytes × time.
pub(super) const TOP: usize = 20_000;

/// A block from its allocation to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rec {
    /// Number of the block in its process.
    pub allocation_id: u64,
    /// Its start.
    pub addr: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes requested from the pool, where known.
    pub requested_bytes: Option<u64>,
    /// Allocation, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// End, nanoseconds since the Unix epoch; of a held block the end of the observation.
    pub end_ns: u64,
    /// Place of the allocation among the events of its layer.
    pub start_seq: u64,
    /// The same of its end.
    pub end_seq: u64,
    /// Nothing gave it back.
    pub held: bool,
    /// The owner, by its final name.
    pub owner: Option<Name>,
    /// Where it was allocated.
    pub stacks: Stacks,
    /// Thread that allocated it.
    pub tid: u32,
}

impl Rec {
    /// Bytes × nanoseconds.
    pub(super) fn area(&self) -> u128 {
        u128::from(self.size_bytes) * u128::from((self.end_ns - self.start_ns).max(1))
    }

    /// Largest first; equal ones by number, so that the choice is always the same.
    pub(super) fn rank(&self) -> (Reverse<u128>, u64, u64) {
        (Reverse(self.area()), self.allocation_id, self.start_seq)
    }
}

/// Leaves the `most` largest.
pub(super) fn keep_largest(recs: &mut Vec<Rec>, most: usize) {
    if recs.len() > most {
        if most > 0 {
            recs.select_nth_unstable_by_key(most - 1, Rec::rank);
        }
        recs.truncate(most);
    }
}

/// Individual blocks: all of a small run, the largest of a large one.
#[derive(Debug, Default)]
pub(super) struct Kept {
    recs: Vec<Rec>,
    cut: bool,
}

impl Kept {
    pub(super) fn add(&mut self, rec: Rec) {
        self.recs.push(rec);
        let room = if self.cut { 2 * TOP } else { EXACT };
        if self.recs.len() > room {
            self.cut = true;
            keep_largest(&mut self.recs, TOP);
        }
    }

    /// The blocks, and whether they are all of them.
    pub(super) fn close(mut self) -> (Vec<Rec>, bool) {
        if self.cut {
            keep_largest(&mut self.recs, TOP);
        }
        (self.recs, !self.cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn rec(allocation_id: u64, size_bytes: u64, life_ns: u64) -> Rec {
        Rec {
            allocation_id,
            addr: 0,
            size_bytes,
            requested_bytes: None,
            start_ns: 10,
            end_ns: 10 + life_ns,
            start_seq: allocation_id,
            end_seq: allocation_id,
            held: false,
            owner: None,
            stacks: Stacks::default(),
            tid: 0,
        }
    }

    /// By bytes × time: 3 × 100 before 20 × 10 before 1 × 199; of equals the older one.
    #[test]
    fn the_largest_by_bytes_and_time_stay() {
        let mut recs = vec![rec(1, 1, 199), rec(2, 20, 10), rec(3, 3, 100), rec(4, 20, 10)];
        keep_largest(&mut recs, 2);
        let mut numbers: Vec<u64> = recs.iter().map(|rec| rec.allocation_id).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [2, 3]);
    }

    /// Up to the bound all are kept; one more, and only the largest are.
    #[test]
    fn a_large_run_is_cut_to_its_largest_blocks() {
        let kept = |count: u64| {
            let mut kept = Kept::default();
            (0..count).for_each(|number| kept.add(rec(number, number + 1, 1)));
            kept.close()
        };
        let (recs, exact) = kept(EXACT as u64);
        assert_eq!((recs.len(), exact), (EXACT, true));
        let count = 3 * EXACT as u64;
        let (mut recs, exact) = kept(count);
        recs.sort_unstable_by_key(|rec| rec.allocation_id);
        assert_eq!((recs.len(), exact), (TOP, false));
        // Sizes rise with numbers: the last ones are the largest.
        assert_eq!((recs[0].allocation_id, recs[TOP - 1].allocation_id), (count - TOP as u64, count - 1));
    }
}
