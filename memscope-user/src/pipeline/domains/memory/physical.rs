//! Physical memory by handles, and the address space that it is mapped to (`halMemCreate`, `halMemMap`, …).
//!
//! The driver counts references: a handle's memory lives until its creation and every `Retain` of it are released and
//! its last mapping has ended (ascend-abi §2.3). Handle values are heap pointers of the driver and are used again after
//! the last release, so memory that only mappings hold has no handle.

use crate::hash::{HashMap, HashSet};
use crate::model::RegionKind;

/// Most handles, mappings and regions of one process; more only come from a broken program.
const MAX_ENTRIES: usize = 1 << 20;

/// One piece of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::pipeline) struct PhysicalId(pub(in crate::pipeline) u64);

/// The fate of the memory behind a handle or a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The handle or address is not known.
    Unknown,
    /// Other references or mappings hold it.
    Held,
    /// Nothing holds it any more.
    Freed(PhysicalId),
}

#[derive(Clone, Copy, Debug, Default)]
struct Holders {
    handle: Option<u64>,
    references: u32,
    mappings: u32,
}

/// Physical memory and address space of one process.
#[derive(Debug, Default)]
pub(super) struct Physical {
    next: u64,
    pieces: HashMap<PhysicalId, Holders>,
    handles: HashMap<u64, PhysicalId>,
    /// Handles of another process's memory: no memory of this one.
    imported: HashSet<u64>,
    mapped: HashMap<u64, PhysicalId>,
    regions: HashMap<(RegionKind, u64), u64>,
    live_bytes: [u64; 3],
}

impl Physical {
    /// `handle` stands for new memory from here on. Memory that the same handle stood for was released unseen.
    pub(super) fn create(&mut self, handle: u64) -> (PhysicalId, Gone) {
        let lost = self.drop_handle(handle);
        self.next += 1;
        let id = PhysicalId(self.next);
        if self.pieces.len() < MAX_ENTRIES {
            self.pieces.insert(id, Holders { handle: Some(handle), references: 1, mappings: 0 });
            self.handles.insert(handle, id);
        }
        (id, lost)
    }

    /// `handle` stands for memory of another process.
    pub(super) fn import(&mut self, handle: u64) -> Gone {
        let lost = self.drop_handle(handle);
        if self.imported.len() < MAX_ENTRIES {
            self.imported.insert(handle);
        }
        lost
    }

    /// `handle` is one more reference to the memory mapped at `addr`.
    pub(super) fn retain(&mut self, handle: u64, addr: u64) {
        let Some(id) = self.mapped.get(&addr) else { return };
        let Some(holders) = self.pieces.get_mut(id) else { return };
        holders.references += 1;
        holders.handle = Some(handle);
        self.handles.insert(handle, *id);
    }

    /// One reference less.
    pub(super) fn release(&mut self, handle: u64) -> Gone {
        if self.imported.remove(&handle) {
            return Gone::Held;
        }
        let Some(id) = self.handles.get(&handle).copied() else { return Gone::Unknown };
        let Some(holders) = self.pieces.get_mut(&id) else { return Gone::Unknown };
        holders.references = holders.references.saturating_sub(1);
        if holders.references == 0 {
            holders.handle = None;
            self.handles.remove(&handle);
        }
        self.settle(id)
    }

    /// A release has failed after all; gives the memory that lives on, if it was taken for freed.
    pub(super) fn release_failed(&mut self, handle: u64, id: Option<PhysicalId>) {
        let Some(id) = id.or_else(|| self.handles.get(&handle).copied()) else { return };
        let holders = self.pieces.entry(id).or_default();
        holders.references += 1;
        holders.handle = Some(handle);
        self.handles.insert(handle, id);
    }

    /// The memory of `handle` is mapped at `addr`. An older mapping there has ended unseen.
    pub(super) fn map(&mut self, addr: u64, handle: u64) -> (Option<PhysicalId>, Gone) {
        let lost = self.unmap(addr);
        let id = self.handles.get(&handle).copied();
        if let Some(id) = id {
            self.map_again(addr, id);
        }
        (id, lost)
    }

    /// The memory is mapped at `addr`: the unmapping failed after all, for instance.
    pub(super) fn map_again(&mut self, addr: u64, id: PhysicalId) {
        if self.mapped.len() < MAX_ENTRIES && !self.mapped.contains_key(&addr) {
            self.pieces.entry(id).or_default().mappings += 1;
            self.mapped.insert(addr, id);
        }
    }

    /// The memory mapped at `addr`.
    pub(super) fn mapped_at(&self, addr: u64) -> Option<PhysicalId> {
        self.mapped.get(&addr).copied()
    }

    /// Nothing is mapped at `addr` any more.
    pub(super) fn unmap(&mut self, addr: u64) -> Gone {
        let Some(id) = self.mapped.remove(&addr) else { return Gone::Unknown };
        if let Some(holders) = self.pieces.get_mut(&id) {
            holders.mappings = holders.mappings.saturating_sub(1);
        }
        self.settle(id)
    }

    fn settle(&mut self, id: PhysicalId) -> Gone {
        match self.pieces.get(&id) {
            Some(Holders { references: 0, mappings: 0, .. }) => {
                self.pieces.remove(&id);
                Gone::Freed(id)
            }
            Some(_) => Gone::Held,
            None => Gone::Unknown,
        }
    }

    /// A handle value is in use again, so its last holder has released it.
    fn drop_handle(&mut self, handle: u64) -> Gone {
        self.imported.remove(&handle);
        let Some(id) = self.handles.remove(&handle) else { return Gone::Unknown };
        if let Some(holders) = self.pieces.get_mut(&id) {
            holders.references = 0;
            holders.handle = None;
        }
        self.settle(id)
    }

    /// A region begins; one at the same place has ended unseen. Gives the live bytes of its kind.
    pub(super) fn begin_region(&mut self, kind: RegionKind, addr: u64, size_bytes: u64) -> u64 {
        self.end_region(kind, addr);
        let live = &mut self.live_bytes[kind as usize];
        if self.regions.len() < MAX_ENTRIES {
            self.regions.insert((kind, addr), size_bytes);
            *live = live.saturating_add(size_bytes);
        }
        *live
    }

    /// A region ends: its size, and the live bytes of its kind. `None` when it is unknown.
    pub(super) fn end_region(&mut self, kind: RegionKind, addr: u64) -> Option<(u64, u64)> {
        let size_bytes = self.regions.remove(&(kind, addr))?;
        let live = &mut self.live_bytes[kind as usize];
        *live = live.saturating_sub(size_bytes);
        Some((size_bytes, *live))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0xa0;
    const B: u64 = 0xb0;
    const VA: u64 = 0x1000;

    /// Create, release: the simplest program.
    #[test]
    fn last_release_frees() {
        let mut physical = Physical::default();
        let (id, lost) = physical.create(A);
        assert_eq!(lost, Gone::Unknown);
        assert_eq!(physical.release(A), Gone::Freed(id));
        assert_eq!(physical.release(A), Gone::Unknown);
    }

    /// A mapping holds memory after the release of its handle; the handle may be used again meanwhile.
    #[test]
    fn mapping_holds_after_release() {
        let mut physical = Physical::default();
        let (first, _) = physical.create(A);
        physical.map(VA, A);
        assert_eq!(physical.release(A), Gone::Held);
        let (second, lost) = physical.create(A);
        assert_eq!(lost, Gone::Unknown);
        assert_eq!(physical.unmap(VA), Gone::Freed(first));
        assert_eq!(physical.release(A), Gone::Freed(second));
    }

    /// A retained reference, under another handle value, needs its own release.
    #[test]
    fn retained_reference_holds() {
        let mut physical = Physical::default();
        let (id, _) = physical.create(A);
        physical.map(VA, A);
        physical.retain(B, VA);
        assert_eq!(physical.unmap(VA), Gone::Held);
        assert_eq!(physical.release(A), Gone::Held);
        assert_eq!(physical.release(B), Gone::Freed(id));
    }

    /// A release that failed did not happen.
    #[test]
    fn failed_release_is_taken_back() {
        let mut physical = Physical::default();
        let (id, _) = physical.create(A);
        assert_eq!(physical.release(A), Gone::Freed(id));
        physical.release_failed(A, Some(id));
        assert_eq!(physical.release(A), Gone::Freed(id));
    }

    /// Memory of another process is no memory of this one, and its release is no free.
    #[test]
    fn imported_memory_is_not_ours() {
        let mut physical = Physical::default();
        physical.import(A);
        physical.map(VA, A);
        assert_eq!(physical.unmap(VA), Gone::Unknown);
        assert_eq!(physical.release(A), Gone::Held);
        assert_eq!(physical.release(A), Gone::Unknown);
    }

    /// A handle that is created while it is live lost its release.
    #[test]
    fn handle_given_out_twice() {
        let mut physical = Physical::default();
        let (first, _) = physical.create(A);
        assert_eq!(physical.create(A).1, Gone::Freed(first));
    }

    /// An unmapping that failed did not happen: the memory is held by it still.
    #[test]
    fn failed_unmapping_is_taken_back() {
        let mut physical = Physical::default();
        let (id, _) = physical.create(A);
        assert_eq!(physical.map(VA, A), (Some(id), Gone::Unknown));
        physical.release(A);
        assert_eq!(physical.unmap(VA), Gone::Freed(id));
        physical.map_again(VA, id);
        assert_eq!((physical.mapped_at(VA), physical.unmap(VA)), (Some(id), Gone::Freed(id)));
    }

    #[test]
    fn regions_add_up_by_kind() {
        let mut physical = Physical::default();
        assert_eq!(physical.begin_region(RegionKind::Reservation, VA, 100), 100);
        assert_eq!(physical.begin_region(RegionKind::Mapping, VA, 40), 40);
        assert_eq!(physical.begin_region(RegionKind::Mapping, 0x2000, 2), 42);
        assert_eq!(physical.end_region(RegionKind::Mapping, VA), Some((40, 2)));
        assert_eq!(physical.end_region(RegionKind::Mapping, VA), None);
        assert_eq!(physical.end_region(RegionKind::Reservation, VA), Some((100, 0)));
    }
}
