//! Events of one process to its list of requests.

use std::sync::Arc;

use super::costs::Costs;
use super::graphs::{Graphs, Unheld};
use super::limits::Limits;
use super::thread::{Grown, HANDLE, OfPool, Reserved, Thread};
use super::uses::Uses;
use super::words::{MAX_LANES, MAX_MARKS, Op, Slots};
use super::{Lane, Mark, MarkOf, Requests, Source};
use crate::hash::HashMap;
use crate::model::{
    Access, Alloc, AllocApi, Block, BlockReturned, Device, Event, EventKind, Free, FreeCause, Mark as Marked,
    ModuleRole, OpPhase, Pool, PoolOperators, PoolRefused, PoolSet, Region, RegionKind, Setting,
};

/// Variable with the pool's settings.
const CONFIGURATION: &str = "PYTORCH_NPU_ALLOC_CONF";
/// Different settings that a script sets.
const MAX_SETTINGS: usize = 64;
/// Bytes that `torch_npu` adds to a request, for requests with an unknown size.
const PAD_BYTES: u64 = 32;

/// A block of the pool.
#[derive(Clone, Copy, Debug)]
struct Live {
    slot: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// With the program.
    Live,
    /// The pool has it back; the program's free comes next.
    Returned,
    /// The program gave it back, streams use it.
    InUse,
}

/// A block of the driver.
#[derive(Clone, Copy, Debug)]
struct DriverBlock {
    device: u8,
    bytes: u64,
    segment: bool,
    /// The segment is of a pool that an object `MemPool` holds, and may be from an allocator of the program's own.
    of_object: bool,
}

/// The facts about a process.
#[derive(Debug, Default)]
pub(super) struct Process {
    requests: Requests,
    slots: Slots,
    lanes: HashMap<Lane, u16>,
    live: HashMap<(u8, u64), Live>,
    driver: HashMap<(AllocApi, u64), DriverBlock>,
    threads: HashMap<u32, Thread>,
    graphs: Graphs,
    held_bytes: Vec<u64>,
    reserved_bytes: Vec<Option<u64>>,
    /// Whether the pool reports returned blocks; not known yet.
    tells_returns: Option<bool>,
    costs: Costs,
    limits: Limits,
    /// Last uses, if they are asked about.
    uses: Option<Uses>,
}

impl Process {
    pub(super) fn new(pid: u32, source: Source, asks_uses: bool) -> Self {
        let requests = Requests { pid, ..Requests::default() };
        let tells_returns = (source == Source::Capture).then_some(true);
        Self { requests, tells_returns, uses: asks_uses.then(Uses::default), ..Self::default() }
    }

    /// Requests to its pool that got a block, so far.
    pub(super) const fn requests(&self) -> u64 {
        self.requests.count
    }

    /// `ended`: the process has.
    pub(super) fn conclude(mut self, ended: bool) -> Requests {
        let at = self.requests.words.len();
        self.requests.last_uses = self.uses.take().map(|uses| uses.conclude(ended, at).into());
        self.requests.call_times = self.costs.conclude();
        self.requests.others_peak_bytes = others_peaks(&self.requests);
        self.requests.own_rules = self.graphs.rules;
        self.requests.limits_vary = self.limits.conclude(&mut self.requests.words);
        self.requests.shrink();
        self.requests
    }

    /// Takes an event. Of a request that is left out only its driver calls count: they are not others' memory. `asks_use`: the last use of its
    /// block is asked about.
    pub(super) fn observe(&mut self, event: &Event, left_out: bool, asks_use: bool) {
        self.used(event);
        match &event.kind {
            // Older than the recording: part of what the pool held when it began.
            EventKind::Alloc(alloc) if alloc.block.found => {}
            EventKind::Alloc(alloc) if is_pool(alloc.block.pool) => self.pool_alloc(event, alloc, left_out, asks_use),
            EventKind::Free(free) if is_pool(free.block.pool) => self.pool_free(event, free),
            EventKind::BlockReturned(returned) if is_pool(returned.pool) => self.returned(event, returned),
            EventKind::CacheEmptied => self.cache_emptied(event),
            EventKind::PoolSet(set) => self.set(event.device, set),
            EventKind::DeviceMemory(memory) => {
                if let Some(device) = self.device(event.device) {
                    self.requests.total_bytes[usize::from(device)] = Some(memory.total_bytes);
                }
            }
            EventKind::Graph(graph) => {
                let unheld = self.graphs.change(event.tid, graph);
                self.is_unheld(event, unheld);
            }
            EventKind::OwnPool(own) => {
                let device = self.device(event.device);
                let unheld = self.graphs.change_own(event.tid, device, own);
                self.is_unheld(event, unheld);
            }
            EventKind::PoolRefused(refused) => self.refused(event.tid, refused),
            EventKind::Alloc(alloc) if alloc.block.pool.is_driver() => self.driver_alloc(event, &alloc.block),
            EventKind::Free(free) if free.block.pool.is_driver() && free.cause.gave_back() => {
                self.driver_free(event, &free.block);
            }
            EventKind::AllocFailed(failed) if failed.pool.is_driver() && failed.out_of_memory => {
                if let Some(device) = self.device(event.device) {
                    self.limited(device, failed.size_bytes);
                    let thread = self.threads.entry(event.tid).or_default();
                    thread.driver_failed(device, &mut self.requests.words);
                }
            }
            EventKind::Settings(settings) => self.configured(settings),
            EventKind::Region(region) => self.region(event, region),
            EventKind::StepStart { step } => self.mark(event.time_ns, MarkOf::Step(*step)),
            EventKind::Mark(Marked::Point { text: Some(text) }) => {
                self.mark(event.time_ns, MarkOf::Text(Arc::clone(text)));
            }
            _ => {}
        }
    }

    fn configured(&mut self, settings: &[Setting]) {
        let found = settings.iter().find(|setting| setting.name == CONFIGURATION);
        if let Some(setting) = found {
            self.requests.configuration = Some(setting.value.clone());
        }
    }

    fn device(&mut self, device: Device) -> Option<u8> {
        let Device::Npu(number) = device else { return None };
        let index = self.requests.device(number)?;
        self.held_bytes.resize(self.requests.devices.len(), 0);
        self.reserved_bytes.resize(self.requests.devices.len(), None);
        Some(index)
    }

    /// The driver has refused memory: the process cannot have this much.
    fn limited(&mut self, device: u8, size_bytes: u64) {
        let index = usize::from(device);
        let above = self.limits.refused(device, self.held_bytes[index], size_bytes, &mut self.requests.words);
        let known = &mut self.requests.limit_bytes[index];
        *known = Some(known.map_or(above, |known| known.min(above)));
    }

    fn lane(&mut self, lane: Lane) -> u16 {
        if let Some(known) = self.lanes.get(&lane) {
            return *known;
        }
        let number = self.requests.lanes.len();
        if number >= MAX_LANES {
            self.requests.gaps.without_stream += 1;
            return 0;
        }
        self.requests.lanes.push(lane);
        self.lanes.insert(lane, number as u16);
        number as u16
    }

    fn pool_alloc(&mut self, event: &Event, alloc: &Alloc, left_out: bool, asks_use: bool) {
        let Alloc { block, used_bytes, total_bytes, restored, promoted, asked, .. } = *alloc;
        let Some(device) = self.device(block.device) else { return };
        if restored || promoted || !self.slots.has_room() {
            self.requests.gaps.left_out += 1;
            return;
        }
        let stream = asked.stream.unwrap_or(0);
        let private = self.graphs.pool_of(event.tid, device, stream);
        let lane = self.lane(Lane { device, stream, private });
        let thread = self.threads.entry(event.tid).or_default();
        thread.used_lane(device, lane);
        let of_pool = thread.got(asked.time_ns, &mut self.requests.words);
        let returned = thread.take_returned();
        if let Some(asked_ns) = asked.time_ns {
            self.costs.add(event.time_ns.saturating_sub(asked_ns), &of_pool);
        }
        // Most requests make no driver call: then nothing asks.
        let of_object = private > 0 && of_pool.has_grown() && self.graphs.is_of_object(private);
        self.are_of_pool(of_pool, of_object);
        self.older(device, &block, used_bytes, total_bytes);
        self.reserved(device, total_bytes);
        if !left_out {
            self.allocated(event, alloc, (device, lane), asks_use);
        }
        self.given_back(returned);
    }

    /// A request got its block.
    fn allocated(&mut self, event: &Event, alloc: &Alloc, (device, lane): (u8, u16), asks_use: bool) {
        let Alloc { block, asked, .. } = *alloc;
        self.requests.gaps.without_stream += u64::from(asked.stream.is_none());
        let asked_bytes = block.requested_bytes.unwrap_or_else(|| {
            self.requests.gaps.sizes_guessed += 1;
            block.size_bytes.saturating_sub(PAD_BYTES)
        });
        self.requests.words.push(Op::Alloc { lane, asked: asked_bytes });
        self.requests.see(block.addr, block.size_bytes, block.stacks.best(), event.time_ns);
        if let Some(uses) = &mut self.uses {
            uses.allocated(device, &block, asks_use, self.requests.words.len());
        }
        let live = Live { slot: self.slots.take(), state: State::Live };
        self.live.insert((device, block.addr), live);
    }

    /// The pool's memory when the recording began, by its first report.
    fn older(&mut self, device: u8, block: &Block, used_bytes: u64, total_bytes: Option<u64>) {
        let index = usize::from(device);
        if self.reserved_bytes[index].is_some() {
            return;
        }
        let older_bytes = used_bytes.saturating_sub(block.size_bytes);
        if let Some(held_bytes) = total_bytes.filter(|_| older_bytes > 0) {
            self.requests.gaps.older_bytes += held_bytes;
            self.others(device, held_bytes.cast_signed());
        }
    }

    /// Operators use blocks.
    fn used(&mut self, event: &Event) {
        let (tid, at) = (event.tid, self.requests.words.len());
        let device = if self.uses.is_some() { self.device(event.device) } else { return };
        let Some(uses) = &mut self.uses else { return };
        match &event.kind {
            EventKind::Access(Access { addr, pool, .. }) if pool.operators().is_some() => {
                if let Some(device) = device {
                    uses.used(tid, device, *addr, at);
                }
            }
            EventKind::UsesLeftOut => uses.left_out(tid, at),
            EventKind::Op(op) if op.phase == OpPhase::Start => uses.begins(tid, &op.name, true, at),
            EventKind::Op(op) if op.phase == OpPhase::End => uses.ends(tid, &op.name, at),
            EventKind::AtbOp(op) if op.begins => uses.begins(tid, &op.name, false, at),
            EventKind::AtbOp(op) => uses.ends(tid, &op.name, at),
            _ => {}
        }
    }

    /// The memory of the pool, if it has changed.
    fn reserved(&mut self, device: u8, total_bytes: Option<u64>) {
        let last = &mut self.reserved_bytes[usize::from(device)];
        if let Some(bytes) = total_bytes
            && *last != total_bytes
        {
            *last = total_bytes;
            self.requests.words.push(Op::Reserved { device, bytes });
        }
    }

    fn pool_free(&mut self, event: &Event, free: &Free) {
        let Some(device) = self.device(free.block.device) else { return };
        if !free.cause.gave_back() {
            return;
        }
        let thread = self.threads.entry(event.tid).or_default();
        thread.idle();
        let returned = thread.take_returned();
        self.given_back(returned);
        let key = (device, free.block.addr);
        let Some(Live { slot, state }) = self.live.remove(&key) else { return };
        if let Some(uses) = &mut self.uses {
            uses.freed(device, free.block.addr);
        }
        if free.cause == FreeCause::Replaced {
            self.requests.gaps.unseen_frees += 1;
        }
        self.reserved(device, free.total_bytes);
        self.requests.frees += 1;
        let tells_returns = *self.tells_returns.get_or_insert(state == State::Returned);
        let seen = free.cause != FreeCause::Replaced;
        if state == State::Live && tells_returns && seen {
            self.requests.words.push(Op::FreeInUse { slot });
            self.requests.frees_in_use += 1;
            self.live.insert(key, Live { slot, state: State::InUse });
        } else {
            self.requests.words.push(Op::Free { slot });
            self.slots.give_back(slot);
        }
    }

    fn returned(&mut self, event: &Event, returned: &BlockReturned) {
        let Some(device) = self.device(event.device) else { return };
        let key = (device, returned.addr);
        match self.live.get_mut(&key) {
            Some(Live { state: state @ State::Live, .. }) => *state = State::Returned,
            Some(Live { slot, state: State::InUse }) => {
                let slot = *slot;
                self.live.remove(&key);
                if !self.threads.entry(event.tid).or_default().returned(slot) {
                    self.given_back([slot]);
                }
            }
            _ => {}
        }
    }

    /// Streams have done with these blocks.
    fn given_back(&mut self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            self.requests.words.push(Op::Returned { slot });
            self.slots.give_back(slot);
        }
    }

    /// The program's call, also where no segment could be given back: under other settings one may be.
    fn cache_emptied(&mut self, event: &Event) {
        let thread = self.threads.entry(event.tid).or_default();
        for device in 0..self.requests.devices.len() {
            let device = device as u8;
            thread.emptied(event.time_ns, device, Op::EmptyCache { device }, &mut self.requests.words);
        }
    }

    /// The script sets rules.
    fn set(&mut self, device: Device, set: &PoolSet) {
        match set {
            PoolSet::Settings { text } => {
                let known = &mut self.requests.script_settings;
                let index = known.iter().position(|known| known == text).unwrap_or(known.len());
                if index >= MAX_SETTINGS {
                    self.requests.gaps.left_out += 1;
                    return;
                }
                if index == known.len() {
                    known.push(Arc::clone(text));
                }
                self.requests.words.push(Op::Settings { index: index as u32 });
            }
            PoolSet::Fraction(fraction) => {
                let Some(device) = self.device(device) else { return };
                self.requests.script_fractions.insert(device, *fraction);
                self.requests.words.push(Op::Fraction { device, fraction: *fraction });
            }
        }
    }

    fn is_unheld(&mut self, event: &Event, unheld: Option<Unheld>) {
        let Some(Unheld { private, emptied }) = unheld else { return };
        let thread = self.threads.entry(event.tid).or_default();
        for device in 0..self.requests.devices.len() {
            let device = device as u8;
            self.requests.words.push(Op::PoolReleased { device, private });
            if emptied {
                let op = Op::PoolEmptied { device, private };
                thread.emptied(event.time_ns, device, op, &mut self.requests.words);
            }
        }
    }

    fn refused(&mut self, tid: u32, refused: &PoolRefused) {
        let thread = self.threads.entry(tid).or_default();
        let (of_pool, failed) = thread.refused(refused.asked_ns, &mut self.requests.words);
        let lane = failed.and_then(|(_, device)| thread.lane(device));
        let returned = thread.take_returned();
        self.are_of_pool(of_pool, false);
        self.given_back(returned);
        let Some((at, device)) = failed else { return };
        let lane = lane.unwrap_or_else(|| self.lane(Lane { device, stream: 0, private: 0 }));
        self.requests.words.replace(at, Op::Failed { lane, asked: refused.size_bytes });
        self.requests.failures += 1;
    }

    /// These driver calls were made for a request.
    fn are_of_pool(&mut self, of_pool: OfPool, of_object: bool) {
        for Grown { key, device, at, .. } in of_pool.segments {
            self.requests.words.replace(at, Op::Nothing { words: 3 });
            let api = if key & HANDLE != 0 { AllocApi::Create } else { AllocApi::Alloc };
            if let Some(block) = self.driver.get_mut(&(api, key & !HANDLE)) {
                block.segment = true;
                block.of_object = of_object;
            }
            if api == AllocApi::Alloc {
                self.requests.segments[usize::from(device)].push(key);
            }
        }
        for Reserved { device, addr, .. } in of_pool.reservations {
            // An allocator of the program's own may make reservations for plain segments.
            self.requests.expandable |= !of_object;
            self.requests.segments[usize::from(device)].push(addr);
        }
    }

    fn others(&mut self, device: u8, bytes: i64) -> usize {
        self.requests.words.push(Op::Others { device, bytes })
    }

    fn driver_alloc(&mut self, event: &Event, block: &Block) {
        let Some(device) = self.device(block.device) else { return };
        let Block { api, addr, size_bytes: bytes, .. } = *block;
        let at = self.others(device, bytes.cast_signed());
        let held = &mut self.held_bytes[usize::from(device)];
        *held = held.saturating_add(bytes);
        self.limits.holds(device, *held, &mut self.requests.words);
        self.driver.insert((api, addr), DriverBlock { device, bytes, segment: false, of_object: false });
        let key = if api == AllocApi::Create { addr | HANDLE } else { addr };
        let grown = Grown { time_ns: event.time_ns, key, device, bytes, at };
        // The runtime sets a device up at the first request: that memory is its own.
        if block.module_id.is_none_or(|module| module.role() != ModuleRole::Runtime) {
            self.threads.entry(event.tid).or_default().grown(grown);
        }
    }

    fn driver_free(&mut self, event: &Event, block: &Block) {
        let Some(known) = self.driver.remove(&(block.api, block.addr)) else { return };
        let DriverBlock { device, bytes, segment, of_object } = known;
        let held = &mut self.held_bytes[usize::from(device)];
        *held = held.saturating_sub(bytes);
        let thread = self.threads.entry(event.tid).or_default();
        if segment && of_object && block.api == AllocApi::Create && !self.requests.expandable {
            // The program's allocator takes the memory of a segment away, unless the pool gives the segment back; the pool keeps it.
            if !thread.is_emptying(device) {
                self.others(device, -bytes.cast_signed());
            }
            return;
        }
        if segment {
            thread.segment_freed(event.time_ns, device, &mut self.requests.words);
            return;
        }
        let key = if block.api == AllocApi::Create { block.addr | HANDLE } else { block.addr };
        let waiting = thread.take(key);
        if let Some(grown) = waiting.filter(|_| thread.is_failing()) {
            // A part of an expandable segment that the driver refused.
            self.requests.words.replace(grown.at, Op::Nothing { words: 3 });
            return;
        }
        self.others(device, -bytes.cast_signed());
    }

    fn region(&mut self, event: &Event, region: &Region) {
        if region.kind != RegionKind::Reservation || !region.begins {
            return;
        }
        let Some(device) = self.device(event.device) else { return };
        let reserved = Reserved { time_ns: event.time_ns, device, addr: region.addr };
        self.threads.entry(event.tid).or_default().reserved(reserved);
    }

    fn mark(&mut self, time_ns: u64, what: MarkOf) {
        let index = self.requests.marks.len() as u32;
        if index < MAX_MARKS {
            self.requests.marks.push(Mark { time_ns, what });
            self.requests.words.push(Op::Mark { index });
        }
    }
}

/// `PyTorch`'s caching allocator: its operators use its blocks.
fn is_pool(pool: Pool) -> bool {
    pool.operators() == Some(PoolOperators::Torch)
}

/// Peaks of others' memory, by device, as far as known at the end.
fn others_peaks(requests: &Requests) -> Vec<u64> {
    // Below 0 where the program took memory of segments away.
    let mut held = vec![(0_i64, 0_i64); requests.devices.len()];
    for op in requests.words.iter() {
        if let Op::Others { device, bytes } = op {
            let (now, peak) = &mut held[usize::from(device)];
            *now = now.saturating_add(bytes);
            *peak = (*peak).max(*now);
        }
    }
    held.into_iter().map(|(_, peak)| peak.cast_unsigned()).collect()
}
