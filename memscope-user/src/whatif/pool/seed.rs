//! A pool that begins with what it held when the recording began.

use super::block::{Block, Id, NONE};
use super::{Pool, State};
use crate::whatif::MIB;
use crate::whatif::SMALLEST_BYTES;
use crate::whatif::device::PAGE_BYTES;
use crate::whatif::requests::{OldBlock, OldSegment};

impl Pool {
    /// Puts these segments into an empty pool; gives the blocks in use, in their order. `None`: under these settings blocks cannot lie so.
    /// Then the pool is of no use.
    pub(in crate::whatif) fn begin_with(&mut self, segments: &[OldSegment]) -> Option<Vec<Id>> {
        let mut used = Vec::new();
        for segment in segments {
            let rack = 2 * self.lane(segment.stream, 0)? + u16::from(!segment.small);
            let charged = segment.bytes.next_multiple_of(PAGE_BYTES);
            if !self.device.occupy(segment.addr, charged) {
                return None;
            }
            self.figures.grow(segment.bytes);
            self.figures.segments += 1;
            self.lay_out(segment, rack, &mut used)?;
        }
        self.figures.allocated_at_peak_bytes = self.figures.allocated_bytes;
        Some(used)
    }

    /// The blocks of one segment, free ones between those in use.
    fn lay_out(&mut self, segment: &OldSegment, rack: u16, used: &mut Vec<Id>) -> Option<()> {
        let end = segment.addr.checked_add(segment.bytes)?;
        let (mut at, mut last) = (segment.addr, NONE);
        let starts = segment.blocks.iter().map(|block| block.addr).skip(1).chain([end]);
        for (block, bound) in segment.blocks.iter().zip(starts) {
            if block.addr < at {
                return None;
            }
            self.lay_free(&mut last, at, block.addr, rack);
            let size = self.old_size(block, bound, segment.small)?;
            last =
                self.lay(last, Block { asked: block.asked, state: State::Allocated, ..bare(block.addr, size, rack) });
            used.push(last);
            self.figures.hand_out(size, block.asked);
            at = block.addr + size;
        }
        if at > end {
            return None;
        }
        let free = self.figures.inactive_split_bytes;
        self.lay_free(&mut last, at, end, rack);
        if segment.blocks.is_empty() {
            // A segment that is free as a whole is not split.
            self.figures.inactive_split_bytes = free;
        }
        Some(())
    }

    /// The size of a block with nothing in use before `bound`. Where it is not known, what is too little to be split off behind it is taken
    /// for a part of it: what was split off may be in there, too, if it is free.
    fn old_size(&self, block: &OldBlock, bound: u64, small: bool) -> Option<u64> {
        let size = self.settings.round(block.asked);
        let room = bound.checked_sub(block.addr)?;
        let rest = block.bytes.unwrap_or(room).checked_sub(size)?;
        let splits = if small { rest >= SMALLEST_BYTES } else { size < self.settings.max_split_bytes && rest > MIB };
        match block.bytes {
            // Under these settings it would be smaller.
            Some(_) if splits => None,
            Some(known) => (known <= room).then_some(known),
            None => Some(if splits { size } else { room }),
        }
    }

    fn lay_free(&mut self, last: &mut Id, from: u64, to: u64, rack: u16) {
        if from < to {
            *last = self.lay(*last, bare(from, to - from, rack));
            self.put(*last);
            self.figures.inactive_split_bytes += to - from;
        }
    }

    /// Behind the last block of the segment, or as its first one.
    fn lay(&mut self, last: Id, block: Block) -> Id {
        if last == NONE { self.blocks.add(block) } else { self.blocks.add_behind(last, block) }
    }
}

const fn bare(addr: u64, size: u64, rack: u16) -> Block {
    Block { addr, size, asked: 0, tick: 0, prev: NONE, next: NONE, reservation: NONE, rack, state: State::Free }
}
