//! An image of a process with a pool on one device or two, as `torch_npu` 2.9 has it.

use crate::holders::{
    image::Image,
    sample::Sample,
    source::{Backing, PAGE},
    symbols::{Symbol, Symbols},
};

pub(in crate::holders) const LIBRARY: u64 = 0x7f30_0000_0000;
pub(in crate::holders) const VARIABLE: u64 = 0x80;
pub(in crate::holders) const SMALL: u64 = 0x12c1_0000_0000;
pub(in crate::holders) const LARGE: u64 = 0x12c2_0000_0000;
pub(in crate::holders) const MIB: u64 = 1 << 20;
/// Of the device's allocator: pools of small and of large blocks, its figures, and its table of further pools.
pub(in crate::holders) const SMALL_POOL: u64 = 0x100;
pub(in crate::holders) const LARGE_POOL: u64 = 0x200;
pub(in crate::holders) const FIGURES: u64 = 0x400;
const TABLE: u64 = 0x600;
const LIVE_TABLE: u64 = 0x680;

/// The image, and where its device's allocator is.
pub(in crate::holders) struct Made {
    pub(in crate::holders) sample: Sample,
    pub(in crate::holders) device: u64,
    /// The allocator of all devices, and its list of them.
    allocator: u64,
    list: u64,
    /// Its table of further pools, where it has one.
    pub(in crate::holders) table: u64,
    /// Descriptions of live blocks.
    pub(in crate::holders) live: Vec<u64>,
}

impl Made {
    pub(in crate::holders) fn put(&mut self, address: u64, words: &[u64]) {
        for (at, word) in (0..).step_by(8).zip(words) {
            self.sample.image.put(address + at, *word);
        }
    }

    pub(in crate::holders) fn new() -> Self {
        let mut sample = Sample::new();
        sample.image.map(Image::plain(LIBRARY, PAGE, Backing::File, "/usr/lib/libtorch_npu.so"));
        let name = "_ZN7c10_npu19NPUCachingAllocator9allocatorE".into();
        let objects = vec![Symbol { vaddr: VARIABLE, size_bytes: 8, name }];
        sample.image.set_symbols("/usr/lib/libtorch_npu.so", Symbols { objects, first_vaddr: 0, end_vaddr: PAGE });
        let device = sample.block(2048);
        let list = sample.block(16);
        let allocator =
            sample.cpp("N7c10_npu19NPUCachingAllocator19NpuCachingAllocatorE", &[7, list, list + 8, list + 8]);
        let mut made = Self { sample, allocator, list, device, table: 0, live: Vec::new() };
        made.put(LIBRARY + VARIABLE, &[allocator]);
        made.put(list, &[device]);
        made
    }

    /// Another device, without blocks: what follows is put there. `in_front`: it is the first one of the list.
    pub(in crate::holders) fn another_device(&mut self, in_front: bool) {
        let known = std::mem::replace(&mut self.device, self.sample.block(2048));
        let devices = if in_front { [self.device, known] } else { [known, self.device] };
        let (list, allocator) = (self.list, self.allocator);
        self.put(list, &devices);
        self.put(allocator + 16, &[list, list + 16, list + 16]);
        self.tree(SMALL_POOL, &[]);
        self.tree(LARGE_POOL, &[]);
    }

    /// A description of a block: pool, address, size, requested size, whether it is live and has memory.
    pub(in crate::holders) fn describe(
        &mut self,
        pool: u64,
        (address, size, requested): (u64, u64, u64),
        flags: u64,
    ) -> u64 {
        let block = self.sample.block(168);
        self.put(block, &[0, 0x5151]);
        self.put(block + 0x30, &[size, requested, self.device + pool, address, flags]);
        if flags & 1 == 1 {
            self.live.push(block);
        }
        block
    }

    /// The table of live blocks: `{i8 distance, block}` by hash, -1 where a slot is empty.
    pub(in crate::holders) fn table_of_live(&mut self, blocks: &[u64]) {
        let table = self.sample.block(16 * (2 * blocks.len() as u64 + 1));
        for (at, block) in (table..).step_by(32).zip(blocks) {
            self.put(at, &[0, *block, 0xff, 0]);
        }
        self.put(self.device + LIVE_TABLE, &[table, 2 * blocks.len() as u64]);
    }

    /// Makes blocks neighbours.
    pub(in crate::holders) fn chain(&mut self, blocks: &[u64]) {
        for two in blocks.windows(2) {
            self.put(two[0] + 0x60, &[two[1]]);
            self.put(two[1] + 0x58, &[two[0]]);
        }
    }

    /// The tree of a pool's free blocks: the second below the first.
    pub(in crate::holders) fn tree(&mut self, pool: u64, blocks: &[u64]) {
        let header = self.device + pool;
        let nodes: Vec<u64> = blocks.iter().map(|_| self.sample.block(40)).collect();
        for (at, (node, block)) in nodes.iter().zip(blocks).enumerate() {
            let parent = at.checked_sub(1).map_or(header, |above| nodes[above]);
            let right = nodes.get(at + 1).copied().unwrap_or(0);
            self.put(*node, &[1, parent, 0, right, *block]);
        }
        let (first, last) = (nodes.first().copied(), nodes.last().copied());
        let words = [0, first.unwrap_or(0), first.unwrap_or(header), last.unwrap_or(header), nodes.len() as u64];
        self.put(header, &words);
    }

    /// A pool of its own in a slot of the device's table, without blocks; gives where its large and its small blocks point, from the
    /// device's allocator on.
    pub(in crate::holders) fn private(&mut self, slot: u64, number: (u64, u64)) -> (u64, u64) {
        const SLOT: u64 = 32;
        if self.table == 0 {
            self.table = self.sample.block(8 * SLOT);
            self.put(self.device + TABLE, &[self.table]);
        }
        let pool = self.sample.block(296);
        self.put(self.table + slot * SLOT, &[0, number.0, number.1, pool]);
        self.put(pool, &[number.0, number.1, 1 << 32 | 1]);
        let halves = [(pool + 0x18, 0), (pool + 0xa0, 1)].map(|(half, is_small)| {
            self.put(half + 0x60, &[is_small, pool]);
            half - self.device
        });
        for half in halves {
            self.tree(half + 8, &[]);
            self.tree(half + 0x38, &[]);
        }
        halves.into()
    }

    /// Four blocks in a segment of 2 MiB, and a segment of 20 MiB that is one live block.
    pub(in crate::holders) fn whole() -> Self {
        const LIVE: u64 = 1 << 8 | 1;
        const FREE: u64 = 1 << 8;
        let mut made = Self::new();
        let blocks = [
            made.describe(SMALL_POOL, (SMALL, 1024, 900), LIVE),
            made.describe(SMALL_POOL, (SMALL + 1024, 512, 0), FREE),
            made.describe(SMALL_POOL, (SMALL + 1536, 2048, 2047), LIVE),
            made.describe(SMALL_POOL, (SMALL + 3584, 2 * MIB - 3584, 0), FREE),
        ];
        made.chain(&blocks);
        made.describe(LARGE_POOL, (LARGE, 20 * MIB, 19 * MIB + 1), LIVE);
        made.tree(SMALL_POOL, &[blocks[1], blocks[3]]);
        made.tree(LARGE_POOL, &[]);
        made.put(made.device + FIGURES, &[20 * MIB + 3072, 22 * MIB]);
        made
    }
}
