//! Pointers on some pages of memory.

use std::{
    cell::{OnceCell, RefCell},
    ops::Range,
};

use super::{numbering::Numbering, unasked::Unasked};

/// Pointers, and the pages that they are on.
#[derive(Debug)]
pub(super) struct List {
    /// Packed, by the highest bits of them.
    buckets: Vec<Bucket>,
    /// By number: addresses of pages.
    pub(super) pages: Vec<u64>,
}

/// It is sorted at the first question: most are not asked, and to sort them all takes a sixth of a pass.
#[derive(Debug, Default)]
struct Bucket {
    found: RefCell<Chunks>,
    sorted: OnceCell<Vec<u64>>,
}

/// Packed pointers in chunks: an array that grows leaves as much again unused, in itself or behind it.
#[derive(Debug, Default)]
struct Chunks {
    /// Each has [`LEN`](Self::LEN).
    full: Vec<Vec<u64>>,
    last: Vec<u64>,
}

impl Chunks {
    const LEN: usize = 1 << 10;

    #[inline]
    fn push(&mut self, packed: u64) {
        // It has no room before the first one.
        if self.last.len() == self.last.capacity().min(Self::LEN) {
            self.begin_chunk();
        }
        self.last.push(packed);
    }

    #[cold]
    fn begin_chunk(&mut self) {
        let full = std::mem::replace(&mut self.last, Vec::with_capacity(Self::LEN));
        if !full.is_empty() {
            self.full.push(full);
        }
    }

    const fn len(&self) -> usize {
        self.full.len() * Self::LEN + self.last.len()
    }

    /// In place: other memory would be taken for as many.
    fn retain(&mut self, is_kept: impl Fn(u64) -> bool) {
        let all = std::mem::take(&mut self.full).into_iter().chain([std::mem::take(&mut self.last)]);
        for mut chunk in all {
            // Not `Vec::retain`: it has a branch for each word, which no processor foresees.
            let mut kept = 0;
            for at in 0..chunk.len() {
                let packed = chunk[at];
                chunk[kept] = packed;
                kept += usize::from(is_kept(packed));
            }
            chunk.truncate(kept);
            self.append(chunk);
        }
    }

    /// Adds a chunk of any length.
    fn append(&mut self, mut chunk: Vec<u64>) {
        let room = Self::LEN - self.last.len();
        if self.last.is_empty() {
            self.last = chunk;
        } else if chunk.len() <= room {
            self.last.extend_from_slice(&chunk);
        } else {
            self.last.extend(chunk.drain(..room));
            self.full.push(std::mem::replace(&mut self.last, chunk));
        }
    }

    fn into_sorted(self) -> Vec<u64> {
        let mut sorted = Vec::with_capacity(self.len());
        self.full.into_iter().chain([self.last]).for_each(|chunk| sorted.extend(chunk));
        sorted.sort_unstable();
        sorted
    }
}

impl Bucket {
    fn len(&self) -> usize {
        self.sorted.get().map_or_else(|| self.found.borrow().len(), Vec::len)
    }

    fn sorted(&self) -> &[u64] {
        self.sorted.get_or_init(|| self.found.take().into_sorted())
    }
}

impl List {
    pub(super) fn new(numbering: &Numbering) -> Self {
        let buckets = (0..numbering.buckets()).map(|_| Bucket::default()).collect();
        Self { buckets, pages: Vec::new() }
    }

    #[inline]
    pub(super) fn push(&mut self, bucket: usize, packed: u64) {
        self.buckets[bucket].found.get_mut().push(packed);
    }

    /// The page with the number that followed has pointers.
    pub(super) fn add_page(&mut self, address: u64) {
        self.pages.push(address);
    }

    pub(super) fn len(&self) -> usize {
        self.buckets.iter().map(Bucket::len).sum()
    }

    pub(super) fn leave_out(&mut self, unasked: &Unasked<'_>) {
        for bucket in &mut self.buckets {
            bucket.found.get_mut().retain(|packed| !unasked.is_marked(packed));
        }
    }

    /// Packed pointers of a range within a bucket, sorted.
    pub(super) fn within(&self, bucket: usize, keys: &Range<u64>) -> &[u64] {
        let sorted = self.buckets.get(bucket).map_or(&[][..], Bucket::sorted);
        let start = sorted.partition_point(|packed| *packed < keys.start);
        let end = start + sorted[start..].partition_point(|packed| *packed < keys.end);
        &sorted[start..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 5 000 words, in five chunks, a third is left in two; words that follow are added behind them.
    #[test]
    fn chunks_are_filled_again() {
        let mut chunks = Chunks::default();
        (0..5_000).rev().for_each(|word| chunks.push(word));
        assert_eq!((chunks.len(), chunks.full.len()), (5_000, 4));
        chunks.retain(|word| word % 3 == 0);
        assert_eq!((chunks.len(), chunks.full.len()), (1_667, 1));
        chunks.push(1);
        chunks.retain(|_| true);
        let wanted: Vec<u64> = [0, 1].into_iter().chain((3..5_000).step_by(3)).collect();
        assert_eq!((chunks.len(), chunks.into_sorted()), (1_668, wanted));
    }

    #[test]
    fn chunks_without_words_take_none() {
        let mut chunks = Chunks::default();
        chunks.retain(|_| true);
        (0..3_000).for_each(|word| chunks.push(word));
        chunks.retain(|_| false);
        assert_eq!((chunks.len(), chunks.full.len()), (0, 0));
        chunks.push(7);
        assert_eq!(chunks.into_sorted(), [7]);
    }
}
