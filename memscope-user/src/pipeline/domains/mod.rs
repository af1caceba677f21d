//! Effects of calls. One file for each domain: the interpretation of its kinds of calls, their effects, and their
//! state.
//!
//! A domain has `interpret` (a call becomes an [`Effect`], before calls are in order), a state, and `apply` (the
//! effect, in its turn, becomes events). State that several domains need (devices, steps, live blocks) is in
//! [`Home`](super::turn::Home).

pub(super) mod atb;
pub(super) mod dumped;
pub(super) mod failing;
pub(super) mod launches;
pub(super) mod memory;
pub(super) mod mstx;
pub(super) mod pools;
pub(super) mod runtime;
pub(super) mod script;
pub(super) mod torch;

use std::sync::Arc;

use super::rows::{Probe, RawCall, Unusable};
use super::stacks::Code;
use crate::backend::Backend;
#[cfg(feature = "trace")]
use crate::backend::PoolChange;
use crate::capture::Note;
use crate::decode::Objects;
use crate::model::Figures;
#[cfg(feature = "trace")]
use crate::model::System;
use crate::probes::CallKind;

/// The effect of a call; `Ok(None)` without one, an error when it is unknown.
pub(super) type Interpreted = Result<Option<Effect>, Unusable>;

/// The effect of an item, by domain.
#[derive(Debug)]
pub(super) enum Effect {
    Memory(memory::Effect),
    Failing(failing::Effect),
    Runtime(runtime::Effect),
    Launch(launches::Effect),
    Mstx(mstx::Effect),
    Pool(pools::Effect),
    Atb(atb::Effect),
    Torch(torch::Effect),
    Script(script::Effect),
    /// Of a dump's row about a block.
    Dumped(dumped::Effect),
    /// A code object of Python is at this address.
    Code {
        address: u64,
        fingerprint: u32,
        code: Arc<Code>,
    },
    Fork {
        child: u32,
    },
    Exec,
    Note(Box<Note>),
}

#[cfg(feature = "trace")]
impl Effect {
    /// The status of a request for memory that has failed.
    pub(super) const fn failed_status(&self) -> Option<i32> {
        if let Self::Failing(failing::Effect::Failed(failure)) = self { Some(failure.status) } else { None }
    }

    /// A block begins, by the driver or a pool.
    pub(super) const fn begins_block(&self) -> bool {
        match self {
            Self::Memory(memory::Effect::Alloc(_)) => true,
            Self::Pool(pools::Effect::Report(report)) => matches!(report.change, PoolChange::Alloc),
            _ => false,
        }
    }

    /// The program begins to exit.
    pub(super) const fn ends_program(&self) -> bool {
        matches!(self, Self::Runtime(runtime::Effect::System(System::Exit | System::PythonEnds)))
    }
}

/// Lets the domain of a call interpret it.
pub(super) fn interpret(kind: CallKind, call: RawCall<'_>) -> Interpreted {
    match kind {
        CallKind::Memory(kind) => memory::interpret(kind, &call),
        CallKind::Failing(kind) => failing::interpret(kind, &call),
        CallKind::Runtime(kind) => runtime::interpret(kind, &call),
        CallKind::Launch(kind) => launches::interpret(kind, call),
        CallKind::Mstx(kind) => mstx::interpret(kind, call),
        CallKind::Pool(kind) => pools::interpret(kind, &call),
        CallKind::Atb(kind) => atb::interpret(kind, call),
        CallKind::Torch(kind) => Ok(torch::interpret(kind, call)),
        CallKind::Script(kind) => script::interpret(kind, call),
        CallKind::Watch(_) => Ok(None),
    }
}

/// The same for a record with objects; also returns the number of objects left out.
pub(super) fn interpret_objects(
    backend: &'static dyn Backend,
    probe: Option<&Probe>,
    objects: &Objects<'_>,
    operators: &torch::Operators,
) -> Result<(Effect, u64), Unusable> {
    match probe.map(|probe| probe.info.meaning) {
        Some(CallKind::Atb(kind)) => atb::interpret_objects(kind, backend, probe, objects),
        Some(CallKind::Script(kind)) => script::interpret_objects(kind, objects),
        Some(CallKind::Torch(kind)) => operators.interpret(kind, backend, objects),
        _ => Err(Unusable),
    }
}

/// Whether the text of a kind's calls is used.
pub(super) const fn has_text(kind: CallKind) -> bool {
    match kind {
        CallKind::Launch(kind) => launches::has_text(kind),
        CallKind::Mstx(kind) => mstx::has_text(kind),
        CallKind::Atb(kind) => atb::has_text(kind),
        CallKind::Torch(kind) => torch::has_text(kind),
        CallKind::Script(kind) => script::has_text(kind),
        CallKind::Pool(kind) => pools::has_text(kind),
        CallKind::Memory(_) | CallKind::Failing(_) | CallKind::Runtime(_) | CallKind::Watch(_) => false,
    }
}

/// Figures that are wrong if calls of this kind are lost.
pub(super) const fn figures(kind: CallKind) -> &'static [Figures] {
    match kind {
        CallKind::Memory(_) => &[Figures::Memory],
        CallKind::Failing(_) => &[Figures::Failures],
        CallKind::Runtime(kind) => runtime::figures(kind),
        CallKind::Launch(kind) => launches::figures(kind),
        CallKind::Mstx(kind) => mstx::figures(kind),
        CallKind::Pool(kind) => pools::figures(kind),
        CallKind::Atb(kind) => atb::figures(kind),
        CallKind::Torch(kind) => torch::figures(kind),
        CallKind::Script(kind) => script::figures(kind),
        CallKind::Watch(_) => &[Figures::Watch],
    }
}
