//! Expandable segments: a reservation of addresses that gets and loses memory by the page.

use super::block::{Block, Id, NONE};
use super::{Pool, State};
use crate::whatif::device::PAGE_BYTES;

/// Addresses of an expandable segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    base: u64,
    page_bytes: u64,
    bytes: u64,
}

impl Pool {
    /// A block of at least `size` in an expandable segment, out of its rack. Mapped memory stays if the driver fails in
    /// the middle.
    pub(super) fn expand(&mut self, rack: u16, size: u64) -> Option<Id> {
        let mut at = self.room(rack, size).unwrap_or_else(|| self.reserve(rack));
        let first = *self.blocks.get(at);
        if first.state == State::Unmapped && !self.map(at, size.min(first.size)) {
            return None;
        }
        while self.blocks.get(at).size < size {
            let Block { size: have, next, .. } = *self.blocks.get(at);
            if next == NONE || !self.map(next, (size - have).min(self.blocks.get(next).size)) {
                return None;
            }
            // It has absorbed the one before it.
            at = next;
        }
        self.take(at);
        Some(at)
    }

    /// First block at the lowest address from which free blocks and addresses without memory are enough.
    fn room(&self, rack: u16, size: u64) -> Option<Id> {
        self.racks.all[usize::from(rack)].unmapped.values().copied().find_map(|unmapped| {
            let prev = self.blocks.get(unmapped).prev;
            let start = if self.is_usable(prev) { prev } else { unmapped };
            let (mut bytes, mut at) = (0, start);
            while bytes < size && self.is_usable(at) {
                let block = self.blocks.get(at);
                (bytes, at) = (bytes + block.size, block.next);
            }
            (bytes >= size).then_some(start)
        })
    }

    fn is_usable(&self, id: Id) -> bool {
        id != NONE && self.blocks.get(id).is_usable()
    }

    /// A new expandable segment, without memory.
    fn reserve(&mut self, rack: u16) -> Id {
        let page_bytes = self.settings.page_bytes(self.racks.is_small(rack));
        let total_bytes = self.card.total_bytes;
        let bytes = (total_bytes + total_bytes / 8).next_multiple_of(page_bytes);
        self.device.calls.reserve += 1;
        let base = self.device.range(bytes.next_multiple_of(PAGE_BYTES));
        let reservation = self.reservations.len() as u32;
        self.reservations.push(Some(Reservation { base, page_bytes, bytes }));
        let id = self.blocks.add(Block {
            addr: base,
            size: bytes,
            asked: 0,
            tick: 0,
            prev: NONE,
            next: NONE,
            reservation,
            rack,
            state: State::Unmapped,
        });
        self.racks.of(rack).unmapped.insert(base, id);
        id
    }

    fn reservation(&self, block: &Block) -> Reservation {
        let found = self.reservations.get(block.reservation as usize).copied().flatten();
        found.unwrap_or(Reservation { base: block.addr, page_bytes: PAGE_BYTES, bytes: block.size })
    }

    /// Maps memory to the first `size` bytes of addresses, in whole pages; the mapped part is in its rack then.
    fn map(&mut self, id: Id, size: u64) -> bool {
        let block = *self.blocks.get(id);
        let page = self.reservation(&block).page_bytes;
        let pages = size.div_ceil(page);
        for charged in 0..pages {
            if !self.device.charge(page) {
                self.device.calls.create += charged;
                self.device.calls.release += charged;
                self.device.refund(charged * page);
                return false;
            }
        }
        self.device.calls.create += pages;
        self.device.calls.map += pages;
        let got = pages * page;
        self.racks.of(block.rack).unmapped.remove(&block.addr);
        if got < block.size {
            let rest = Block { addr: block.addr + got, size: block.size - got, ..block };
            let rest = self.blocks.add_behind(id, rest);
            self.blocks.at(id).size = got;
            self.racks.of(block.rack).unmapped.insert(block.addr + got, rest);
        }
        self.blocks.at(id).state = State::Free;
        let Block { prev, next, .. } = *self.blocks.get(id);
        self.join(id, prev);
        self.join(id, next);
        self.put(id);
        self.figures.grow(got);
        #[cfg(test)]
        self.note(super::What::SegmentMap, block.addr, got);
        true
    }

    /// Unmaps the whole pages of a free block; ends the reservation if it has no memory left.
    pub(super) fn shrink(&mut self, id: Id) {
        self.unmap(id);
        let block = *self.blocks.get(id);
        if !block.is_whole() || block.state != State::Unmapped {
            return;
        }
        self.racks.of(block.rack).unmapped.remove(&block.addr);
        let Reservation { base, bytes, .. } = self.reservation(&block);
        self.reservations[block.reservation as usize] = None;
        self.device.give_back(base, bytes.next_multiple_of(PAGE_BYTES));
        self.blocks.remove(id);
    }

    fn unmap(&mut self, id: Id) {
        let block = *self.blocks.get(id);
        let Reservation { base, page_bytes: page, .. } = self.reservation(&block);
        let end = block.addr + block.size;
        let (from, to) = ((block.addr - base).next_multiple_of(page) + base, (end - base) / page * page + base);
        if from >= to {
            return;
        }
        let pages = (to - from) / page;
        self.device.calls.unmap += pages;
        self.device.calls.release += pages;
        self.device.refund(pages * page);
        self.take(id);
        if from > block.addr {
            let before = self.blocks.add_before(id, Block { size: from - block.addr, ..block });
            self.put(before);
        }
        if end > to {
            let behind = self.blocks.add_behind(id, Block { addr: to, size: end - to, ..block });
            self.put(behind);
        }
        let bare = self.blocks.at(id);
        (bare.addr, bare.size, bare.state) = (from, to - from, State::Unmapped);
        let (prev, next) = (bare.prev, bare.next);
        self.join(id, prev);
        self.join(id, next);
        let addr = self.blocks.get(id).addr;
        self.racks.of(block.rack).unmapped.insert(addr, id);
        self.figures.reserved_bytes -= pages * page;
        #[cfg(test)]
        self.note(super::What::SegmentUnmap, from, pages * page);
    }
}
