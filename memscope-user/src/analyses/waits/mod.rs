//! How much memory waits for streams, and from where?
//!
//! A block that another stream uses when the program frees it (`record_stream`) goes back to the pool when that stream has done. Until then it
//! is neither live nor free, and the pool grows instead. The pool reports both: `free` when the program frees a block, `block_free`
//! when it is back. For a block that no stream uses `block_free` comes right before `free`.
//!
//! Memory: about 100 bytes for each waiting block, of at most `MAX_WAITING`, 60 for each live one that another stream uses, of as many, and
//! 150 for each place, of at most `MAX_PLACES` of a pool.

mod finding;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use self::finding::{PlaceWaits, WaitSum, Waits};

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::question::{Automatic, FilesCommand, Question, Sees};
use super::{Analysis, Finding, concluded::Concluded, per_device::PerDevice, returns::Returns};
use crate::hash::HashMap;
use crate::model::{BlockReturned, Confidence, Device, Event, EventKind, Free, FreeCause, Pool, RunEnd, Stacks};

/// Most blocks of a pool that wait at once; further ones are counted without a place.
const MAX_WAITING: usize = 1 << 18;
/// Most places of a pool; blocks of further ones count as without a stack.
const MAX_PLACES: usize = 1 << 16;
/// Places in a finding.
const PLACES: usize = 100;
/// Freed blocks of which none came back: the pool does not say when blocks are back.
const MAX_UNSAID: usize = 1 << 10;

/// Memory that waits for streams.
pub(super) const QUESTION: Question = Question {
    word: "waits",
    parameter: "",
    command: FilesCommand::Plain {
        about: "Show the memory that waits for streams after its free (record_stream), and where it was allocated: a capture, or dumps with block_free rows",
        none: "No block waited for a stream after its free. Dumps show it only with block_free rows (--events=block_free).",
    },
    names_owners: false,
    sees: Sees::WholePools,
    compares_steps: false,
    automatic: Automatic::Always,
    collects: 0,
    script_bit: None,
    add: |asked, set| set.whole(WaitsAnalysis { large_alone: asked.automatic, ..WaitsAnalysis::default() }),
    table: table::TABLE,
};

/// Sums blocks between their free and their return.
#[derive(Debug, Default)]
pub struct WaitsAnalysis {
    running: PerDevice<BTreeMap<Pool, Account>>,
    /// What is small is not worth a line where it was not asked for.
    large_alone: bool,
    concluded: Concluded<Waits>,
}

/// A block that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    size_bytes: u64,
    freed_ns: u64,
    place: Place,
}

/// Where a block was allocated, and where the program had another stream use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    allocated: Stacks,
    record_stream: Stacks,
}

/// A sum, and the bytes of it that wait now.
#[derive(Clone, Copy, Debug, Default)]
struct Running {
    now_bytes: u64,
    sum: WaitSum,
}

/// A pool of one process on one device.
#[derive(Debug, Default)]
struct Account {
    returns: Returns<Waiting>,
    all: Running,
    places: HashMap<Place, Running>,
    /// The last `record_stream` of live blocks, by address.
    recorded: HashMap<u64, Stacks>,
    reserved_peak_bytes: u64,
    reserved_peak_time_ns: u64,
    is_full: bool,
}

impl Analysis for WaitsAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) if alloc.is_call() => {
                let account = self.running.at(event.pid, alloc.block.device).entry(alloc.block.pool).or_default();
                // A block there is back, also where that was not seen.
                account.reused(alloc.block.addr);
                account.reserved(event.time_ns, alloc.total_bytes);
            }
            EventKind::Free(free) if free.cause == FreeCause::Program => {
                let account = self.running.at(event.pid, free.block.device).entry(free.block.pool).or_default();
                account.free(event.time_ns, free);
            }
            EventKind::UnknownFree(free) => {
                self.running.at(event.pid, event.device).entry(free.pool).or_default().returns.was_back(free.addr);
            }
            EventKind::StreamUse(used) => {
                let account = self.running.at(event.pid, event.device).entry(used.pool).or_default();
                account.recorded(used.addr, event.stacks);
            }
            EventKind::BlockReturned(returned) => {
                let account = self.running.at(event.pid, event.device).entry(returned.pool).or_default();
                account.returned(event.time_ns, returned);
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
        let finding = |found| Finding::Waits(Waits { confidence, ..found });
        self.concluded.take(|found| (found.pid, found.device, found.pool), finding)
    }
}

impl WaitsAnalysis {
    fn conclude(&mut self, pid: u32) {
        for (device, pools) in self.running.take_process(pid) {
            for (pool, account) in pools {
                if account.returns.says_so() && account.all.sum.blocks > 0 {
                    let found = account.close(pid, device, pool);
                    if found.is_large() || !self.large_alone {
                        self.concluded.add(found);
                    }
                }
            }
        }
    }
}

impl Account {
    fn recorded(&mut self, addr: u64, at: Stacks) {
        if self.recorded.len() < MAX_WAITING || self.recorded.contains_key(&addr) {
            self.recorded.insert(addr, at);
        } else {
            self.is_full = true;
        }
    }

    fn free(&mut self, time_ns: u64, free: &Free) {
        self.reserved(time_ns, free.total_bytes);
        let addr = free.block.addr;
        let record_stream = self.recorded.remove(&addr).unwrap_or_default();
        if self.returns.was_back(addr) || (!self.returns.says_so() && self.returns.len() >= MAX_UNSAID) {
            return;
        }
        if self.returns.len() >= MAX_WAITING {
            self.is_full = true;
            self.all.sum.blocks += 1;
            return;
        }
        let mut place = Place { allocated: free.block.stacks, record_stream };
        if !self.places.contains_key(&place) && self.places.len() >= MAX_PLACES {
            (place, self.is_full) = (Place::default(), true);
        }
        let waiting = Waiting { size_bytes: free.block.size_bytes, freed_ns: time_ns, place };
        self.returns.wait(addr, waiting);
        self.all.begin(waiting.size_bytes);
        self.places.entry(place).or_default().begin(waiting.size_bytes);
    }

    fn returned(&mut self, time_ns: u64, returned: &BlockReturned) {
        self.reserved(time_ns, Some(returned.total_bytes));
        if let Some(waiting) = self.returns.returned(returned.addr) {
            self.end(&waiting, time_ns.saturating_sub(waiting.freed_ns));
        }
    }

    fn reused(&mut self, addr: u64) {
        self.recorded.remove(&addr);
        if let Some(waiting) = self.returns.reused(addr) {
            self.end(&waiting, 0);
        }
    }

    /// A block does not wait any more. `waited_ns`: 0 where its return was not seen.
    fn end(&mut self, waiting: &Waiting, waited_ns: u64) {
        self.all.end(waiting.size_bytes, waited_ns);
        if let Some(place) = self.places.get_mut(&waiting.place) {
            place.end(waiting.size_bytes, waited_ns);
        }
    }

    fn reserved(&mut self, time_ns: u64, total_bytes: Option<u64>) {
        let Some(total_bytes) = total_bytes.filter(|bytes| *bytes > self.reserved_peak_bytes) else { return };
        (self.reserved_peak_bytes, self.reserved_peak_time_ns) = (total_bytes, time_ns);
        let sums = self.places.values_mut().chain([&mut self.all]);
        sums.for_each(|running| (running.sum.pool_peak_bytes, running.sum.pool_peak_blocks) = (0, 0));
        for waiting in self.returns.values() {
            self.all.at_peak(waiting.size_bytes);
            if let Some(place) = self.places.get_mut(&waiting.place) {
                place.at_peak(waiting.size_bytes);
            }
        }
    }

    fn close(self, pid: u32, device: Device, pool: Pool) -> Waits {
        let each = self.places.into_iter().map(|(place, running)| PlaceWaits {
            stacks: place.allocated,
            record_stream: place.record_stream,
            sum: running.sum,
        });
        let mut places: Vec<PlaceWaits> = each.collect();
        places.sort_unstable_by_key(|place| {
            let sum = place.sum;
            Reverse((sum.pool_peak_bytes, sum.most_bytes, sum.blocks, place.stacks, place.record_stream))
        });
        let places_left_out = places.len().saturating_sub(PLACES) as u64;
        places.truncate(PLACES);
        Waits {
            pid,
            device,
            pool,
            reserved_peak_bytes: self.reserved_peak_bytes,
            reserved_peak_time_ns: self.reserved_peak_time_ns,
            all: self.all.sum,
            places,
            places_left_out,
            places_full: self.is_full,
            confidence: Confidence::Certain,
        }
    }
}

impl Running {
    fn begin(&mut self, size_bytes: u64) {
        self.now_bytes += size_bytes;
        self.sum.blocks += 1;
        self.sum.open_blocks += 1;
        self.sum.most_bytes = self.sum.most_bytes.max(self.now_bytes);
    }

    fn end(&mut self, size_bytes: u64, waited_ns: u64) {
        self.now_bytes = self.now_bytes.saturating_sub(size_bytes);
        self.sum.open_blocks = self.sum.open_blocks.saturating_sub(1);
        self.sum.longest_ns = self.sum.longest_ns.max(waited_ns);
    }

    const fn at_peak(&mut self, size_bytes: u64) {
        self.sum.pool_peak_bytes += size_bytes;
        self.sum.pool_peak_blocks += 1;
    }
}
