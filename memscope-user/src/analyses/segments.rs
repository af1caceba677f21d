//! Which driver blocks are segments of pools?
//!
//! A driver block with a pool's block in it. Pools get a segment right before they use it, so only the last driver
//! blocks are searched: at most [`MAX_RECENT`] that no pool has used yet. A block that a pool first uses later counts
//! as the program's. One that was found at the attach is in the pool's own list of its segments.

use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::model::{AllocApi, Block, Region, RegionKind};

/// Driver blocks that may still become a segment.
const MAX_RECENT: usize = 4096;
/// Most known segments at a time; further ones count as the program's.
const MAX_SEGMENTS: usize = 1 << 17;

/// Driver blocks of one process.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// By start: its size, and the block. Memory behind a handle is where it is mapped.
    recent: BTreeMap<u64, (u64, Block)>,
    /// Unmapped blocks, by number.
    handles: BTreeMap<u64, Block>,
    /// In the order of their allocation: start, number.
    order: VecDeque<(u64, u64)>,
    /// Numbers of the segments.
    numbers: HashSet<u64>,
}

impl Segments {
    /// A block is allocated. Whether it is known to be a segment; driver blocks that turn out to be segments by it are passed to `found`.
    pub(super) fn came(&mut self, block: &Block, found: &mut dyn FnMut(Block)) -> bool {
        let is_driver = block.pool.is_driver();
        if is_driver && block.found && self.numbers.len() < MAX_SEGMENTS {
            return self.numbers.insert(block.allocation_id);
        }
        if is_driver {
            self.add(block);
        } else if !block.pool.is_host() {
            self.used_by_pool(block, found);
        }
        false
    }

    /// Memory behind a handle is mapped.
    pub(super) fn mapped(&mut self, region: &Region) {
        if let Region { kind: RegionKind::Mapping, begins: true, addr, size_bytes, allocation_id: Some(number), .. } =
            *region
            && let Some(block) = self.handles.remove(&number)
        {
            self.place(addr, size_bytes, block);
        }
    }

    /// A driver block ends. Whether it was a segment.
    pub(super) fn ends(&mut self, block: &Block) -> bool {
        self.handles.remove(&block.allocation_id);
        if self.recent.get(&block.addr).is_some_and(|(_, known)| known.allocation_id == block.allocation_id) {
            self.recent.remove(&block.addr);
        }
        self.numbers.remove(&block.allocation_id)
    }

    fn add(&mut self, block: &Block) {
        if block.api != AllocApi::Create {
            return self.place(block.addr, block.size_bytes, *block);
        }
        if self.handles.len() >= MAX_RECENT {
            self.handles.pop_first();
        }
        self.handles.insert(block.allocation_id, *block);
    }

    fn place(&mut self, addr: u64, size_bytes: u64, block: Block) {
        if self.order.len() >= MAX_RECENT
            && let Some((oldest, number)) = self.order.pop_front()
            && self.recent.get(&oldest).is_some_and(|(_, block)| block.allocation_id == number)
        {
            self.recent.remove(&oldest);
        }
        self.recent.insert(addr, (size_bytes, block));
        self.order.push_back((addr, block.allocation_id));
    }

    /// A pool hands out a block: the driver blocks behind it are its segments.
    fn used_by_pool(&mut self, block: &Block, found: &mut dyn FnMut(Block)) {
        let end = block.addr.saturating_add(block.size_bytes);
        while let Some((&addr, &(size_bytes, segment))) = self.recent.range(..end).next_back()
            && addr.saturating_add(size_bytes) > block.addr
            && self.numbers.len() < MAX_SEGMENTS
        {
            self.recent.remove(&addr);
            self.numbers.insert(segment.allocation_id);
            found(segment);
        }
    }
}
