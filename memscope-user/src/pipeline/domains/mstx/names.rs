//! Domains of mstx, and handles of regions in their heaps (ascend-abi §5, contract §11).
//!
//! Without an injected tool every handle that mstx returns is null. Then a call belongs to the domain that its thread
//! has created last, as in the frameworks: they create the domain right before each call.

use super::super::super::recent::Recent;
use crate::backend::Backend;
use crate::hash::HashSet;
use crate::model::{Name, Pool};

/// Most domains, and threads with a domain of their own.
const MAX_DOMAINS: usize = 4096;
/// Most names of domains that a process adds to those known; the others are `other`.
const MAX_NEW_NAMES: usize = 256;
/// Fewest handles of regions kept.
const MAX_HANDLES: usize = 1 << 20;

/// The reference by which a region is unregistered.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline) enum Reference {
    Addr(u64),
    Handle(u64),
}

/// Domains and handles of one process.
#[derive(Debug)]
pub(super) struct Names {
    by_handle: Recent<u64, Name>,
    /// Created last by each thread, with a null handle.
    by_thread: Recent<u32, Name>,
    /// The same of the whole process.
    last: Option<Name>,
    regions: Recent<(Pool, u64), u64>,
    /// Names that came from this process first.
    given: HashSet<Name>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            by_handle: Recent::new(MAX_DOMAINS),
            by_thread: Recent::new(MAX_DOMAINS),
            last: None,
            regions: Recent::new(MAX_HANDLES),
            given: HashSet::default(),
        }
    }
}

impl Names {
    /// A thread has created a domain.
    pub(super) fn created(&mut self, tid: u32, handle: u64, name: &str) {
        let name = Name::keep_given(name, &mut self.given, MAX_NEW_NAMES);
        if handle != 0 {
            return self.by_handle.insert(handle, name);
        }
        self.by_thread.insert(tid, name);
        self.last = Some(name);
    }

    /// A domain is destroyed. A null handle does not identify it.
    pub(super) fn destroyed(&mut self, handle: u64) {
        self.by_handle.remove(&handle);
    }

    /// Name of the domain that a thread means.
    pub(super) fn name(&self, tid: u32, handle: u64) -> Option<Name> {
        let unknown = || self.by_thread.get(&tid).copied().or(self.last);
        if handle == 0 { unknown() } else { self.by_handle.get(&handle).copied() }
    }

    /// Pool of the domain that a thread means.
    pub(super) fn pool(&self, tid: u32, handle: u64, backend: &dyn Backend) -> Pool {
        let name = self.name(tid, handle).map_or("mstx", Name::as_str);
        backend.pool_of_domain(name).unwrap_or_else(|| backend.custom_pool(name))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::{Ascend, pools};

    fn mine() -> Pool {
        Pool::custom("mine")
    }

    /// With handles, a domain is known in every thread; without, a thread means the one that it has named last.
    #[test]
    fn domains_have_their_own_names() {
        let mut names = Names::default();
        assert_eq!(names.name(1, 0), None);
        assert_eq!(names.pool(1, 0, &Ascend).event_type(), "mstx");
        names.created(1, 0, "mine");
        names.created(2, 0, "ptaCaching");
        names.created(1, 0xaa, "with handle");
        let name = |tid, handle| names.name(tid, handle).map(Name::as_str);
        assert_eq!((name(1, 0), name(2, 0), name(2, 0xaa)), (Some("mine"), Some("ptaCaching"), Some("with_handle")));
        // A thread that has created none means the one of another.
        assert_eq!((name(3, 0), name(3, 0xbb)), (Some("ptaCaching"), None));
        assert_eq!((names.pool(1, 0, &Ascend), names.pool(2, 0, &Ascend)), (mine(), pools::PTA));
        names.destroyed(0xaa);
        assert_eq!(names.name(1, 0xaa), None);
    }

    #[test]
    fn regions_are_found_by_handle() {
        let mut names = Names::default();
        names.region_registered(mine(), 7, 0x1000);
        names.region_registered(mine(), 0, 0x2000);
        assert_eq!(names.region_unregistered(mine(), Reference::Handle(7)), Some(0x1000));
        assert_eq!(names.region_unregistered(mine(), Reference::Handle(7)), None);
        assert_eq!(names.region_unregistered(mine(), Reference::Handle(0)), None);
        assert_eq!(names.region_unregistered(mine(), Reference::Addr(0x2000)), Some(0x2000));
    }
}
