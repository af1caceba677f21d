//! Why was there no memory?
//!
//! For each request that failed for good: its size and place, the memory of the process's pools by place and owner, the
//! state before each further attempt, the largest and the newest blocks, and the last events (the flight recorder). All
//! of it is taken when an attempt fails, so that no later event (another request, a tear-down) changes it. The verdict
//! compares the request with the memory that the framework's pools reserve and have not handed out: if that is enough,
//! memory is fragmented rather than short, and the largest free piece shows by how much.
//!
//! Memory: that of the fragmentation analysis, 64 bytes for each live driver block, and about 100 bytes for each place.
//! At most 256 requests of a process are followed at a time.

mod cause;
mod finding;
mod line;
mod names;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use self::cause::Cause;
pub use self::finding::{Oom, PoolAtOom, Retry, Suspect};

use std::{collections::VecDeque, sync::Arc};

use self::{
    line::line,
    names::Names,
    state::{Memory, State},
};
use super::{
    Analysis, Finding,
    decompose::{Lives, RuleSet},
    groups::Room,
    question::{AnalysisBit, Automatic, FilesCommand, Question, Sees, collected},
};
use crate::{
    hash::HashMap,
    model::{AllocFailed, Block, Event, EventKind, OutOfMemory, RunEnd},
};

/// Last events kept of a process.
const FLIGHT_RECORDER: usize = 64;
/// Most failures reported; later ones are in the rows.
const MAX_REPORTED: usize = 100;
/// Processes with a flight recorder.
const MAX_PROCESSES: usize = 64 << 10;
/// Most requests of one process followed at a time.
const MAX_FAILING: usize = 256;
/// Most further attempts reported of a request.
const MAX_RETRIES: usize = 16;

/// Why there was no memory, and the blocks live then.
pub(super) const QUESTION: Question = Question {
    word: "oom",
    parameter: "[:K]",
    command: FilesCommand::None,
    names_owners: true,
    sees: Sees::All,
    compares_steps: false,
    automatic: Automatic::Always,
    collects: collected::BLOCKS,
    script_bit: Some(AnalysisBit::OOM),
    add: |asked, set| set.whole(OomAnalysis::new(asked.rules())),
    table: table::TABLE,
};

/// Reports the state of memory at each request that failed.
#[derive(Debug)]
pub struct OomAnalysis {
    lives: Lives,
    room: Room,
    processes: HashMap<u32, Process>,
    found: Vec<Found>,
    /// Process, thread and time of the rows of the last failure: its blocks follow.
    open: Option<(u32, u32, u64)>,
}

/// A request that failed for good.
#[derive(Debug)]
struct Found {
    oom: Oom,
    names: Names,
    request: u64,
}

#[derive(Debug, Default)]
struct Process {
    last: VecDeque<Event>,
    memory: Memory,
    /// The last failed attempt of each request, by thread and number.
    failing: HashMap<(u32, u64), Attempt>,
}

/// A failed attempt.
#[derive(Debug)]
struct Attempt {
    time_ns: u64,
    state: Arc<State>,
    names: Names,
    retries: Vec<Retry>,
    last: VecDeque<Event>,
}

impl Default for OomAnalysis {
    fn default() -> Self {
        Self::new(Arc::new(RuleSet::builtin()))
    }
}

impl Analysis for OomAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::OutOfMemory(OutOfMemory::Trigger(failed)) => return self.failed_for_good(event, failed),
            EventKind::OutOfMemory(OutOfMemory::Recent(block)) => {
                return self.suspect(event, block, |found| &mut found.recent);
            }
            EventKind::OutOfMemory(OutOfMemory::Top(block)) => {
                return self.suspect(event, block, |found| &mut found.top);
            }
            EventKind::ProcessEnd => {
                self.leaves(event.pid);
                if let Some(process) = self.processes.remove(&event.pid) {
                    process.memory.leave(&mut self.room);
                }
                return;
            }
            EventKind::Access(_) | EventKind::Looked(_) => return,
            _ => {}
        }
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&event.pid) {
            return;
        }
        let process = self.processes.entry(event.pid).or_default();
        let owner = match &event.kind {
            EventKind::Alloc(alloc) => self.lives.came(event, alloc, true).and_then(|came| {
                let names = all_names(process, &mut self.found);
                names.for_each(|names| names.came((event.pid, alloc.block.device), &came, &self.lives));
                self.lives.owner(&came.live)
            }),
            EventKind::Free(free) => self.lives.went(event, free).and_then(|went| {
                let names = all_names(process, &mut self.found);
                names.for_each(|names| names.went((event.pid, free.block.device), &went, &self.lives));
                self.lives.owner(&went.live)
            }),
            EventKind::StepEnd { .. } | EventKind::Region(_) | EventKind::Looked(_) => {
                self.lives.note(event);
                None
            }
            _ => None,
        };
        process.memory.observe(event, owner, &mut self.room);
        match &event.kind {
            EventKind::AllocFailed(failed) if failed.out_of_memory => {
                process.failed(event, failed, self.lives.moment());
            }
            EventKind::AllocRecovered(recovered) => {
                process.failing.remove(&(event.tid, recovered.request));
                // It was taken for failed when the thread was silent for long: it waited for the device.
                let key = (event.pid, event.tid, recovered.request);
                self.found.retain(|found| (found.oom.pid, found.oom.tid, found.request) != key);
                self.open = None;
            }
            // These would push out the last events of a process that goes on.
            EventKind::Region(_) => return,
            _ => {}
        }
        process.remember(event);
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        for pid in self.lives.processes() {
            self.leaves(pid);
        }
        let found = std::mem::take(&mut self.found).into_iter().map(|Found { mut oom, names, .. }| {
            names.settle(&mut oom.pools);
            Finding::Oom(oom)
        });
        found.collect()
    }
}

/// The owners in all kept states of a process.
fn all_names<'a>(process: &'a mut Process, found: &'a mut [Found]) -> impl Iterator<Item = &'a mut Names> {
    process.failing.values_mut().map(|attempt| &mut attempt.names).chain(found.iter_mut().map(|found| &mut found.names))
}

impl Process {
    fn remember(&mut self, event: &Event) {
        if self.last.len() == FLIGHT_RECORDER {
            self.last.pop_front();
        }
        self.last.push_back(event.clone());
    }

    /// An attempt has failed: the live memory now is the answer if no further attempt follows.
    fn failed(&mut self, event: &Event, failed: &AllocFailed, moment: u64) {
        let key = (event.tid, failed.request);
        let before = self.failing.remove(&key);
        if self.failing.len() >= MAX_FAILING {
            return;
        }
        let state = self.memory.state(event.device);
        let retries = before.map(|before| before.followed_by(event.time_ns, &state)).unwrap_or_default();
        let last = self.last.clone();
        let names = Names::new(event.pid, event.device, moment);
        self.failing.insert(key, Attempt { time_ns: event.time_ns, state, names, retries, last });
    }
}

impl Attempt {
    /// The retries with one more, which found the memory in this state.
    fn followed_by(mut self, time_ns: u64, state: &State) -> Vec<Retry> {
        if self.retries.len() == MAX_RETRIES {
            self.retries.remove(0);
        }
        let given_back_bytes = self.state.driver_bytes.saturating_sub(state.driver_bytes);
        self.retries.push(Retry { time_ns, given_back_bytes });
        self.retries
    }
}

impl OomAnalysis {
    /// Names owners by these rules.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>) -> Self {
        Self {
            lives: Lives::new(rules),
            room: Room::default(),
            processes: HashMap::default(),
            found: Vec::new(),
            open: None,
        }
    }

    /// The blocks that a process leaves have their final names.
    fn leaves(&mut self, pid: u32) {
        for left in self.lives.left(pid) {
            for went in &left.blocks {
                for found in &mut self.found {
                    found.names.went((pid, left.device), went, &self.lives);
                }
            }
        }
    }

    fn failed_for_good(&mut self, event: &Event, failed: &AllocFailed) {
        self.open = None;
        if self.found.len() >= MAX_REPORTED {
            return;
        }
        self.open = Some((event.pid, event.tid, event.time_ns));
        let (late, attempt) = self.attempt(event, failed);
        let Attempt { time_ns, state, names, retries, last } = attempt;
        let pools = state.pools.clone();
        let unused_bytes = pools.iter().map(PoolAtOom::unused_bytes).fold(0, u64::saturating_add);
        let oom = Oom {
            pid: event.pid,
            tid: event.tid,
            device: event.device,
            time_ns,
            function: failed.caller,
            size_bytes: failed.size_bytes,
            stacks: event.stacks,
            attempts: failed.attempt,
            retries,
            cause: Cause::of(failed.pool, failed.size_bytes, &pools),
            pools,
            unused_bytes,
            missing_bytes: failed.size_bytes.saturating_sub(unused_bytes),
            late,
            recent: Vec::new(),
            top: Vec::new(),
            last_events: last.iter().map(line).collect(),
        };
        self.found.push(Found { oom, names, request: failed.request });
    }

    /// The last attempt of a request; where it was not kept, the state of now, and `true`.
    fn attempt(&mut self, event: &Event, failed: &AllocFailed) -> (bool, Attempt) {
        let names = Names::new(event.pid, event.device, self.lives.moment());
        let Some(process) = self.processes.get_mut(&event.pid) else {
            return (true, Attempt::of_now(event, Arc::default(), names, VecDeque::new()));
        };
        if let Some(attempt) = process.failing.remove(&(event.tid, failed.request)) {
            return (false, attempt);
        }
        (true, Attempt::of_now(event, process.memory.state(event.device), names, process.last.clone()))
    }

    /// A block of the rows of the last failure.
    fn suspect(&mut self, event: &Event, block: &Block, list: impl Fn(&mut Oom) -> &mut Vec<Suspect>) {
        if self.open == Some((event.pid, event.tid, event.time_ns))
            && let Some(Found { oom, .. }) = self.found.last_mut()
        {
            let Block { pool, addr, size_bytes, alloc_time_ns, stacks, .. } = *block;
            list(oom).push(Suspect { pool, addr, size_bytes, alloc_time_ns, stacks });
        }
    }
}

impl Attempt {
    fn of_now(event: &Event, state: Arc<State>, names: Names, last: VecDeque<Event>) -> Self {
        Self { time_ns: event.time_ns, state, names, retries: Vec::new(), last }
    }
}
