//! Addresses of a caching pool: best fit, neighbours that are free become one, segments never go back.

use std::collections::{BTreeMap, BTreeSet};

/// Segments are of this size, or of that of a larger request.
const SEGMENT_BYTES: u64 = 2 << 20;

/// Where blocks lie.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// Free pieces: start to end.
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    end: u64,
}

/// Where a request was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) addr: u64,
    /// A segment that had to be got for it: its start and size.
    pub(crate) segment: Option<(u64, u64)>,
}

impl Heap {
    pub(crate) fn alloc(&mut self, size: u64) -> Placed {
        let found = self.by_size.range((size, 0)..).next().copied();
        let (segment, addr, end) = if let Some((length, addr)) = found {
            (None, addr, addr + length)
        } else {
            let length = size.max(SEGMENT_BYTES);
            // A gap between segments: they are never one piece.
            let addr = self.end + SEGMENT_BYTES;
            self.end = addr + length;
            (Some((addr, length)), addr, self.end)
        };
        if found.is_some() {
            self.take(addr, end);
        }
        if addr + size < end {
            self.give(addr + size, end);
        }
        Placed { addr, segment }
    }

    pub(crate) fn free(&mut self, addr: u64, size: u64) {
        let (mut start, mut end) = (addr, addr + size);
        if let Some((&before, &until)) = self.free.range(..addr).next_back()
            && until == addr
        {
            self.take(before, until);
            start = before;
        }
        if let Some(&until) = self.free.get(&end) {
            self.take(end, until);
            end = until;
        }
        self.give(start, end);
    }

    fn take(&mut self, start: u64, end: u64) {
        self.free.remove(&start);
        self.by_size.remove(&(end - start, start));
    }

    fn give(&mut self, start: u64, end: u64) {
        self.free.insert(start, end);
        self.by_size.insert((end - start, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: three blocks in one segment; the hole of the second takes what fits, the rest goes elsewhere.
    #[test]
    fn holes_are_filled() {
        let mut heap = Heap::default();
        let first = heap.alloc(100);
        assert_eq!(first.segment, Some((first.addr, SEGMENT_BYTES)));
        let (second, third) = (heap.alloc(50), heap.alloc(100));
        assert_eq!((second.addr, third.addr, third.segment), (first.addr + 100, first.addr + 150, None));
        heap.free(second.addr, 50);
        assert_eq!(heap.alloc(60).addr, third.addr + 100);
        assert_eq!(heap.alloc(50).addr, second.addr);
        // Neighbours become one.
        heap.free(first.addr, 100);
        heap.free(second.addr, 50);
        assert_eq!(heap.alloc(150), Placed { addr: first.addr, segment: None });
        assert!(heap.alloc(3 << 20).segment.is_some_and(|(_, size)| size == 3 << 20));
    }
}
