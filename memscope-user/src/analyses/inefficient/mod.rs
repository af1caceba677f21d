//! Which blocks were held longer than they were used?
//!
//! Contract §8.6, for the blocks of `PyTorch`'s and ATB's pools. An *API* is an operator, or an allocation, free or
//! access outside of any; APIs are numbered in the order in which they begin. A block is held inefficiently by
//!
//! - *early allocation*: between its allocation and its first use, some API gave memory back;
//! - *late deallocation*: between its last use and its free, some API took memory;
//! - *temporary idleness*: between two uses there are more APIs than the threshold.
//!
//! Differences to the reference, which is wrong there: each thread has its own operators, and an operator that ends
//! leaves its thread in the outer one. So the numbers of APIs that allocated or freed are not in order, and the latest
//! alone is not enough: the latest `MAX_APIS` are kept.
//!
//! The waste is the block's size times its idle time. Blocks that were idle at the peak of their pool made it higher.

mod finding;
mod places;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use self::finding::{Inefficient, InefficientBlock, InefficientKind, InefficientPlace, Waste};
use self::places::{Peaks, Places};

use std::collections::BTreeSet;
use std::ops::Bound;

use super::{
    Analysis, Finding, Judged,
    question::{AnalysisBit, Automatic, FilesCommand, Question, Sees, collected},
    select::{Filter, Matcher},
};
use crate::hash::HashMap;
use crate::model::{
    Block, Confidence, Device, Event, EventKind, Figures, FreeCause, OpPhase, Pool, PoolOperators, RunEnd,
};

/// msMemScope's.
pub const DEFAULT_IDLE_THRESHOLD: u64 = 3000;
/// APIs that took or gave memory, of each process and kind.
const MAX_APIS: usize = 4096;
const MAX_THREADS: usize = 64 << 10;
/// Open operators of one thread.
const MAX_DEPTH: usize = 256;
/// Blocks that are listed one by one; all are counted.
const MAX_LISTED: usize = 1 << 20;

/// Blocks held longer than they were used.
pub(super) const QUESTION: Question = Question {
    word: "inefficient",
    parameter: "",
    command: FilesCommand::Own,
    names_owners: false,
    sees: Sees::All,
    compares_steps: false,
    automatic: Automatic::WithAccesses,
    collects: collected::BLOCKS | collected::LAUNCHES | collected::ACCESSES,
    script_bit: Some(AnalysisBit::INEFFICIENT),
    add: |asked, set| set.marking(InefficientAnalysis::default().only(asked.filter)),
    table: table::TABLE,
};

/// The rules of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InefficientRules {
    /// Smaller blocks are not listed.
    pub min_size_bytes: u64,
    /// APIs between two uses, beyond which a block is idle.
    pub idle_threshold: u64,
    /// Early allocation, late deallocation, temporary idleness.
    pub kinds: [bool; 3],
}

impl Default for InefficientRules {
    fn default() -> Self {
        Self { min_size_bytes: 0, idle_threshold: DEFAULT_IDLE_THRESHOLD, kinds: [true; 3] }
    }
}

/// Finds blocks that are held longer than they are used.
#[derive(Debug, Default)]
pub struct InefficientAnalysis {
    rules: InefficientRules,
    only: Matcher,
    processes: HashMap<u32, Process>,
    found: HashMap<(u32, Device), Inefficient>,
    places: Places,
    listed: usize,
}

#[derive(Debug, Default)]
struct Process {
    families: HashMap<OpsOf, Family>,
    blocks: HashMap<u64, Use>,
    peaks: Peaks,
}

/// Origin of operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OpsOf {
    /// `PyTorch`'s; their blocks are those of [`PTA`](crate::backend::ascend::pools::PTA).
    Aten,
    /// ATB's; their blocks are those of [`ATB`](crate::backend::ascend::pools::ATB).
    Atb,
}

/// Operators of one kind, and their effects.
#[derive(Debug, Default)]
struct Family {
    counter: u64,
    threads: HashMap<u32, Vec<Open>>,
    took: Apis,
    gave: Apis,
}

/// An operator that has begun.
#[derive(Debug)]
struct Open {
    name: std::sync::Arc<str>,
    api: u64,
    took: bool,
    gave: bool,
}

/// The latest numbers of APIs.
#[derive(Debug, Default)]
struct Apis(BTreeSet<u64>);

impl Apis {
    fn insert(&mut self, api: u64) {
        self.0.insert(api);
        if self.0.len() > MAX_APIS {
            self.0.pop_first();
        }
    }

    /// Whether one is between two others.
    fn between(&self, after: u64, before: u64) -> bool {
        after < before && self.0.range((Bound::Excluded(after), Bound::Excluded(before))).next().is_some()
    }
}

/// How a block is used.
#[derive(Debug)]
struct Use {
    block: Block,
    born_in: u64,
    /// It was used by another API than the one it was born in.
    used: bool,
    /// API and time of the last access, if nothing came after it.
    last_access: Option<(u64, u64)>,
    found: [Option<f64>; 3],
    /// The exit freed it, late: nothing is wrong with that.
    by_exit: bool,
    /// In the order in which they were found.
    order: Vec<InefficientKind>,
    /// Time of the peak at which it was counted as idle.
    counted_at_peak: Option<u64>,
}

impl InefficientAnalysis {
    /// Searches by these rules.
    #[must_use]
    pub fn new(rules: InefficientRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Lists only blocks that match the filter. Their use is judged by the events of all blocks.
    #[must_use]
    pub fn only(self, filter: Filter) -> Self {
        Self { only: filter.into(), ..self }
    }

    /// The analysis to show the run to: it needs to know what exits free.
    #[must_use]
    pub fn judging(self) -> Box<dyn Analysis> {
        Box::new(Judged::default().marking(Box::new(self)))
    }

    fn family(&mut self, pid: u32, api: OpsOf) -> &mut Family {
        self.processes.entry(pid).or_default().families.entry(api).or_default()
    }

    fn allocated(&mut self, event: &Event, block: &Block, api: OpsOf) {
        let born_in = self.family(event.pid, api).event(event.tid, true, false);
        if !self.only.holds(event.pid, block) {
            return;
        }
        let (pid, device) = (event.pid, block.device);
        let found = self.found.entry((pid, device)).or_insert_with(|| Inefficient::new(pid, device));
        found.looked_at.add(block.size_bytes);
        let used = Use::of(*block, born_in);
        self.processes.entry(event.pid).or_default().blocks.insert(block.allocation_id, used);
    }

    fn accessed(&mut self, event: &Event, allocation_id: u64, family: OpsOf) {
        let rules = self.rules;
        let process = self.processes.entry(event.pid).or_default();
        let family = process.families.entry(family).or_default();
        let api = family.event(event.tid, false, false);
        let Some(used) = process.blocks.get_mut(&allocation_id) else { return };
        if let Some(found) = self.found.get_mut(&(event.pid, used.block.device)) {
            found.accesses += 1;
            found.judged = true;
        }
        if !used.used && api != used.born_in {
            used.used = true;
            if family.gave.between(used.born_in, api) {
                let span = (used.block.alloc_time_ns, event.time_ns);
                used.find(InefficientKind::EarlyAllocation, span, rules, &mut process.peaks);
            }
        }
        if let Some((before, time_ns)) = used.last_access
            && api.saturating_sub(before) > rules.idle_threshold
        {
            let span = (time_ns, event.time_ns);
            used.find(InefficientKind::TemporaryIdleness, span, rules, &mut process.peaks);
        }
        used.last_access = Some((api, event.time_ns));
    }

    fn freed(&mut self, event: &Event, block: &Block, cause: FreeCause, family: OpsOf) {
        let rules = self.rules;
        let process = self.processes.entry(event.pid).or_default();
        let used = process.blocks.remove(&block.allocation_id);
        if matches!(cause, FreeCause::Program | FreeCause::Exit) {
            let family = process.families.entry(family).or_default();
            let api = family.event(event.tid, false, true);
            let Some(mut used) = used else { return };
            if let Some((before, time_ns)) = used.last_access
                && family.took.between(before, api)
            {
                used.by_exit = cause == FreeCause::Exit;
                let span = (time_ns, event.time_ns);
                used.find(InefficientKind::LateDeallocation, span, rules, &mut process.peaks);
            }
            self.conclude(event.pid, used);
        } else if let Some(used) = used {
            self.conclude(event.pid, used);
        }
    }

    fn conclude(&mut self, pid: u32, used: Use) {
        if used.order.is_empty() {
            return;
        }
        let block = used.block;
        let Block { pool, device, addr, size_bytes, allocation_id, alloc_id, .. } = block;
        let found = self.found.entry((pid, device)).or_insert_with(|| Inefficient::new(pid, device));
        let is_late = |kind: &InefficientKind| *kind == InefficientKind::LateDeallocation;
        let (by_exit, mut kinds) = (used.by_exit && used.order.iter().any(is_late), used.order);
        if by_exit {
            kinds.retain(|kind| !is_late(kind));
            found.late_at_exit.add(size_bytes);
        }
        let wasted = |kind: &InefficientKind| used.found[*kind as usize].unwrap_or(0.0);
        for kind in &kinds {
            let Waste { blocks, size_bytes: bytes, wasted_byte_seconds, .. } = &mut found.kinds[*kind as usize];
            *blocks += 1;
            *bytes = bytes.saturating_add(size_bytes);
            *wasted_byte_seconds += wasted(kind);
        }
        let waste: f64 = kinds.iter().map(wasted).sum();
        if !kinds.is_empty() {
            self.places.add(pid, &block, &kinds, waste);
        }
        if self.listed < MAX_LISTED {
            self.listed += 1;
            let block = InefficientBlock {
                pool,
                addr,
                size_bytes,
                allocation_id,
                event_id: alloc_id,
                wasted_byte_seconds: waste,
                kinds,
                late_at_exit: by_exit,
            };
            found.blocks.push(block);
        }
    }

    fn end(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        for used in process.blocks.into_values() {
            self.conclude(pid, used);
        }
        for (device, idle) in process.peaks.idle_at_peak() {
            if let Some(found) = self.found.get_mut(&(pid, device)) {
                let sum = &mut found.idle_at_peak;
                (sum.blocks, sum.size_bytes) =
                    (sum.blocks + idle.blocks, sum.size_bytes.saturating_add(idle.size_bytes));
            }
        }
    }
}

impl Family {
    /// A block's event on a thread: part of the thread's innermost operator, or an API of its own.
    fn event(&mut self, tid: u32, took: bool, gave: bool) -> u64 {
        if let Some(open) = self.threads.get_mut(&tid).and_then(|open| open.last_mut()) {
            open.took |= took;
            open.gave |= gave;
            return open.api;
        }
        self.counter += 1;
        self.classify(self.counter, took, gave);
        self.counter
    }

    fn classify(&mut self, api: u64, took: bool, gave: bool) {
        if took {
            self.took.insert(api);
        }
        if gave {
            self.gave.insert(api);
        }
    }

    fn begins(&mut self, tid: u32, name: &std::sync::Arc<str>) {
        self.counter += 1;
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            return;
        }
        let open = self.threads.entry(tid).or_default();
        if open.len() >= MAX_DEPTH {
            open.remove(0);
        }
        open.push(Open { name: std::sync::Arc::clone(name), api: self.counter, took: false, gave: false });
    }

    /// Ends the innermost operator of this name; inner ones threw an exception, or their end was lost.
    fn ends(&mut self, tid: u32, name: &str) {
        let Some(open) = self.threads.get_mut(&tid) else { return };
        let Some(at) = open.iter().rposition(|open| *open.name == *name) else { return };
        let ended = open.split_off(at);
        if open.is_empty() {
            self.threads.remove(&tid);
        }
        for Open { api, took, gave, .. } in ended {
            self.classify(api, took, gave);
        }
    }
}

impl Use {
    const fn of(block: Block, born_in: u64) -> Self {
        Self {
            block,
            born_in,
            used: false,
            last_access: None,
            found: [None; 3],
            by_exit: false,
            order: Vec::new(),
            counted_at_peak: None,
        }
    }

    /// Notes a finding, once; waste adds up. Nothing is wrong with what the exit frees: the peak is none the higher for it.
    fn find(
        &mut self,
        kind: InefficientKind,
        (from_ns, to_ns): (u64, u64),
        rules: InefficientRules,
        peaks: &mut Peaks,
    ) {
        if !rules.kinds[kind as usize] || self.block.size_bytes < rules.min_size_bytes {
            return;
        }
        if !self.by_exit {
            peaks.idle(&self.block, (from_ns, to_ns), &mut self.counted_at_peak);
        }
        let seconds = to_ns.saturating_sub(from_ns) as f64 / 1e9;
        let wasted = self.found[kind as usize].get_or_insert_with(|| {
            self.order.push(kind);
            0.0
        });
        *wasted += seconds * self.block.size_bytes as f64;
    }
}

/// Operators that work on a pool's blocks.
const fn family_of(pool: Pool) -> Option<OpsOf> {
    match pool.operators() {
        Some(PoolOperators::Torch) => Some(OpsOf::Aten),
        Some(PoolOperators::Atb) => Some(OpsOf::Atb),
        None => None,
    }
}

impl Analysis for InefficientAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => {
                // The use of other blocks before is unknown.
                if let Some(family) = family_of(alloc.block.pool).filter(|_| alloc.is_call()) {
                    self.allocated(event, &alloc.block, family);
                    let process = self.processes.entry(event.pid).or_default();
                    process.peaks.holds(&alloc.block, alloc.used_bytes, event.time_ns);
                }
            }
            EventKind::Free(free) => {
                if let Some(family) = family_of(free.block.pool) {
                    self.freed(event, &free.block, free.cause, family);
                }
            }
            EventKind::Access(access) => {
                if let Some(family) = family_of(access.pool) {
                    self.accessed(event, access.allocation_id, family);
                }
            }
            EventKind::Op(op) => match op.phase {
                OpPhase::Start => self.family(event.pid, OpsOf::Aten).begins(event.tid, &op.name),
                OpPhase::End => self.family(event.pid, OpsOf::Aten).ends(event.tid, &op.name),
                OpPhase::Submit => {}
            },
            EventKind::AtbOp(op) if op.begins => self.family(event.pid, OpsOf::Atb).begins(event.tid, &op.name),
            EventKind::AtbOp(op) => self.family(event.pid, OpsOf::Atb).ends(event.tid, &op.name),
            EventKind::ProcessEnd => self.end(event.pid),
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        let confidence = Confidence::of(end, &[Figures::Memory, Figures::Operators]);
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        for pid in pids {
            self.end(pid);
        }
        let mut found: Vec<Inefficient> = std::mem::take(&mut self.found).into_values().collect();
        found.sort_by_key(|found| (found.pid, found.device));
        for found in &mut found {
            found.places = self.places.take(found.pid, found.device);
            found.blocks.sort_by_key(|block| block.event_id);
            found.confidence = confidence;
        }
        found.into_iter().map(Finding::Inefficient).collect()
    }
}
