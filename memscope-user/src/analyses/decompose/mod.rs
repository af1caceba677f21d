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
mod pattern;
mod rules;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use self::account::{Account, Live};
pub use self::classify::Classifier;
use self::classify::LabelId;
pub(crate) use self::classify::owner;
pub use self::rules::{BUILTIN, RuleSet};
use self::rules::{Counts, Ended, Life, Phase};
use super::{
    Analysis,
    concluded::Concluded,
    per_device::PerDevice,
    select::{Filter, Matcher},
};
use crate::hash::HashMap;
use crate::model::{
    Alloc, Block, Confidence, Decomposition, Event, EventKind, Finding, Free, FreeCause, Name, Pool, ProcessStart,
    RunEnd,
};

/// Ended blocks of a device that are remembered, in case their free turns out to have failed.
const MAX_ENDED: usize = 1024;

/// Blocks whose final owner is told one by one.
pub const MAX_TOLD: usize = 64 << 20;

/// Names blocks, and keeps account of what the names add up to.
#[derive(Debug)]
pub struct DecomposeAnalysis {
    names: Classifier,
    only: Matcher,
    devices: PerDevice<OnDevice>,
    attached: BTreeSet<u32>,
    concluded: Concluded<Decomposition>,
    told: Option<SharedOwners>,
}

/// Final owners of blocks, by process and number of the block.
pub type SharedOwners = Arc<Mutex<HashMap<(u32, u64), Name>>>;

/// What one process does on one device.
#[derive(Debug, Default)]
struct OnDevice {
    phase: Option<Phase>,
    /// Of these, `step` counts the marked steps.
    counts: Counts,
    pools: BTreeMap<Pool, Account>,
    live: HashMap<u64, Live>,
    ended: VecDeque<EndedBlock>,
    /// Allocations and frees so far.
    moments: u64,
}

/// A block that the program gave back a moment ago.
#[derive(Debug)]
struct EndedBlock {
    allocation_id: u64,
    live: Live,
    label: LabelId,
    time_ns: u64,
    moment: u64,
}

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
            EventKind::StepEnd { .. } => self.devices.at(event.pid, event.device).counts.step += 1,
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => drop(self.attached.insert(event.pid)),
            EventKind::ProcessEnd => self.conclude(event.pid, event.time_ns),
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for pid in self.devices.processes() {
            self.conclude(pid, end.time_ns);
        }
        let confidence = Confidence::after(end);
        let finding = |found| Finding::Decompose(Decomposition { confidence, ..found });
        self.concluded.take(|found| (found.pid, found.device, found.pool), finding)
    }
}

impl DecomposeAnalysis {
    /// Names blocks by these rules.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>) -> Self {
        Self {
            names: Classifier::new(rules),
            only: Matcher::default(),
            devices: PerDevice::default(),
            attached: BTreeSet::new(),
            concluded: Concluded::default(),
            told: None,
        }
    }

    /// Also tells the owner of every block that has one, when it ends; of the first [`MAX_TOLD`].
    #[must_use]
    pub fn telling(self, owners: SharedOwners) -> Self {
        Self { told: Some(owners), ..self }
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

    fn tell(&self, pid: u32, allocation_id: u64, label: LabelId) {
        let (Some(told), Some(owner)) = (&self.told, self.names.get(label).owner) else { return };
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < MAX_TOLD {
            told.insert((pid, allocation_id), owner);
        }
    }

    fn alloc(&mut self, event: &Event, alloc: &Alloc) {
        let block = &alloc.block;
        let (kept, told_bytes) = (self.only.holds(event.pid, block), self.told_bytes(alloc.used_bytes));
        let on = self.devices.at(event.pid, block.device);
        on.moments += 1;
        on.enter(self.names.phase(event.stacks));
        if !kept {
            return;
        }
        let account = on.pools.entry(block.pool).or_insert_with(|| Account::new(event.time_ns));
        account.goes_on(event.time_ns);
        let ended = &mut on.ended;
        let known = ended.iter().rposition(|it| alloc.restored && it.allocation_id == block.allocation_id);
        let live = if let Some(EndedBlock { live, label, time_ns, moment, .. }) = known.and_then(|at| ended.remove(at))
        {
            // It has not ended after all.
            account.take_back(&live, self.names.get(label).component, (label, time_ns, moment));
            live
        } else {
            Live {
                label: self.names.label(block),
                pool: block.pool,
                module_id: block.module_id,
                stack: !block.stacks.is_empty(),
                born: on.counts,
                size_bytes: block.size_bytes,
                time_ns: event.time_ns,
                moment: on.moments,
            }
        };
        on.live.insert(block.allocation_id, live);
        account.grow(&live, on.moments, event.time_ns, told_bytes);
    }

    fn free(&mut self, event: &Event, free: &Free) {
        let Free { block: Block { allocation_id, device, .. }, used_bytes, cause, .. } = *free;
        let told_bytes = self.told_bytes(used_bytes);
        let on = self.devices.at(event.pid, device);
        let phase = self.names.phase(event.stacks).filter(|_| cause == FreeCause::Program);
        on.moments += 1;
        on.enter(phase);
        let Some(mut live) = on.live.remove(&allocation_id) else { return };
        if free.owner.is_some() {
            live.label = self.names.label(&Block { owner: free.owner, ..free.block });
        }
        let Some(account) = on.pools.get_mut(&live.pool) else { return };
        let label = end_of(&mut self.names, &live, on.counts, cause, phase);
        let component = self.names.get(label).component;
        account.end(&live, (label, component), event.time_ns, cause.gave_back());
        account.told(told_bytes, cause.gave_back());
        if cause == FreeCause::Program {
            if on.ended.len() >= MAX_ENDED {
                on.ended.pop_front();
            }
            let (time_ns, moment) = (event.time_ns, on.moments);
            on.ended.push_back(EndedBlock { allocation_id, live, label, time_ns, moment });
        }
        self.tell(event.pid, allocation_id, label);
    }

    fn conclude(&mut self, pid: u32, time_ns: u64) {
        let attached = self.attached.remove(&pid);
        let devices: Vec<_> = self.devices.take_process(pid).collect();
        for (device, on) in devices {
            let OnDevice { counts, mut pools, live, .. } = on;
            let mut left: Vec<(u64, Live)> = live.into_iter().collect();
            left.sort_unstable_by_key(|(_, live)| live.moment);
            for (allocation_id, live) in left {
                let Some(account) = pools.get_mut(&live.pool) else { continue };
                let label = end_of(&mut self.names, &live, counts, FreeCause::TraceEnd, None);
                account.end(&live, (label, self.names.get(label).component), time_ns, false);
                self.tell(pid, allocation_id, label);
            }
            let steps = if counts.step > 0 { counts.step } else { counts.optimizer_end };
            let found = pools.into_iter().map(|(pool, account)| {
                let found = account.close(pool, time_ns, &self.names);
                Decomposition { pid, device, attached, steps, ..found }
            });
            self.concluded.extend(found);
        }
    }
}

/// The name of a block that has ended.
fn end_of(names: &mut Classifier, block: &Live, now: Counts, cause: FreeCause, freed_in: Option<Phase>) -> LabelId {
    // Marked steps count where there are any. What was before the first of them ended was in none.
    let in_steps =
        |counts: Counts| Counts { step: if now.step > 0 { counts.step } else { counts.optimizer_end }, ..counts };
    let born = in_steps(block.born);
    let ended = if cause.gave_back() { Ended::Freed } else { Ended::Held };
    let life = Life { born, survived: in_steps(now).since(born), ended, freed_in, stack: block.stack };
    names.revised(block.label, block.pool, block.module_id, &life)
}

impl OnDevice {
    /// The program is seen doing something.
    fn enter(&mut self, phase: Option<Phase>) {
        let Some(phase) = phase.filter(|phase| self.phase != Some(*phase)) else { return };
        let counts = &mut self.counts;
        if self.phase == Some(Phase::Optimizer) {
            counts.optimizer_end += 1;
        }
        match phase {
            Phase::Forward => counts.forward += 1,
            Phase::Backward => counts.backward += 1,
            Phase::Optimizer => counts.optimizer += 1,
            Phase::ZeroGrad => {}
        }
        self.phase = Some(phase);
    }
}

fn clamped(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
