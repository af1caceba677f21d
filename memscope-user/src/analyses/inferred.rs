//! Steps of programs that mark none: those of the optimizer, or backward passes.
//!
//! Stacks of allocations and frees show the phase of a program (see `decompose`). A step ends where the optimizer's
//! step has ended: at the first event of another phase. After four backward passes without an optimizer (one that
//! allocates and frees nothing), their ends are the steps. The first decision stays for the process on the device. In a
//! process that marks a step only its marks count. Without call stacks nothing is inferred.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use super::{
    decompose::{Classifier, Phase, Phases, RuleSet},
    per_device::PerDevice,
};
use crate::model::{Event, EventKind, FreeCause, StepsFrom};

/// The rules of phases, read once for all analyses.
static RULES: LazyLock<Arc<RuleSet>> = LazyLock::new(|| Arc::new(RuleSet::builtin()));
/// Backward passes without an optimizer before they are the steps.
const MIN_BACKWARD: u32 = 4;

/// Follows the steps of all processes.
#[derive(Debug)]
pub(super) struct InferredSteps {
    names: Classifier,
    devices: PerDevice<OnDevice>,
    /// Processes that live and have marked a step.
    marking: BTreeSet<u32>,
}

/// Where a process stands on a device, with an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// The step that ended right before the event.
    pub(super) ended: Option<u32>,
    /// The step that it is in; 0 before the first one has ended.
    pub(super) step: u32,
    pub(super) from: StepsFrom,
}

/// The phases of one process on one device.
#[derive(Debug, Default)]
struct OnDevice {
    phases: Phases,
    backward: u32,
    steps_from: Option<StepsFrom>,
    /// Steps that ended.
    steps: u32,
}

impl OnDevice {
    /// Returns the number of the step that has ended.
    fn enter(&mut self, phase: Option<Phase>) -> Option<u32> {
        let left = self.phases.enter(phase)?;
        self.backward += u32::from(left == Phase::Backward);
        let from = match (self.steps_from, left) {
            (None, Phase::Optimizer) => StepsFrom::Optimizer,
            (None, Phase::Backward) if self.backward >= MIN_BACKWARD => StepsFrom::Backward,
            (Some(from @ StepsFrom::Optimizer), Phase::Optimizer)
            | (Some(from @ StepsFrom::Backward), Phase::Backward) => from,
            _ => return None,
        };
        self.steps_from = Some(from);
        self.steps += 1;
        Some(self.steps)
    }
}

impl Default for InferredSteps {
    fn default() -> Self {
        let names = Classifier::new(Arc::clone(&RULES));
        Self { names, devices: PerDevice::default(), marking: BTreeSet::new() }
    }
}

impl InferredSteps {
    /// Takes an allocation or a free of a process that marks nothing; gives where it stands.
    pub(super) fn observe(&mut self, event: &Event) -> Option<Standing> {
        let (device, by_program) = match &event.kind {
            EventKind::Alloc(alloc) => (alloc.block.device, true),
            EventKind::Free(free) => (free.block.device, free.cause == FreeCause::Program),
            _ => return None,
        };
        if self.marking.contains(&event.pid) {
            return None;
        }
        let phase = self.names.phase(event.stacks).filter(|_| by_program);
        let on = self.devices.at(event.pid, device);
        let ended = on.enter(phase);
        let step = if on.steps > 0 { on.steps + 1 } else { 0 };
        Some(Standing { ended, step, from: on.steps_from.unwrap_or_default() })
    }

    /// A process marks a step; gives whether it is its first mark.
    pub(super) fn mark(&mut self, pid: u32) -> bool {
        self.marking.insert(pid)
    }

    /// Whether a process that lives marks its steps.
    pub(super) fn is_marked(&self, pid: u32) -> bool {
        self.marking.contains(&pid)
    }

    /// Forgets the inferred steps of a process; returns whether there were any.
    pub(super) fn forget(&mut self, pid: u32) -> bool {
        self.devices.take_process(pid).filter(|(_, on)| on.steps > 0).count() > 0
    }

    /// A process has ended; returns whether it had inferred steps.
    pub(super) fn end(&mut self, pid: u32) -> bool {
        self.marking.remove(&pid);
        self.forget(pid)
    }
}
