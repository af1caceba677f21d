//! Devices of threads, begin and end of the runtime.

use super::super::recent::Recent;
use super::super::rows::RawCall;
use super::super::turn::Turn;
use super::Interpreted;
use crate::decode::Phase;
use crate::model::{Device, EventKind, Figures, System};
use crate::probes::{Field, RuntimeCall};

/// Fewest threads per process with a kept device; a thread's end has no record.
const MAX_THREADS: usize = 32 << 10;
/// Fewest contexts kept per process.
const MAX_CONTEXTS: usize = 64 << 10;
/// Most devices per process; more only come from a broken flag word.
const MAX_DEVICES: usize = 64;

/// The effect of a call of the runtime.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline) enum Effect {
    SetDevice {
        device: u32,
    },
    CreateContext {
        context: u64,
        device: u32,
    },
    SetContext {
        context: u64,
    },
    /// The runtime begins or ends.
    System(System),
}

/// What depends on these calls: a mark belongs to the device of its thread, and a pool's block may.
pub(super) const fn figures(kind: RuntimeCall) -> &'static [Figures] {
    match kind {
        RuntimeCall::SetDevice | RuntimeCall::CreateContext | RuntimeCall::SetContext => {
            &[Figures::Memory, Figures::Marks]
        }
        RuntimeCall::Init | RuntimeCall::Finalize => &[Figures::Rows],
        // Leaks are judged up to the exit.
        RuntimeCall::Exit | RuntimeCall::PythonEnds => &[Figures::Marks],
    }
}

pub(super) fn interpret(kind: RuntimeCall, call: &RawCall<'_>) -> Interpreted {
    let effect = match (kind, call.called.phase) {
        (RuntimeCall::Finalize, Phase::Enter) => Effect::System(System::AclFinalize),
        (RuntimeCall::Exit, Phase::Enter) => Effect::System(System::Exit),
        (RuntimeCall::PythonEnds, Phase::Enter) => Effect::System(System::PythonEnds),
        (_, Phase::Return) if call.code() != 0 => return Ok(None),
        (RuntimeCall::SetDevice, Phase::Return) => Effect::SetDevice { device: call.half(Field::Device)? },
        (RuntimeCall::CreateContext, Phase::Return) => {
            Effect::CreateContext { context: call.field(Field::Handle)?, device: call.half(Field::Device)? }
        }
        (RuntimeCall::SetContext, Phase::Return) => Effect::SetContext { context: call.field(Field::Handle)? },
        (RuntimeCall::Init, Phase::Return) => Effect::System(System::AclInit),
        _ => return Ok(None),
    };
    Ok(Some(super::Effect::Runtime(effect)))
}

/// Devices of one process.
#[derive(Debug)]
pub(in crate::pipeline) struct Devices {
    /// Physical device by the program's number; empty is the identity.
    visible: Vec<u32>,
    threads: Recent<u32, u32>,
    /// Device of each context.
    contexts: Recent<u64, u32>,
    /// NPUs that the process has used.
    used: Vec<u32>,
}

impl Devices {
    /// Of a process with these visible devices; empty is all.
    pub(in crate::pipeline) fn new(visible: Vec<u32>) -> Self {
        Self { visible, threads: Recent::new(MAX_THREADS), contexts: Recent::new(MAX_CONTEXTS), used: Vec::new() }
    }

    /// Physical numbers of the visible devices.
    pub(in crate::pipeline) fn visible(&self) -> &[u32] {
        &self.visible
    }

    /// The program sees these.
    pub(in crate::pipeline) fn see(&mut self, visible: Vec<u32>) {
        self.visible = visible;
    }

    /// Number of an NPU that the program calls `device`.
    fn number(&self, device: u32) -> u32 {
        self.visible.get(device as usize).copied().unwrap_or(device)
    }

    /// The NPU that the program calls `device`.
    pub(in crate::pipeline) fn physical(&self, device: u32) -> Device {
        Device::Npu(self.number(device))
    }

    fn set(&mut self, tid: u32, device: u32) {
        let number = self.number(device);
        self.know(Device::Npu(number));
        self.threads.insert(tid, number);
    }

    /// The process uses this device.
    pub(in crate::pipeline) fn know(&mut self, device: Device) {
        if let Device::Npu(number) = device
            && !self.used.contains(&number)
            && self.used.len() < MAX_DEVICES
        {
            self.used.push(number);
        }
    }

    /// Device of a thread. One with a choice from before the trace has the process's only device, if it has only one.
    pub(in crate::pipeline) fn of(&self, tid: u32, attached: bool) -> Device {
        match (self.threads.get(&tid), self.used.as_slice()) {
            (Some(number), _) => Device::Npu(*number),
            (None, [only]) if attached => Device::Npu(*only),
            _ => Device::None,
        }
    }
}

/// Applies an effect; the state is the process's, as all domains use devices.
pub(in crate::pipeline) fn apply(effect: Effect, turn: &mut Turn<'_>) {
    let (tid, devices) = (turn.at.tid, &mut turn.home.devices);
    match effect {
        Effect::SetDevice { device } => devices.set(tid, device),
        Effect::CreateContext { context, device } => {
            devices.contexts.insert(context, device);
            devices.set(tid, device);
        }
        Effect::SetContext { context } => {
            if let Some(device) = devices.contexts.get(&context).copied() {
                devices.set(tid, device);
            }
        }
        Effect::System(system @ (System::Exit | System::PythonEnds)) => {
            turn.report(Device::None, EventKind::System(system), true);
        }
        Effect::System(system) => turn.emit(Device::None, EventKind::System(system)),
    }
}
