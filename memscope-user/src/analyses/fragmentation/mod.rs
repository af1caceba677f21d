//! In which pieces is the unused memory of pools? For each pool of each process and device: over time, at the worst
//! moment and at the end; and the live blocks that pin mostly empty segments.
//!
//! A driver block in which a pool hands out memory is a segment of that pool, as in the [ledger](super::ledger); of
//! physical memory each mapping is one, and free memory continues from one mapping to the next of the same reservation.
//! Segments without any block do not count as pieces where the pool gives them back before a request fails.
//! Only known segments are judged: those older than the trace are unknown, and their size follows from the pool's own
//! figure. A block that waits for streams after its free is not free yet: no request gets it.
//!
//! Memory: that of the ledger, and about 150 bytes for each live block and each free piece. Time is cut into at most
//! 256 intervals.

mod finding;
mod series;
mod space;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use self::finding::{
    Fragmentation, FreeSpace, FreeSpaceMoment, FreeSpaceSample, PiecesVerdict, Pin, PinnedSegment, Pinning,
};

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use self::series::{Series, free_space};
pub(super) use self::space::Space;
use self::space::{Held, Place};
use super::decompose::{Lives, RuleSet, Went};
use super::question::{AnalysisBit, Automatic, FilesCommand, Question, Sees};
use super::select::Filter;
use super::{
    Analysis, Finding,
    concluded::Concluded,
    in_order,
    returns::{Due, PoolFrees},
};
use crate::hash::HashMap;
use crate::model::{Block, Confidence, Event, EventKind, Free, Name, Pool, ProcessStart, RunEnd, Stacks};

/// Segments listed of each moment.
const MAX_SEGMENTS: usize = 100;
/// Blocks listed of each segment.
const MAX_PINS: usize = 10;
/// A moment replaces the worst one when more is scattered by this part: so a run records few of them.
const PART: u64 = 16;

/// Free memory of each pool, in pieces.
pub(super) const QUESTION: Question = Question {
    word: "fragmentation",
    parameter: "",
    command: FilesCommand::Plain {
        about: "Show the free pieces of pools, and the blocks that pin them: \
            dumps of one run with driver and pool rows, or a capture",
        none: "No memory of pools was seen, so there are no pieces to show.",
    },
    names_owners: true,
    sees: Sees::WholePools,
    compares_steps: false,
    automatic: Automatic::Always,
    collects: 0,
    script_bit: Some(AnalysisBit::FRAGMENTATION),
    add: |asked, set| set.freezing(FragmentationAnalysis::new(asked.rules()).only(asked.filter)),
    table: table::TABLE,
};

/// Follows the free pieces of every pool.
#[derive(Debug)]
pub struct FragmentationAnalysis {
    lives: Lives,
    only: Filter,
    processes: BTreeMap<u32, Process>,
    last_ns: u64,
    concluded: Concluded<Fragmentation>,
}

#[derive(Debug, Default)]
struct Process {
    attached: bool,
    space: Space,
    blocks: BTreeMap<(Pool, u64), Known>,
    pools: HashMap<Place, History>,
    /// Bytes beyond the known segments, by each pool's last figure.
    unknown: HashMap<Place, u64>,
    /// Freed blocks that wait for streams take their place.
    frees: PoolFrees,
    /// The state when the process's memory was taken from it: final, unless it asks for more.
    last: Option<BTreeMap<Place, FreeSpaceMoment>>,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Known {
    allocation_id: u64,
    size_bytes: u64,
    alloc_time_ns: u64,
    owner: Option<Name>,
    stacks: Stacks,
}

/// One pool over time.
#[derive(Clone, Debug)]
struct History {
    series: Series,
    worst_bytes: u64,
    worst: Option<FreeSpaceMoment>,
    /// A worse one since the process last asked for memory: a tear-down, unless it asks for more.
    torn: Option<FreeSpaceMoment>,
}

impl Default for FragmentationAnalysis {
    fn default() -> Self {
        Self::new(Arc::new(RuleSet::builtin()))
    }
}

impl Analysis for FragmentationAnalysis {
    fn observe(&mut self, event: &Event) {
        self.last_ns = self.last_ns.max(event.time_ns);
        let due = self.due(event);
        if let Some((event, free)) = &due.free {
            self.freed(event, free);
        }
        match &event.kind {
            EventKind::Alloc(alloc) => {
                let came = self.lives.came(event, alloc, true);
                let owner = came.and_then(|came| self.lives.owner(&came.live));
                let process = self.processes.entry(event.pid).or_default();
                process.goes_on();
                process.allocated(&alloc.block, owner);
                process.change(event);
                process.works_on();
            }
            EventKind::Free(_) if due.waits => {}
            EventKind::Free(free) => self.freed(event, free),
            EventKind::BlockReturned(_) | EventKind::Region(_) => self.changed(event),
            EventKind::ProcessStart(ProcessStart { attached, .. }) => {
                self.processes.entry(event.pid).or_default().attached = *attached;
            }
            EventKind::StepEnd { .. } | EventKind::Looked(_) => self.lives.note(event),
            EventKind::ProcessEnd => self.conclude(event.pid, event.time_ns),
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        let left: Vec<u32> = self.processes.keys().copied().collect();
        for pid in left {
            self.conclude(pid, end.time_ns);
        }
        let confidence = Confidence::after(end);
        let finding = |found| Finding::Fragmentation(Fragmentation { confidence, ..found });
        self.concluded.take(|found| in_order(found.pid, found.device, found.pool), finding)
    }

    fn now(&self) -> Vec<Finding> {
        let pools = self.processes.iter().flat_map(|(&pid, process)| {
            let moments = process.last.clone().unwrap_or_else(|| process.moments(self.last_ns));
            moments.into_iter().map(move |(place, now)| {
                let history = process.pools.get(&place).cloned().unwrap_or_else(|| History::new(now.time_ns));
                found(pid, process.attached, place, history, now)
            })
        });
        pools.filter(|found| self.is_wanted(found)).map(Finding::Fragmentation).collect()
    }
}

impl FragmentationAnalysis {
    /// Names owners by these rules.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>) -> Self {
        Self {
            lives: Lives::new(rules),
            only: Filter::default(),
            processes: BTreeMap::new(),
            last_ns: 0,
            concluded: Concluded::default(),
        }
    }

    /// Reports only pools that match the filter, as far as it is about [pools](Filter::holds_for_pool). Their pieces
    /// are those of all blocks, the driver's too.
    #[must_use]
    pub fn only(self, filter: Filter) -> Self {
        Self { only: filter, ..self }
    }

    /// Which free comes into effect: a block that waits for streams takes its place until the pool has it back.
    fn due(&mut self, event: &Event) -> Due {
        if !matches!(event.kind, EventKind::Alloc(_) | EventKind::Free(_) | EventKind::BlockReturned(_)) {
            return Due::default();
        }
        let process = self.processes.entry(event.pid).or_default();
        if matches!(&event.kind, EventKind::Free(free) if free.cause.gave_back()) {
            process.goes_on();
        }
        process.frees.of(event)
    }

    fn freed(&mut self, event: &Event, free: &Free) {
        let process = self.processes.entry(event.pid).or_default();
        if free.cause.gave_back() {
            process.goes_on();
        } else if process.last.is_none() {
            process.last = Some(process.moments(event.time_ns));
        }
        process.change(event);
        process.ended(&free.block);
        if let Some(went) = self.lives.went(event, free) {
            process.named(&went, &self.lives);
        }
    }

    fn changed(&mut self, event: &Event) {
        self.lives.note(event);
        let process = self.processes.entry(event.pid).or_default();
        process.goes_on();
        process.change(event);
    }

    fn is_wanted(&self, found: &Fragmentation) -> bool {
        self.only.holds_for_pool(found.pid, found.device, found.pool)
    }

    fn conclude(&mut self, pid: u32, end_ns: u64) {
        let Some(mut process) = self.processes.remove(&pid) else { return };
        let mut ends = process.last.take().unwrap_or_else(|| process.moments(end_ns));
        for left in self.lives.left(pid) {
            for went in &left.blocks {
                process.named(went, &self.lives);
                for moment in ends.values_mut() {
                    rename(moment, went, &self.lives);
                }
            }
        }
        let Process { attached, mut pools, .. } = process;
        for (place, end) in ends {
            let history = pools.remove(&place).unwrap_or_else(|| History::new(end.time_ns));
            let found = found(pid, attached, place, history, end);
            if self.is_wanted(&found) {
                self.concluded.add(found);
            }
        }
    }
}

/// A block of a moment has its final name.
fn rename(moment: &mut FreeSpaceMoment, went: &Went, lives: &Lives) {
    if lives.renamed(went).is_none() {
        return;
    }
    let pins = moment.pinned.iter_mut().flat_map(|segment| &mut segment.blocks);
    if let Some(pin) = pins.into_iter().find(|pin| pin.allocation_id == went.allocation_id) {
        pin.owner = lives.for_good(went);
    }
}

/// The finding about a pool.
fn found(pid: u32, attached: bool, (device, pool): Place, history: History, end: FreeSpaceMoment) -> Fragmentation {
    let History { series, worst, .. } = history;
    // What happened when its memory was taken is no part of its life.
    let (start_ns, series) = (series.start_ns(), series.close(end.time_ns));
    let verdict = finding::worse(worst.as_ref(), &end).verdict();
    Fragmentation {
        pid,
        device,
        pool,
        attached,
        verdict,
        start_ns,
        end,
        worst,
        series,
        confidence: Confidence::Certain,
    }
}

impl Process {
    /// If its memory was taken and it asks for more, it runs another program now.
    fn goes_on(&mut self) {
        if self.last.take().is_some() {
            self.space.forget();
            self.blocks.clear();
            self.unknown.clear();
            self.frees.clear();
        }
    }

    /// It asked for memory: its frees so far were no tear-down.
    fn works_on(&mut self) {
        for history in self.pools.values_mut().filter(|history| history.torn.is_some()) {
            history.worst = history.torn.take();
        }
    }

    /// An ended block gets its final name wherever it is mentioned.
    fn named(&mut self, went: &Went, lives: &Lives) {
        let worst = self.pools.values_mut().flat_map(|history| [history.worst.as_mut(), history.torn.as_mut()]);
        let ends = self.last.iter_mut().flat_map(BTreeMap::values_mut);
        for moment in worst.flatten().chain(ends).filter(|moment| moment.time_ns >= went.live.time_ns) {
            rename(moment, went, lives);
        }
    }

    fn allocated(&mut self, block: &Block, owner: Option<Name>) {
        let Block { pool, addr, allocation_id, size_bytes, alloc_time_ns, stacks, .. } = *block;
        if !pool.is_base() {
            self.blocks.insert((pool, addr), Known { allocation_id, size_bytes, alloc_time_ns, owner, stacks });
        }
    }

    fn ended(&mut self, block: &Block) {
        let key = (block.pool, block.addr);
        if self.blocks.get(&key).is_some_and(|known| known.allocation_id == block.allocation_id) {
            self.blocks.remove(&key);
        }
    }

    fn change(&mut self, event: &Event) {
        self.follow(event);
        if self.last.is_none()
            && let Some((place, reserved_bytes)) = reserved(event)
        {
            let known_bytes = self.space.figures(place).total_bytes;
            self.unknown.insert(place, reserved_bytes.saturating_sub(known_bytes));
        }
    }

    fn follow(&mut self, event: &Event) {
        for place in self.space.observe(event) {
            // The process's memory is being taken: the state before counts.
            if self.last.is_some() {
                continue;
            }
            let figures = self.space.figures(place);
            let history = self.pools.entry(place).or_insert_with(|| History::new(event.time_ns));
            history.series.add(event.time_ns, figures);
            let scattered = figures.scattered_bytes();
            if scattered > history.worst_bytes + history.worst_bytes / PART {
                history.worst_bytes = scattered;
                let moment = self.moment(place, event.time_ns);
                if let Some(history) = self.pools.get_mut(&place) {
                    history.torn = Some(moment);
                }
            }
        }
    }

    /// All pools as they are.
    fn moments(&self, time_ns: u64) -> BTreeMap<Place, FreeSpaceMoment> {
        let with_blocks = self.space.memory.pools().map(|(device, pool, _)| (device, pool));
        let places = self.pools.keys().copied().chain(with_blocks);
        let moments = places.map(|place| (place, self.moment(place, time_ns)));
        let is_known = |place: &Place, it: &FreeSpaceMoment| {
            self.pools.contains_key(place) || it.outside_bytes > 0 || it.unknown_bytes > 0
        };
        moments.filter(|(place, moment)| is_known(place, moment)).collect()
    }

    /// A pool as it is.
    fn moment(&self, place: Place, time_ns: u64) -> FreeSpaceMoment {
        let space = free_space(self.space.figures(place));
        let sums = self.space.memory.pools().find(|(device, pool, _)| (*device, *pool) == place);
        let outside = sums.map_or(0, |(.., sums)| sums.handed.size_bytes - sums.inside - sums.nested);
        let mostly_empty = |held: &&Held| held.used_bytes > 0 && held.used_bytes < held.free_bytes();
        let mut spans: Vec<&Held> = self.space.spans(place).filter(mostly_empty).collect();
        spans.sort_by_key(|held| Reverse(held.free_bytes()));
        FreeSpaceMoment {
            time_ns,
            space,
            segments: self.space.spans(place).count() as u64,
            pinned: spans.iter().take(MAX_SEGMENTS).map(|held| self.pinned(held, time_ns)).collect(),
            pinned_left_out: spans.len().saturating_sub(MAX_SEGMENTS) as u64,
            unknown_bytes: self.unknown.get(&place).copied().unwrap_or(0),
            outside_bytes: u64::try_from(outside).unwrap_or(u64::MAX),
        }
    }

    fn pinned(&self, held: &Held, time_ns: u64) -> PinnedSegment {
        let (pool, place) = (held.span.pool, &held.span.place);
        // Of the blocks before it only the last can reach into it.
        let before = self.blocks.range((pool, 0)..(pool, place.start)).next_back();
        let before = before.filter(|((_, addr), known)| addr.saturating_add(known.size_bytes) > place.start);
        let within = self.blocks.range((pool, place.start)..(pool, place.end));
        let is_there = |((pool, addr), known): &(&(Pool, u64), &Known)| {
            known.size_bytes > 0 && self.space.memory.is_handed(*pool, *addr, known.allocation_id)
        };
        let mut blocks = before.into_iter().chain(within).filter(is_there).map(|((_, addr), known)| Pin {
            addr: *addr,
            size_bytes: known.size_bytes,
            allocation_id: known.allocation_id,
            owner: known.owner,
            age_ns: time_ns.saturating_sub(known.alloc_time_ns),
            stacks: known.stacks,
        });
        PinnedSegment {
            addr: place.start,
            size_bytes: held.size_bytes(),
            used_bytes: held.used_bytes,
            blocks: blocks.by_ref().take(MAX_PINS).collect(),
            blocks_left_out: blocks.count() as u64,
        }
    }
}

/// The pool's own figure of reserved bytes. Segments are seen before the pool reports its next block; a figure from
/// before the last free of a segment is not compared with the state after it.
const fn reserved(event: &Event) -> Option<(Place, u64)> {
    let (device, pool, reserved_bytes) = match &event.kind {
        EventKind::Alloc(alloc) => (alloc.block.device, alloc.block.pool, alloc.total_bytes),
        EventKind::Free(free) => (free.block.device, free.block.pool, free.total_bytes),
        EventKind::BlockReturned(returned) => (event.device, returned.pool, Some(returned.total_bytes)),
        _ => return None,
    };
    match reserved_bytes {
        Some(reserved_bytes) => Some(((device, pool), reserved_bytes)),
        None => None,
    }
}

impl History {
    const fn new(start_ns: u64) -> Self {
        Self { series: Series::new(start_ns), worst_bytes: 0, worst: None, torn: None }
    }
}
