//! Heaps: memory of pools, as reported by mstx (ascend-abi §5, contract §11).

use super::super::super::blocks::PoolTotals;
use crate::hash::HashMap;
use crate::model::{Device, Pool};

/// Most heaps of one process; more only come from a broken program.
const MAX_HEAPS: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Heap {
    handle: u64,
    device: Device,
    size_bytes: u64,
}

/// Heaps of one process.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Heaps {
    heaps: HashMap<(Pool, u64), Heap>,
    reserved: HashMap<(Pool, Device), u64>,
}

impl Heaps {
    /// A heap is registered: one more of its pool, or, for frameworks that define it so, the whole pool.
    pub(in crate::pipeline) fn registered(
        &mut self,
        pool: Pool,
        handle: u64,
        addr: u64,
        device: Device,
        size_bytes: u64,
    ) {
        if pool.heap_is_total() {
            self.reserved.insert((pool, device), size_bytes);
            return;
        }
        if self.heaps.len() >= MAX_HEAPS && !self.heaps.contains_key(&(pool, addr)) {
            return;
        }
        let old = self.heaps.insert((pool, addr), Heap { handle, device, size_bytes });
        self.remove_bytes(pool, old);
        let reserved = self.reserved.entry((pool, device)).or_default();
        *reserved = reserved.saturating_add(size_bytes);
    }

    /// A heap is unregistered. A null handle identifies it only if the pool has one alone.
    pub(in crate::pipeline) fn unregistered(&mut self, pool: Pool, handle: u64) {
        let mut fitting = self.heaps.iter().filter(|((of, _), heap)| *of == pool && heap.handle == handle);
        if let (Some((key, _)), None) = (fitting.next(), fitting.next()) {
            let key = *key;
            let old = self.heaps.remove(&key);
            self.remove_bytes(pool, old);
        }
    }

    fn remove_bytes(&mut self, pool: Pool, heap: Option<Heap>) {
        let Some(heap) = heap else { return };
        if let Some(reserved) = self.reserved.get_mut(&(pool, heap.device)) {
            *reserved = reserved.saturating_sub(heap.size_bytes);
        }
    }

    /// Bytes that the pool holds on a device, if known.
    fn reserved_bytes(&self, pool: Pool, device: Device) -> Option<u64> {
        self.reserved.get(&(pool, device)).copied()
    }

    /// The pool's sums, as far as heaps have them.
    pub(in crate::pipeline) fn totals(&self, pool: Pool, device: Device) -> Option<PoolTotals> {
        let reserved_bytes = self.reserved_bytes(pool, device)?;
        Some(PoolTotals { used_bytes: None, reserved_bytes: Some(reserved_bytes), active_bytes: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;

    const NPU: Device = Device::Npu(0);

    fn mine() -> Pool {
        Pool::custom("mine")
    }

    /// Heaps add up; one registered again at its place replaces itself.
    #[test]
    fn heaps_add_up() {
        let mut heaps = Heaps::default();
        assert_eq!(heaps.reserved_bytes(mine(), NPU), None);
        heaps.registered(mine(), 0, 0x1000, NPU, 100);
        heaps.registered(mine(), 0, 0x2000, NPU, 10);
        heaps.registered(mine(), 0, 0x2000, NPU, 20);
        heaps.registered(mine(), 0, 0x2000, Device::Npu(1), 7);
        assert_eq!(heaps.reserved_bytes(mine(), NPU), Some(100));
        assert_eq!(heaps.reserved_bytes(mine(), Device::Npu(1)), Some(7));
        // It could be either.
        heaps.unregistered(mine(), 0);
        assert_eq!(heaps.reserved_bytes(mine(), NPU), Some(100));
    }

    #[test]
    fn heaps_end() {
        let mut heaps = Heaps::default();
        heaps.registered(mine(), 0, 0x1000, NPU, 100);
        heaps.unregistered(mine(), 0);
        assert_eq!(heaps.reserved_bytes(mine(), NPU), Some(0));
        heaps.registered(mine(), 5, 0x1000, NPU, 100);
        heaps.registered(mine(), 6, 0x2000, NPU, 10);
        heaps.unregistered(mine(), 5);
        heaps.unregistered(mine(), 99);
        assert_eq!(heaps.reserved_bytes(mine(), NPU), Some(10));
    }

    /// `torch_npu` registers a heap before each block: its size is that of the whole pool, not an addition.
    #[test]
    fn heaps_of_frameworks_are_totals() {
        let mut heaps = Heaps::default();
        for size_bytes in [100, 300, 200] {
            heaps.registered(pools::PTA, 0, 0x1000 + size_bytes, NPU, size_bytes);
        }
        assert_eq!(heaps.reserved_bytes(pools::PTA, NPU), Some(200));
    }
}
