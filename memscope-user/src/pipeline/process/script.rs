//! What the program's script says by the Python package: when to collect, where steps end, whose memory is (contract §7.3, §8.5, §9).

use std::sync::Arc;

use super::super::blocks::{Key, Live};
use super::super::item::{ScriptCall, Wanted};
use super::super::labels::{LabelIds, Labels};
use super::super::output::{DeviceFilter, DumpFilter, Npus};
use super::super::trace::{TraceRow, TraceTexts};
use super::super::wishes::{AnalysisBit, Rows, Settings};
use super::{At, Process, Shared};
use crate::analyses::decompose::{Classifier, RuleSet, owner};
use crate::model::{Block, Device, Event, EventKind, Free, FreeCause, Name, Pool, System};

/// State of one process's script.
#[derive(Debug)]
pub(super) struct Script {
    /// Whether what happens is told.
    collecting: bool,
    /// It has been told to, at least once.
    started: bool,
    /// How `collecting` begins.
    deferred: bool,
    /// When collecting ended.
    stopped_ns: u64,
    /// What the coming `config()` names besides rows.
    named: Settings,
    /// What it has asked for.
    asked: Settings,
    /// Which rows.
    wanted: Option<Rows>,
    labels: Labels,
    /// Of its Python trace.
    texts: TraceTexts,
    /// Blocks that ended while nothing was collected, and that were told before.
    ended: Vec<Live>,
}

impl Script {
    /// One that has said nothing. `deferred`: nothing is collected until it says so.
    pub(super) fn new(deferred: bool) -> Self {
        Self {
            collecting: !deferred,
            started: false,
            deferred,
            stopped_ns: 0,
            named: Settings::default(),
            asked: Settings::default(),
            wanted: None,
            labels: Labels::default(),
            texts: TraceTexts::default(),
            ended: Vec::new(),
        }
    }

    /// That of a child that thread `parent` has forked.
    pub(super) fn child(&self, parent: u32, child: u32) -> Self {
        let (wanted, labels) = (self.wanted.clone(), self.labels.child(parent, child));
        Self { wanted, labels, texts: self.texts.clone(), ended: Vec::new(), ..*self }
    }

    /// That of another program in its place.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.deferred)
    }

    /// Whether what happens is told.
    pub(super) const fn collecting(&self) -> bool {
        self.collecting
    }

    /// Whether the script wants a row of the event, and whether the tracer's options have a say, too.
    pub(super) fn wants(&self, event: &Event) -> (bool, bool) {
        self.wanted.as_ref().map_or((true, true), |Rows { filter, adds }| (filter.passes(event), !adds))
    }

    /// How many blocks are named when memory is out, if the script asks for it.
    pub(super) const fn oom_blocks(&self) -> Option<usize> {
        self.asked.oom_blocks()
    }
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

impl Process {
    /// The script says something, at `mono_ns` by the records' clock.
    pub(super) fn script(&mut self, at: At, mono_ns: u64, call: ScriptCall, shared: &mut Shared) {
        match call {
            ScriptCall::Settings(settings) => self.script.named = settings,
            ScriptCall::Config(wanted) => {
                self.configured(at, wanted, shared);
                // Who sets something starts by himself.
                if self.script.collecting && !self.script.started {
                    (self.script.collecting, self.script.stopped_ns) = (false, at.time_ns);
                }
            }
            ScriptCall::Start => self.collection_starts(at, shared),
            ScriptCall::Stop => self.collection_stops(at, shared),
            ScriptCall::Step => self.step_called(at, shared),
            ScriptCall::Labels(ids) => self.script.labels.of_thread(at.tid, ids),
            ScriptCall::LabelText { id, text } => self.script.labels.text(id, &text),
            ScriptCall::LabelBlock { addr, ids } => self.label_block(at, addr, ids, shared),
            ScriptCall::Snapshot { device, snapshot } => {
                let device = Device::Npu(self.physical_device(device));
                self.tell(at, device, EventKind::Snapshot(snapshot), true, shared);
            }
            ScriptCall::Range { name, start_mono_ns } => {
                let lasted_ns = mono_ns.checked_sub(start_mono_ns);
                let start_ns = lasted_ns.and_then(|lasted_ns| at.time_ns.checked_sub(lasted_ns));
                self.emit_range(at, EventKind::NamedRange { name, start_ns, end_ns: Some(at.time_ns) }, shared);
            }
            ScriptCall::TraceText { id, text } => self.script.texts.text(id, &text),
            ScriptCall::TraceRows(rows) => {
                for row in &rows {
                    self.trace_row(at, mono_ns, row, shared);
                }
            }
        }
    }

    /// The script says what it wants: what can be had is, and what cannot is told once.
    fn configured(&mut self, at: At, wanted: Wanted, shared: &mut Shared) {
        // Packages of before have said nothing besides.
        let named = std::mem::take(&mut self.script.named);
        self.script.asked = named;
        self.script.wanted = Some(named.rows(wanted, shared.wishes.options));
        let mut analyses = named.analyses & 0xffff;
        if !shared.wishes.accesses() {
            analyses &= !AnalysisBit::INEFFICIENT.0;
        }
        shared.out.demand(analyses);
        if AnalysisBit::DECOMPOSE.is_in(analyses) && shared.owners.is_none() && shared.out.takes_demands() {
            shared.owners = Some(Classifier::new(Arc::new(RuleSet::builtin())));
        }
        if let Some(unmet) = shared.wishes.unmet(named, wanted) {
            self.tell(at.made_up(), Device::None, EventKind::Unmet(unmet), true, shared);
        }
    }

    fn emit_range(&mut self, at: At, range: EventKind, shared: &mut Shared) {
        let device = self.device_of(at.tid);
        self.emit(at, device, range, self.steps.inside(), shared);
    }

    /// A row of the Python trace, which was handed over at `mono_ns`.
    fn trace_row(&mut self, at: At, mono_ns: u64, row: &TraceRow, shared: &mut Shared) {
        let real = |row_mono_ns: u64| match row_mono_ns {
            0 => None,
            told => mono_ns.checked_sub(told).and_then(|before_ns| at.time_ns.checked_sub(before_ns)),
        };
        let (start_ns, end_ns) = (real(row.start_mono_ns), real(row.end_mono_ns));
        let range = EventKind::NamedRange { name: self.script.texts.of(row), start_ns, end_ns };
        self.emit_range(At { tid: row.tid, ..at.made_up() }, range, shared);
    }

    /// What ended unwatched is told, and so is what lives already.
    fn collection_starts(&mut self, at: At, shared: &mut Shared) {
        let known = self.script.collecting && self.script.started;
        (self.script.collecting, self.script.started) = (true, true);
        if known {
            return;
        }
        let at = at.made_up();
        self.tell_ended(at, None, shared);
        for key in self.blocks.in_order() {
            self.promote(at, key, shared);
        }
        let free_and_total_bytes = shared.usage.free_and_total_bytes(Device::Npu(0));
        let start = EventKind::System(System::TraceStart { free_and_total_bytes });
        self.tell(at, Device::None, start, true, shared);
    }

    /// A block that was only noted is told as of now (contract §7.3).
    fn promote(&mut self, at: At, key: Key, shared: &mut Shared) {
        if !self.blocks.get(key).is_some_and(|live| live.noted) {
            return;
        }
        let Some((live, _)) = self.blocks.take(key) else { return };
        shared.live = shared.live.saturating_sub(1);
        let block = Block {
            alloc_time_ns: at.time_ns,
            alloc_id: self.next_event,
            step: self.steps.of_device(live.block.device),
            kernel_index: self.kernel_index(shared),
            ..live.block
        };
        let live = Live { block, noted: false, inside: self.steps.inside(), ..live };
        self.put(at, key, live, None, true, shared);
    }

    fn collection_stops(&mut self, at: At, shared: &mut Shared) {
        if !self.script.collecting {
            return;
        }
        let at = at.made_up();
        self.tell(at, Device::None, EventKind::System(System::TraceStop), true, shared);
        (self.script.collecting, self.script.started, self.script.stopped_ns) = (false, true, at.time_ns);
    }

    /// Remembers a block that has ended while nothing is collected.
    pub(super) fn ended_unwatched(&mut self, live: Live, shared: &mut Shared) {
        // It still takes room.
        shared.live += 1;
        self.script.ended.push(live);
    }

    /// Takes a block back that did not end unwatched after all.
    pub(super) fn did_not_end(&mut self, allocation_id: u64, shared: &mut Shared) -> bool {
        let is_it = |live: &Live| live.block.allocation_id == allocation_id;
        let Some(index) = self.script.ended.iter().rposition(is_it) else { return false };
        self.script.ended.remove(index);
        shared.live = shared.live.saturating_sub(1);
        true
    }

    /// Tells of blocks that ended unwatched.
    pub(super) fn tell_ended(&mut self, at: At, row_time_ns: Option<u64>, shared: &mut Shared) {
        for Live { block, inside, later_owner, .. } in std::mem::take(&mut self.script.ended) {
            shared.live = shared.live.saturating_sub(1);
            let free = Free {
                block,
                used_bytes: self.blocks.used_bytes(block.pool, block.device),
                total_bytes: None,
                driver: shared.usage.of(self.pid, block.device),
                cause: FreeCause::Unwatched,
                owner: later_owner,
                row_time_ns,
                without_row: false,
            };
            self.tell(at, block.device, EventKind::Free(free), inside, shared);
        }
    }

    /// What rows have for a time that tell of ends after collection has stopped: just behind the stop (contract §7.3, §7.4).
    pub(super) fn time_behind_stop(&self) -> Option<u64> {
        (!self.script.collecting).then(|| self.script.stopped_ns.saturating_add(1))
    }

    /// `step()`: a step of the thread's device ends.
    fn step_called(&mut self, at: At, shared: &mut Shared) {
        if !self.script.collecting || !self.steps_count(at, true, shared) {
            return;
        }
        let at = at.made_up();
        let device = self.device_of(at.tid);
        let devices = if device == Device::None { self.blocks.devices() } else { vec![device] };
        let step = self.steps.call(device);
        self.emit(at, device, EventKind::Step { step }, true, shared);
        for device in &devices {
            self.emit(at, *device, EventKind::StepEnd { step }, true, shared);
        }
        for device in devices {
            self.emit(at, device, EventKind::StepStart { step: step.saturating_add(1) }, true, shared);
        }
    }

    /// Whether steps are marked by calls, or else by ranges. Once it is told that the other way is there, too.
    pub(super) fn steps_count(&mut self, at: At, by_calls: bool, shared: &mut Shared) -> bool {
        let refused_before = self.steps.refused();
        let count = self.steps.are_marked(by_calls);
        if !count && !refused_before {
            self.tell(at, Device::None, EventKind::StepsRefused, true, shared);
        }
        count
    }

    /// Labels of what the thread allocates.
    pub(super) fn labels_of(&self, tid: u32) -> LabelIds {
        self.script.labels.at(tid)
    }

    /// Gives a block of `PyTorch`'s pool that begins at the address labels; on another device than the thread's it is another block.
    fn label_block(&mut self, at: At, addr: u64, ids: LabelIds, shared: &mut Shared) {
        let device = self.device_of(at.tid);
        let key = Key::Pool(Pool::Pta, addr);
        let Some(live) = self.blocks.get(key) else { return };
        if device != Device::None && live.block.device != device {
            return;
        }
        let (block, labels) = (live.block, ids.over(live.labels));
        let owner = self.owner_of(&block, labels, shared);
        self.blocks.change(key, |live| {
            (live.labels, live.later_owner) = (labels, owner.filter(|_| owner != block.owner));
        });
    }

    /// Whose a block is: by its labels, and by the rules where its labels leave that open. Nobody's if nobody wants to know.
    pub(super) fn owner_of(&self, block: &Block, ids: LabelIds, shared: &mut Shared) -> Option<Name> {
        if !shared.owned_by_options && !AnalysisBit::DECOMPOSE.is_in(self.script.asked.analyses) {
            return None;
        }
        let rules = shared.owners.as_mut()?;
        let by_rules = rules.owner(&Block { owner: None, ..*block });
        if ids.is_empty() {
            return by_rules;
        }
        let [framework, system, user] = self.script.labels.texts(ids);
        // A label of level 0 stands in place of the allocator's name. Host memory has none.
        let replaced = !framework.is_empty() && block.pool != Pool::Host;
        let base = match (replaced, system.is_empty()) {
            (true, _) => None,
            (false, true) => by_rules,
            (false, false) => owner(block.pool, block.module_id, &system),
        };
        let base = if replaced { system.as_str() } else { base.map_or("", Name::as_str) };
        let parts = [framework.as_str(), base, &user];
        let given = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("@");
        let given = (!given.is_empty()).then(|| Name::keep(&given));
        rules.owner(&Block { owner: given, ..*block })
    }
}
