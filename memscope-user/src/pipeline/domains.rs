//! Domains of mstx, and the pools that their users tell of: heaps, and regions in them (ascend-abi §5, contract §11).
//!
//! Without an injected tool every handle that mstx returns is null. Then a call belongs to the domain that its thread has
//! created last, which is what the frameworks do: they name the domain right before each call.

use super::recent::Recent;
use crate::hash::HashMap;
use crate::model::{Device, Name, Pool};

/// Domains, and threads with a domain of their own, that are remembered.
const MAX_DOMAINS: usize = 4096;
/// Heaps of one process that are followed; more only come from a broken program.
const MAX_HEAPS: usize = 1 << 16;
/// Handles of regions that are remembered at least.
const MAX_HANDLES: usize = 1 << 20;

/// A call of mstx about memory, or about domains.
#[derive(Debug)]
pub(super) enum MstxCall {
    /// A domain of this name has this handle.
    DomainCreated { handle: u64, name: Option<String> },
    /// The domain is no more.
    DomainDestroyed { handle: u64 },
    /// A heap.
    HeapRegistered { domain: u64, handle: u64, range: Range },
    /// The heap is no more.
    HeapUnregistered { domain: u64, handle: u64 },
    /// A block.
    RegionRegistered { domain: u64, handle: u64, range: Range },
    /// The block is no more.
    RegionUnregistered { domain: u64, reference: Reference },
}

/// Memory as the program describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    /// As the program numbers it.
    pub(super) device: u32,
    pub(super) addr: u64,
    pub(super) size_bytes: u64,
}

/// What a region is unregistered by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reference {
    Addr(u64),
    Handle(u64),
}

#[derive(Clone, Copy, Debug)]
struct Heap {
    handle: u64,
    device: Device,
    size_bytes: u64,
}

/// Domains, heaps and handles of one process.
#[derive(Debug)]
pub(super) struct Domains {
    by_handle: Recent<u64, Name>,
    /// Created last by each thread, with a null handle.
    by_thread: Recent<u32, Name>,
    /// The same of the whole process.
    last: Option<Name>,
    heaps: HashMap<(Pool, u64), Heap>,
    reserved: HashMap<(Pool, Device), u64>,
    regions: Recent<(Pool, u64), u64>,
}

impl Default for Domains {
    fn default() -> Self {
        Self {
            by_handle: Recent::new(MAX_DOMAINS),
            by_thread: Recent::new(MAX_DOMAINS),
            last: None,
            heaps: HashMap::default(),
            reserved: HashMap::default(),
            regions: Recent::new(MAX_HANDLES),
        }
    }
}

impl Domains {
    /// A thread has created a domain.
    pub(super) fn created(&mut self, tid: u32, handle: u64, name: &str) {
        let name = Name::keep(name);
        if handle != 0 {
            return self.by_handle.insert(handle, name);
        }
        self.by_thread.insert(tid, name);
        self.last = Some(name);
    }

    /// A domain is no more. A null handle does not say which.
    pub(super) fn destroyed(&mut self, handle: u64) {
        self.by_handle.remove(&handle);
    }

    /// Name of the domain that a thread means.
    pub(super) fn name(&self, tid: u32, handle: u64) -> Option<Name> {
        let unknown = || self.by_thread.get(&tid).copied().or(self.last);
        if handle == 0 { unknown() } else { self.by_handle.get(&handle).copied() }
    }

    /// Pool of the domain that a thread means.
    pub(super) fn pool(&self, tid: u32, handle: u64) -> Pool {
        match self.name(tid, handle).map(Name::as_str) {
            Some("ptaCaching" | "msleaks") => Pool::Pta,
            Some("ptaWorkspace") => Pool::PtaWorkspace,
            Some("mindsporeMemPool") => Pool::MindSpore,
            Some("atb") => Pool::Atb,
            Some(name) => Pool::custom(name),
            None => Pool::custom("mstx"),
        }
    }

    /// A heap is registered: one more of its pool, or, for the frameworks that say so, all that the pool holds.
    pub(super) fn heap_registered(&mut self, pool: Pool, handle: u64, addr: u64, device: Device, size_bytes: u64) {
        if is_absolute(pool) {
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

    /// A heap is no more. A null handle says which only if the pool has one alone.
    pub(super) fn heap_unregistered(&mut self, pool: Pool, handle: u64) {
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

    /// Bytes that the pool holds on a device, if it has told.
    pub(super) fn reserved_bytes(&self, pool: Pool, device: Device) -> Option<u64> {
        self.reserved.get(&(pool, device)).copied()
    }

    /// A region has a handle; null is none.
    pub(super) fn region_registered(&mut self, pool: Pool, handle: u64, addr: u64) {
        if handle != 0 {
            self.regions.insert((pool, handle), addr);
        }
    }

    /// Address of a region that is unregistered.
    pub(super) fn region_unregistered(&mut self, pool: Pool, reference: Reference) -> Option<u64> {
        match reference {
            Reference::Addr(addr) => Some(addr),
            Reference::Handle(handle) => self.regions.remove(&(pool, handle)),
        }
    }
}

/// The frameworks register a heap before each block, whose size is all that the pool holds (contract §11).
const fn is_absolute(pool: Pool) -> bool {
    matches!(pool, Pool::Pta | Pool::PtaWorkspace | Pool::MindSpore)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NPU: Device = Device::Npu(0);

    fn mine() -> Pool {
        Pool::custom("mine")
    }

    /// With handles, a domain is known in every thread; without, a thread means the one that it has named last.
    #[test]
    fn domains_are_told_apart() {
        let mut domains = Domains::default();
        assert_eq!(domains.name(1, 0), None);
        assert_eq!(domains.pool(1, 0).event_type(), "mstx");
        domains.created(1, 0, "mine");
        domains.created(2, 0, "ptaCaching");
        domains.created(1, 0xaa, "with handle");
        let name = |tid, handle| domains.name(tid, handle).map(Name::as_str);
        assert_eq!((name(1, 0), name(2, 0), name(2, 0xaa)), (Some("mine"), Some("ptaCaching"), Some("with_handle")));
        // A thread that has named none means what another named.
        assert_eq!((name(3, 0), name(3, 0xbb)), (Some("ptaCaching"), None));
        assert_eq!((domains.pool(1, 0), domains.pool(2, 0)), (mine(), Pool::Pta));
        domains.destroyed(0xaa);
        assert_eq!(domains.name(1, 0xaa), None);
    }

    /// Heaps add up; one that is registered anew at its place replaces itself.
    #[test]
    fn heaps_add_up() {
        let mut domains = Domains::default();
        assert_eq!(domains.reserved_bytes(mine(), NPU), None);
        domains.heap_registered(mine(), 0, 0x1000, NPU, 100);
        domains.heap_registered(mine(), 0, 0x2000, NPU, 10);
        domains.heap_registered(mine(), 0, 0x2000, NPU, 20);
        domains.heap_registered(mine(), 0, 0x2000, Device::Npu(1), 7);
        assert_eq!(domains.reserved_bytes(mine(), NPU), Some(100));
        assert_eq!(domains.reserved_bytes(mine(), Device::Npu(1)), Some(7));
        // Which of the two?
        domains.heap_unregistered(mine(), 0);
        assert_eq!(domains.reserved_bytes(mine(), NPU), Some(100));
    }

    #[test]
    fn heaps_end() {
        let mut domains = Domains::default();
        domains.heap_registered(mine(), 0, 0x1000, NPU, 100);
        domains.heap_unregistered(mine(), 0);
        assert_eq!(domains.reserved_bytes(mine(), NPU), Some(0));
        domains.heap_registered(mine(), 5, 0x1000, NPU, 100);
        domains.heap_registered(mine(), 6, 0x2000, NPU, 10);
        domains.heap_unregistered(mine(), 5);
        domains.heap_unregistered(mine(), 99);
        assert_eq!(domains.reserved_bytes(mine(), NPU), Some(10));
    }

    /// `torch_npu` registers a heap before each block: its size is what the pool holds, not what it adds.
    #[test]
    fn heaps_of_frameworks_are_totals() {
        let mut domains = Domains::default();
        for size_bytes in [100, 300, 200] {
            domains.heap_registered(Pool::Pta, 0, 0x1000 + size_bytes, NPU, size_bytes);
        }
        assert_eq!(domains.reserved_bytes(Pool::Pta, NPU), Some(200));
    }

    #[test]
    fn regions_are_found_by_handle() {
        let mut domains = Domains::default();
        domains.region_registered(mine(), 7, 0x1000);
        domains.region_registered(mine(), 0, 0x2000);
        assert_eq!(domains.region_unregistered(mine(), Reference::Handle(7)), Some(0x1000));
        assert_eq!(domains.region_unregistered(mine(), Reference::Handle(7)), None);
        assert_eq!(domains.region_unregistered(mine(), Reference::Handle(0)), None);
        assert_eq!(domains.region_unregistered(mine(), Reference::Addr(0x2000)), Some(0x2000));
    }
}
