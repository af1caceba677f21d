//! Blocks from before the attach, found in the books of the framework's pool.
//!
//! The books were read while the program went on, and the reading takes a moment. So events count more: an address that a call has named
//! since the reading began is what the calls say. All other blocks in the books are older than the trace, and were there all the time.

use super::Pipeline;
use super::blocks::{Key, NewBlock, PoolTotals};
use super::process::Process;
use super::turn::{At, Home, Shared, Turn};
use crate::capture::Note;
use crate::hash::{HashMap, HashSet};
use crate::model::{AllocApi, Device, FoundHeld, FoundPurpose, HeldAs, Look, Looked, LookedAt, Pool};

/// Addresses kept while a pool is read. Of a program that names more of them meanwhile nothing is found.
const MAX_NAMED: usize = 1 << 20;

/// What calls have said since a pool is being read.
#[derive(Debug, Default)]
pub(super) struct Meanwhile {
    named: HashSet<Key>,
    is_full: bool,
    /// The pools' last figures.
    totals: HashMap<(Pool, Device), PoolTotals>,
    /// Purposes of blocks in the books, by device in the program's numbering and address.
    held_as: HashMap<(u32, u64), HeldAs>,
}

impl Meanwhile {
    /// A call has named the block under this key.
    pub(super) fn named(&mut self, key: Key) {
        if self.named.len() < MAX_NAMED {
            self.named.insert(key);
        } else {
            self.is_full = true;
        }
    }

    /// A pool has reported its figures.
    pub(super) fn reported(&mut self, pool: Pool, device: Device, totals: PoolTotals) {
        self.totals.insert((pool, device), totals);
    }
}

/// What a pool holds on a device, as its books say.
#[derive(Debug)]
struct Books {
    /// Event type of a pool that is not `PyTorch`'s.
    pool: Option<String>,
    /// In the program's numbering.
    device: u32,
    used_bytes: u64,
    reserved_bytes: u64,
    segments: Vec<(u64, u64)>,
    blocks: Vec<(u64, u64, Option<u64>)>,
}

impl Pipeline {
    /// Takes a note about the books of a pool.
    pub(super) fn apply_pool(&mut self, time_ns: u64, note: Note) {
        match note {
            Note::PoolAsked { pid } => {
                if let Some((process, _)) = self.process(pid) {
                    process.pool_is_read(true);
                }
            }
            Note::PoolHeld { pid, pool, device, blocks } => {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.held(At::new(time_ns, pid), pool.as_deref(), device, &blocks, &mut self.shared);
                }
            }
            Note::PoolRead { pid } => {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.pool_is_read(false);
                }
            }
            Note::PoolFound { pid, pool, device, used_bytes, reserved_bytes, segments, blocks } => {
                let books = Books { pool, device, used_bytes, reserved_bytes, segments, blocks };
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.found(At::new(time_ns, pid), &books, &mut self.shared);
                }
            }
            _ => {}
        }
    }
}

impl Process {
    /// A reading begins, or has ended.
    fn pool_is_read(&mut self, begins: bool) {
        self.home_mut().meanwhile = begins.then(Box::default);
    }

    /// Purposes of blocks are known: of those that were found, and of those that will be.
    fn held(&mut self, at: At, pool: Option<&str>, device: u32, blocks: &[(u64, HeldAs)], shared: &mut Shared) {
        let home = self.home_mut();
        if let Some(meanwhile) = &mut home.meanwhile {
            let room = MAX_NAMED.saturating_sub(meanwhile.held_as.len());
            meanwhile.held_as.extend(blocks.iter().take(room).map(|(addr, held_as)| ((device, *addr), *held_as)));
            return;
        }
        if let Some(pool) = shared.backend.pool_of_framework(pool) {
            Turn::of_no_call(at, home, shared).held(pool, device, blocks);
        }
    }

    /// The pool's books were read.
    fn found(&mut self, at: At, books: &Books, shared: &mut Shared) {
        let Some(pool) = shared.backend.pool_of_framework(books.pool.as_deref()) else { return };
        // Of a pool of which no reports are taken, blocks would never end.
        if self.ignores(pool) {
            return;
        }
        let home = self.home_mut();
        let Some(meanwhile) = home.meanwhile.take() else { return };
        if !meanwhile.is_full {
            Turn::of_no_call(at, home, shared).find_all(pool, books, &meanwhile);
        }
        home.meanwhile = Some(meanwhile);
    }
}

impl Turn<'_> {
    fn find_all(&mut self, pool: Pool, books: &Books, meanwhile: &Meanwhile) {
        let device = self.device_or_own(Some(books.device));
        let driver = self.backend().driver_pool();
        for (addr, size_bytes) in &books.segments {
            let new = NewBlock::of_pool(driver, device, *addr, *size_bytes);
            self.find(Key::Driver(*addr), &NewBlock { api: AllocApi::Alloc, ..new }, None, None, meanwhile);
        }
        // That they are found changes nothing of what the pool has handed out.
        let totals = meanwhile.totals.get(&(pool, device)).copied();
        let totals = totals.unwrap_or_else(|| self.totals_of(pool, device, books, meanwhile));
        for (addr, size_bytes, requested_bytes) in &books.blocks {
            let requested_bytes = *requested_bytes;
            let new = NewBlock { requested_bytes, ..NewBlock::of_pool(pool, device, *addr, *size_bytes) };
            let held_as = meanwhile.held_as.get(&(books.device, *addr)).copied();
            self.find(Key::Pool(pool, *addr), &new, Some(totals), held_as, meanwhile);
        }
    }

    /// A pool's sums as its calls will report them: without reports they are those of the known blocks.
    fn totals_of(&self, pool: Pool, device: Device, books: &Books, meanwhile: &Meanwhile) -> PoolTotals {
        if books.pool.is_none() {
            let (used_bytes, reserved_bytes) = (Some(books.used_bytes), Some(books.reserved_bytes));
            return PoolTotals { used_bytes, reserved_bytes, active_bytes: books.used_bytes };
        }
        let is_new = |addr: u64| !self.is_known(Key::Pool(pool, addr), meanwhile);
        let new = books.blocks.iter().filter(|(addr, ..)| is_new(*addr)).map(|(_, size_bytes, _)| *size_bytes);
        let used_bytes = new.fold(self.home.blocks.used_bytes(pool, device), u64::saturating_add);
        PoolTotals { used_bytes: Some(used_bytes), reserved_bytes: None, active_bytes: used_bytes }
    }

    /// Calls have said what is under this key.
    fn is_known(&self, key: Key, meanwhile: &Meanwhile) -> bool {
        meanwhile.named.contains(&key) || self.home.blocks.contains(key)
    }

    /// A block is in the books: it is found unless calls say what it is.
    fn find(
        &mut self,
        key: Key,
        new: &NewBlock,
        totals: Option<PoolTotals>,
        held_as: Option<HeldAs>,
        meanwhile: &Meanwhile,
    ) {
        if !self.is_known(key, meanwhile) && new.addr != 0 && new.size_bytes > 0 {
            self.put_found(key, new, totals, held_as);
        }
    }

    /// Blocks that were found have these purposes. An address that was handed out again since then is another block's.
    fn held(&mut self, pool: Pool, device: u32, held: &[(u64, HeldAs)]) {
        let device = self.device_or_own(Some(device));
        let mut blocks = Vec::new();
        for &(addr, held_as) in held {
            self.home.blocks.change(Key::Pool(pool, addr), |live| {
                let block = &mut live.block;
                if !block.found || block.device != device || block.held_as.is_some() {
                    return;
                }
                block.held_as = Some(held_as);
                // One that is not reported yet has its purpose when it is.
                if !live.noted {
                    let (number, size_bytes) = (block.allocation_id, block.size_bytes);
                    blocks.push(FoundPurpose { number, size_bytes, held_as });
                }
            });
        }
        if !blocks.is_empty() {
            let found = FoundHeld { pool, device, blocks };
            let look = Look { number: 0, at: LookedAt::Running, outcome: Looked::Found(found) };
            self.shared.looked(self.at.time_ns, self.home.pid, look);
        }
    }
}

impl Home {
    /// A call has named the block under this key.
    pub(super) fn named(&mut self, key: Key) {
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.named(key);
        }
    }
}
