//! One layer of a process on a device: the driver, or a pool.

use std::collections::VecDeque;

use super::blocks::{Kept, Rec, keep_largest};
use super::curve::{Curve, Levels};
use crate::hash::HashMap;
use crate::model::{Alloc, Event, Free, Pool, Stacks};

/// Most bytes counted of a block: beyond any device, and sums still fit.
const MAX_BLOCK_BYTES: u64 = 1 << 50;
/// Most failed attempts followed at a time.
const MAX_ATTEMPTS: usize = 8;
/// Most blocks live at a moment that are shown one by one, beside the largest of the run.
const MAX_AT_MOMENT: usize = 10_000;

/// A layer in the making.
#[derive(Debug)]
pub(super) struct Making {
    curve: Curve,
    /// When and after which event, by number.
    live: HashMap<u64, (u64, u64)>,
    used: u64,
    seq: u64,
    peak: u64,
    moments: [Watched; 4],
    /// Failed attempts of requests that may still succeed, the oldest first.
    attempts: VecDeque<(Request, Watched)>,
    kept: Kept,
    by_stack: HashMap<Stacks, (u64, u64)>,
    allocations: u64,
    frees: u64,
    allocated_bytes: u64,
    reported_peak: u64,
    start_ns: u64,
}

/// Thread and number of a request.
pub(super) type Request = (u32, u64);

/// A moment, with the blocks live then that have ended since.
#[derive(Debug, Default)]
struct Watched {
    /// Set, and after which event.
    at: Option<(u64, u64)>,
    reserved: Option<u64>,
    recs: Vec<Rec>,
}

/// Which moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Which {
    Peak = 0,
    OutOfMemory = 1,
    LastStep = 2,
    LastAlloc = 3,
}

/// Live memory at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// `peak`, `oom`, `step` (the end of the last step) or `end` (when the last block was allocated).
    pub kind: &'static str,
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Live bytes.
    pub bytes: u64,
    /// Reserved bytes by the pool's own figure, where it has one.
    pub reserved: Option<u64>,
    /// The live blocks, in the order of their allocation.
    pub blocks: Vec<Rec>,
}

/// Bytes and blocks of one call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackWeight {
    /// The place.
    pub stacks: Stacks,
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// A finished layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Which.
    pub pool: Pool,
    /// Over time.
    pub curve: Levels,
    /// Peak, out of memory, the end of the work: those that occurred.
    pub moments: Vec<Moment>,
    /// All allocations by stack.
    pub by_stack: Vec<StackWeight>,
    /// Blocks of their own, in the order of their allocation.
    pub blocks: Vec<Rec>,
    /// They are all of them.
    pub exact: bool,
    /// Allocated blocks.
    pub allocations: u64,
    /// Of them those that were freed.
    pub frees: u64,
    /// Bytes of all allocations.
    pub allocated_bytes: u64,
    /// Most bytes handed out by the pool's own figure, with blocks from before the trace.
    pub reported_peak: u64,
}

impl Making {
    pub(super) fn new(start_ns: u64) -> Self {
        Self {
            curve: Curve::new(start_ns),
            live: HashMap::default(),
            used: 0,
            seq: 0,
            peak: 0,
            moments: Default::default(),
            attempts: VecDeque::new(),
            kept: Kept::default(),
            by_stack: HashMap::default(),
            allocations: 0,
            frees: 0,
            allocated_bytes: 0,
            reported_peak: 0,
            start_ns,
        }
    }

    pub(super) fn alloc(&mut self, event: &Event, alloc: &Alloc) {
        let size = alloc.block.size_bytes.min(MAX_BLOCK_BYTES);
        self.seq += 1;
        if self.live.insert(alloc.block.allocation_id, (event.time_ns, self.seq)).is_some() {
            // A number that is live already is counted once.
            return;
        }
        if alloc.is_call() {
            self.allocations += 1;
            self.allocated_bytes = self.allocated_bytes.saturating_add(size);
            let (bytes, blocks) = self.by_stack.entry(alloc.block.stacks).or_default();
            (*bytes, *blocks) = (bytes.saturating_add(size), *blocks + 1);
        }
        self.used = self.used.wrapping_add(size);
        self.reported_peak = self.reported_peak.max(alloc.used_bytes);
        self.curve.total(event.time_ns, self.seq, self.used, alloc.total_bytes);
        if self.used > self.peak {
            self.peak = self.used;
            self.mark(Which::Peak, event.time_ns, alloc.total_bytes);
        }
        self.mark(Which::LastAlloc, event.time_ns, alloc.total_bytes);
    }

    /// Marks such a moment now; the one before is dropped.
    pub(super) fn mark(&mut self, which: Which, time_ns: u64, reserved: Option<u64>) {
        let watched = &mut self.moments[which as usize];
        watched.at = Some((time_ns, self.seq));
        watched.reserved = reserved;
        watched.recs.clear();
    }

    /// An attempt of a request fails: if none follows, memory was out now.
    pub(super) fn attempt_failed(&mut self, request: Request, time_ns: u64) {
        self.attempt_settled(request);
        if self.attempts.len() >= MAX_ATTEMPTS {
            self.attempts.pop_front();
        }
        let watched = Watched { at: Some((time_ns, self.seq)), ..Watched::default() };
        self.attempts.push_back((request, watched));
    }

    /// The request has succeeded.
    pub(super) fn attempt_settled(&mut self, request: Request) {
        self.attempts.retain(|(of, _)| *of != request);
    }

    /// The request has failed for good: memory was out at its last attempt. Returns the time of that; `None` if
    /// unknown.
    pub(super) fn out_of_memory(&mut self, request: Request) -> Option<u64> {
        let at = self.attempts.iter().position(|(of, _)| *of == request)?;
        let (_, watched) = self.attempts.remove(at)?;
        let at = watched.at;
        self.moments[Which::OutOfMemory as usize] = watched;
        at.map(|(time_ns, _)| time_ns)
    }

    pub(super) fn free(&mut self, event: &Event, free: &Free) {
        let Some((start_ns, start_seq)) = self.live.remove(&free.block.allocation_id) else { return };
        self.seq += 1;
        let size_bytes = free.block.size_bytes.min(MAX_BLOCK_BYTES);
        self.used = self.used.wrapping_sub(size_bytes);
        let held = !free.cause.gave_back();
        if !held {
            self.frees += 1;
            self.curve.total(event.time_ns, self.seq, self.used, free.total_bytes);
        }
        let block = &free.block;
        let rec = Rec {
            allocation_id: block.allocation_id,
            addr: block.addr,
            size_bytes,
            requested_bytes: block.requested_bytes,
            start_ns,
            end_ns: event.time_ns.max(start_ns),
            start_seq,
            end_seq: self.seq,
            held,
            owner: free.owner.or(block.owner),
            stacks: block.stacks,
            tid: block.tid,
        };
        self.curve.ended(&rec);
        for watched in self.moments.iter_mut().chain(self.attempts.iter_mut().map(|(_, watched)| watched)) {
            if watched.at.is_some_and(|(_, seq)| start_seq <= seq) {
                watched.recs.push(rec);
            }
        }
        self.kept.add(rec);
    }

    /// Whether it has a block.
    pub(super) const fn is_used(&self) -> bool {
        self.allocations > 0
    }

    pub(super) const fn peak(&self) -> u64 {
        self.peak
    }

    /// Ends the layer at a time.
    pub(super) fn close(self, pool: Pool, end_ns: u64) -> Layer {
        let kinds = ["peak", "oom", "step", "end"];
        let mut moments: Vec<Moment> =
            kinds.into_iter().zip(self.moments).filter_map(|(kind, watched)| watched.close(kind)).collect();
        // Memory that a program frees as it goes down does not count: the end is that of the last step, if steps are
        // known.
        let steps = moments.iter().any(|moment| moment.kind == "step");
        moments.retain(|moment| !(steps && moment.kind == "end"));
        let (mut blocks, exact) = self.kept.close();
        if !exact {
            for moment in &moments {
                let mut live = moment.blocks.clone();
                keep_largest(&mut live, MAX_AT_MOMENT);
                blocks.extend(live);
            }
        }
        blocks.sort_unstable_by_key(|rec| (rec.start_seq, rec.allocation_id));
        blocks.dedup_by_key(|rec| (rec.start_seq, rec.allocation_id));
        let weight = |(stacks, (bytes, blocks))| StackWeight { stacks, bytes, blocks };
        Layer {
            pool,
            curve: self.curve.close(end_ns.max(self.start_ns)),
            moments,
            by_stack: self.by_stack.into_iter().map(weight).collect(),
            blocks,
            exact,
            allocations: self.allocations,
            frees: self.frees,
            allocated_bytes: self.allocated_bytes,
            reported_peak: self.reported_peak,
        }
    }
}

impl Watched {
    fn close(self, kind: &'static str) -> Option<Moment> {
        let (time_ns, _) = self.at?;
        let mut blocks = self.recs;
        blocks.sort_unstable_by_key(|rec| rec.start_seq);
        let bytes = blocks.iter().fold(0_u64, |sum, rec| sum.saturating_add(rec.size_bytes));
        Some(Moment { kind, time_ns, bytes, reserved: self.reserved, blocks })
    }
}

impl Moment {
    /// Live memory by stack.
    #[must_use]
    pub fn by_stack(&self) -> Vec<StackWeight> {
        let mut sums: HashMap<Stacks, (u64, u64)> = HashMap::default();
        for rec in &self.blocks {
            let (bytes, blocks) = sums.entry(rec.stacks).or_default();
            (*bytes, *blocks) = (bytes.saturating_add(rec.size_bytes), *blocks + 1);
        }
        sums.into_iter().map(|(stacks, (bytes, blocks))| StackWeight { stacks, bytes, blocks }).collect()
    }
}
