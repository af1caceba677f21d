//! Kernel launches, names of kernels, numbers of streams.

use std::sync::Arc;

use super::super::recent::Recent;
use super::super::rows::RawCall;
use super::super::turn::Turn;
use super::Interpreted;
use crate::decode::Phase;
use crate::model::{EventKind, Figures, Launch};
use crate::probes::{Field, LaunchCall};

/// Fewest kernel names and streams kept per process.
const MAX_NAMES: usize = 64 << 10;

/// The effect of a call about kernels.
#[derive(Debug)]
pub(in crate::pipeline) enum Effect {
    /// `stream_id`: if the program has not asked for it in a call.
    Launch {
        handle: u64,
        stream: u64,
        stream_id: Option<i64>,
        name: Option<Arc<str>>,
    },
    KernelName {
        handle: u64,
        name: Arc<str>,
    },
    StreamId {
        stream: u64,
        id: i64,
    },
}

pub(super) const fn has_text(kind: LaunchCall) -> bool {
    matches!(kind, LaunchCall::Launch | LaunchCall::KernelName)
}

pub(super) const fn figures(kind: LaunchCall) -> &'static [Figures] {
    match kind {
        LaunchCall::Launch => &[Figures::Launches, Figures::Failures],
        LaunchCall::KernelName | LaunchCall::StreamId => &[Figures::Launches],
    }
}

pub(super) fn interpret(kind: LaunchCall, call: RawCall<'_>) -> Interpreted {
    let effect = match (kind, call.called.phase) {
        (LaunchCall::Launch, Phase::Enter) => Effect::Launch {
            handle: call.field(Field::Handle).unwrap_or(0),
            stream: call.field(Field::Stream).unwrap_or(0),
            stream_id: None,
            name: call.called.text.filter(|text| !text.is_empty()).map(Arc::from),
        },
        (_, Phase::Return) if call.code() != 0 => return Ok(None),
        (LaunchCall::KernelName, Phase::Return) => match &call.called.text {
            Some(name) if !name.is_empty() => {
                Effect::KernelName { handle: call.field(Field::Handle)?, name: name.as_str().into() }
            }
            _ => return Ok(None),
        },
        (LaunchCall::StreamId, Phase::Return) => {
            let id = i64::from(call.half(Field::StreamId)?.cast_signed());
            Effect::StreamId { stream: call.field(Field::Stream)?, id }
        }
        _ => return Ok(None),
    };
    Ok(Some(super::Effect::Launch(effect)))
}

/// Names in one process.
#[derive(Debug)]
pub(in crate::pipeline) struct Launches {
    /// By kernel handle. A forked child shares them until either learns another.
    names: Arc<Recent<u64, Arc<str>>>,
    streams: Recent<u64, i64>,
}

impl Default for Launches {
    fn default() -> Self {
        Self { names: Arc::new(Recent::new(MAX_NAMES)), streams: Recent::new(MAX_NAMES) }
    }
}

impl Launches {
    /// Of a forked child: its memory has the same kernels.
    pub(in crate::pipeline) fn child(&self) -> Self {
        Self { names: Arc::clone(&self.names), ..Self::default() }
    }

    pub(in crate::pipeline) fn apply(&mut self, effect: Effect, turn: &mut Turn<'_>) {
        match effect {
            Effect::Launch { handle, stream, stream_id, name } => {
                let name = name.unwrap_or_else(|| self.name(handle));
                turn.home.launches += 1;
                let stream_id = stream_id.or_else(|| self.streams.get(&stream).copied());
                let launch = Launch { name, stream, stream_id };
                turn.emit(turn.device(), EventKind::Launch(launch));
            }
            Effect::KernelName { handle, name } => Arc::make_mut(&mut self.names).insert(handle, name),
            Effect::StreamId { stream, id } => self.streams.insert(stream, id),
        }
    }

    /// Name of a kernel. That of an unknown one is kept, so that its next launch needs no new text.
    fn name(&mut self, handle: u64) -> Arc<str> {
        if let Some(known) = self.names.get(&handle) {
            return Arc::clone(known);
        }
        let name: Arc<str> = format!("0x{handle:x}").into();
        Arc::make_mut(&mut self.names).insert(handle, Arc::clone(&name));
        name
    }
}
