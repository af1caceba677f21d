//! One traced process: its threads' devices, names, ranges, steps and blocks. Here items become events.

use std::sync::Arc;

use super::blocks::{Birth, Blocks};
use super::item::{Action, Head, Request};
use super::output::Output;
use super::recent::Recent;
use super::steps::{OpenStep, Ranges, STEP_START, Steps};
use crate::model::{
    Alloc, AllocApi, AllocFailed, Device, Event, EventKind, Free, FreeCause, Launch, Mark, Pool, ProcessStart,
    UnknownFree,
};

/// Live blocks of all processes that are followed; later ones are counted and not reported.
const MAX_LIVE_BLOCKS: usize = 16 << 20;
/// Threads per process whose device is remembered at least; there is no record of a thread's end.
const MAX_THREADS: usize = 32 << 10;
/// Kernel names and streams per process that are remembered at least.
const MAX_NAMES: usize = 64 << 10;
/// Devices per process that are told apart; more only come from a broken flag word.
const MAX_DEVICES: usize = 64;

/// What the processes share.
pub(super) struct Shared {
    pub(super) out: Output,
    pub(super) live: usize,
    pub(super) blocks_full: u64,
}

/// One traced process.
pub(super) struct Process {
    pid: u32,
    next_event: u64,
    attached: bool,
    /// Physical device by the program's number; empty is the identity.
    visible: Vec<u32>,
    threads: Recent<u32, u32>,
    /// NPUs that the process has used.
    devices: Vec<u32>,
    /// By kernel handle. A forked child shares them until either learns another.
    names: Arc<Recent<u64, Arc<str>>>,
    streams: Recent<u64, i64>,
    launches: u64,
    ranges: Ranges,
    steps: Steps,
    blocks: Blocks,
}

/// Moment and thread of an event.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) time_ns: u64,
    pub(super) tid: u32,
}

impl Process {
    /// A process of which nothing is known; `wanted` are the steps to be written.
    pub(super) fn new(pid: u32, wanted: Arc<[u32]>) -> Self {
        Self {
            pid,
            next_event: 0,
            attached: false,
            visible: Vec::new(),
            threads: Recent::new(MAX_THREADS),
            devices: Vec::new(),
            names: Arc::new(Recent::new(MAX_NAMES)),
            streams: Recent::new(MAX_NAMES),
            launches: 0,
            ranges: Ranges::default(),
            steps: Steps::new(wanted),
            blocks: Blocks::default(),
        }
    }

    /// A forked child: knows what its memory knows, but has no device memory.
    pub(super) fn child(&self, pid: u32, wanted: Arc<[u32]>) -> Self {
        Self { visible: self.visible.clone(), names: Arc::clone(&self.names), ..Self::new(pid, wanted) }
    }

    /// The process joins the trace, or is known better.
    pub(super) fn started(&mut self, at: At, start: ProcessStart, visible: Option<&str>, shared: &mut Shared) {
        self.attached = start.attached;
        self.visible = visible.and_then(visible_devices).unwrap_or_default();
        self.emit(at, Device::None, EventKind::ProcessStart(start), true, shared);
    }

    /// The process is replaced by another program: all is gone but the counters.
    pub(super) fn exec(&mut self, at: At, shared: &mut Shared) {
        self.free_all(at, FreeCause::ProcessEnd, shared);
        let fresh = Self::new(self.pid, Arc::new([]));
        self.ranges.reset();
        self.steps.reset();
        self.attached = false;
        self.devices.clear();
        (self.threads, self.names, self.streams) = (fresh.threads, fresh.names, fresh.streams);
    }

    /// The process ends.
    pub(super) fn end(&mut self, at: At, shared: &mut Shared) {
        self.free_all(at, FreeCause::ProcessEnd, shared);
        self.emit(at, Device::None, EventKind::ProcessEnd, true, shared);
    }

    /// Ends every live block, in the order of their allocation.
    pub(super) fn free_all(&mut self, at: At, cause: FreeCause, shared: &mut Shared) {
        for block in self.blocks.in_order() {
            self.free(at, block.api, block.addr, cause, shared);
        }
    }

    /// Takes an item of this process.
    pub(super) fn apply(&mut self, at: At, head: &Head, action: Action, shared: &mut Shared) {
        let thread = (head.tid, head.row);
        match action {
            Action::Alloc(request) => self.allocate(at, &request, shared),
            Action::AllocFailed { request, status } => self.allocation_failed(at, &request, status, shared),
            Action::Free { api, addr } => self.free_by_program(at, thread, api, addr, shared),
            Action::FreeFailed { addr } => self.restore(at, thread, addr, shared),
            Action::SetDevice { device } => self.set_device(head.tid, device),
            Action::Launch { handle, stream, name } => self.launch(at, handle, stream, name, shared),
            Action::KernelName { handle, name } => Arc::make_mut(&mut self.names).insert(handle, name),
            Action::StreamId { stream, id } => self.streams.insert(stream, id),
            Action::System(system) => {
                self.emit(at, Device::None, EventKind::System(system), self.steps.inside(), shared);
            }
            Action::Mark { text } => self.mark(at, Mark::Point { text }, shared),
            Action::RangeStart { text } => self.range_start(at, text, shared),
            Action::RangeId { id } => self.ranges.named(head.tid, id),
            Action::RangeEnd { id } => self.range_end(at, id, shared),
            Action::Fork { .. } | Action::Exec | Action::Note(_) => {}
        }
    }

    fn allocate(&mut self, at: At, request: &Request, shared: &mut Shared) {
        self.know(request.device);
        self.free(at, request.api, request.addr, FreeCause::Replaced, shared);
        if shared.live >= MAX_LIVE_BLOCKS {
            shared.blocks_full += 1;
            return;
        }
        let birth = Birth {
            time_ns: at.time_ns,
            event: self.next_event,
            step: self.steps.of_device(request.device),
            kernel_index: self.launches,
            inside: self.steps.inside(),
        };
        let (block, used_bytes) = self.blocks.insert(request, birth);
        shared.live += 1;
        let alloc = Alloc { block, used_bytes, total_bytes: None, restored: false };
        self.emit(at, block.device, EventKind::Alloc(alloc), birth.inside, shared);
    }

    fn allocation_failed(&mut self, at: At, request: &Request, status: i32, shared: &mut Shared) {
        let Request { pool, size_bytes, flags, device, .. } = *request;
        let failed = AllocFailed { pool, size_bytes, status, flags };
        self.emit(at, device, EventKind::AllocFailed(failed), self.steps.inside(), shared);
    }

    fn free_by_program(&mut self, at: At, thread: (u32, u16), api: AllocApi, addr: u64, shared: &mut Shared) {
        let live = self.free(at, api, addr, FreeCause::Program, shared);
        self.blocks.freed(thread, live);
        // Freeing a null pointer is no free; but if the driver refuses it, no other free is meant.
        if live.is_none() && addr != 0 {
            let free = UnknownFree { pool: Pool::Hal, addr, maybe_older: self.attached };
            let device = self.device_of(at.tid);
            self.emit(at, device, EventKind::UnknownFree(free), self.steps.inside(), shared);
        }
    }

    /// Ends the block at `addr`, if there is one. Its row is written if that of its allocation is.
    fn free(
        &mut self,
        at: At,
        api: AllocApi,
        addr: u64,
        cause: FreeCause,
        shared: &mut Shared,
    ) -> Option<super::blocks::Live> {
        let (live, used_bytes) = self.blocks.take(api, addr)?;
        shared.live = shared.live.saturating_sub(1);
        let free = Free { block: live.block, used_bytes, total_bytes: None, cause };
        self.emit(at, live.block.device, EventKind::Free(free), live.inside, shared);
        Some(live)
    }

    /// The thread's last free has failed after all.
    fn restore(&mut self, at: At, thread: (u32, u16), addr: Option<u64>, shared: &mut Shared) {
        let Some((live, used_bytes)) = self.blocks.restore(thread, addr) else {
            return;
        };
        shared.live += 1;
        let alloc = Alloc { block: live.block, used_bytes, total_bytes: None, restored: true };
        self.emit(at, live.block.device, EventKind::Alloc(alloc), live.inside, shared);
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

    fn mark(&mut self, at: At, mark: Mark, shared: &mut Shared) {
        let device = self.device_of(at.tid);
        self.emit(at, device, EventKind::Mark(mark), self.steps.inside(), shared);
    }

    fn range_start(&mut self, at: At, text: Option<Arc<str>>, shared: &mut Shared) {
        let range_id = self.ranges.start(at.tid);
        if text.as_deref() != Some(STEP_START) {
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
        let range_id = self.ranges.end(at.tid, passed_id);
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
        let physical = self.visible.get(device as usize).copied().unwrap_or(device);
        self.know(Device::Npu(physical));
        self.threads.insert(tid, physical);
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

    fn emit(&mut self, at: At, device: Device, kind: EventKind, inside: bool, shared: &mut Shared) {
        let id = self.next_event;
        self.next_event += 1;
        shared.out.event(&Event { id, time_ns: at.time_ns, pid: self.pid, tid: at.tid, device, kind }, inside);
    }
}

/// `ASCEND_RT_VISIBLE_DEVICES` as a strict list of decimal numbers.
fn visible_devices(list: &str) -> Option<Vec<u32>> {
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
