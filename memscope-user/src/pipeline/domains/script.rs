//! The program's script, by the Python package: when to collect, where steps end, owners of memory (contract §7.3,
//! §8.5, §9).

mod collection;
mod trace;

use std::sync::Arc;

use self::trace::{TraceRow, TraceTexts};
use super::super::blocks::{Key, Live};
use super::super::labels::LabelIds;
use super::super::output::{DeviceFilter, DumpFilter, Npus};
use super::super::rows::{RawCall, Unusable};
use super::super::turn::Turn;
use super::super::wishes::Settings;
use super::Interpreted;
use crate::analyses::AnalysisBit;
use crate::analyses::decompose::{Classifier, RuleSet};
use crate::decode::{Objects, Phase};
use crate::model::{Block, Device, EventKind, Figures, PoolOperators, Snapshot, System};
use crate::probes::{Field, ScriptCall};

pub(in crate::pipeline) use self::collection::Collection;

/// The effect of a script's call by the Python package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pipeline) enum Effect {
    /// Before the `Config` that it belongs to.
    Settings(Settings),
    Config(Wanted),
    Start,
    Stop,
    Step,
    /// Of the calling thread.
    Labels(LabelIds),
    LabelText {
        id: u16,
        text: String,
    },
    LabelBlock {
        addr: u64,
        ids: LabelIds,
    },
    /// `device`: as the program numbers it.
    Snapshot {
        device: u32,
        snapshot: Snapshot,
    },
    /// Ends; `start_mono_ns` is a time of the records' clock.
    Range {
        name: Arc<str>,
        start_mono_ns: u64,
    },
    TraceText {
        id: u32,
        text: String,
    },
    TraceRows(Vec<TraceRow>),
}

/// The rows that a script wants, in the bits of contract §1.5; of devices 32 is all NPUs and 33 the host, of events 4
/// is `block_free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipeline) struct Wanted {
    pub(in crate::pipeline) events: u64,
    pub(in crate::pipeline) levels: u64,
    pub(in crate::pipeline) devices: u64,
}

impl From<Wanted> for DumpFilter {
    /// From the bits of the contract's §1.5, as the marker has them.
    fn from(Wanted { events, levels, devices }: Wanted) -> Self {
        let bit = |word: u64, bit: u32| word >> bit & 1 == 1;
        let (op, kernel) = (bit(levels, 0), bit(levels, 1));
        let only = || (0..32).filter(|number| bit(devices, *number)).collect();
        let npus = if bit(devices, 32) { Npus::All } else { Npus::Only(only()) };
        Self {
            alloc: bit(events, 0),
            free: bit(events, 1),
            launch: bit(events, 2) && kernel,
            op: bit(events, 2) && op,
            access: bit(events, 3) && op,
            block_free: bit(events, 4),
            oom_blocks: None,
            devices: DeviceFilter { npus, cpu: bit(devices, 33) },
            steps: Vec::new(),
        }
    }
}

pub(super) const fn has_text(kind: ScriptCall) -> bool {
    use ScriptCall::{LabelText, Range, Snapshot, TraceText};
    matches!(kind, LabelText | Snapshot | Range | TraceText)
}

pub(super) const fn figures(kind: ScriptCall) -> &'static [Figures] {
    use ScriptCall as Call;
    match kind {
        Call::Settings | Call::Config | Call::Start | Call::Stop => &Figures::ALL,
        Call::Step => &[Figures::Marks],
        Call::ThreadLabels | Call::LabelText | Call::BlockLabels => &[Figures::Owners],
        Call::Snapshot => &[Figures::Rows],
        Call::Range | Call::TraceText | Call::TraceRows => &[Figures::PythonTrace],
    }
}

/// A marker of the Python package.
pub(super) fn interpret(kind: ScriptCall, mut call: RawCall<'_>) -> Interpreted {
    use ScriptCall as Call;
    if call.called.phase != Phase::Enter {
        return Ok(None);
    }
    let text = call.called.text.take().unwrap_or_default();
    let field = |field| call.field(field);
    let ids = || Ok(LabelIds::new(field(Field::LabelsLow)?, field(Field::LabelsHigh)?));
    let effect = match kind {
        Call::Settings => Effect::Settings(Settings {
            analyses: field(Field::Analyses)?,
            stack_depths: field(Field::StackDepths)?,
            named: field(Field::Named)?,
        }),
        Call::Config => Effect::Config(Wanted {
            events: field(Field::Events)?,
            levels: field(Field::Levels)?,
            devices: field(Field::Devices)?,
        }),
        Call::Start => Effect::Start,
        Call::Stop => Effect::Stop,
        Call::Step => Effect::Step,
        Call::ThreadLabels => Effect::Labels(ids()?),
        Call::LabelText => Effect::LabelText { id: field(Field::LabelId)? as u16, text },
        Call::TraceText => Effect::TraceText { id: call.half(Field::LabelId)?, text },
        Call::BlockLabels => Effect::LabelBlock { addr: field(Field::Addr)?, ids: ids()? },
        Call::Snapshot => Effect::Snapshot {
            device: call.half(Field::Device)?,
            snapshot: Snapshot {
                name: text.into(),
                reserved_bytes: field(Field::PoolReserved)?,
                max_reserved_bytes: field(Field::PoolMaxReserved)?,
                allocated_bytes: field(Field::PoolAllocated)?,
                max_allocated_bytes: field(Field::PoolMaxAllocated)?,
                total_bytes: field(Field::DeviceTotal)?,
                free_bytes: field(Field::DeviceFree)?,
            },
        },
        Call::Range => Effect::Range { name: text.into(), start_mono_ns: field(Field::StartTime)? },
        Call::TraceRows => return Ok(None),
    };
    Ok(Some(super::Effect::Script(effect)))
}

/// Rows of a script's Python trace.
pub(super) fn interpret_objects(kind: ScriptCall, objects: &Objects<'_>) -> Result<(super::Effect, u64), Unusable> {
    if kind != ScriptCall::TraceRows {
        return Err(Unusable);
    }
    Ok((super::Effect::Script(Effect::TraceRows(trace::rows(objects))), 0))
}

/// The state of one process's script.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Script {
    /// Demands of the coming `config()` besides rows.
    named: Settings,
    /// Of its Python trace.
    texts: TraceTexts,
}

impl Script {
    /// Of a forked child.
    pub(in crate::pipeline) fn child(&self) -> Self {
        Self { named: self.named, texts: self.texts.clone() }
    }

    pub(in crate::pipeline) fn apply(&mut self, effect: Effect, turn: &mut Turn<'_>) {
        match effect {
            Effect::Settings(settings) => self.named = settings,
            // Earlier packages have no further demands.
            Effect::Config(wanted) => configured(std::mem::take(&mut self.named), wanted, turn),
            Effect::Start => collection_starts(turn),
            Effect::Stop => collection_stops(turn),
            Effect::Step => step_called(turn),
            Effect::Labels(ids) => turn.home.collection.labels.of_thread(turn.at.tid, ids),
            Effect::LabelText { id, text } => turn.home.collection.labels.text(id, &text),
            Effect::LabelBlock { addr, ids } => label_block(addr, ids, turn),
            Effect::Snapshot { device, snapshot } => {
                let device = turn.home.devices.physical(device);
                turn.report(device, EventKind::Snapshot(snapshot), true);
            }
            Effect::Range { name, start_mono_ns } => {
                let lasted_ns = turn.mono_ns.checked_sub(start_mono_ns);
                let start_ns = lasted_ns.and_then(|lasted_ns| turn.at.time_ns.checked_sub(lasted_ns));
                let end_ns = Some(turn.at.time_ns);
                turn.emit(turn.device(), EventKind::NamedRange { name, start_ns, end_ns });
            }
            Effect::TraceText { id, text } => self.texts.text(id, &text),
            Effect::TraceRows(rows) => {
                for row in &rows {
                    self.trace_row(row, turn);
                }
            }
        }
    }

    /// A row of the Python trace, which is handed over now.
    fn trace_row(&self, row: &TraceRow, turn: &mut Turn<'_>) {
        let real = |row_mono_ns: u64| match row_mono_ns {
            0 => None,
            known => turn.mono_ns.checked_sub(known).and_then(|before_ns| turn.at.time_ns.checked_sub(before_ns)),
        };
        let (start_ns, end_ns) = (real(row.start_mono_ns), real(row.end_mono_ns));
        let range = EventKind::NamedRange { name: self.texts.of(row), start_ns, end_ns };
        let mut at = turn.at.made_up();
        at.tid = row.tid;
        let mut turn = turn.with(at);
        turn.emit(turn.device(), range);
    }
}

/// The script has named its demands: those that can be met are, and the others are reported once.
fn configured(named: Settings, wanted: Wanted, turn: &mut Turn<'_>) {
    let shared = &mut *turn.shared;
    turn.home.collection.ask(named, named.rows(wanted, shared.wishes.options));
    let mut analyses = named.analyses & 0xffff;
    if !shared.wishes.accesses() {
        analyses &= !AnalysisBit::INEFFICIENT.0;
    }
    shared.out.demand(analyses);
    if AnalysisBit::DECOMPOSE.is_in(analyses) && shared.owners.is_none() && shared.out.takes_demands() {
        shared.owners = Some(Classifier::new(Arc::new(RuleSet::builtin())));
    }
    if let Some(unmet) = shared.wishes.unmet(named, wanted) {
        turn.made_up().report(Device::None, EventKind::Unmet(unmet), true);
    }
    // A script that calls `config()` also calls `start()`, so collection waits for it.
    turn.home.collection.wait_for_start(turn.at.time_ns);
}

/// What ended unwatched is reported, and so is what lives already.
fn collection_starts(turn: &mut Turn<'_>) {
    if !turn.home.collection.start() {
        return;
    }
    let mut turn = turn.made_up();
    turn.report_ended(None);
    for key in turn.home.blocks.in_order() {
        promote(key, &mut turn);
    }
    let free_and_total_bytes = turn.shared.usage.free_and_total_bytes(Device::Npu(0));
    turn.report(Device::None, EventKind::System(System::TraceStart { free_and_total_bytes }), true);
}

/// A block that was only noted is reported as of now (contract §7.3).
fn promote(key: Key, turn: &mut Turn<'_>) {
    if !turn.home.blocks.get(key).is_some_and(|live| live.noted) {
        return;
    }
    let Some((live, _)) = turn.home.blocks.take(key) else { return };
    turn.shared.live = turn.shared.live.saturating_sub(1);
    let block = Block {
        alloc_time_ns: turn.at.time_ns,
        alloc_id: turn.next_event(),
        step: turn.home.steps.of_device(live.block.device),
        kernel_index: turn.kernel_index(),
        ..live.block
    };
    turn.put(key, &Live { block, noted: false, inside: turn.home.steps.inside(), ..live }, None, true);
}

fn collection_stops(turn: &mut Turn<'_>) {
    if turn.home.collection.is_on() {
        turn.made_up().report(Device::None, EventKind::System(System::TraceStop), true);
        turn.home.collection.stop(turn.at.time_ns);
    }
}

/// `step()`: a step of the thread's device ends.
fn step_called(turn: &mut Turn<'_>) {
    if !turn.home.collection.is_on() || !turn.steps_count(true) {
        return;
    }
    let mut turn = turn.made_up();
    let device = turn.device();
    let devices = turn.devices_of_step(device);
    let step = turn.home.steps.call(device);
    turn.emit_if(device, EventKind::Step { step }, true);
    for device in &devices {
        turn.emit_if(*device, EventKind::StepEnd { step }, true);
    }
    for device in devices {
        turn.emit_if(device, EventKind::StepStart { step: step.saturating_add(1) }, true);
    }
}

/// Gives a block of `PyTorch`'s pool that begins at the address labels; on another device than the thread's it is another block.
fn label_block(addr: u64, ids: LabelIds, turn: &mut Turn<'_>) {
    let device = turn.device();
    let Some(pool) = turn.backend().pool_of_operators(PoolOperators::Torch) else { return };
    let key = Key::Pool(pool, addr);
    let Some(live) = turn.home.blocks.get(key) else { return };
    if device != Device::None && live.block.device != device {
        return;
    }
    let (block, labels) = (live.block, ids.over(live.labels));
    let owner = turn.owner_of(&block, labels);
    turn.home.blocks.change(key, |live| {
        (live.labels, live.later_owner) = (labels, owner.filter(|_| owner != block.owner));
    });
}

impl Turn<'_> {
    /// Whether steps are marked by calls, or else by ranges. The first use of the other way, too, is reported.
    pub(in crate::pipeline) fn steps_count(&mut self, by_calls: bool) -> bool {
        let refused_before = self.home.steps.refused();
        let count = self.home.steps.are_marked(by_calls);
        if !count && !refused_before {
            self.report(Device::None, EventKind::StepsRefused, true);
        }
        count
    }

    /// Devices for which a step of a thread with this device is reported: all with blocks, if it is unknown.
    pub(in crate::pipeline) fn devices_of_step(&self, device: Device) -> Vec<Device> {
        if device == Device::None { self.home.blocks.devices() } else { vec![device] }
    }
}
