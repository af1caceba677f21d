//! One traced process: its threads' devices, names, ranges, steps and blocks. Here items become events.

mod atb;
mod memory;
mod mstx;
mod oom;
mod pool;
mod script;

use std::sync::Arc;

use self::memory::Undo;
use self::oom::{Failing, is_past_failing};
use self::script::Script;
use super::blocks::{Blocks, Key};
use super::domains::Domains;
use super::item::{Action, Head};
use super::ops::OpCall;
use super::output::Output;
use super::physical::Physical;
use super::recent::Recent;
use super::requests::Requests;
use super::sanitizer::{SanitizerOp, Use};
use super::stacks::Codes;
use super::steps::{OpenStep, Ranges, STEP_START, Steps};
use super::usage::Usage;
use super::wishes::Wishes;
use crate::analyses::decompose::Classifier;
use crate::model::{Access, Device, Event, EventKind, FreeCause, Launch, Mark, Pool, ProcessStart, RegionKind, Stacks};

/// Threads per process whose device is remembered at least; there is no record of a thread's end.
const MAX_THREADS: usize = 32 << 10;
/// Kernel names and streams per process that are remembered at least.
const MAX_NAMES: usize = 64 << 10;
/// Threads whose last free is remembered, in case it turns out to have failed.
const ENDING_THREADS: usize = 4096;
/// Blocks that a stream still uses after the program gave them back, per process.
const MAX_LEAVING: usize = 1 << 20;
/// Devices per process that are told apart; more only come from a broken flag word.
const MAX_DEVICES: usize = 64;

/// What the processes share.
pub(super) struct Shared {
    pub(super) out: Output,
    pub(super) live: usize,
    pub(super) blocks_full: u64,
    pub(super) mislocated: u64,
    /// How many of the newest and of the largest blocks are told when memory is out.
    pub(super) oom_blocks: Option<usize>,
    /// Requests of all processes that may have failed for good.
    pub(super) oom_pending: usize,
    pub(super) usage: Usage,
    /// Tells whose blocks are, where that is wanted.
    pub(super) owners: Option<Classifier>,
    /// Blocks do not carry the number of launches before them.
    pub(super) uncounted_launches: bool,
    /// It is wanted of all processes, not only of those with scripts that ask for it.
    pub(super) owned_by_options: bool,
    /// What scripts can have.
    pub(super) wishes: Wishes,
}

/// One traced process.
pub(super) struct Process {
    pid: u32,
    next_event: u64,
    attached: bool,
    /// Physical device by the program's number; empty is the identity.
    visible: Vec<u32>,
    threads: Recent<u32, u32>,
    /// Device of each context.
    contexts: Recent<u64, u32>,
    /// NPUs that the process has used.
    devices: Vec<u32>,
    /// By kernel handle. A forked child shares them until either learns another.
    names: Arc<Recent<u64, Arc<str>>>,
    streams: Recent<u64, i64>,
    /// Shared as the names are.
    codes: Arc<Codes>,
    launches: u64,
    ranges: Ranges,
    steps: Steps,
    blocks: Blocks,
    physical: Physical,
    requests: Requests,
    /// Requests that may have failed for good.
    failing: Failing,
    /// By thread and row; `None` when the thread ended something that is not known.
    last_end: Recent<(u32, u16), Option<Undo>>,
    /// What each thread asks a pool for.
    wanted_bytes: Recent<u32, u64>,
    /// Blocks that the program gave back and the pool has not got yet: their numbers.
    leaving: Recent<Key, u64>,
    /// A pool of a framework reports here: its word counts for whether a request succeeded.
    has_pool: bool,
    /// The pool's reports make no sense.
    mislocated: bool,
    /// Pools that functions of their own tell of; what mstx says of those is the same again.
    told_by_function: Vec<Pool>,
    domains: Domains,
    /// Where the workspace of each thread's operation of ATB begins.
    workspaces: Recent<u32, u64>,
    script: Script,
}

/// Moment, thread and place of an event.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) time_ns: u64,
    pub(super) tid: u32,
    /// Where the call was made.
    pub(super) stacks: Stacks,
}

impl At {
    /// Of no call.
    pub(super) fn new(time_ns: u64, tid: u32) -> Self {
        Self { time_ns, tid, stacks: Stacks::default() }
    }

    /// Without the call: what follows is not what it did.
    pub(super) fn made_up(self) -> Self {
        Self::new(self.time_ns, self.tid)
    }
}

/// Type of a tensor's elements where nobody says it.
const UNKNOWN_TYPE: &str = "N/A";

impl Process {
    /// A process of which nothing is known; `wanted` are the steps to be written, `deferred` whether it is told only once its script
    /// says so.
    pub(super) fn new(pid: u32, wanted: Arc<[u32]>, deferred: bool) -> Self {
        Self {
            pid,
            next_event: 0,
            attached: false,
            visible: Vec::new(),
            threads: Recent::new(MAX_THREADS),
            devices: Vec::new(),
            names: Arc::new(Recent::new(MAX_NAMES)),
            streams: Recent::new(MAX_NAMES),
            codes: Arc::default(),
            launches: 0,
            ranges: Ranges::default(),
            steps: Steps::new(wanted),
            blocks: Blocks::default(),
            contexts: Recent::new(MAX_NAMES),
            physical: Physical::default(),
            requests: Requests::default(),
            failing: Failing::default(),
            last_end: Recent::new(ENDING_THREADS),
            wanted_bytes: Recent::new(MAX_THREADS),
            leaving: Recent::new(MAX_LEAVING),
            has_pool: false,
            mislocated: false,
            told_by_function: Vec::new(),
            domains: Domains::default(),
            workspaces: Recent::new(MAX_THREADS),
            script: Script::new(deferred),
        }
    }

    /// A child that `thread` has forked: knows what its memory knows, but has no device memory.
    pub(super) fn child(&self, thread: u32, pid: u32, wanted: Arc<[u32]>) -> Self {
        Self {
            visible: self.visible.clone(),
            names: Arc::clone(&self.names),
            codes: Arc::clone(&self.codes),
            script: self.script.child(thread, pid),
            ..Self::new(pid, wanted, false)
        }
    }

    /// Its code objects.
    pub(super) fn codes(&self) -> &Codes {
        &self.codes
    }

    /// The process joins the trace, or is known better.
    pub(super) fn started(&mut self, at: At, start: ProcessStart, visible: Option<&str>, shared: &mut Shared) {
        self.attached = start.attached;
        self.visible = visible.and_then(visible_devices).unwrap_or_default();
        self.tell(at, Device::None, EventKind::ProcessStart(start), true, shared);
    }

    /// The process is replaced by another program: all is gone but the counters.
    pub(super) fn exec(&mut self, at: At, shared: &mut Shared) {
        self.all_failed(at, shared);
        self.free_all(at, FreeCause::ProcessEnd, shared);
        let script = self.script.anew();
        let old = std::mem::replace(self, Self::new(self.pid, Arc::new([]), false));
        let Self { next_event, visible, launches, ranges, steps, blocks, requests, .. } = old;
        *self = Self {
            next_event,
            visible,
            launches,
            ranges,
            steps,
            blocks,
            requests,
            script,
            ..Self::new(self.pid, Arc::new([]), false)
        };
        self.ranges.reset();
        self.steps.reset();
    }

    /// The process ends.
    pub(super) fn end(&mut self, at: At, shared: &mut Shared) {
        self.all_failed(at, shared);
        self.free_all(at, FreeCause::ProcessEnd, shared);
        self.tell(at, Device::None, EventKind::ProcessEnd, true, shared);
    }

    /// Ends every live block, in the order of their allocation.
    pub(super) fn free_all(&mut self, at: At, cause: FreeCause, shared: &mut Shared) {
        self.tell_ended(at.made_up(), self.time_behind_stop(), shared);
        for key in self.blocks.in_order() {
            self.free(at, key, cause, None, shared);
        }
    }

    /// Takes an item of this process.
    pub(super) fn apply(&mut self, at: At, head: &Head, action: Action, shared: &mut Shared) {
        let thread = (head.tid, head.row);
        if shared.oom_pending > 0 && is_past_failing(&action) {
            self.failed_for_good(at, head.tid, shared);
        }
        match action {
            Action::Alloc(request) => self.driver_allocated(at, &request, shared),
            Action::AllocFailed(failure) => self.allocation_failed(at, &failure, shared),
            Action::End(ending) => self.ends(at, thread, ending, shared),
            Action::EndFailed { addr } => self.end_failed(at, thread, addr, shared),
            Action::Retain { handle, addr } => self.physical.retain(handle, addr),
            Action::Import { handle } => self.imported(at, handle, shared),
            Action::Map { addr, size_bytes, handle } => self.mapped(at, addr, size_bytes, handle, shared),
            Action::Region { kind, addr, size_bytes } => {
                if kind == RegionKind::Reservation {
                    self.requests.reserved(head.tid);
                }
                self.region_begins(at, kind, addr, size_bytes, shared);
            }
            Action::Pool(report) => self.pool_function_reported(at, &report, shared),
            Action::Mstx(call) => self.mstx(at, call, shared),
            Action::Script(call) => self.script(at, head.time_ns, call, shared),
            Action::PoolRequest { size_bytes } => self.wanted_bytes.insert(head.tid, size_bytes),
            Action::Mislocated { symbol } => self.mislocated(at, symbol, shared),
            Action::MemoryInfo => {
                self.requests.asked(head.tid);
                self.asked_while_failing(at, shared);
            }
            Action::SetDevice { device } => self.set_device(head.tid, device),
            Action::CreateContext { context, device } => {
                self.contexts.insert(context, device);
                self.set_device(head.tid, device);
            }
            Action::SetContext { context } => {
                if let Some(device) = self.contexts.get(&context) {
                    self.set_device(head.tid, *device);
                }
            }
            Action::Launch { handle, stream, name } => self.launch(at, handle, stream, name, shared),
            Action::Op(op) => self.op(at, &op, shared),
            Action::AtbOp(op) => {
                let device = self.device_of(at.tid);
                self.emit(at, device, EventKind::AtbOp(op), self.steps.inside(), shared);
            }
            Action::AtbTensors(op) => self.atb_tensors(at, &op, shared),
            Action::Workspace(workspace) => self.atb_workspace(at, workspace, shared),
            Action::KernelName { handle, name } => Arc::make_mut(&mut self.names).insert(handle, name),
            Action::StreamId { stream, id } => self.streams.insert(stream, id),
            Action::System(system) => {
                self.emit(at, Device::None, EventKind::System(system), self.steps.inside(), shared);
            }
            Action::Mark { text, domain: None } => match text.as_deref().and_then(SanitizerOp::parse) {
                Some(op) => self.sanitized(at, &op, shared),
                None => self.mark(at, Mark::Point { text }, shared),
            },
            Action::RangeStart { text, domain: None } => self.range_start(at, text, shared),
            Action::RangeEnd { id, domain: None } => self.range_end(at, id, shared),
            Action::Mark { text, domain: Some(domain) } => self.domain_mark(at, domain, Mark::Point { text }, shared),
            Action::RangeStart { text, domain: Some(domain) } => self.domain_range_start(at, domain, text, shared),
            Action::RangeEnd { id, domain: Some(domain) } => self.domain_range_end(at, domain, id, shared),
            Action::RangeId { id } => self.ranges.named(head.tid, id),
            Action::Code { address, fingerprint, code } => {
                Arc::make_mut(&mut self.codes).insert(address, fingerprint, code);
            }
            Action::Fork { .. } | Action::Exec | Action::Note(_) => {}
        }
    }

    fn launch(&mut self, at: At, handle: u64, stream: u64, name: Option<Arc<str>>, shared: &mut Shared) {
        let known = || self.names.get(&handle).map(Arc::clone);
        let Some(name) = name.or_else(known) else {
            // Remembered, so that the next launch of an unknown kernel needs no new text.
            let name: Arc<str> = format!("0x{handle:x}").into();
            Arc::make_mut(&mut self.names).insert(handle, Arc::clone(&name));
            return self.launch(at, handle, stream, Some(name), shared);
        };
        self.launches += 1;
        let launch = Launch { name, stream, stream_id: self.streams.get(&stream).copied() };
        let device = self.device_of(at.tid);
        self.emit(at, device, EventKind::Launch(launch), self.steps.inside(), shared);
    }

    /// Kernel that a block of now is of (contract §8.2).
    const fn kernel_index(&self, shared: &Shared) -> u64 {
        if shared.uncounted_launches { 0 } else { self.launches }
    }

    fn op(&mut self, at: At, op: &OpCall, shared: &mut Shared) {
        let device = self.device_of(at.tid);
        let inside = self.steps.inside();
        let (before, after) = op.marks();
        if let Some(mark) = before {
            self.emit(at, device, EventKind::Op(mark), inside, shared);
        }
        for tensor in &op.tensors {
            let device = tensor.device(&self.visible);
            let block = tensor.pool().and_then(|pool| self.blocks.get(Key::Pool(pool, tensor.storage)));
            let allocation_id = block.map_or(0, |live| live.block.allocation_id);
            let access = tensor.access(Arc::clone(&op.name), allocation_id);
            self.emit(at, device, EventKind::Access(access), inside, shared);
        }
        if let Some(mark) = after {
            self.emit(at, device, EventKind::Op(mark), inside, shared);
        }
    }

    /// What `torch_npu`'s sanitizer says of an operator; it is no mark of the user's.
    fn sanitized(&mut self, at: At, op: &SanitizerOp<'_>, shared: &mut Shared) {
        let (device, inside) = (self.device_of(at.tid), self.steps.inside());
        let name: Arc<str> = op.name.into();
        for Use { kind, addr, size_bytes } in op.uses.iter().copied() {
            // A tensor that begins within a block has none, as nothing says where its memory begins.
            let block = self.blocks.get(Key::Pool(Pool::Pta, addr)).map(|live| live.block);
            let (allocation_id, device) = block.map_or((0, device), |block| (block.allocation_id, block.device));
            let access = Access {
                kind,
                op: Arc::clone(&name),
                allocation_id,
                pool: Pool::Pta,
                addr,
                size_bytes,
                dtype: UNKNOWN_TYPE,
                format: None,
                shape: Arc::default(),
            };
            self.emit(at, device, EventKind::Access(access), inside, shared);
        }
    }

    fn mark(&mut self, at: At, mark: Mark, shared: &mut Shared) {
        let device = self.device_of(at.tid);
        self.emit(at, device, EventKind::Mark(mark), self.steps.inside(), shared);
    }

    fn range_start(&mut self, at: At, text: Option<Arc<str>>, shared: &mut Shared) {
        let range_id = self.ranges.start(at.tid, None);
        if text.as_deref() != Some(STEP_START) || !self.steps_count(at, false, shared) {
            return self.mark(at, Mark::RangeStart { text, range_id }, shared);
        }
        let device = self.device_of(at.tid);
        let devices = if device == Device::None { self.blocks.devices() } else { vec![device] };
        let step = self.steps.start(range_id, device, devices.clone());
        self.mark(at, Mark::RangeStart { text, range_id }, shared);
        for device in devices {
            self.emit(at, device, EventKind::StepStart { step }, self.steps.inside(), shared);
        }
    }

    fn range_end(&mut self, at: At, passed_id: u64, shared: &mut Shared) {
        let range_id = self.ranges.end(at.tid, None, passed_id);
        self.mark(at, Mark::RangeEnd { range_id, passed_id }, shared);
        let Some(range) = range_id else { return };
        let Some(OpenStep { step, device, mut devices }) = self.steps.of_range(range) else {
            return;
        };
        if device == Device::None {
            // Devices that got their first block within the step are told of its end, too.
            devices.extend(self.blocks.devices());
            devices.sort_unstable();
            devices.dedup();
        }
        for device in devices {
            self.emit(at, device, EventKind::StepEnd { step }, self.steps.inside(), shared);
        }
        self.steps.end(range);
    }

    fn set_device(&mut self, tid: u32, device: u32) {
        let physical = self.physical_device(device);
        self.know(Device::Npu(physical));
        self.threads.insert(tid, physical);
    }

    /// Number of an NPU that the program calls `device`.
    fn physical_device(&self, device: u32) -> u32 {
        self.visible.get(device as usize).copied().unwrap_or(device)
    }

    fn know(&mut self, device: Device) {
        if let Device::Npu(number) = device
            && !self.devices.contains(&number)
            && self.devices.len() < MAX_DEVICES
        {
            self.devices.push(number);
        }
    }

    /// Device of a thread. One whose choice was made before the trace has the process's only device, if it has one.
    fn device_of(&self, tid: u32) -> Device {
        match (self.threads.get(&tid), self.devices.as_slice()) {
            (Some(number), _) => Device::Npu(*number),
            (None, [only]) if self.attached => Device::Npu(*only),
            _ => Device::None,
        }
    }

    /// Tells of something, if what happens is told.
    fn emit(&mut self, at: At, device: Device, kind: EventKind, inside: bool, shared: &mut Shared) {
        if self.script.collecting() {
            self.tell(at, device, kind, inside, shared);
        }
    }

    /// Tells of something, whether or not a script wants to be told.
    fn tell(&mut self, at: At, device: Device, kind: EventKind, inside: bool, shared: &mut Shared) {
        let id = self.next_event;
        self.next_event += 1;
        let At { time_ns, tid, stacks } = at;
        let event = Event { id, time_ns, pid: self.pid, tid, device, stacks, kind };
        let (wanted, of_options) = self.script.wants(&event);
        shared.out.event(&event, inside && wanted, of_options);
    }
}

/// `ASCEND_RT_VISIBLE_DEVICES` as a strict list of decimal numbers.
pub(crate) fn visible_devices(list: &str) -> Option<Vec<u32>> {
    let number = |item: &str| item.bytes().all(|byte| byte.is_ascii_digit()).then(|| item.parse().ok())?;
    list.split(',').map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_are_strict() {
        assert_eq!(visible_devices("4,5,07"), Some(vec![4, 5, 7]));
        for bad in ["", "4,", "4, 5", "0x4", "-1", "+4", "4,npu5", "99999999999"] {
            assert_eq!(visible_devices(bad), None, "{bad}");
        }
    }
}
