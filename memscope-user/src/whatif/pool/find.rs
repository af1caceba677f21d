//! The free block for a request: the smallest that is large enough, of its own stream.

use super::block::{Id, NONE};
use super::{Pool, State};

impl Pool {
    /// Takes the best fitting block out of its rack, if there is one.
    pub(super) fn find(&mut self, rack: u16, size: u64) -> Option<Id> {
        if self.collects() {
            self.racks.class_of(rack).searches += 1;
        }
        let (found, id) = self.best(rack, size)?;
        let max_split = self.settings.max_split_bytes;
        // Oversize blocks are not lent to smaller requests, and not taken where much would be left over.
        if size < max_split && found >= max_split {
            return None;
        }
        if size >= max_split && found >= size.saturating_add(self.settings.non_split_rounding_bytes) {
            return None;
        }
        self.take(id);
        Some(id)
    }

    fn best(&self, rack: u16, size: u64) -> Option<(u64, Id)> {
        let mut walk = self.racks.all[usize::from(rack)].blocks.from(size);
        let hit = walk.next()?;
        if self.blocks.get(hit.1).is_plain() {
            return Some(hit);
        }
        if self.settings.expandable {
            return Some(self.least_reach(hit, walk));
        }
        // Segments of both kinds: only after a change of the settings.
        walk.find(|(_, id)| self.blocks.get(*id).is_plain())
    }

    /// In expandable segments blocks that could grow most are kept: goes on while the next could grow to less.
    fn least_reach(&self, first: (u64, Id), behind: impl Iterator<Item = (u64, Id)>) -> (u64, Id) {
        let mut hit = first;
        for next in behind {
            if self.blocks.get(hit.1).is_plain() || self.reach(next.1) >= self.reach(hit.1) {
                break;
            }
            hit = next;
        }
        hit
    }

    /// Size to which a block could grow.
    fn reach(&self, id: Id) -> u64 {
        let block = self.blocks.get(id);
        if block.next == NONE {
            return block.size;
        }
        let next = self.blocks.get(block.next);
        if next.state == State::Unmapped { block.size + next.size } else { block.size }
    }
}
