//! Blocks and address space of the driver: allocated, released, mapped, failed.

use super::super::blocks::{Key, Live};
use super::super::item::{Ending, Failure, PoolTotals, Request};
use super::super::physical::{Gone, PhysicalId};
use super::super::requests::{self, Wish};
use super::{At, Process, Shared};
use crate::model::{
    Alloc, AllocApi, AllocFailed, AllocRecovered, Block, Device, EventKind, Free, FreeCause, Pool, Region, RegionKind,
    UnknownFree,
};

/// Live blocks of all processes that are followed; later ones are counted and not reported.
const MAX_LIVE_BLOCKS: usize = 16 << 20;

/// Codes that say that there was no memory: the driver's, then those of ACL and the runtime (ascend-abi §2, §3).
const OUT_OF_MEMORY: [i32; 5] = [6, 207_001, 200_000, 300_000, 0x0702_0016];

/// How to take back what ended, if it turns out that it did not.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    /// A block was freed.
    Block { key: Key, live: Live },
    /// A block that is not known was freed.
    Unknown { addr: u64 },
    /// A reference to a handle was released; maybe the last one.
    Release { handle: u64, freed: Option<(PhysicalId, Live)> },
    /// A mapping ended; its memory was freed with it if nothing else held it.
    Mapping { addr: u64, size_bytes: u64, id: Option<PhysicalId>, freed: Option<Live> },
    /// A region ended.
    Region { kind: RegionKind, addr: u64, size_bytes: u64 },
}

/// What is known of a new block besides the moment.
#[derive(Clone, Copy)]
pub(super) struct New {
    pub(super) key: Key,
    pub(super) request: Request,
    pub(super) requested_bytes: Option<u64>,
    pub(super) totals: Option<PoolTotals>,
}

impl Process {
    /// The driver gave memory.
    pub(super) fn driver_allocated(&mut self, at: At, request: &Request, shared: &mut Shared) {
        let key = match request.api {
            AllocApi::Alloc => Key::Driver(request.addr),
            AllocApi::Register => Key::Pinned(request.addr),
            AllocApi::Create => {
                let (id, lost) = self.physical.create(request.addr);
                self.physical_gone(at, lost, FreeCause::Replaced, shared);
                Key::Physical(id)
            }
        };
        self.hand_out(at, New { key, request: *request, requested_bytes: None, totals: None }, shared);
        // Where a framework's pool reports, it tells itself whether it got what it wanted.
        if !self.has_pool
            && let Some(request) = self.requests.driver_gave(at.tid, request.size_bytes)
        {
            self.recovered(at, request, shared);
        }
    }

    /// A block is handed out. One that lives under the same key was freed unseen.
    pub(super) fn hand_out(&mut self, at: At, new: New, shared: &mut Shared) {
        let New { key, request, requested_bytes, totals } = new;
        let Request { addr, size_bytes, pool, device, module_id, page, api, caller, .. } = request;
        self.know(device);
        self.free(at, key, FreeCause::Replaced, None, shared);
        if shared.live >= MAX_LIVE_BLOCKS {
            shared.blocks_full += 1;
            return;
        }
        let mut block = Block {
            allocation_id: self.blocks.next_id(),
            pool,
            device,
            addr,
            size_bytes,
            requested_bytes,
            alloc_time_ns: at.time_ns,
            alloc_id: self.next_event,
            tid: at.tid,
            step: self.steps.of_device(device),
            kernel_index: self.kernel_index(shared),
            module_id,
            page,
            api,
            caller,
            stacks: at.stacks,
            owner: None,
        };
        let labels = self.labels_of(at.tid);
        block.owner = self.owner_of(&block, labels, shared);
        let (noted, inside) = (!self.script.collecting(), self.steps.inside());
        let live = Live { block, returned: false, inside, noted, labels, later_owner: None };
        self.put(at, key, live, totals, false, shared);
    }

    /// A block is live; `promoted` if it was already when collection began.
    pub(super) fn put(
        &mut self,
        at: At,
        key: Key,
        live: Live,
        totals: Option<PoolTotals>,
        promoted: bool,
        shared: &mut Shared,
    ) {
        let own_bytes = self.blocks.put(key, live);
        shared.live += 1;
        let alloc = Alloc {
            block: live.block,
            used_bytes: totals.and_then(|totals| totals.used_bytes).unwrap_or(own_bytes),
            total_bytes: totals.map(|totals| totals.reserved_bytes),
            driver: shared.usage.of(self.pid, live.block.device),
            restored: live.block.alloc_id != self.next_event,
            promoted,
        };
        let at = if alloc.restored { at.made_up() } else { at };
        if !live.noted {
            self.emit(at, live.block.device, EventKind::Alloc(alloc), live.inside, shared);
        }
    }

    /// A block lives on that was said to have ended.
    fn put_back(&mut self, at: At, key: Key, live: Live, shared: &mut Shared) {
        let told = !live.noted && (self.did_not_end(live.block.allocation_id, shared) || self.script.collecting());
        self.put(at, key, Live { noted: !told, ..live }, None, false, shared);
    }

    /// Ends the block under `key`, if there is one. Its row is written if that of its allocation is.
    pub(super) fn free(
        &mut self,
        at: At,
        key: Key,
        cause: FreeCause,
        totals: Option<PoolTotals>,
        shared: &mut Shared,
    ) -> Option<Live> {
        let (live, own_bytes) = self.blocks.take(key)?;
        shared.live = shared.live.saturating_sub(1);
        if live.noted {
            return Some(live);
        }
        let row_time_ns = self.time_behind_stop();
        if row_time_ns.is_some() && cause.gave_back() {
            self.ended_unwatched(live, shared);
            return Some(live);
        }
        // The call that showed that a block had ended did not end it.
        let at = if cause == FreeCause::Program { at } else { at.made_up() };
        let free = Free {
            block: live.block,
            used_bytes: totals.and_then(|totals| totals.used_bytes).unwrap_or(own_bytes),
            total_bytes: totals.map(|totals| totals.reserved_bytes),
            driver: shared.usage.of(self.pid, live.block.device),
            cause,
            owner: live.later_owner,
            row_time_ns,
            without_row: false,
        };
        self.tell(at, live.block.device, EventKind::Free(free), live.inside, shared);
        Some(live)
    }

    /// Something ends, unless the driver refuses.
    pub(super) fn ends(&mut self, at: At, thread: (u32, u16), ending: Ending, shared: &mut Shared) {
        let undo = match ending {
            Ending::Block { api: AllocApi::Alloc, addr } => Some(self.freed(at, Key::Driver(addr), addr, shared)),
            Ending::Block { api: AllocApi::Register, addr } => {
                // Most registrations pin nothing, so an unknown one is nothing to tell of.
                let key = Key::Pinned(addr);
                let live = self.free(at, key, FreeCause::Program, None, shared);
                live.map(|live| Undo::Block { key, live })
            }
            Ending::Block { api: AllocApi::Create, addr } => Some(self.released(at, addr, shared)),
            Ending::Mapping { addr } => self.unmapped(at, addr, shared),
            Ending::Region { kind, addr } => self.region_ends(at, kind, addr, shared),
        };
        self.last_end.insert(thread, undo);
    }

    fn freed(&mut self, at: At, key: Key, addr: u64, shared: &mut Shared) -> Undo {
        if let Some(live) = self.free(at, key, FreeCause::Program, None, shared) {
            return Undo::Block { key, live };
        }
        // `halMemAlloc` reserves addresses, too.
        if let Some(undo) = self.region_ends(at, RegionKind::Reservation, addr, shared) {
            return undo;
        }
        self.unknown_free(at, Pool::Hal, addr, false, shared);
        Undo::Unknown { addr }
    }

    fn released(&mut self, at: At, handle: u64, shared: &mut Shared) -> Undo {
        let freed = match self.physical.release(handle) {
            Gone::Unknown => {
                self.unknown_free(at, Pool::Hal, handle, false, shared);
                return Undo::Unknown { addr: handle };
            }
            Gone::Held => None,
            Gone::Freed(id) => {
                self.free(at, Key::Physical(id), FreeCause::Program, None, shared).map(|live| (id, live))
            }
        };
        Undo::Release { handle, freed }
    }

    fn unmapped(&mut self, at: At, addr: u64, shared: &mut Shared) -> Option<Undo> {
        let id = self.physical.mapped_at(addr);
        let gone = self.physical.unmap(addr);
        let freed = self.physical_gone(at, gone, FreeCause::Program, shared);
        let (size_bytes, live_bytes) = self.physical.end_region(RegionKind::Mapping, addr)?;
        let allocation_id = freed.map(|live| live.block.allocation_id).or_else(|| self.number(id));
        let region = Region { kind: RegionKind::Mapping, begins: false, addr, size_bytes, allocation_id, live_bytes };
        self.region(at, region, shared);
        Some(Undo::Mapping { addr, size_bytes, id, freed })
    }

    fn physical_gone(&mut self, at: At, gone: Gone, cause: FreeCause, shared: &mut Shared) -> Option<Live> {
        let Gone::Freed(id) = gone else { return None };
        self.free(at, Key::Physical(id), cause, None, shared)
    }

    /// Number of the block that is behind a mapping.
    fn number(&self, id: Option<PhysicalId>) -> Option<u64> {
        self.blocks.number(Key::Physical(id?))
    }

    /// A free of a block that is not known, or its refusal. Freeing a null pointer is no free.
    pub(super) fn unknown_free(&mut self, at: At, pool: Pool, addr: u64, refused: bool, shared: &mut Shared) {
        if addr == 0 {
            return;
        }
        let free = UnknownFree { pool, addr, size_bytes: None, maybe_older: self.attached, refused };
        let device = self.device_of(at.tid);
        self.emit(at, device, EventKind::UnknownFree(free), self.steps.inside(), shared);
    }

    /// What the thread's last call by this row ended lives on after all.
    pub(super) fn end_failed(&mut self, at: At, thread: (u32, u16), addr: Option<u64>, shared: &mut Shared) {
        let meant = |own: u64| addr.is_none_or(|addr| addr == own);
        match self.last_end.remove(&thread).flatten() {
            Some(Undo::Block { key, live }) if meant(live.block.addr) && !self.blocks.contains(key) => {
                self.put_back(at, key, live, shared);
            }
            Some(Undo::Unknown { addr }) if meant(addr) => self.unknown_free(at, Pool::Hal, addr, true, shared),
            Some(Undo::Release { handle, freed }) if meant(handle) => {
                self.physical.release_failed(handle, freed.map(|(id, _)| id));
                if let Some((id, live)) = freed {
                    self.put_back(at, Key::Physical(id), live, shared);
                }
            }
            Some(Undo::Mapping { addr, size_bytes, id, freed }) if meant(addr) => {
                if let Some(id) = id {
                    self.physical.map_again(addr, id);
                }
                if let (Some(id), Some(live)) = (id, freed) {
                    self.put_back(at, Key::Physical(id), live, shared);
                }
                self.mapping_begins(at, addr, size_bytes, id, shared);
            }
            Some(Undo::Region { kind, addr, size_bytes }) if meant(addr) => {
                self.region_begins(at, kind, addr, size_bytes, shared);
            }
            _ => {}
        }
    }

    /// A handle stands for memory of another process.
    pub(super) fn imported(&mut self, at: At, handle: u64, shared: &mut Shared) {
        let lost = self.physical.import(handle);
        self.physical_gone(at, lost, FreeCause::Replaced, shared);
    }

    /// Reserved addresses get the memory of a handle.
    pub(super) fn mapped(&mut self, at: At, addr: u64, size_bytes: u64, handle: u64, shared: &mut Shared) {
        let (id, lost) = self.physical.map(addr, handle);
        self.physical_gone(at, lost, FreeCause::Replaced, shared);
        self.mapping_begins(at, addr, size_bytes, id, shared);
    }

    fn mapping_begins(&mut self, at: At, addr: u64, size_bytes: u64, id: Option<PhysicalId>, shared: &mut Shared) {
        let (kind, allocation_id) = (RegionKind::Mapping, self.number(id));
        let live_bytes = self.physical.begin_region(kind, addr, size_bytes);
        self.region(at, Region { kind, begins: true, addr, size_bytes, allocation_id, live_bytes }, shared);
    }

    /// Address space is taken.
    pub(super) fn region_begins(&mut self, at: At, kind: RegionKind, addr: u64, size_bytes: u64, shared: &mut Shared) {
        let live_bytes = self.physical.begin_region(kind, addr, size_bytes);
        let allocation_id = None;
        self.region(at, Region { kind, begins: true, addr, size_bytes, allocation_id, live_bytes }, shared);
    }

    fn region_ends(&mut self, at: At, kind: RegionKind, addr: u64, shared: &mut Shared) -> Option<Undo> {
        let (size_bytes, live_bytes) = self.physical.end_region(kind, addr)?;
        let allocation_id = None;
        self.region(at, Region { kind, begins: false, addr, size_bytes, allocation_id, live_bytes }, shared);
        Some(Undo::Region { kind, addr, size_bytes })
    }

    fn region(&mut self, at: At, region: Region, shared: &mut Shared) {
        let device = self.device_of(at.tid);
        self.emit(at, device, EventKind::Region(region), self.steps.inside(), shared);
    }

    /// An allocation failed for its caller.
    pub(super) fn allocation_failed(&mut self, at: At, failure: &Failure, shared: &mut Shared) {
        let Failure { pool, device, size_bytes, flags, status, caller, .. } = *failure;
        let device = device.unwrap_or_else(|| self.device_of(at.tid));
        let out_of_memory = OUT_OF_MEMORY.contains(&status);
        let (request, attempt) = if out_of_memory {
            let request = self.requests.failed(at.tid, at.time_ns, Wish { pool, device, size_bytes });
            (request.number, request.attempts)
        } else {
            (self.requests.number(), 1)
        };
        let failed = AllocFailed { pool, size_bytes, status, flags, caller, out_of_memory, request, attempt };
        self.emit(at, device, EventKind::AllocFailed(failed), self.steps.inside(), shared);
        if out_of_memory {
            self.fails(at, device, failed, shared);
        }
    }

    /// A request that had failed succeeded.
    pub(super) fn recovered(&mut self, at: At, request: requests::Request, shared: &mut Shared) {
        let requests::Request { number, attempts, wish: Wish { pool, device, size_bytes }, .. } = request;
        self.fails_no_more(at.tid, shared);
        let recovered = AllocRecovered { pool, request: number, failed_attempts: attempts, size_bytes };
        self.emit(at, device, EventKind::AllocRecovered(recovered), self.steps.inside(), shared);
    }

    /// The NPU that a pool calls `device`; where it does not tell, that of the thread.
    pub(super) fn pool_device(&self, at: At, device: Option<u32>) -> Device {
        device.map_or_else(|| self.device_of(at.tid), |device| Device::Npu(self.physical_device(device)))
    }
}
