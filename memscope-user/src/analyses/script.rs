//! Made-up runs for tests: one call per event, in the form that the pipeline hands on.

use std::{collections::BTreeMap, sync::Arc};

use super::{Analysis, Finding, Observer};
use crate::backend::ascend::{modules, pools};
use crate::model::{
    Alloc, AllocApi, AllocFailed, AllocRecovered, Asked, Block, BlockReturned, Device, DeviceUsage, DriverFigures,
    Event, EventKind, FoundHeld, FoundPurpose, Free, FreeCause, HeldAs, LiveSum, Look, Looked, LookedAt, Module, Name,
    OutOfMemory, PageType, PlaceLook, Pool, ProcessUsage, Region, RegionKind, RunEnd, Stack, StackEnd, Stacks,
    StreamUse, UnknownFree,
};

/// Writes the events of a run. Events belong to the process and device last given to [`Script::on`].
#[derive(Debug)]
pub(crate) struct Script {
    pid: u32,
    tid: u32,
    device: Device,
    module_id: Option<Module>,
    stacks: Stacks,
    /// Figures that pools report: handed out, reserved.
    reported: Option<(u64, u64)>,
    kernel_index: u64,
    events: Vec<Event>,
    steps: BTreeMap<(u32, Device), u32>,
    used_bytes: BTreeMap<(u32, Device, Pool), u64>,
    live: BTreeMap<(u32, Device, Pool, u64), Block>,
    freed: BTreeMap<(u32, Device, Pool, u64), Block>,
}

/// Feeds a whole run to an analysis.
pub(crate) fn run(mut analysis: impl Analysis, events: &[Event], end: &RunEnd) -> Vec<Finding> {
    for event in events {
        analysis.observe(event);
    }
    analysis.finish(end)
}

/// Shows events to an observer, to the end.
pub(crate) fn observe(mut observer: impl Observer, events: &[Event], end: &RunEnd) {
    for event in events {
        observer.observe(event);
    }
    observer.finish(end);
}

/// A request of this number, at an attempt, for which memory was out.
const fn failed(pool: Pool, size_bytes: u64, (request, attempt): (u64, u32)) -> AllocFailed {
    AllocFailed { pool, size_bytes, status: 6, flags: 0, caller: None, out_of_memory: true, request, attempt }
}

impl Script {
    pub(crate) fn new(pid: u32, device: Device) -> Self {
        Self {
            pid,
            tid: pid,
            device,
            module_id: None,
            stacks: Stacks::default(),
            reported: None,
            kernel_index: 0,
            events: Vec::new(),
            steps: BTreeMap::new(),
            used_bytes: BTreeMap::new(),
            live: BTreeMap::new(),
            freed: BTreeMap::new(),
        }
    }

    /// Stacks of the calls from here on.
    pub(crate) const fn at(&mut self, stacks: Stacks) -> &mut Self {
        self.stacks = stacks;
        self
    }

    /// The pool events of the golden run `leaky_csv`: 128 MiB of weights, then four steps that each use some
    /// memory for a while and leave a block of 1 MiB behind.
    pub(crate) fn golden_leaky() -> Self {
        let mut script = Self::new(30057, Device::Npu(0));
        script.alloc(pools::PTA, 0x1680_0000_0000, 128 << 20);
        for (step, leak) in (1..).zip([0x1680_0804_2000, 0x1680_0814_4000, 0x1680_0825_c000, 0x1680_0835_c000]) {
            script.step_start(step);
            script.alloc(pools::PTA, 0x1680_0801_2000, 17_919).alloc(pools::PTA, 0x1680_0800_2000, 48_992);
            script.free(pools::PTA, 0x1680_0800_2000).free(pools::PTA, 0x1680_0801_2000);
            script.alloc(pools::PTA, leak, 1 << 20).step_end(step);
        }
        script
    }

    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    /// Continues with another process or device.
    pub(crate) fn on(&mut self, pid: u32, device: Device) -> &mut Self {
        (self.pid, self.tid, self.device) = (pid, pid, device);
        self
    }

    /// Continues with another thread.
    pub(crate) fn thread(&mut self, tid: u32) -> &mut Self {
        self.tid = tid;
        self
    }

    /// Number of the live block at `addr`.
    pub(crate) fn number_of(&self, pool: Pool, addr: u64) -> u64 {
        self.live[&(self.pid, self.device, pool, addr)].allocation_id
    }

    /// Module of the driver blocks that follow.
    pub(crate) fn module(&mut self, id: Option<u8>) -> &mut Self {
        self.module_id = id.map(modules::of);
        self
    }

    /// Where the calls that follow are made: frames of Python and native ones, innermost first.
    pub(crate) fn stacks(&mut self, python: &[&str], native: &[&str]) -> &mut Self {
        let stack = |frames: &[&str]| (!frames.is_empty()).then(|| Stack::keep(frames.iter().copied(), StackEnd::Root));
        self.stacks = Stacks { python: stack(python), native: stack(native), mixed: None };
        self
    }

    pub(crate) fn launch(&mut self) -> &mut Self {
        self.kernel_index += 1;
        self.push(EventKind::Launch(crate::model::Launch { name: Arc::from("Add"), stream: 0, stream_id: None }))
    }

    /// Figures that pools report from here on: handed out, reserved.
    pub(crate) fn reported(&mut self, reported: Option<(u64, u64)>) -> &mut Self {
        self.reported = reported;
        self
    }

    /// Physical memory behind a handle.
    pub(crate) fn create(&mut self, handle: u64, size_bytes: u64) -> &mut Self {
        let block = Block { api: AllocApi::Create, ..self.new_block(pools::HAL, handle, size_bytes) };
        self.hand_out(block, false)
    }

    /// Maps the memory of a handle.
    pub(crate) fn map(&mut self, addr: u64, size_bytes: u64, handle: u64) -> &mut Self {
        let block = self.live.get(&(self.pid, self.device, pools::HAL, handle));
        let allocation_id = block.map(|block| block.allocation_id);
        self.region(RegionKind::Mapping, true, (addr, size_bytes), allocation_id)
    }

    pub(crate) fn unmap(&mut self, addr: u64) -> &mut Self {
        self.region(RegionKind::Mapping, false, (addr, 0), None)
    }

    pub(crate) fn reserve(&mut self, addr: u64, size_bytes: u64) -> &mut Self {
        self.region(RegionKind::Reservation, true, (addr, size_bytes), None)
    }

    fn region(&mut self, kind: RegionKind, begins: bool, place: (u64, u64), allocation_id: Option<u64>) -> &mut Self {
        let (addr, size_bytes) = place;
        self.push(EventKind::Region(Region { kind, begins, addr, size_bytes, allocation_id, live_bytes: 0 }))
    }

    /// The driver's figures of the device: in use, and by process.
    pub(crate) fn usage(&mut self, used_bytes: u64, processes: Option<&[(u32, u64)]>) -> &mut Self {
        let process = |&(pid, used_bytes): &(u32, u64)| ProcessUsage { pid, used_bytes };
        let processes = processes.map(|list| list.iter().map(process).collect());
        let pid = std::mem::take(&mut self.pid);
        self.push(EventKind::DeviceUsage(DeviceUsage { used_bytes, total_bytes: 1 << 36, processes }));
        self.pid = pid;
        self
    }

    pub(crate) fn alloc(&mut self, pool: Pool, addr: u64, size_bytes: u64) -> &mut Self {
        let block = self.new_block(pool, addr, size_bytes);
        self.hand_out(block, false)
    }

    /// A block of before the attach is found.
    pub(crate) fn older(&mut self, pool: Pool, addr: u64, size_bytes: u64) -> &mut Self {
        self.find(pool, addr, size_bytes, None)
    }

    /// A block of before the attach is found, with this purpose by its holders.
    pub(crate) fn older_held(&mut self, pool: Pool, addr: u64, size_bytes: u64, held_as: HeldAs) -> &mut Self {
        self.find(pool, addr, size_bytes, Some(held_as))
    }

    fn find(&mut self, pool: Pool, addr: u64, size_bytes: u64, held_as: Option<HeldAs>) -> &mut Self {
        let block = self.new_block(pool, addr, size_bytes);
        self.hand_out(Block { found: true, held_as, stacks: Stacks::default(), ..block }, false)
    }

    /// Holders of live blocks of a pool were looked at, and show these purposes.
    pub(crate) fn looked(&mut self, pool: Pool, purposes: &[(u64, HeldAs)]) -> &mut Self {
        let live = |addr: u64| self.live[&(self.pid, self.device, pool, addr)];
        let held_as: Vec<_> = purposes.iter().map(|(addr, held_as)| (live(*addr).allocation_id, *held_as)).collect();
        let block = live(purposes[0].0);
        let place = PlaceLook {
            block,
            live: LiveSum { blocks: held_as.len() as u64, size_bytes: block.size_bytes },
            looked_at_blocks: held_as.len() as u64,
            holders: Vec::new(),
            garbage_blocks: 0,
            unknown_blocks: 0,
            left_out: None,
            held_as,
        };
        let look = Look { number: 1, at: LookedAt::End, outcome: Looked::Place(Box::new(place)) };
        self.push(EventKind::Looked(Arc::new(look)))
    }

    /// Purposes of blocks that were found are known now.
    pub(crate) fn found_held(&mut self, pool: Pool, purposes: &[(u64, HeldAs)]) -> &mut Self {
        let found = purposes.iter().map(|&(addr, held_as)| {
            let Block { allocation_id: number, size_bytes, .. } = self.live[&(self.pid, self.device, pool, addr)];
            FoundPurpose { number, size_bytes, held_as }
        });
        let blocks = found.collect();
        for (addr, held_as) in purposes {
            if let Some(block) = self.live.get_mut(&(self.pid, self.device, pool, *addr)) {
                block.held_as = Some(*held_as);
            }
        }
        let look = Look {
            number: 0,
            at: LookedAt::Running,
            outcome: Looked::Found(FoundHeld { pool, device: self.device, blocks }),
        };
        self.push(EventKind::Looked(Arc::new(look)))
    }

    fn new_block(&self, pool: Pool, addr: u64, size_bytes: u64) -> Block {
        let id = self.events.len() as u64;
        Block {
            allocation_id: id + 1,
            pool,
            device: self.device,
            addr,
            size_bytes,
            alloc_time_ns: id,
            alloc_id: id,
            tid: self.tid,
            step: self.steps.get(&(self.pid, self.device)).copied().unwrap_or(0),
            kernel_index: self.kernel_index,
            module_id: self.module_id,
            page: PageType::Normal,
            api: AllocApi::Alloc,
            requested_bytes: None,
            caller: None,
            stacks: self.stacks,
            owner: None,
            found: false,
            held_as: None,
        }
    }

    /// Gives the last block an owner, as in a dump.
    pub(crate) fn owned(&mut self, owner: &str) -> &mut Self {
        if let Some(EventKind::Alloc(alloc)) = self.events.last_mut().map(|event| &mut event.kind) {
            alloc.block.owner = Some(Name::keep(owner));
        }
        self
    }

    /// A block of a pool that reports its reserved bytes.
    pub(crate) fn pool_alloc(&mut self, pool: Pool, addr: u64, size_bytes: u64, total_bytes: u64) -> &mut Self {
        self.alloc(pool, addr, size_bytes);
        if let Some(EventKind::Alloc(alloc)) = self.events.last_mut().map(|event| &mut event.kind) {
            alloc.total_bytes = Some(total_bytes);
        }
        self
    }

    /// The request behind the last block: its time, stream and bytes.
    pub(crate) fn asked(&mut self, time_ns: u64, stream: u64, requested_bytes: u64) -> &mut Self {
        if let Some(EventKind::Alloc(alloc)) = self.events.last_mut().map(|event| &mut event.kind) {
            alloc.asked = Asked { time_ns: Some(time_ns), stream: Some(stream) };
            alloc.block.requested_bytes = Some(requested_bytes);
        }
        self
    }

    /// A pool has a block back.
    pub(crate) fn returned(&mut self, pool: Pool, addr: u64) -> &mut Self {
        self.push(EventKind::BlockReturned(BlockReturned {
            pool,
            allocation_id: None,
            addr,
            size_bytes: 0,
            used_bytes: 0,
            total_bytes: 0,
            active_bytes: 0,
        }))
    }

    /// Another stream uses a block that is live.
    pub(crate) fn stream_use(&mut self, pool: Pool, addr: u64) -> &mut Self {
        self.push(EventKind::StreamUse(StreamUse { pool, allocation_id: 0, addr }))
    }

    /// Number of events so far: the time of the next one.
    pub(crate) fn now(&self) -> u64 {
        self.events.len() as u64
    }

    /// Takes back the last free at `addr`, because it failed.
    pub(crate) fn restore(&mut self, pool: Pool, addr: u64) -> &mut Self {
        let block = self.freed.remove(&(self.pid, self.device, pool, addr)).expect("was freed");
        self.hand_out(block, true)
    }

    pub(crate) fn free(&mut self, pool: Pool, addr: u64) -> &mut Self {
        self.end(FreeCause::Program, pool, addr)
    }

    pub(crate) fn end(&mut self, cause: FreeCause, pool: Pool, addr: u64) -> &mut Self {
        let key = (self.pid, self.device, pool, addr);
        let block = self.live.remove(&key).expect("is live");
        self.freed.insert(key, block);
        let used = self.used_bytes.entry((self.pid, self.device, pool)).or_default();
        *used -= block.size_bytes;
        let own_bytes = *used;
        let (used_bytes, total_bytes) = self.sums(pool, own_bytes);
        self.push(EventKind::Free(Free {
            block,
            used_bytes,
            total_bytes,
            driver: DriverFigures::default(),
            cause,
            owner: None,
            row_time_ns: None,
            without_row: false,
        }))
    }

    pub(crate) fn unknown_free(&mut self, pool: Pool, addr: u64, maybe_older: bool) -> &mut Self {
        self.push(EventKind::UnknownFree(UnknownFree { pool, addr, size_bytes: None, maybe_older, refused: false }))
    }

    pub(crate) fn refused_free(&mut self, pool: Pool, addr: u64, maybe_older: bool) -> &mut Self {
        self.push(EventKind::UnknownFree(UnknownFree { pool, addr, size_bytes: None, maybe_older, refused: true }))
    }

    /// Attempt `attempt` of request `request` fails.
    pub(crate) fn alloc_failed(&mut self, pool: Pool, size_bytes: u64, number: (u64, u32)) -> &mut Self {
        self.push(EventKind::AllocFailed(failed(pool, size_bytes, number)))
    }

    /// The request has failed for good, at this attempt.
    #[cfg(feature = "cli")]
    pub(crate) fn failed_for_good(&mut self, pool: Pool, size_bytes: u64, number: (u64, u32)) -> &mut Self {
        self.push(EventKind::OutOfMemory(OutOfMemory::Trigger(failed(pool, size_bytes, number))))
    }

    /// Request `request` succeeds after all.
    pub(crate) fn alloc_recovered(&mut self, pool: Pool, size_bytes: u64, request: u64) -> &mut Self {
        self.push(EventKind::AllocRecovered(AllocRecovered { pool, request, failed_attempts: 1, size_bytes }))
    }

    pub(crate) fn step_start(&mut self, step: u32) -> &mut Self {
        self.steps.insert((self.pid, self.device), step);
        self.push(EventKind::StepStart { step })
    }

    pub(crate) fn step_end(&mut self, step: u32) -> &mut Self {
        self.steps.insert((self.pid, self.device), step);
        self.push(EventKind::StepEnd { step })
    }

    /// An empty step.
    pub(crate) fn step(&mut self, step: u32) -> &mut Self {
        self.step_start(step).step_end(step)
    }

    /// The process ends; the next one with its id starts from nothing. The test ends its live blocks itself.
    pub(crate) fn process_end(&mut self) -> &mut Self {
        let pid = self.pid;
        self.steps.retain(|key, _| key.0 != pid);
        self.used_bytes.retain(|key, _| key.0 != pid);
        self.live.retain(|key, _| key.0 != pid);
        self.freed.retain(|key, _| key.0 != pid);
        self.push(EventKind::ProcessEnd)
    }

    pub(crate) fn is_live(&self, pool: Pool, addr: u64) -> bool {
        self.live.contains_key(&(self.pid, self.device, pool, addr))
    }

    /// Whether a device of this process has the block: the pipeline never has one address of a pool live twice.
    pub(crate) fn is_live_on_any_device(&self, pool: Pool, addr: u64) -> bool {
        self.live.keys().any(|(pid, _, of, at)| (*pid, *of, *at) == (self.pid, pool, addr))
    }

    pub(crate) fn was_freed(&self, pool: Pool, addr: u64) -> bool {
        self.freed.contains_key(&(self.pid, self.device, pool, addr))
    }

    fn hand_out(&mut self, block: Block, restored: bool) -> &mut Self {
        let key = (self.pid, block.device, block.pool, block.addr);
        assert!(self.live.insert(key, block).is_none(), "{:#x} is live", block.addr);
        let used = self.used_bytes.entry((self.pid, block.device, block.pool)).or_default();
        *used += block.size_bytes;
        let own_bytes = *used;
        let (used_bytes, total_bytes) = self.sums(block.pool, own_bytes);
        self.push(EventKind::Alloc(Alloc {
            block,
            used_bytes,
            total_bytes,
            driver: DriverFigures::default(),
            restored,
            promoted: false,
            asked: Asked::default(),
        }))
    }

    fn sums(&self, pool: Pool, own_bytes: u64) -> (u64, Option<u64>) {
        match self.reported {
            Some((used_bytes, reserved_bytes)) if pool != pools::HAL => (used_bytes, Some(reserved_bytes)),
            _ => (own_bytes, None),
        }
    }

    /// Any other event.
    pub(crate) fn event(&mut self, kind: EventKind) -> &mut Self {
        self.push(kind)
    }

    fn push(&mut self, kind: EventKind) -> &mut Self {
        let id = self.events.len() as u64;
        self.events.push(Event {
            id,
            time_ns: id,
            pid: self.pid,
            tid: self.tid,
            device: self.device,
            stacks: self.stacks,
            kind,
        });
        self
    }
}
