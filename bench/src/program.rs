//! A made-up program: its events go to analyses as they happen, as those of a trace do.

use std::collections::{BTreeSet, HashMap};

use memscope::analyses::{Analysis, Finding};
use memscope::backend::ascend::pools;
use memscope::model::{
    Alloc, AllocApi, AllocFailed, Asked, Block, Device, DriverFigures, Event, EventKind, Free, FreeCause, Mark,
    PageType, Pool, RunEnd, Stacks, System,
};

use crate::attached::{Attached, START_NS};
use crate::random::Random;
use crate::score::{Place, place_of};

/// Its process.
pub(crate) const PID: u32 = 4242;
const NPU: Device = Device::Npu(0);

/// Makes events; keeps the live blocks alone.
pub(crate) struct Program {
    to: Vec<Box<dyn Analysis>>,
    /// Traces that see a part of the run alone.
    attached: Vec<Attached>,
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

/// How a run ends, as seen by a trace of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The trace ends, the program goes on.
    Running,
    /// The program is killed: it frees nothing.
    Killed,
    /// The interpreter frees nearly everything, then ACL is finalized, then the process ends.
    InOrder,
    /// Asked to end: pauses, works a little (a last answer, a checkpoint), frees in bulk over seconds, ends.
    Signal,
}

impl Ending {
    pub(crate) const ALL: [Self; 4] = [Self::Running, Self::Killed, Self::InOrder, Self::Signal];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Running => "still running",
            Self::Killed => "killed",
            Self::InOrder => "ended in order",
            Self::Signal => "ended by a signal",
        }
    }
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
            attached: Vec::new(),
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

    /// Lets a trace that attaches late see its part of what follows.
    pub(crate) fn attach(&mut self, attached: Attached) {
        self.attached.push(attached);
    }

    /// Nanoseconds since the program began.
    pub(crate) const fn elapsed_ns(&self) -> u64 {
        self.time_ns - START_NS
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
            found: false,
            held_as: None,
        };
        let used = self.used_bytes.entry(pool).or_default();
        *used += block.size_bytes;
        let used_bytes = *used;
        if pool == pools::HAL {
            self.reserved_bytes += size_bytes;
        }
        let slot = self.empty.pop().unwrap_or(self.live.len());
        if slot == self.live.len() {
            self.live.push(None);
        }
        self.live[slot] = Some(block);
        let (total_bytes, driver) = (self.total_of(pool), DriverFigures::default());
        let (promoted, asked) = (false, Asked::default());
        let alloc = Alloc { block, used_bytes, total_bytes, driver, restored: false, promoted, asked };
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

    /// Places of pools that hold blocks now.
    pub(crate) fn held(&self) -> BTreeSet<Place> {
        let blocks = self.live.iter().flatten().filter(|block| block.pool != pools::HAL);
        blocks.map(|block| place_of(block.stacks, block.size_bytes)).collect()
    }

    /// Steps that began.
    #[cfg(test)]
    pub(crate) const fn steps(&self) -> u32 {
        self.step
    }

    /// Live blocks of a place.
    #[cfg(test)]
    pub(crate) fn count(&self, place: Place) -> usize {
        let blocks = self.live.iter().flatten().filter(|block| block.pool != pools::HAL);
        blocks.filter(|block| place_of(block.stacks, block.size_bytes) == place).count()
    }

    /// A request that fails for want of memory.
    pub(crate) fn alloc_failed(&mut self, pool: Pool, size_bytes: u64, request: u64) {
        let failed = AllocFailed {
            pool,
            size_bytes,
            status: 207_001,
            flags: 0,
            caller: None,
            out_of_memory: true,
            request,
            attempt: 1,
        };
        self.push(EventKind::AllocFailed(failed), Stacks::default());
    }

    /// The trace ends; what is live then is reported.
    pub(crate) fn finish(mut self) -> Vec<Finding> {
        self.end_all(FreeCause::TraceEnd);
        self.conclude()
    }

    /// The run ends in this way; gives what the trace of all of it finds, then what each attached one finds.
    pub(crate) fn end_by(mut self, ending: Ending, random: &mut Random) -> (Vec<Finding>, Vec<Vec<Finding>>) {
        match ending {
            Ending::Running => self.end_all(FreeCause::TraceEnd),
            Ending::Killed => self.end_process(),
            Ending::InOrder => {
                self.pass(random.between(0, 300_000_000));
                self.free_nearly_all(random, 20);
                self.push(EventKind::System(System::AclFinalize), Stacks::default());
                self.end_process();
            }
            Ending::Signal => {
                self.pass(random.between(100_000_000, 3_000_000_000));
                for _ in 0..random.below(4) {
                    let last = self.alloc(pools::PTA, 1 << 50, 4096, Stacks::default());
                    self.pass(1_000_000);
                    self.free(last);
                }
                self.free_nearly_all(random, 80);
                self.pass(random.between(0, 1_000_000_000));
                self.end_process();
            }
        }
        let attached = std::mem::take(&mut self.attached);
        (self.conclude(), attached.into_iter().map(Attached::finish).collect())
    }

    /// The program gives its blocks back, then the pool its segments: all but a few, newest or oldest first. This takes
    /// up to `most` thousandths of the time that the program has run.
    fn free_nearly_all(&mut self, random: &mut Random, most: u64) {
        let (kept, newest_first) = (random.between(5, 200), random.once_in(2));
        let thousandths = random.between(1, most);
        let each_ns = self.elapsed_ns() / 1000 * thousandths / self.live.len().max(1) as u64;
        for segments in [false, true] {
            let is_one = |block: &Option<Block>| block.is_some_and(|block| (block.pool == pools::HAL) == segments);
            let mut slots: Vec<usize> = (0..self.live.len()).filter(|slot| is_one(&self.live[*slot])).collect();
            slots.sort_unstable_by_key(|slot| self.live[*slot].map(|block| block.allocation_id));
            if newest_first {
                slots.reverse();
            }
            for slot in slots {
                if !random.once_in(kept) {
                    self.pass(random.between(each_ns / 2, each_ns * 3 / 2));
                    self.free(Slot(slot));
                }
            }
        }
    }

    fn end_process(&mut self) {
        self.end_all(FreeCause::ProcessEnd);
        self.push(EventKind::ProcessEnd, Stacks::default());
    }

    fn end_all(&mut self, cause: FreeCause) {
        for slot in 0..self.live.len() {
            if self.live[slot].is_some() {
                self.end(Slot(slot), cause);
            }
        }
    }

    fn conclude(mut self) -> Vec<Finding> {
        let end = RunEnd { time_ns: self.time_ns, ..RunEnd::default() };
        self.to.iter_mut().flat_map(|analysis| analysis.finish(&end)).collect()
    }

    fn end(&mut self, Slot(slot): Slot, cause: FreeCause) {
        let block = self.live[slot].take().expect("a live block");
        self.empty.push(slot);
        let used = self.used_bytes.entry(block.pool).or_default();
        *used -= block.size_bytes;
        let used_bytes = *used;
        if block.pool == pools::HAL {
            self.reserved_bytes -= block.size_bytes;
        }
        let (total_bytes, driver) = (self.total_of(block.pool), DriverFigures::default());
        let free =
            Free { block, used_bytes, total_bytes, driver, cause, owner: None, row_time_ns: None, without_row: false };
        self.push(EventKind::Free(free), Stacks::default());
    }

    /// What a pool says it holds: the driver's blocks are all the pool's.
    fn total_of(&self, pool: Pool) -> Option<u64> {
        (pool == pools::PTA && self.reserved_bytes > 0).then_some(self.reserved_bytes)
    }

    fn push(&mut self, kind: EventKind, stacks: Stacks) {
        let event = Event { id: self.events, time_ns: self.time_ns, pid: PID, tid: PID, device: NPU, stacks, kind };
        self.events += 1;
        for analysis in &mut self.to {
            analysis.observe(&event);
        }
        for attached in &mut self.attached {
            attached.observe(&event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::attached::Attached;

    type Words = Arc<Mutex<Vec<String>>>;

    /// Writes down what it is shown.
    struct Witness(Words);

    impl Analysis for Witness {
        fn observe(&mut self, event: &Event) {
            let word = match &event.kind {
                EventKind::Alloc(alloc) => format!("alloc {} in {}", alloc.block.allocation_id, alloc.block.step),
                EventKind::Free(free) => format!("{:?} {}", free.cause, free.block.allocation_id),
                EventKind::UnknownFree(_) => "unknown".to_owned(),
                EventKind::StepStart { step } => format!("start {step}"),
                EventKind::StepEnd { step } => format!("end {step}"),
                EventKind::ProcessStart(_) => "attached".to_owned(),
                EventKind::ProcessEnd => "ended".to_owned(),
                EventKind::System(System::AclFinalize) => "finalized".to_owned(),
                _ => return,
            };
            self.0.lock().expect("no panic").push(word);
        }

        fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
            Vec::new()
        }
    }

    fn witness() -> (Vec<Box<dyn Analysis>>, Words) {
        let seen = Arc::default();
        (vec![Box::new(Witness(Arc::clone(&seen)))], seen)
    }

    /// A block before the attach, one that ends within the trace, one that outlives it; a step of which the start is missed.
    #[test]
    fn attached_traces_see_their_part() {
        let (to, seen) = witness();
        let mut program = Program::new(Vec::new());
        program.attach(Attached::new(to, 100, 200));
        program.step_start();
        let old = program.alloc(pools::PTA, 0x1000, 512, Stacks::default());
        program.pass(100);
        let short = program.alloc(pools::PTA, 0x2000, 512, Stacks::default());
        program.free(old);
        program.step_end();
        program.step_start();
        let long = program.alloc(pools::PTA, 0x3000, 512, Stacks::default());
        program.free(short);
        program.step_end();
        program.pass(100);
        program.free(long);
        program.end_by(Ending::Killed, &mut Random::new(1));
        let expected =
            ["attached", "alloc 2 in 0", "unknown", "start 1", "alloc 3 in 1", "Program 2", "end 1", "TraceEnd 3"];
        assert_eq!(*seen.lock().expect("no panic"), expected);
    }

    /// Whether blocks are freed before the process ends, or end with it or with the trace.
    #[test]
    fn endings_differ() {
        let run = |ending| {
            let (to, seen) = witness();
            let mut program = Program::new(to);
            for block in 0..1000 {
                program.alloc(pools::PTA, block << 12, 512, Stacks::default());
            }
            program.end_by(ending, &mut Random::new(3));
            let seen = seen.lock().expect("no panic");
            let count = |word: &str| seen.iter().filter(|seen| seen.starts_with(word)).count();
            (count("Program"), count("ProcessEnd"), count("TraceEnd"), count("finalized"), count("ended"))
        };
        assert_eq!(run(Ending::Running), (0, 0, 1000, 0, 0));
        assert_eq!(run(Ending::Killed), (0, 1000, 0, 0, 1));
        for (ending, finalized) in [(Ending::InOrder, 1), (Ending::Signal, 0)] {
            let (freed, left, at_end, finalizes, ends) = run(ending);
            // The last blocks of a program that works a little more are freed, too.
            assert!(freed + left >= 1000 && left < 500 && at_end == 0, "{ending:?}: {freed} and {left}");
            assert_eq!((finalizes, ends), (finalized, 1), "{ending:?}");
        }
    }

    /// Keeps the time of the last event.
    struct Clock(Arc<Mutex<u64>>);

    impl Analysis for Clock {
        fn observe(&mut self, event: &Event) {
            *self.0.lock().expect("no panic") = event.time_ns;
        }

        fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
            Vec::new()
        }
    }

    /// Of 100 s: in order at most 0.3 s, and half more than 2 %; by a signal at most 3 s, half more than 8 %, and 1 s.
    #[test]
    fn exits_take_a_share_of_the_run() {
        const RUN_NS: u64 = 100_000_000_000;
        let exit_ns = |ending, seed| {
            let last = Arc::default();
            let mut program = Program::new(vec![Box::new(Clock(Arc::clone(&last)))]);
            let blocks: Vec<Slot> =
                (0..1000).map(|block| program.alloc(pools::PTA, block << 12, 512, Stacks::default())).collect();
            // Slots that are empty take no time.
            blocks.iter().skip(500).for_each(|slot| program.free(*slot));
            program.pass(RUN_NS);
            program.end_by(ending, &mut Random::new(seed));
            let last_ns = *last.lock().expect("no panic");
            last_ns - START_NS - RUN_NS
        };
        let longest = |ending| (0..50).map(|seed| exit_ns(ending, seed)).max().expect("there are some");
        assert_eq!((longest(Ending::Running), longest(Ending::Killed)), (0, 0));
        let (in_order, signal) = (longest(Ending::InOrder), longest(Ending::Signal));
        assert!((500_000_000..=3_300_000_000).contains(&in_order), "{in_order}");
        assert!((3_000_000_000..=16_003_000_000).contains(&signal), "{signal}");
    }
}
