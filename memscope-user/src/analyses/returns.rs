//! Which freed blocks wait for streams: their pool has them back later.
//!
//! A pool of `PyTorch` says when it has a block back ([`BlockReturned`](crate::model::BlockReturned)). For a block that no stream uses that comes right before its
//! free; for others it comes when the streams have done.

use std::collections::BTreeMap;

use crate::hash::HashMap;
use crate::model::{Device, Event, EventKind, Free, FreeCause, Pool};

/// Blocks that are back, and their free not seen yet: one for each thread that frees.
const MAX_BACK: usize = 1 << 10;
/// Blocks of a pool that wait and keep their place; further ones lose it when they are freed.
const MAX_KEPT: usize = 1 << 16;

/// Freed blocks of a pool of one process on one device that are not back, by address.
#[derive(Debug)]
pub(super) struct Returns<T> {
    /// The pool says when blocks are back: the first one that is shows it.
    says_so: bool,
    /// Addresses of blocks that were back before their free.
    back: Vec<u64>,
    waiting: HashMap<u64, T>,
}

impl<T> Default for Returns<T> {
    fn default() -> Self {
        Self { says_so: false, back: Vec::new(), waiting: HashMap::default() }
    }
}

impl<T> Returns<T> {
    /// Whether a block was back before its free, which is seen now.
    pub(super) fn was_back(&mut self, addr: u64) -> bool {
        let at = self.back.iter().position(|back| *back == addr);
        at.is_some_and(|at| self.back.swap_remove(at) == addr)
    }

    /// A freed block is not back.
    pub(super) fn wait(&mut self, addr: u64, value: T) {
        self.waiting.insert(addr, value);
    }

    /// A block is back. Gives what was kept of it, if it was freed before.
    pub(super) fn returned(&mut self, addr: u64) -> Option<T> {
        self.says_so = true;
        let waited = self.waiting.remove(&addr);
        if waited.is_none() {
            if self.back.len() >= MAX_BACK {
                self.back.remove(0);
            }
            self.back.push(addr);
        }
        waited
    }

    /// The pool hands out an address: what waited there is back, which was not seen.
    pub(super) fn reused(&mut self, addr: u64) -> Option<T> {
        // Its free was not seen either, such as while a script does not collect.
        self.was_back(addr);
        self.waiting.remove(&addr)
    }

    /// Whether the pool says when blocks are back.
    pub(super) const fn says_so(&self) -> bool {
        self.says_so
    }

    /// Number of blocks that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// What is kept of the blocks that wait.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.waiting.values()
    }
}

/// Frees of one process as its pools see them: a block that waits for streams keeps its place until the pool has it back.
#[derive(Debug, Default)]
pub(super) struct PoolFrees(BTreeMap<(Device, Pool), Returns<Free>>);

/// What an event is for the places of blocks.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// An earlier free that comes into effect before the event, as one of now.
    pub(super) free: Option<(Event, Free)>,
    /// The event is a free that does not come into effect yet.
    pub(super) waits: bool,
}

impl PoolFrees {
    /// Takes an event of the process.
    pub(super) fn of(&mut self, event: &Event) -> Due {
        match &event.kind {
            // A pool hands out an address, so what waited there is back.
            EventKind::Alloc(alloc) => {
                let pool = self.0.get_mut(&(alloc.block.device, alloc.block.pool));
                Due::of(event, pool.and_then(|it| it.reused(alloc.block.addr)), None)
            }
            EventKind::BlockReturned(returned) => {
                let pool = self.0.entry((event.device, returned.pool)).or_default();
                Due::of(event, pool.returned(returned.addr), Some(returned.total_bytes))
            }
            EventKind::Free(free) => Due { free: None, waits: self.waits(free) },
            _ => Due::default(),
        }
    }

    fn waits(&mut self, free: &Free) -> bool {
        let pool = self.0.entry((free.block.device, free.block.pool)).or_default();
        let is_back = pool.was_back(free.block.addr) || !pool.says_so() || pool.len() >= MAX_KEPT;
        let waits = !is_back && free.cause == FreeCause::Program;
        if waits {
            pool.wait(free.block.addr, *free);
        }
        waits
    }

    /// The process runs another program.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Due {
    fn of(now: &Event, free: Option<Free>, total_bytes: Option<u64>) -> Self {
        let of_now = |free: Free| {
            let free = Free { total_bytes, ..free };
            (Event { device: free.block.device, kind: EventKind::Free(free), ..now.clone() }, free)
        };
        Self { free: free.map(of_now), waits: false }
    }
}
