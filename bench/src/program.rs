//! A made-up program: its events go to analyses as they happen, as those of a trace do.

use std::collections::HashMap;

use memscope::analyses::Analysis;
use memscope::model::{
    Alloc, AllocApi, Block, Device, DriverFigures, Event, EventKind, Finding, Free, FreeCause, Mark, PageType, Pool,
    RunEnd, Stacks,
};

/// Its process.
pub(crate) const PID: u32 = 4242;
const NPU: Device = Device::Npu(0);
/// When it begins: nanoseconds since the Unix epoch.
pub(crate) const START_NS: u64 = 1_790_000_000_000_000_000;

/// Makes events; keeps the live blocks alone.
pub(crate) struct Program {
    to: Vec<Box<dyn Analysis>>,
    /// By number of the slot.
    live: Vec<Option<Block>>,
    empty: Vec<usize>,
    used_bytes: HashMap<Pool, u64>,
    reserved_bytes: u64,
    time_ns: u64,
    step: u32,
    blocks: u64,
    events: u64,
}

/// A live block of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

impl Slot {
    /// Of all live blocks it alone has this number.
    pub(crate) const fn number(self) -> usize {
        self.0
    }
}

impl Program {
    pub(crate) fn new(to: Vec<Box<dyn Analysis>>) -> Self {
        Self {
            to,
            live: Vec::new(),
            empty: Vec::new(),
            used_bytes: HashMap::new(),
            reserved_bytes: 0,
            time_ns: START_NS,
            step: 0,
            blocks: 0,
            events: 0,
        }
    }

    /// Time goes on.
    pub(crate) const fn pass(&mut self, time_ns: u64) {
        self.time_ns += time_ns;
    }

    /// A block at an address that no live block of the pool has.
    pub(crate) fn alloc(&mut self, pool: Pool, addr: u64, size_bytes: u64, stacks: Stacks) -> Slot {
        self.blocks += 1;
        let block = Block {
            allocation_id: self.blocks,
            pool,
            device: NPU,
            addr,
            size_bytes,
            requested_bytes: None,
            alloc_time_ns: self.time_ns,
            alloc_id: self.events,
            tid: PID,
            step: self.step,
            kernel_index: 0,
            module_id: None,
            page: PageType::Normal,
            api: AllocApi::Alloc,
            caller: None,
            stacks,
            owner: None,
        };
        let used = self.used_bytes.entry(pool).or_default();
        *used += block.size_bytes;
        let used_bytes = *used;
        if pool == Pool::Hal {
            self.reserved_bytes += size_bytes;
        }
        let slot = self.empty.pop().unwrap_or(self.live.len());
        if slot == self.live.len() {
            self.live.push(None);
        }
        self.live[slot] = Some(block);
        let (total_bytes, driver) = (self.told(pool), DriverFigures::default());
        let alloc = Alloc { block, used_bytes, total_bytes, driver, restored: false, promoted: false };
        self.push(EventKind::Alloc(alloc), stacks);
        Slot(slot)
    }

    pub(crate) fn free(&mut self, slot: Slot) {
        self.end(slot, FreeCause::Program);
    }

    pub(crate) fn step_start(&mut self) {
        self.step += 1;
        let (text, range_id) = (Some("step start".into()), u64::from(self.step));
        self.push(EventKind::Mark(Mark::RangeStart { text, range_id }), Stacks::default());
        self.push(EventKind::StepStart { step: self.step }, Stacks::default());
    }

    pub(crate) fn step_end(&mut self) {
        let range = u64::from(self.step);
        self.push(EventKind::Mark(Mark::RangeEnd { range_id: Some(range), passed_id: range }), Stacks::default());
        self.push(EventKind::StepEnd { step: self.step }, Stacks::default());
    }

    /// The trace ends; what is live then is told of.
    pub(crate) fn finish(mut self) -> Vec<Finding> {
        for slot in 0..self.live.len() {
            if self.live[slot].is_some() {
                self.end(Slot(slot), FreeCause::TraceEnd);
            }
        }
        let end = RunEnd { time_ns: self.time_ns, ..RunEnd::default() };
        self.to.iter_mut().flat_map(|analysis| analysis.finish(&end)).collect()
    }

    fn end(&mut self, Slot(slot): Slot, cause: FreeCause) {
        let block = self.live[slot].take().expect("a live block");
        self.empty.push(slot);
        let used = self.used_bytes.entry(block.pool).or_default();
        *used -= block.size_bytes;
        let used_bytes = *used;
        if block.pool == Pool::Hal {
            self.reserved_bytes -= block.size_bytes;
        }
        let (total_bytes, driver) = (self.told(block.pool), DriverFigures::default());
        let free =
            Free { block, used_bytes, total_bytes, driver, cause, owner: None, row_time_ns: None, without_row: false };
        self.push(EventKind::Free(free), Stacks::default());
    }

    /// What a pool says it holds: the driver's blocks are all the pool's.
    fn told(&self, pool: Pool) -> Option<u64> {
        (pool == Pool::Pta && self.reserved_bytes > 0).then_some(self.reserved_bytes)
    }

    fn push(&mut self, kind: EventKind, stacks: Stacks) {
        let event = Event { id: self.events, time_ns: self.time_ns, pid: PID, tid: PID, device: NPU, stacks, kind };
        self.events += 1;
        for analysis in &mut self.to {
            analysis.observe(&event);
        }
    }
}
