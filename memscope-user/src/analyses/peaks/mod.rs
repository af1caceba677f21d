//! Which blocks were live at the peak? For each pool of each process and device: by owner, by place, by size.
//!
//! One pass: a new maximum only marks the moment. Owners are those of [decompose](super::decompose): a block that ended
//! under another name than it was allocated with moves to that name in the marked moment. Each live block takes some 70
//! bytes; places are call stacks, and those beyond a million count as one.

mod finding;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use self::finding::Peak;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::decompose::{Came, Lives, RuleSet, Went};
use super::groups::{Change, Groups, Room};
use super::inferred::{InferredSteps, Standing};
use super::question::{AnalysisBit, Automatic, FilesCommand, Question, Sees};
use super::{Analysis, Finding, concluded::Concluded, in_order, per_device::PerDevice};
use crate::model::{Alloc, Confidence, Device, Event, EventKind, Free, Name, Pool, ProcessStart, RunEnd, StepsFrom};

/// Places listed of each peak, those with the most bytes first.
const MAX_PLACES: usize = 100;

/// Live memory at the peak of each pool.
pub(super) const QUESTION: Question = Question {
    word: "peaks",
    parameter: "",
    command: FilesCommand::Plain {
        about: "Show live memory at the peak: \
            dumps (CSV or db, ours or msMemScope's) of one run, or a capture",
        none: "No blocks were seen, so there is no peak.",
    },
    names_owners: true,
    sees: Sees::Chosen,
    compares_steps: false,
    automatic: Automatic::Never,
    collects: 0,
    script_bit: Some(AnalysisBit::PEAKS),
    add: |asked, set| set.whole(PeaksAnalysis::new(asked.rules())),
    table: table::TABLE,
};

/// Follows the usage of every pool.
#[derive(Debug)]
pub struct PeaksAnalysis {
    lives: Lives,
    running: PerDevice<BTreeMap<Pool, Account>>,
    room: Room,
    steps: InferredSteps,
    attached: BTreeSet<u32>,
    concluded: Concluded<Peak>,
}

/// One pool of one process on one device.
#[derive(Debug)]
struct Account {
    start_ns: u64,
    time_ns: u64,
    step: u32,
    /// The same without marks.
    inferred: Standing,
    peak_bytes: u64,
    /// Of the seen blocks.
    live_bytes: u64,
    /// The peak's place among all allocations and frees.
    moment: u64,
    /// The marked moment is the peak.
    groups: Groups,
}

impl Default for PeaksAnalysis {
    fn default() -> Self {
        Self::new(Arc::new(RuleSet::builtin()))
    }
}

impl Analysis for PeaksAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => self.alloc(event, alloc),
            EventKind::Free(free) => self.free(event, free),
            EventKind::StepStart { .. } => drop(self.steps.mark(event.pid)),
            EventKind::StepEnd { .. } => {
                self.steps.mark(event.pid);
                self.lives.note(event);
            }
            EventKind::Region(_) | EventKind::Looked(_) => self.lives.note(event),
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => drop(self.attached.insert(event.pid)),
            EventKind::ProcessEnd => {
                self.conclude(event.pid);
                self.steps.end(event.pid);
            }
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for pid in self.lives.processes() {
            self.conclude(pid);
        }
        let confidence = Confidence::after(end);
        let finding = |peak| Finding::Peak(Peak { confidence, ..peak });
        self.concluded.take(|peak| in_order(peak.pid, peak.device, peak.pool), finding)
    }
}

impl PeaksAnalysis {
    /// Names owners by these rules.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>) -> Self {
        Self {
            lives: Lives::new(rules),
            running: PerDevice::default(),
            room: Room::default(),
            steps: InferredSteps::default(),
            attached: BTreeSet::new(),
            concluded: Concluded::default(),
        }
    }

    fn alloc(&mut self, event: &Event, alloc: &Alloc) {
        let Alloc { block, used_bytes, .. } = alloc;
        let inferred = self.steps.observe(event).unwrap_or_default();
        let Some(Came { live, moment, back }) = self.lives.came(event, alloc, true) else { return };
        let (owner, time_ns) = (self.lives.owner(&live), event.time_ns);
        let pools = self.running.at(event.pid, block.device);
        let account = pools.entry(block.pool).or_insert_with(|| Account::new(time_ns));
        if let Some(back) = back.filter(|_| live.moment <= account.moment) {
            if back.moment <= account.moment {
                // The peak came while it was thought to have ended.
                account.groups.join(owner, block, &mut self.room);
                account.peak_bytes = account.peak_bytes.saturating_add(block.size_bytes);
            } else if let Some(owners) = self.lives.named_back(&live, &back) {
                account.groups.rename(owners, live.size_bytes);
            }
        }
        if live.is_older() && back.is_none() && account.peak_bytes > 0 {
            account.was_there(owner, alloc, &mut self.room);
        }
        account.groups.change(owner, block, Change::Comes, &mut self.room);
        account.live_bytes = account.live_bytes.saturating_add(block.size_bytes);
        // A workspace that grows is reported with the pool's figure from before.
        let is_stale = block.pool.grows_in_place();
        let used_bytes = if is_stale { account.live_bytes.max(*used_bytes) } else { *used_bytes };
        if used_bytes > account.peak_bytes {
            (account.peak_bytes, account.time_ns) = (used_bytes, time_ns);
            (account.step, account.inferred) = (block.step, inferred);
            account.moment = moment;
            account.groups.mark();
        }
    }

    /// For every cause: after an exec, the program does not hold the blocks of the one before.
    fn free(&mut self, event: &Event, free: &Free) {
        self.steps.observe(event);
        let Some(went) = self.lives.went(event, free) else { return };
        if let Some(account) = self.running.at(event.pid, free.block.device).get_mut(&went.live.pool) {
            account.groups.change(self.lives.owner(&went.live), &free.block, Change::Goes, &mut self.room);
            account.live_bytes = account.live_bytes.saturating_sub(free.block.size_bytes);
            account.named(&went, &self.lives);
        }
    }

    fn conclude(&mut self, pid: u32) {
        for left in self.lives.left(pid) {
            let pools = self.running.at(pid, left.device);
            for went in &left.blocks {
                if let Some(account) = pools.get_mut(&went.live.pool) {
                    account.named(went, &self.lives);
                }
            }
        }
        let attached = self.attached.remove(&pid);
        let is_marked = self.steps.is_marked(pid);
        for (device, pools) in self.running.take_process(pid) {
            for (pool, account) in pools {
                account.groups.leave(&mut self.room);
                let peak = account.close(device, pool, is_marked);
                self.concluded.add(Peak { pid, attached, ..peak });
            }
        }
    }
}

impl Account {
    fn new(start_ns: u64) -> Self {
        let (inferred, groups) = (Standing::default(), Groups::default());
        Self { start_ns, time_ns: start_ns, step: 0, inferred, peak_bytes: 0, live_bytes: 0, moment: 0, groups }
    }

    /// A block is found that is older than the trace: it was live at the peak.
    fn was_there(&mut self, owner: Option<Name>, alloc: &Alloc, room: &mut Room) {
        self.groups.join(owner, &alloc.block, room);
        // A pool's own figure has had it all the time.
        if alloc.total_bytes.is_none() {
            self.peak_bytes = self.peak_bytes.saturating_add(alloc.block.size_bytes);
        }
    }

    /// A block has its final name.
    fn named(&mut self, went: &Went, lives: &Lives) {
        if went.live.moment <= self.moment
            && let Some(owners) = lives.renamed(went)
        {
            self.groups.rename(owners, went.live.size_bytes);
        }
    }

    /// The peak as a finding; process and confidence are left to fill in.
    fn close(self, device: Device, pool: Pool, is_marked: bool) -> Peak {
        let Self { start_ns, time_ns, step, inferred, peak_bytes, groups, .. } = self;
        let (step, steps_from) = if is_marked { (step, StepsFrom::Marks) } else { (inferred.step, inferred.from) };
        let seen = groups.sum();
        let (groups, places_left_out) = groups.largest(MAX_PLACES);
        Peak {
            pid: 0,
            device,
            pool,
            attached: false,
            start_ns,
            time_ns,
            step,
            steps_from,
            peak_bytes,
            seen,
            unseen_bytes: peak_bytes.saturating_sub(seen.size_bytes),
            groups,
            places_left_out,
            confidence: Confidence::Certain,
        }
    }
}
