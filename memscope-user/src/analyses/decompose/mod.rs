//! Whose memory is it? Weights, gradients, optimizer state, activations, KV cache, workspaces, communication.
//!
//! Nothing in the traced program says so. A block is named twice: by the stack, module and pool of its allocation,
//! and once more when it has ended, by what happened in its life: gradients are what a backward pass left for the
//! optimizer, optimizer state is what a step of the optimizer left behind. Both by a table of [rules](RuleSet) that users
//! can extend. What no rule names is `unknown`.
//!
//! Every pool has an account of its own, whose components add up to what is live at every moment. Blocks that have
//! ended are forgotten; that they were live at the peak is kept by name.

mod account;
mod classify;
mod finding;
mod lives;
mod pattern;
mod phases;
mod rules;
mod table;
#[cfg(test)]
pub(super) mod tests;
mod text;
mod timeline;
mod trained;

pub use self::finding::{Decomposition, OwnerNode, OwnerPart, OwnerSample, OwnerTimeline, Source};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{
    Arc,
    mpsc::{self, Receiver, Sender},
};

use self::account::Account;
pub use self::classify::Classifier;

use self::classify::LabelId;
pub(crate) use self::classify::owner;
pub(in crate::analyses) use self::lives::{Came, Lives, Went};
pub(in crate::analyses) use self::phases::{Phase, Phases};
pub use self::rules::{BUILTIN, RuleSet};

use super::{
    Analysis, Finding,
    concluded::Concluded,
    per_device::PerDevice,
    question::{Asked, Question, Sees},
    select::{Filter, Matcher},
};
use crate::hash::HashMap;
use crate::model::{Alloc, Confidence, Event, EventKind, Figures, Free, Name, Pool, ProcessStart, RunEnd};

/// Blocks whose final owner is told one by one.
pub const MAX_TOLD: usize = 64 << 20;

/// Owners of the memory of each pool.
pub(super) const QUESTION: Question = Question {
    word: "decompose",
    about: "Tell whose the memory is, over time: \
            dumps (CSV or db, ours or msMemScope's) of one run, or a capture",
    none: "No blocks were seen, so there is nothing to tell the owners of.",
    names_owners: true,
    sees: Sees::All,
    up_to_exit: true,
    script_bit: 2,
    analysis: |Asked { rules, filter }| Box::new(DecomposeAnalysis::new(rules).only(filter)),
    table: table::TABLE,
};

/// Names blocks, and keeps account of what the names add up to.
#[derive(Debug)]
pub struct DecomposeAnalysis {
    lives: Lives,
    only: Matcher,
    pools: PerDevice<BTreeMap<Pool, Account>>,
    attached: BTreeSet<u32>,
    concluded: Concluded<Decomposition>,
    told: Option<(Owners, Sender<Owners>)>,
}

/// Final owners of blocks, by process and number of the block.
pub type Owners = HashMap<(u32, u64), Name>;

impl Default for DecomposeAnalysis {
    fn default() -> Self {
        Self::new(Arc::new(RuleSet::builtin()))
    }
}

impl Analysis for DecomposeAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => self.alloc(event, alloc),
            EventKind::Free(free) => self.free(event, free),
            EventKind::StepEnd { .. } => self.lives.step(event),
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => drop(self.attached.insert(event.pid)),
            EventKind::ProcessEnd => self.conclude(event.pid, event.time_ns),
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for pid in self.lives.processes() {
            self.conclude(pid, end.time_ns);
        }
        if let Some((owners, out)) = self.told.take() {
            // Who does not want them has gone.
            let _ = out.send(owners);
        }
        let confidence = Confidence::of(end, &[Figures::Memory, Figures::Owners]);
        let finding = |found| Finding::Decompose(Decomposition { confidence, ..found });
        self.concluded.take(|found| (found.pid, found.device, found.pool), finding)
    }
}

impl DecomposeAnalysis {
    /// Names blocks by these rules.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>) -> Self {
        Self {
            lives: Lives::new(rules),
            only: Matcher::default(),
            pools: PerDevice::default(),
            attached: BTreeSet::new(),
            concluded: Concluded::default(),
            told: None,
        }
    }

    /// Also sends the owner of every block that has one, when the run has ended; of the first [`MAX_TOLD`].
    #[must_use]
    pub fn telling(self) -> (Self, Receiver<Owners>) {
        let (out, owners) = mpsc::channel();
        (Self { told: Some((Owners::default(), out)), ..self }, owners)
    }

    /// Keeps account only of blocks that satisfy the filter. What the program is doing is told by all.
    #[must_use]
    pub fn only(self, filter: Filter) -> Self {
        Self { only: filter.into(), ..self }
    }

    /// What the pool says of itself, if that is of the blocks that are kept account of.
    fn told_bytes(&self, used_bytes: u64) -> u64 {
        if self.only.filter().parts_pools() { 0 } else { used_bytes }
    }

    fn tell(&mut self, pid: u32, allocation_id: u64, label: LabelId) {
        let (Some((told, _)), Some(owner)) = (&mut self.told, self.lives.get(label).owner) else { return };
        if told.len() < MAX_TOLD {
            told.insert((pid, allocation_id), owner);
        }
    }

    fn alloc(&mut self, event: &Event, alloc: &Alloc) {
        let block = &alloc.block;
        let (kept, told_bytes) = (self.only.holds(event.pid, block), self.told_bytes(alloc.used_bytes));
        let Some(Came { live, moment, back }) = self.lives.came(event, alloc, kept) else { return };
        let pools = self.pools.at(event.pid, block.device);
        let account = pools.entry(block.pool).or_insert_with(|| Account::new(event.time_ns));
        account.goes_on(event.time_ns);
        if let Some(back) = back {
            account.take_back(&live, self.lives.get(back.label).component, &back);
        }
        account.grow(&live, moment, event.time_ns, told_bytes);
    }

    fn free(&mut self, event: &Event, free: &Free) {
        let told_bytes = self.told_bytes(free.used_bytes);
        let Some(Went { allocation_id, live, label }) = self.lives.went(event, free) else { return };
        let Some(account) = self.pools.at(event.pid, free.block.device).get_mut(&live.pool) else { return };
        let gave_back = free.cause.gave_back();
        account.end(&live, (label, self.lives.get(label).component), event.time_ns, gave_back);
        account.told(told_bytes, gave_back);
        self.tell(event.pid, allocation_id, label);
    }

    fn conclude(&mut self, pid: u32, time_ns: u64) {
        let attached = self.attached.remove(&pid);
        for left in self.lives.left(pid) {
            let (device, steps) = (left.device, left.steps);
            let mut pools = std::mem::take(self.pools.at(pid, device));
            for Went { allocation_id, live, label } in left.blocks {
                let Some(account) = pools.get_mut(&live.pool) else { continue };
                account.end(&live, (label, self.lives.get(label).component), time_ns, false);
                self.tell(pid, allocation_id, label);
            }
            let found = pools.into_iter().map(|(pool, account)| {
                let found = account.close(pool, time_ns, self.lives.names());
                Decomposition { pid, device, attached, steps, ..found }
            });
            self.concluded.extend(found);
        }
        self.pools.take_process(pid).for_each(drop);
    }
}

fn clamped(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
