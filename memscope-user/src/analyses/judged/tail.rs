//! When did a program stop working, and begin to end?
//!
//! Frees are held back until the program works on: until it allocates device memory, launches, marks, runs an operator.
//! So at the end of a process all frees after its last work are available. They are its exit if two signs agree:
//!
//! - the process ends, at most [`MAX_TO_END_NS`] after the last of them; and
//! - it called `aclFinalize`, or they free at least half of the live memory (mass frees).
//!
//! Calls of `exit` and of `Py_FinalizeEx` with no work behind are enough: all frees after the first of them belong to
//! the exit, however many or late. Work may follow (Python waits for its threads): then the calls do not count.
//!
//! An exit may allocate a little, as handlers do that save or log: one block for [`FREES_OF_ALLOC`] later frees of
//! older ones, none of them a leak, at most [`MAX_PAUSE_NS`] before it calls `exit` or ends. `aclFinalize` with no work behind it is enough where the end of the process is not
//! seen. A pause of more than [`MAX_PAUSE_NS`] between two frees separates the last work from the exit. A process that
//! is killed, or still runs when the trace ends, has no exit.

use std::collections::{BTreeMap, HashSet, VecDeque};

use super::readers::{OfExit, Readers, Seen, Sight, is_older_free};
use super::{Exit, ExitCall, ExitFreed, Span};
use crate::model::{Block, Device, EventKind, Free, FreeCause, LiveSum, Pool, System};

/// Events held back at most, of one process; the oldest are passed on as they are.
const MAX_HELD: usize = 1 << 16;
/// The longest pause between two frees of an exit.
const MAX_PAUSE_NS: u64 = 2_000_000_000;
/// The longest time from the last free to the end of the process.
const MAX_TO_END_NS: u64 = 10_000_000_000;

/// An exit without frees is reported from this length on.
const LONG_NS: u64 = 1_000_000_000;

/// Frees for each allocation of an exit.
const FREES_OF_ALLOC: u64 = 8;

/// Events since the last work of a process.
#[derive(Debug, Default)]
pub(super) struct Tail {
    held: VecDeque<Seen<'static>>,
    /// Frees among them, and allocations that an exit may have.
    frees: u64,
    allocations: u64,
    called: Option<Called>,
    start_ns: Option<u64>,
    /// Device memory of the process was seen.
    has_memory: bool,
}

/// The call by which a process begins to end, and its time, nanoseconds since the Unix epoch.
type Called = (ExitCall, u64);

/// An exit: the index in the held events at which it begins, and whether `aclFinalize` was called.
struct Found {
    at: usize,
    finalized: bool,
}

impl Tail {
    /// Takes an event of the process, and passes on the settled ones.
    pub(super) fn observe(&mut self, seen: &Seen<'_>, readers: &mut Readers) {
        let event = &*seen.event;
        self.start_ns.get_or_insert(event.time_ns);
        let is_alloc = is_device_alloc(&event.kind);
        self.has_memory |= is_alloc || gave_back(seen);
        let may_be_of_exit = is_alloc && FREES_OF_ALLOC * (self.allocations + 1) <= self.frees;
        // A script that ends its collection runs, but for one that does so in a handler of its exit.
        let ends_collection = matches!(event.kind, EventKind::System(System::TraceStop)) && self.called.is_none();
        if ends_collection || is_work(&event.kind) && !may_be_of_exit {
            self.held.drain(..).for_each(|held| readers.works(&held));
            (self.frees, self.allocations, self.called) = (0, 0, None);
        } else if !self.held.is_empty() || is_sign(&event.kind) {
            self.make_room(readers);
            self.called = self.called.or_else(|| Some((call_of(&event.kind)?, event.time_ns)));
            self.frees += u64::from(gave_back(seen));
            self.allocations += u64::from(is_alloc);
            return self.held.push_back(seen.keep());
        }
        readers.works(seen);
    }

    fn make_room(&mut self, readers: &mut Readers) {
        if self.held.len() >= MAX_HELD
            && let Some(oldest) = self.held.pop_front()
        {
            self.frees -= u64::from(gave_back(&oldest));
            self.allocations -= u64::from(is_device_alloc(&oldest.event.kind));
            readers.works(&oldest);
        }
    }

    /// The process, or else the trace, has ended. Gives the span if the process has an exit, with sums of the blocks that
    /// `counts` holds for.
    pub(super) fn end(
        self,
        pid: u32,
        end_ns: Option<u64>,
        readers: &mut Readers,
        counts: &mut dyn FnMut(&Block) -> bool,
    ) -> Option<Span> {
        let found = exit(&self.held, self.called, end_ns).filter(|_| self.has_memory);
        let at = found.as_ref().map_or(usize::MAX, |found| found.at);
        let of_exit = || self.held.iter().skip(at);
        let own = allocated(of_exit());
        let gives_back = of_exit().any(gave_back);
        let (freed_blocks, freed_bytes) = sum(older(of_exit(), &own).filter(|block| counts(block)));
        let freed = freed(of_exit(), &own, counts);
        let until_ns = self.held.get(at).map(|seen| seen.event.time_ns);
        for (number, seen) in self.held.iter().enumerate() {
            match until_ns.filter(|_| number >= at) {
                Some(until_ns) => readers.exits(seen, OfExit { until_ns, own: is_of(seen, &own) }),
                None => readers.works(seen),
            }
        }
        let (start_ns, until_ns) = (self.start_ns?, until_ns?);
        let called = self.called.map(|(call, _)| call);
        let exit = Exit { finalized: found?.finalized, called, ended: end_ns.is_some(), freed_blocks, freed_bytes };
        // One without frees adds nothing to the end of the process.
        let is_long = end_ns.is_some_and(|end_ns| end_ns.saturating_sub(until_ns) >= LONG_NS);
        (gives_back || is_long).then_some(Span { pid, start_ns, until_ns, exit, freed })
    }
}

/// Whether the program takes memory of a device.
fn is_device_alloc(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Alloc(alloc) if !alloc.block.pool.is_host())
}

/// Numbers of the blocks that these events allocate.
fn allocated<'a>(events: impl Iterator<Item = &'a Seen<'static>>) -> HashSet<u64> {
    let number = |seen: &Seen<'_>| match &seen.event.kind {
        EventKind::Alloc(alloc) => Some(alloc.block.allocation_id),
        _ => None,
    };
    events.filter_map(number).collect()
}

/// Whether it is of one of these blocks.
fn is_of(seen: &Seen<'_>, own: &HashSet<u64>) -> bool {
    match &seen.event.kind {
        EventKind::Alloc(alloc) => own.contains(&alloc.block.allocation_id),
        EventKind::Free(free) => own.contains(&free.block.allocation_id),
        _ => false,
    }
}

/// Blocks that the program freed with these events, except those with these numbers; each byte once.
fn older<'a>(events: impl Iterator<Item = &'a Seen<'static>>, own: &HashSet<u64>) -> impl Iterator<Item = &'a Block> {
    events.filter_map(|seen| block_of(seen, true)).filter(|block| !own.contains(&block.allocation_id))
}

/// Whether the program works: an exit has no such events, but for few allocations. The start of a process and its settings are
/// no work: the tracer may note them after a short process has ended. Nor is a final failure of a request: it is certain only
/// later, amid the frees of a program that ends because of it.
fn is_work(kind: &EventKind) -> bool {
    match kind {
        EventKind::Alloc(_) => is_device_alloc(kind),
        EventKind::Free(_)
        | EventKind::UnknownFree(_)
        | EventKind::BlockReturned(_)
        | EventKind::PoolRefused(_)
        | EventKind::CacheEmptied
        | EventKind::DeviceMemory(_)
        | EventKind::PoolSet(_)
        | EventKind::Graph(_)
        | EventKind::OwnPool(_)
        | EventKind::PoolsLeftOut
        | EventKind::Region(_)
        | EventKind::DeviceUsage(_)
        | EventKind::Looked(_)
        | EventKind::OutOfMemory(_)
        | EventKind::ProcessStart(_)
        | EventKind::Settings(_)
        | EventKind::System(System::AclFinalize | System::Exit | System::PythonEnds | System::TraceStop)
        | EventKind::ProcessEnd => false,
        _ => true,
    }
}

/// Whether an exit may begin with it.
const fn is_sign(kind: &EventKind) -> bool {
    let is_sign = matches!(kind, EventKind::Free(_) | EventKind::System(System::AclFinalize));
    is_sign || is_older_free(kind) || call_of(kind).is_some()
}

/// The call by which the process begins to end.
const fn call_of(kind: &EventKind) -> Option<ExitCall> {
    match kind {
        EventKind::System(System::Exit) => Some(ExitCall::Exit),
        EventKind::System(System::PythonEnds) => Some(ExitCall::PyFinalize),
        _ => None,
    }
}

/// Whether the program gave memory back with it that counts.
fn gave_back(seen: &Seen<'_>) -> bool {
    block_of(seen, true).is_some() || is_older_free(&seen.event.kind)
}

/// The block that the program freed with this event, or that was left; no segment of a pool.
fn block_of<'a>(seen: &'a Seen<'_>, of_program: bool) -> Option<&'a Block> {
    let EventKind::Free(Free { block, cause, .. }) = &seen.event.kind else { return None };
    let is = if of_program { *cause == FreeCause::Program } else { !cause.gave_back() };
    (is && seen.counts() && !block.pool.is_host()).then_some(block)
}

/// The sums of the blocks that the exit freed, by device and pool, those of the host too.
fn freed<'a>(
    of_exit: impl Iterator<Item = &'a Seen<'static>>,
    own: &HashSet<u64>,
    counts: &mut dyn FnMut(&Block) -> bool,
) -> Vec<ExitFreed> {
    let mut sums: BTreeMap<(Device, Pool), ExitFreed> = BTreeMap::new();
    for seen in of_exit {
        let EventKind::Free(Free { block, cause: FreeCause::Program, .. }) = &seen.event.kind else { continue };
        let &Block { device, pool, size_bytes, allocation_id, .. } = block;
        if own.contains(&allocation_id) || !counts(block) {
            continue;
        }
        let none = ExitFreed { device, pool, blocks: 0, size_bytes: 0, segments: LiveSum::default() };
        let sum = sums.entry((device, pool)).or_insert(none);
        let (blocks, sum) = match seen.sight {
            Sight::WithSegments => (&mut sum.segments.blocks, &mut sum.segments.size_bytes),
            Sight::All | Sight::WithoutSegments => (&mut sum.blocks, &mut sum.size_bytes),
        };
        (*blocks, *sum) = (*blocks + 1, sum.saturating_add(size_bytes));
    }
    sums.into_values().collect()
}

fn exit(held: &VecDeque<Seen<'static>>, called: Option<Called>, end_ns: Option<u64>) -> Option<Found> {
    let finalized = held.iter().rposition(|seen| matches!(seen.event.kind, EventKind::System(System::AclFinalize)));
    let called_ns = called.map(|(_, called_ns)| called_ns);
    let finalized_ns = finalized.map(|at| held[at].event.time_ns);
    let by_frees = begin_by_frees(held, [finalized_ns, called_ns, end_ns]).filter(|at| {
        let left_blocks = held.range(at..).filter_map(|seen| block_of(seen, false)).count() as u64;
        let own = allocated(held.range(at..));
        let freed_blocks = older(held.range(at..), &own).count() as u64;
        finalized.is_some() || end_ns.is_some() && freed_blocks >= left_blocks
    });
    let by_call = called_ns.map(|called_ns| held.partition_point(|seen| seen.event.time_ns < called_ns));
    let at = by_frees.into_iter().chain(by_call).min()?;
    Some(Found { at, finalized: finalized.is_some() })
}

/// Number of blocks, and their bytes.
fn sum<'a>(blocks: impl Iterator<Item = &'a Block>) -> (u64, u64) {
    blocks.fold((0, 0_u64), |sum, block| (sum.0 + 1, sum.1.saturating_add(block.size_bytes)))
}

/// The start of the frees that no pause separates from the end, or from the call that begins it: after that the exit
/// may take its time. After `aclFinalize` the exit began by a call, and the process ended.
fn begin_by_frees(
    held: &VecDeque<Seen<'static>>,
    [finalized_ns, called_ns, end_ns]: [Option<u64>; 3],
) -> Option<usize> {
    let own = allocated(held.iter());
    let mut at = None;
    let end_of_work_ns = called_ns.or(end_ns).or(finalized_ns)?;
    let mut next_ns = end_of_work_ns;
    let mut longest_ns = match (finalized_ns, called_ns) {
        (Some(_), _) => u64::MAX,
        (None, Some(_)) => MAX_PAUSE_NS,
        (None, None) => MAX_TO_END_NS,
    };
    // Later events: frees of older blocks, and allocations.
    let (mut returned, mut allocations) = (0, 0);
    for (number, seen) in held.iter().enumerate().rev() {
        let event = &*seen.event;
        if is_device_alloc(&event.kind) {
            allocations += 1;
            // A program that frees much now and then works on all the while.
            let is_early = end_of_work_ns.saturating_sub(event.time_ns) > MAX_PAUSE_NS;
            if is_early || FREES_OF_ALLOC * allocations > returned {
                break;
            }
        }
        if !gave_back(seen) {
            continue;
        }
        if next_ns.saturating_sub(event.time_ns) > longest_ns {
            break;
        }
        returned += u64::from(block_of(seen, true).is_none_or(|block| !own.contains(&block.allocation_id)));
        (at, next_ns, longest_ns) = (Some(number), next_ns.min(event.time_ns), MAX_PAUSE_NS);
    }
    at
}
