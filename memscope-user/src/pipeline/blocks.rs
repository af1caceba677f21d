//! Live blocks of one process, and the bytes that they add up to.

use std::collections::HashMap;

use super::item::Request;
use super::recent::Recent;
use crate::model::{AllocApi, Block, Device, Pool};

/// Threads whose last free is remembered, in case it turns out to have failed.
const FREEING_THREADS: usize = 4096;

/// A live block, and what is to become of its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) block: Block,
    /// Its allocation was within the steps that are to be written, so its end is, too.
    pub(super) inside: bool,
}

/// What is known at the time of an allocation, besides the call itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    pub(super) time_ns: u64,
    pub(super) event: u64,
    pub(super) step: u32,
    pub(super) kernel_index: u64,
    pub(super) inside: bool,
}

/// Live blocks of one process. Addresses and physical handles are two name spaces.
#[derive(Debug)]
pub(super) struct Blocks {
    live: HashMap<(AllocApi, u64), Live>,
    used: HashMap<(Pool, Device), u128>,
    allocations: u64,
    /// By thread and row; `None` when the thread freed a block that is not known.
    last_free: Recent<(u32, u16), Option<Live>>,
}

impl Default for Blocks {
    fn default() -> Self {
        let last_free = Recent::new(FREEING_THREADS);
        Self { live: HashMap::new(), used: HashMap::new(), allocations: 0, last_free }
    }
}

impl Blocks {
    /// Makes a block. One that is live at the same address must have been taken out before.
    pub(super) fn insert(&mut self, request: &Request, birth: Birth) -> (Block, u64) {
        self.allocations += 1;
        let Request { addr, size_bytes, pool, device, module_id, page, api, .. } = *request;
        let block = Block {
            allocation_id: self.allocations,
            pool,
            device,
            addr,
            size_bytes,
            alloc_time_ns: birth.time_ns,
            alloc_id: birth.event,
            step: birth.step,
            kernel_index: birth.kernel_index,
            module_id,
            page,
            api,
        };
        (block, self.put(Live { block, inside: birth.inside }))
    }

    /// Takes the block out that is live at `addr`; also gives the bytes used after that.
    pub(super) fn take(&mut self, api: AllocApi, addr: u64) -> Option<(Live, u64)> {
        let live = self.live.remove(&(api, addr))?;
        let used = self.used.entry((live.block.pool, live.block.device)).or_default();
        *used = used.saturating_sub(live.block.size_bytes.into());
        Some((live, clamped(*used)))
    }

    /// Remembers what a thread's free has freed.
    pub(super) fn freed(&mut self, thread: (u32, u16), block: Option<Live>) {
        self.last_free.insert(thread, block);
    }

    /// Puts the block back that the thread's last free took, unless its address is in use again.
    pub(super) fn restore(&mut self, thread: (u32, u16), addr: Option<u64>) -> Option<(Live, u64)> {
        let live = self.last_free.remove(&thread)??;
        let meant = addr.is_none_or(|addr| addr == live.block.addr);
        let vacant = !self.live.contains_key(&(live.block.api, live.block.addr));
        (meant && vacant).then(|| (live, self.put(live)))
    }

    /// All live blocks, in the order of their allocation.
    pub(super) fn in_order(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = self.live.values().map(|live| live.block).collect();
        blocks.sort_unstable_by_key(|block| block.allocation_id);
        blocks
    }

    /// Devices that have, or had, blocks.
    pub(super) fn devices(&self) -> Vec<Device> {
        let mut devices: Vec<Device> =
            self.used.keys().map(|(_, device)| *device).filter(|device| *device != Device::None).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    fn put(&mut self, live: Live) -> u64 {
        self.live.insert((live.block.api, live.block.addr), live);
        let used = self.used.entry((live.block.pool, live.block.device)).or_default();
        *used += u128::from(live.block.size_bytes);
        clamped(*used)
    }
}

fn clamped(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PageType;

    const BIRTH: Birth = Birth { time_ns: 1, event: 0, step: 0, kernel_index: 0, inside: true };

    fn request(addr: u64, size_bytes: u64, api: AllocApi) -> Request {
        let (pool, device, page) = (Pool::Hal, Device::Npu(0), PageType::Normal);
        Request { addr, size_bytes, flags: 0, pool, device, module_id: None, page, api }
    }

    /// A handle and an address of the same value are two blocks.
    #[test]
    fn handles_and_addresses_are_apart() {
        let mut blocks = Blocks::default();
        assert_eq!(blocks.insert(&request(8, 10, AllocApi::Alloc), BIRTH).1, 10);
        assert_eq!(blocks.insert(&request(8, 5, AllocApi::Create), BIRTH).1, 15);
        assert_eq!(blocks.take(AllocApi::Alloc, 8).map(|(live, used)| (live.block.allocation_id, used)), Some((1, 5)));
        assert_eq!(blocks.in_order().len(), 1);
    }

    /// Sizes that only a liar can have do not break the sum for the others.
    #[test]
    fn huge_sizes_do_not_overflow() {
        let mut blocks = Blocks::default();
        blocks.insert(&request(1, u64::MAX, AllocApi::Alloc), BIRTH);
        assert_eq!(blocks.insert(&request(2, 7, AllocApi::Alloc), BIRTH).1, u64::MAX);
        assert_eq!(blocks.take(AllocApi::Alloc, 1).map(|(_, used)| used), Some(7));
    }

    /// A block is put back once, by its own thread, and not over another one.
    #[test]
    fn restore_is_careful() {
        let mut blocks = Blocks::default();
        blocks.insert(&request(8, 10, AllocApi::Alloc), BIRTH);
        let live = blocks.take(AllocApi::Alloc, 8).map(|(live, _)| live);
        blocks.freed((1, 2), live);
        assert!(blocks.restore((9, 2), None).is_none());
        assert_eq!(blocks.restore((1, 2), None).map(|(_, used)| used), Some(10));
        assert!(blocks.restore((1, 2), None).is_none());
        let live = blocks.take(AllocApi::Alloc, 8).map(|(live, _)| live);
        blocks.freed((1, 2), live);
        blocks.insert(&request(8, 3, AllocApi::Alloc), BIRTH);
        assert!(blocks.restore((1, 2), None).is_none());
    }
}
