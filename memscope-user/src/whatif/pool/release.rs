//! Memory that the pool gives back to the driver.

use super::block::Id;
use super::{Pool, Ticket};
use crate::whatif::device::PAGE_BYTES;

/// Classes of the default pool: large blocks and small ones.
const DEFAULT_CLASSES: [u16; 2] = [1, 0];

impl Pool {
    /// The program empties the cache.
    pub(in crate::whatif) fn empty_cache(&mut self) {
        self.device.calls.synchronize += 1;
        self.release_cached();
    }

    /// Nothing holds a private pool any more.
    pub(in crate::whatif) fn released(&mut self, private: u16) {
        self.released.push(private);
    }

    /// Gives back the free memory of a private pool that nothing holds any more.
    pub(in crate::whatif) fn empty_private(&mut self, private: u16) {
        self.device.calls.synchronize += 1;
        let racks = &self.racks;
        let is_of_pool = |id: Id| racks.private(self.blocks.get(id).rack) == private;
        let used: Vec<Ticket> =
            self.pending.iter().filter(|(_, id)| is_of_pool(**id)).map(|(ticket, _)| *ticket).collect();
        self.ready.retain(|ticket| !used.contains(ticket));
        for ticket in used {
            self.finish(ticket);
        }
        self.release_class(2 * private);
        self.release_class(2 * private + 1);
    }

    /// Gives back all free memory of the default pool, large blocks first, and of private pools that no graph uses any more. After a
    /// synchronisation of the device, so blocks that streams were using come back before that.
    pub(super) fn release_cached(&mut self) {
        self.ready.clear();
        while let Some((_, id)) = self.pending.pop_first() {
            self.complete(id);
        }
        let private = self.released.iter().flat_map(|private| [2 * private, 2 * private + 1]);
        for class in DEFAULT_CLASSES.into_iter().chain(private).collect::<Vec<_>>() {
            self.release_class(class);
        }
    }

    fn release_class(&mut self, class: u16) {
        let (mut plain, mut expandable) = (Vec::new(), Vec::new());
        for id in self.racks.of_class(class) {
            let block = self.blocks.get(id);
            match (block.is_plain(), block.is_whole()) {
                (true, true) => plain.push(id),
                (true, false) => {}
                (false, _) => expandable.push(id),
            }
        }
        for id in plain {
            self.release(id);
        }
        for id in expandable {
            self.shrink(id);
        }
    }

    /// Gives back a wholly free plain segment.
    pub(super) fn release(&mut self, id: Id) {
        let (addr, size) = self.place(id);
        self.take(id);
        #[cfg(test)]
        self.note(super::What::SegmentFree, addr, size);
        let charged = size.next_multiple_of(PAGE_BYTES);
        self.device.calls.free += 1;
        self.device.refund(charged);
        self.device.give_back(addr, charged);
        self.figures.reserved_bytes -= size;
        self.figures.segments -= 1;
        self.figures.segments_freed += 1;
        self.blocks.remove(id);
    }

    /// Gives oversize blocks back: one that is enough, else the largest first until they are; returns whether that is
    /// enough.
    pub(super) fn release_oversize(&mut self, rack: u16, size: u64) -> bool {
        let max_split = self.settings.max_split_bytes;
        if max_split == u64::MAX {
            return false;
        }
        let enough = size.max(max_split);
        self.device.calls.synchronize += u64::from(self.settings.waits_for_parts());
        let is_plain = |(_, id): &(u64, Id)| self.blocks.get(*id).is_plain();
        let blocks = &self.racks.all[usize::from(rack)].blocks;
        let one = blocks.from(enough).find(is_plain);
        if let Some((_, id)) = one {
            self.release(id);
            return true;
        }
        let oversize = blocks.from(max_split).filter(is_plain);
        let oversize: Vec<(u64, Id)> = oversize.collect();
        let mut freed = 0;
        for (bytes, id) in oversize.into_iter().rev() {
            if freed >= enough {
                break;
            }
            freed += bytes;
            self.release(id);
        }
        freed >= enough
    }
}
