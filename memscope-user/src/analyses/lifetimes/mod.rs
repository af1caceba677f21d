//! How long do blocks live? A histogram for each pool, by size class and by place.
//!
//! A block's lifetime is the time from its allocation to its free. Blocks that are live at the end of their process, or
//! of the trace, have none yet and count as live; blocks without a seen free are counted separately.
//!
//! Memory: about 100 bytes for each place and size class, of at most `MAX_PLACES` places.

mod finding;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use self::finding::{Histogram, LIMITS_NS, Lifetimes, PlaceLifetimes, SizeLifetimes};

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::question::{Automatic, FilesCommand, Question, Sees};
use super::{Analysis, Finding, concluded::Concluded, per_device::PerDevice};
use crate::hash::HashMap;
use crate::model::{
    Alloc, Block, Confidence, Device, Event, EventKind, Free, FreeCause, Pool, ProcessStart, RunEnd, Stacks,
};

/// Most places of all pools; blocks of further ones count as without a stack.
const MAX_PLACES: usize = 1 << 20;
/// Places in a finding, those with the most blocks first.
const PLACES: usize = 100;
/// Frees of a pool that may still turn out to be refused.
const MAX_RECENT: usize = 64;

/// Lifetimes by size and place.
pub(super) const QUESTION: Question = Question {
    word: "lifetimes",
    parameter: "",
    command: FilesCommand::Plain {
        about: "Show how long blocks live, by size and call stack: dumps (CSV or db, ours or msMemScope's) of one run, or a capture",
        none: "No blocks were seen, so there are no lifetimes.",
    },
    names_owners: false,
    sees: Sees::Chosen,
    compares_steps: false,
    automatic: Automatic::Never,
    collects: 0,
    script_bit: None,
    add: |_, set| set.freezing(LifetimesAnalysis::default()),
    table: table::TABLE,
};

/// Counts blocks by lifetime.
#[derive(Debug, Default)]
pub struct LifetimesAnalysis {
    running: PerDevice<BTreeMap<Pool, Account>>,
    attached: BTreeSet<u32>,
    places: usize,
    concluded: Concluded<Lifetimes>,
}

/// Blocks of one pool of one process on one device.
#[derive(Debug, Default)]
struct Account {
    all: Histogram,
    sizes: BTreeMap<u64, Histogram>,
    places: HashMap<Stacks, Histogram>,
    /// The last frees: number of the block, and its count.
    recent: VecDeque<(u64, Way)>,
    places_full: bool,
}

/// How a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Freed, with this bar of the histogram.
    Freed(usize),
    /// Without a seen free.
    Unseen,
}

impl Analysis for LifetimesAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            // How long a block lived that is older than the trace is not known.
            EventKind::Alloc(alloc) if !alloc.block.found => self.alloc(event.pid, alloc),
            EventKind::Free(free) if free.cause.gave_back() && !free.block.found => self.free(event, free),
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => {
                self.attached.insert(event.pid);
            }
            EventKind::ProcessEnd => self.conclude(event.pid),
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for pid in self.running.processes() {
            self.conclude(pid);
        }
        let confidence = Confidence::after(end);
        let finding = |found| Finding::Lifetimes(Lifetimes { confidence, ..found });
        self.concluded.take(|found| (found.pid, found.device, found.pool), finding)
    }
}

impl LifetimesAnalysis {
    fn alloc(&mut self, pid: u32, Alloc { block, restored, .. }: &Alloc) {
        let account = self.running.at(pid, block.device).entry(block.pool).or_default();
        let refused = restored.then(|| account.take_recent(block.allocation_id)).flatten();
        account.each(block, &mut self.places, |histogram| match refused {
            // The free that ended it did not happen.
            Some(Way::Freed(bar)) => {
                histogram.freed[bar] = histogram.freed[bar].saturating_sub(1);
                histogram.live_blocks += 1;
            }
            Some(Way::Unseen) => {
                histogram.unseen_ends = histogram.unseen_ends.saturating_sub(1);
                histogram.live_blocks += 1;
            }
            None => {
                histogram.blocks += 1;
                histogram.live_blocks += 1;
            }
        });
    }

    fn free(&mut self, event: &Event, free: &Free) {
        let block = &free.block;
        let account = self.running.at(event.pid, block.device).entry(block.pool).or_default();
        // A block that ended while a script had stopped collecting has its own time.
        let end_ns = free.row_time_ns.unwrap_or(event.time_ns);
        let way = if free.cause == FreeCause::Replaced {
            Way::Unseen
        } else {
            Way::Freed(bar(end_ns.saturating_sub(block.alloc_time_ns)))
        };
        account.each(block, &mut self.places, |histogram| {
            histogram.live_blocks = histogram.live_blocks.saturating_sub(1);
            match way {
                Way::Freed(bar) => histogram.freed[bar] += 1,
                Way::Unseen => histogram.unseen_ends += 1,
            }
        });
        if account.recent.len() >= MAX_RECENT {
            account.recent.pop_front();
        }
        account.recent.push_back((block.allocation_id, way));
    }

    fn conclude(&mut self, pid: u32) {
        let attached = self.attached.remove(&pid);
        for (device, pools) in self.running.take_process(pid) {
            for (pool, account) in pools {
                self.places = self.places.saturating_sub(account.places.len());
                if account.all.blocks > 0 {
                    self.concluded.add(Lifetimes { attached, ..account.close(pid, device, pool) });
                }
            }
        }
    }
}

impl Account {
    /// Changes the histograms that count a block.
    fn each(&mut self, block: &Block, places: &mut usize, change: impl Fn(&mut Histogram)) {
        let mut stacks = block.stacks;
        if !self.places.contains_key(&stacks) {
            if *places >= MAX_PLACES && !stacks.is_empty() {
                (stacks, self.places_full) = (Stacks::default(), true);
            }
            *places += usize::from(!self.places.contains_key(&stacks));
        }
        change(&mut self.all);
        change(self.sizes.entry(least_bytes(block.size_bytes)).or_default());
        change(self.places.entry(stacks).or_default());
    }

    fn take_recent(&mut self, number: u64) -> Option<Way> {
        let at = self.recent.iter().rposition(|(ended, _)| *ended == number)?;
        self.recent.remove(at).map(|(_, way)| way)
    }

    fn close(self, pid: u32, device: Device, pool: Pool) -> Lifetimes {
        let sizes = self.sizes.into_iter();
        let mut places: Vec<PlaceLifetimes> = Vec::new();
        if self.places.keys().any(|stacks| !stacks.is_empty()) {
            places.extend(self.places.into_iter().map(|(stacks, histogram)| PlaceLifetimes { stacks, histogram }));
            places.sort_unstable_by_key(|place| Reverse((place.histogram.blocks, place.stacks)));
        }
        let places_left_out = places.len().saturating_sub(PLACES) as u64;
        places.truncate(PLACES);
        Lifetimes {
            pid,
            device,
            pool,
            attached: false,
            limits_ns: LIMITS_NS,
            all: self.all,
            sizes: sizes.map(|(least_bytes, histogram)| SizeLifetimes { least_bytes, histogram }).collect(),
            places,
            places_left_out,
            places_full: self.places_full,
            confidence: Confidence::Certain,
        }
    }
}

/// Bar of the histogram that counts blocks of this lifetime.
fn bar(lifetime_ns: u64) -> usize {
    LIMITS_NS.partition_point(|limit| *limit <= lifetime_ns)
}

/// The least size of a size class: 0 or a power of two.
fn least_bytes(size_bytes: u64) -> u64 {
    size_bytes.checked_ilog2().map_or(0, |power| 1 << power)
}
