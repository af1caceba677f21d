//! Requests to the driver when no free block fits.

use super::block::{Block, Id, NONE};
use super::{Pool, State};
use crate::whatif::device::PAGE_BYTES;

/// The request fails at once, with the cache as it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rejected;

impl Pool {
    /// A block of at least `size` from the driver, in no rack.
    pub(super) fn grow(&mut self, rack: u16, size: u64) -> Result<Option<Id>, Rejected> {
        let wanted = self.settings.segment_bytes(size);
        let is_beyond = |limit: u64| self.figures.reserved_bytes + wanted > limit;
        // Beyond the fraction the driver is not even asked.
        if self.allowed_bytes.is_some_and(is_beyond) {
            return Ok(None);
        }
        if self.card.early_limit_bytes(&self.settings).is_some_and(is_beyond) {
            return Err(Rejected);
        }
        Ok(if self.settings.expandable { self.expand(rack, size) } else { self.make_segment(rack, wanted) })
    }

    fn make_segment(&mut self, rack: u16, size: u64) -> Option<Id> {
        let charged = size.next_multiple_of(PAGE_BYTES);
        if !self.device.charge(charged) {
            return None;
        }
        self.device.calls.malloc += 1;
        let addr = self.device.range(charged);
        self.figures.grow(size);
        self.figures.segments += 1;
        self.figures.segments_made += 1;
        #[cfg(test)]
        self.note(super::What::SegmentAlloc, addr, size);
        let block = Block {
            addr,
            size,
            asked: 0,
            tick: 0,
            prev: NONE,
            next: NONE,
            reservation: NONE,
            rack,
            state: State::Free,
        };
        Some(self.blocks.add(block))
    }
}
