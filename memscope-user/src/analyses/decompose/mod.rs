//! Who owns the memory? Weights, gradients, optimizer state, activations, KV cache, workspaces, communication.
//!
//! Nothing in the traced program states the owner. A block is named twice: by the stack, module and pool of its
//! allocation, and again at its end by its lifetime: gradients are blocks that a backward pass left for the optimizer,
//! optimizer state those that a step of the optimizer left behind. Both by a table of [rules](RuleSet) that users can
//! extend. Blocks without a rule are `unknown`.
//!
//! Every pool has its own account, and the components always add up to the live memory. Ended blocks are forgotten; the
//! account keeps the peak by name.

mod account;
mod classify;
mod finding;
mod held;
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

pub use self::finding::{Decomposition, HeldPart, OwnerNode, OwnerPart, OwnerSample, OwnerTimeline, Source};

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
    in_order,
    per_device::PerDevice,
    question::{AnalysisBit, Automatic, FilesCommand, Question, Sees, collected},
    select::{Filter, Matcher},
};
use crate::hash::HashMap;
use crate::model::{Alloc, Confidence, Event, EventKind, Figures, Free, Name, Pool, ProcessStart, RunEnd};

/// Most blocks with their final owners reported one by one.
pub const MAX_OWNERS: usize = 64 << 20;

/// Owners of the memory of each pool.
pub(super) const QUESTION: Question = Question {
    word: "decompose",
    parameter: "",
    command: FilesCommand::Own,
    names_owners: true,
    sees: Sees::All,
    compares_steps: false,
    automatic: Automatic::Never,
    collects: collected::BLOCKS | collected::ACCESSES,
    script_bit: Some(AnalysisBit::DECOMPOSE),
    add: |asked, set| set.freezing(DecomposeAnalysis::new(asked.rules()).only(asked.filter)),
    table: table::TABLE,
};

/// Names blocks, and keeps account of the sums by name.
#[derive(Debug)]
pub struct DecomposeAnalysis {
    lives: Lives,
    only: Matcher,
    pools: PerDevice<BTreeMap<Pool, Account>>,
    attached: BTreeSet<u32>,
    concluded: Concluded<Decomposition>,
    owners: Option<(Owners, Sender<Owners>)>,
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
            EventKind::StepEnd { .. } | EventKind::Region(_) | EventKind::Looked(_) => self.lives.note(event),
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => drop(self.attached.insert(event.pid)),
            EventKind::ProcessEnd => self.conclude(event.pid, event.time_ns),
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for pid in self.lives.processes() {
            self.conclude(pid, end.time_ns);
        }
        if let Some((owners, out)) = self.owners.take() {
            // A receiver that is gone does not want them.
            let _ = out.send(owners);
        }
        let confidence = Confidence::of(end, &[Figures::Memory, Figures::Owners]);
        let finding = |found| Finding::Decompose(Decomposition { confidence, ..found });
        self.concluded.take(|found| in_order(found.pid, found.device, found.pool), finding)
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
            owners: None,
        }
    }

    /// Also sends the final owners of blocks when the run has ended; of the first [`MAX_OWNERS`].
    #[must_use]
    pub fn with_owners(self) -> (Self, Receiver<Owners>) {
        let (out, owners) = mpsc::channel();
        (Self { owners: Some((Owners::default(), out)), ..self }, owners)
    }

    /// Keeps account only of blocks that match the filter. All blocks show the program's phase.
    #[must_use]
    pub fn only(self, filter: Filter) -> Self {
        Self { only: filter.into(), ..self }
    }

    /// The pool's own figure, if it is of the blocks in the account.
    fn reported_bytes(&self, used_bytes: u64) -> u64 {
        if self.only.filter().parts_pools() { 0 } else { used_bytes }
    }

    fn report(&mut self, pid: u32, allocation_id: u64, label: LabelId) {
        let (Some((owners, _)), Some(owner)) = (&mut self.owners, self.lives.get(label).owner) else { return };
        if owners.len() < MAX_OWNERS {
            owners.insert((pid, allocation_id), owner);
        }
    }

    fn alloc(&mut self, event: &Event, alloc: &Alloc) {
        let block = &alloc.block;
        let (kept, reported_bytes) = (self.only.holds(event.pid, block), self.reported_bytes(alloc.used_bytes));
        let Some(Came { live, moment, back }) = self.lives.came(event, alloc, kept) else { return };
        let pools = self.pools.at(event.pid, block.device);
        let account = pools.entry(block.pool).or_insert_with(|| Account::new(event.time_ns));
        account.goes_on(event.time_ns);
        if let Some(back) = back {
            account.take_back(&live, self.lives.get(back.label).component, &back);
        } else if live.is_older() {
            account.was_there(&live);
        }
        account.grow(&live, moment, event.time_ns, reported_bytes);
    }

    fn free(&mut self, event: &Event, free: &Free) {
        let reported_bytes = self.reported_bytes(free.used_bytes);
        let Some(went) = self.lives.went(event, free) else { return };
        let Some(account) = self.pools.at(event.pid, free.block.device).get_mut(&went.live.pool) else { return };
        let gave_back = free.cause.gave_back();
        account.end(&went, self.lives.get(went.label).component, event.time_ns, gave_back);
        account.reported(reported_bytes, gave_back);
        self.report(event.pid, went.allocation_id, went.label);
    }

    fn conclude(&mut self, pid: u32, time_ns: u64) {
        let attached = self.attached.remove(&pid);
        for left in self.lives.left(pid) {
            let (device, steps) = (left.device, left.steps);
            let mut pools = std::mem::take(self.pools.at(pid, device));
            for went in left.blocks {
                let Some(account) = pools.get_mut(&went.live.pool) else { continue };
                account.end(&went, self.lives.get(went.label).component, time_ns, false);
                self.report(pid, went.allocation_id, went.label);
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
