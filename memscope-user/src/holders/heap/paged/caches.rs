//! jemalloc's caches of threads (`tcache_t`): freed pieces that the slabs count as in use, with their old contents.
//!
//! A cache has a bin for each size class, and each bin a stack of pieces; the stacks of one cache are a block of its
//! own. Bins lie beside each other and their stacks as well, in the same order: that is how they are recognised.
//!
//! ```text
//! up to 5.2: u32 low water, u32 count, u64 requests, pointer behind the stack (bin)
//! from 5.3:  pointer to the last piece, u64 requests, u16 low water, u16 full, u16 end of the stack
//! ```

use std::ops::Range;

use super::{Extent, extent_of};
use crate::{
    hash::HashSet,
    holders::{memory::Memory, pointers::Pointers},
};

const BIN_BYTES: u64 = 24;
/// Fewest small bins of a cache, and bins that are looked at beside these.
const MIN_BINS: usize = 20;
const MIN_MORE_BINS: usize = 3;
/// Bytes of all stacks of a cache.
const STACKS_BYTES: std::ops::RangeInclusive<u64> = 8 << 10..=2 << 20;
/// Most pieces in one stack: its size has 16 bits.
const MAX_CACHED: u64 = 1 << 13;
/// Most pointers read to one block, most blocks looked at, most caches.
const MAX_POINTERS: usize = 4096;
const MAX_BLOCKS: usize = 1 << 17;
const MAX_CACHES: usize = 8192;

/// Bins beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bins {
    /// Where the first one has its pointer.
    place: u64,
    count: usize,
}

/// Caches of all threads.
#[derive(Debug, Default)]
pub(super) struct Caches {
    are_new: bool,
    bins: Vec<Bins>,
    /// Blocks with stacks: what was taken from these is still in them.
    stacks: Vec<u64>,
}

impl Caches {
    /// `are_new`: as from 5.3 on.
    pub(super) fn find(memory: &Memory<'_>, pointers: &Pointers, extents: &[Extent], are_new: bool) -> Self {
        let mut caches = Self { are_new, ..Self::default() };
        // All threads have stacks of one size.
        let mut size = None;
        let fitting = extents.iter().filter(|extent| !extent.is_free && STACKS_BYTES.contains(&extent.block_bytes()));
        // With pages of 64 KiB they are pieces of slabs.
        let blocks = fitting.flat_map(|extent| {
            let bytes = extent.block_bytes();
            (0..extent.pieces()).map(move |at| extent.first + at * bytes).map(move |start| start..start + bytes)
        });
        for block in blocks.take(MAX_BLOCKS) {
            let bytes = block.end - block.start;
            if size.is_some_and(|size| size != bytes) || caches.stacks.len() >= MAX_CACHES {
                continue;
            }
            if caches.add(memory, pointers, &block) {
                size = Some(bytes);
            }
        }
        caches
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.bins.is_empty()
    }

    fn add(&mut self, memory: &Memory<'_>, pointers: &Pointers, block: &Range<u64>) -> bool {
        let found = pointers.all_to(block.clone(), MAX_POINTERS);
        let outside = found.into_iter().filter(|pointer| !block.contains(&pointer.place));
        let mut places: Vec<u64> = outside.map(|pointer| pointer.place).collect();
        if places.len() < MIN_BINS {
            return false;
        }
        places.sort_unstable();
        let mut rows: Vec<Bins> = Vec::new();
        for row in rows_of(&places) {
            // The first one may not be a bin: another word in front points there, too.
            let rows_in = [row, Bins { place: row.place + BIN_BYTES, count: row.count - 1 }];
            rows.extend(rows_in.into_iter().find(|row| self.is_of(memory, block, *row)));
        }
        if !rows.iter().any(|row| row.count >= MIN_BINS) {
            return false;
        }
        self.bins.extend(rows);
        self.stacks.push(block.start);
        true
    }

    /// Whether the stacks of the bins lie behind each other in the block. Those of pieces that are too large for a cache have no room and
    /// are at its start.
    fn is_of(&self, memory: &Memory<'_>, block: &Range<u64>, bins: Bins) -> bool {
        let mut from = block.start;
        (0..bins.count as u64).all(|at| {
            let Some((start, behind)) = self.stack(memory, bins.place + at * BIN_BYTES) else { return false };
            if (start, behind) == (block.start, block.start) {
                return true;
            }
            let fits = from <= start && start <= behind && behind <= block.end;
            from = behind;
            fits
        })
    }

    /// Where the pieces of a bin begin and end; `place` is that of its pointer.
    fn stack(&self, memory: &Memory<'_>, place: u64) -> Option<(u64, u64)> {
        let pointer = memory.word(place).filter(|pointer| pointer.is_multiple_of(8))?;
        let (start, count) = if self.are_new {
            let end = memory.word(place + 16)? >> 32 & 0xffff;
            (pointer, (end.wrapping_sub(pointer) & 0xffff) / 8)
        } else {
            let count = memory.word(place - 16)? >> 32;
            (pointer.checked_sub(count * 8)?, count)
        };
        (count <= MAX_CACHED).then_some((start, start.checked_add(count * 8)?))
    }

    /// The pieces that are in a cache now, and the blocks of the caches themselves.
    pub(super) fn read(&self, memory: &Memory<'_>, extents: &[Extent]) -> HashSet<u64> {
        let mut cached: HashSet<u64> = self.stacks.iter().copied().collect();
        for bins in &self.bins {
            for at in 0..bins.count as u64 {
                let Some((start, end)) = self.stack(memory, bins.place + at * BIN_BYTES) else { continue };
                let pieces = memory.words(start, ((end - start) / 8) as usize).unwrap_or_default();
                let is_start =
                    |piece: &u64| extent_of(extents, *piece).and_then(|extent| extent.start_of(*piece)) == Some(*piece);
                cached.extend(pieces.into_iter().filter(is_start));
            }
        }
        cached
    }
}

/// Places that are one bin apart, as rows that could be bins.
fn rows_of(places: &[u64]) -> Vec<Bins> {
    let known: HashSet<u64> = places.iter().copied().collect();
    let firsts = known.iter().filter(|place| !known.contains(&place.wrapping_sub(BIN_BYTES)));
    let rows = firsts.map(|first| {
        let others = (1..places.len() as u64).take_while(|at| known.contains(&(first + at * BIN_BYTES)));
        let count = others.count() + 1;
        Bins { place: *first, count }
    });
    rows.filter(|row| row.count > MIN_MORE_BINS).collect()
}
