//! Records in, events out: the core that a live trace and a replay share.
//!
//! ```text
//! feed ─▶ decode ─▶ text ─▶ order ─▶ hold ─▶ process (blocks, steps, clock) ─▶ analyses
//! rows of dumps ─────────────────────────────▶                             └▶ filter ─▶ sinks
//! ```
//!
//! The outcome depends on the bytes alone, not on their splitting or on the time of feeding: a live trace has its
//! watermark in the stream, as [`Note::Watermark`] records, so a replay of the capture has the same outcome.

mod blocks;
#[cfg(feature = "trace")]
pub(crate) mod calls;
mod clock;
mod domains;
mod dumped;
mod found;
mod hold;
mod item;
mod labels;
mod looks;
mod loss;
mod mixed;
mod order;
mod output;
mod process;
mod recent;
mod renewal;
mod replay;
mod rows;
mod stacks;
mod steps;
mod store;
#[cfg(test)]
mod tests;
mod text;
#[cfg(feature = "trace")]
mod to_look_at;
mod turn;
mod usage;
mod wishes;

use std::sync::Arc;

use self::clock::Clock;
use self::domains::torch::Operators;
use self::domains::{Effect, interpret_objects};
use self::hold::{HOLD_NS, Hold};
use self::item::{Called, Head, Item, StackIds};
use self::looks::Looks;
use self::loss::{Losses, Own};
use self::order::{Order, WINDOW};
use self::output::Output;
use self::process::{Process, known_settings};
use self::renewal::Renewal;
use self::rows::Rows;
use self::stacks::{Code, NativeOf, PythonOf, StackTable};
use self::text::Texts;
use self::turn::{At, Origin, Shared};
use self::usage::Usage;
use self::wishes::Wishes;
use crate::analyses::Finding;
use crate::analyses::decompose::{Classifier, RuleSet};
use crate::backend::Backend;
use crate::capture::{Collected, LossCount, Note};
use crate::decode::{Body, Phase, Record, Records, notes};
use crate::hash::HashMap;
use crate::model::{Device, Event, EventKind, FreeCause, Kept, ProcessStart, RunEnd, Stacks};
use crate::probes::{CallKind, RowInfo};
use crate::sinks::SinkError;

pub(crate) use dumped::{Dumped, DumpedOutcome};
pub use output::{Audience, DeviceFilter, DumpFilter, Npus, Outcome};
#[cfg(feature = "trace")]
pub(crate) use process::visible_devices;
pub use replay::{ReplayReport, replay, replay_from};
#[cfg(feature = "trace")]
pub(crate) use to_look_at::ToLookAt;
pub use wishes::{Demand, MakeAnalyses, RowBits};

/// Most processes followed at once: more than a kernel has process numbers by default.
const MAX_PROCESSES: usize = 1 << 20;

/// Facts that a pipeline needs before the first record.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct PipelineConfig {
    /// The meaning of calls' values.
    pub backend: &'static dyn Backend,
    /// Probe rows: row *n* is at index *n* - 1. Later ones come in [`Note::Rows`].
    pub rows: Vec<RowInfo>,
    /// `CLOCK_MONOTONIC` at the start, in nanoseconds.
    pub start_mono_ns: u64,
    /// Nanoseconds since the Unix epoch at the same moment.
    pub start_real_ns: u64,
    /// Which rows are written.
    pub dump: DumpFilter,
    /// The rules that name owners in rows; `None`: rows have no owners.
    pub owners: Option<Arc<RuleSet>>,
    /// Native and Python stacks are merged, where a call has both.
    pub mixed_stacks: bool,
    /// A process is reported only once its script starts to collect.
    pub deferred: bool,
    /// Launches have no numbers: the level is not `kernel`, or launches are not among the events. Blocks are then of
    /// kernel 0, as in msMemScope (contract §8.2), even if launches are probed for other reasons.
    pub uncounted_launches: bool,
    /// Data that the kernel side collects; `None` if unknown. Scripts that ask for more get a message.
    pub collected: Option<Collected>,
    /// The options' choice of rows, which scripts can change; without it, scripts choose among the rows of `dump`.
    pub rows_of_options: Option<RowBits>,
    /// Makes the analyses that scripts ask for; without it, there are only those of the options.
    pub demand: Option<Demand>,
    /// Owns the run's call stacks; without it, the pipeline makes its own.
    pub kept: Option<Kept>,
    /// Call stacks that no live block has are given back when their table is half full. For listeners that keep no stack, or move theirs.
    pub renews_stacks: bool,
    /// Times go back where the wall clock is set back by more than a second. For runs of months that keep no rows.
    pub follows_clock_back: bool,
}

/// Makes events out of records.
pub struct Pipeline {
    rows: Rows,
    texts: Texts,
    order: Order,
    hold: Hold,
    clock: Clock,
    processes: HashMap<u32, Process>,
    shared: Shared,
    losses: Losses,
    operators: Operators,
    stacks: StackTable,
    own: Own,
    looks: Looks,
    renewal: Option<Renewal>,
    /// Calls since they were taken by which a look becomes urgent.
    #[cfg(feature = "trace")]
    urgent: to_look_at::Urgent,
    wanted_steps: Arc<[u32]>,
    deferred: bool,
    records: u64,
    last_ns: u64,
    end_reason: Option<String>,
    ready: Vec<Called>,
}

impl Pipeline {
    /// Whether calls of this kind are probed.
    pub(crate) fn has_row(&self, meaning: CallKind) -> bool {
        self.rows.have(meaning)
    }

    /// A pipeline that gives its events to these.
    #[must_use]
    pub fn new(config: PipelineConfig, audience: Audience) -> Self {
        let wanted_steps = config.dump.steps.as_slice().into();
        let oom_blocks = config.dump.oom_blocks;
        let out = Output::new(config.dump, audience, config.demand);
        let wishes = Wishes::new(config.collected, config.mixed_stacks, config.rows_of_options);
        Self {
            rows: Rows::new(config.backend, config.rows),
            texts: Texts::default(),
            order: Order::new(WINDOW),
            hold: Hold::new(WINDOW),
            clock: Clock::new(config.start_mono_ns, config.start_real_ns).following_back(config.follows_clock_back),
            processes: HashMap::default(),
            shared: Shared {
                oom_blocks,
                owned_by_options: config.owners.is_some(),
                owners: config.owners.map(Classifier::new),
                uncounted_launches: config.uncounted_launches,
                wishes,
                ..Shared::new(config.backend, out)
            },
            losses: Losses::default(),
            operators: Operators::default(),
            stacks: StackTable::new(config.mixed_stacks, config.kept.unwrap_or_else(Kept::of_run)),
            own: Own::default(),
            looks: Looks::default(),
            renewal: config.renews_stacks.then(Renewal::new),
            #[cfg(feature = "trace")]
            urgent: to_look_at::Urgent::default(),
            wanted_steps,
            deferred: config.deferred,
            records: 0,
            last_ns: 0,
            end_reason: None,
            ready: Vec::new(),
        }
    }

    /// Takes whole records, in the order of their arrival.
    ///
    /// # Errors
    ///
    /// When an output cannot be written, once per cause. All outputs go on, and may recover.
    pub fn feed(&mut self, records: &[u8]) -> Result<(), SinkError> {
        for record in Records::new(records) {
            match record {
                Ok(record) => self.take(&record),
                Err(_) => self.own.undecodable += 1,
            }
        }
        self.shared.out.error()
    }

    /// Takes whole records and reads only the notes among them, which show how the trace went.
    ///
    /// # Errors
    ///
    /// As those of [`feed`](Self::feed).
    pub fn feed_notes(&mut self, records: &[u8]) -> Result<(), SinkError> {
        for note in notes(records) {
            self.feed(note)?;
        }
        self.shared.out.error()
    }

    /// Releases all items older than `watermark_mono_ns`: no older ones are expected.
    ///
    /// A trace that is captured feeds a [`Note::Watermark`] instead, so that its replay does the same.
    pub fn advance(&mut self, watermark_mono_ns: u64) -> Result<(), SinkError> {
        self.let_go(watermark_mono_ns);
        self.shared.out.error()
    }

    /// Writes all output to where another process can read it.
    pub fn flush(&mut self) -> Result<(), SinkError> {
        self.order.calm();
        self.hold.calm();
        self.shared.out.flush();
        self.shared.out.error()
    }

    /// Findings of the analyses so far.
    #[must_use]
    pub fn now(&self) -> Vec<Finding> {
        self.shared.out.now()
    }

    /// Ends the trace. `losses` are the kernel side's last totals, if they did not come as [`Note::Losses`].
    #[must_use]
    pub fn finish(mut self, losses: &[LossCount]) -> Outcome {
        self.texts.overdue(u64::MAX, &mut self.ready);
        self.order_ready();
        while let Some(item) = self.order.pop(None) {
            self.hold(item);
        }
        while let Some(item) = self.hold.pop(None) {
            self.apply(item);
        }
        let time_ns = self.clock.real(self.last_ns);
        let mut left: Vec<_> = std::mem::take(&mut self.processes).into_iter().collect();
        left.sort_unstable_by_key(|(pid, _)| *pid);
        for (pid, mut process) in left {
            process.is_over(At::new(time_ns, pid), FreeCause::TraceEnd, &mut self.shared);
        }
        self.losses.update(losses);
        let (late, overfull, blocks_full) = (self.order.late, self.order.overfull, self.shared.blocks_full);
        let (errors, unwritten) = self.shared.out.finish();
        let mislocated = self.shared.mislocated;
        let lost_stacks = self.stacks.lost;
        let own = Own { lost_stacks, mislocated, blocks_full, unwritten, late, overfull, ..self.own };
        let (lost, losses) = (self.losses.lost(), self.losses.lines(&self.rows, &own));
        let start_ns = self.shared.out.start_ns();
        let end = RunEnd { start_ns, time_ns, lost, losses, cut_stacks: self.stacks.cut(), ..RunEnd::default() };
        let findings = self.shared.out.conclude(&end);
        Outcome { findings, end, end_reason: self.end_reason, records: self.records, errors, kept: self.stacks.kept }
    }

    fn take(&mut self, record: &Record<'_>) {
        let Record { time_ns, pid, tid, row, outer, .. } = *record;
        let head = Head { time_ns, seq: self.records, pid, tid, row, outer, stacks: StackIds::default() };
        self.records += 1;
        match record.body {
            Body::Call(call) => {
                self.own.unreadable_texts += u64::from(call.text_fault);
                let left = call.phase == Phase::Return && self.rows.get(row).is_none_or(|probe| !probe.info.own_return);
                let stacks = StackIds { native: call.native_stack, python: call.python_stack, returned: left };
                let head = Head { stacks, ..head };
                self.texts.call(head, &call, self.rows.has_text(row), &mut self.ready);
                self.order_ready();
            }
            Body::TextPart(part) => {
                self.own.unreadable_texts += u64::from(part.fault);
                let known = !self.rows.has_text(row) || self.texts.part(head, &part, &mut self.ready);
                self.own.stray_texts += u64::from(!known);
                self.order_ready();
            }
            Body::Objects(objects) => {
                match interpret_objects(self.shared.backend, self.rows.get(row), &objects, &self.operators) {
                    Ok((effect, left_out)) => {
                        let (native, python) = (objects.native_stack, objects.python_stack);
                        let head = Head { stacks: StackIds { native, python, returned: false }, ..head };
                        self.own.tensors += left_out;
                        self.order(Item { head, effect });
                    }
                    Err(_) => self.own.unusable += 1,
                }
            }
            Body::Fork { child, .. } => self.order(Item { head, effect: Effect::Fork { child } }),
            Body::Exec { .. } => self.order(Item { head, effect: Effect::Exec }),
            Body::Stack(stack) => self.stacks.file(&stack),
            Body::Code(code) => {
                let (address, fingerprint) = (code.address, code.fingerprint);
                let code = Arc::new(Code::of(&code));
                self.order(Item { head, effect: Effect::Code { address, fingerprint, code } });
            }
            Body::Library { .. } => {}
            Body::Note(json) => self.note(head, json),
            Body::Unknown { .. } => self.own.unknown += 1,
        }
    }

    /// Notes about the stream act at once, those about the traced programs in time order.
    fn note(&mut self, head: Head, json: &[u8]) {
        match Note::parse(json) {
            Ok(Note::Watermark { mono_ns }) => self.let_go(mono_ns),
            Ok(Note::Rows { first, rows }) => self.rows.extend(first, rows),
            Ok(Note::Operators { first, layout, operators }) => self.operators.extend(first, layout, operators),
            Ok(Note::Losses { by }) => self.losses.update(&by),
            Ok(Note::Late { rows, operators, gone }) => self.losses.late(&rows, operators, gone),
            Ok(Note::Symbols { generation, symbols }) => self.stacks.symbols(generation, &symbols),
            Ok(Note::LookBegins { look, pid, at, places }) => {
                if let Some(process) = self.processes.get(&pid) {
                    self.looks.begin((look, pid), at, &places, process.blocks());
                }
            }
            Ok(Note::Unknown) => self.own.unknown += 1,
            Ok(note) => self.order(Item { head, effect: Effect::Note(Box::new(note)) }),
            Err(_) => self.own.undecodable += 1,
        }
    }

    fn let_go(&mut self, watermark_ns: u64) {
        self.texts.overdue(watermark_ns, &mut self.ready);
        self.order_ready();
        while let Some(item) = self.order.pop(Some(watermark_ns)) {
            self.hold(item);
        }
        while let Some(item) = self.hold.pop(Some(watermark_ns.saturating_sub(HOLD_NS))) {
            self.apply(item);
        }
        if self.shared.oom_pending > 0 {
            // Between the items that have left and those that may come.
            let time_ns = self.clock.real(watermark_ns.saturating_sub(HOLD_NS).max(self.last_ns));
            // In the order of their numbers: a replay's rows are those of the trace.
            let mut processes: Vec<_> = self.processes.iter_mut().collect();
            processes.sort_unstable_by_key(|(pid, _)| **pid);
            for (_, process) in processes {
                process.waited_long_enough(time_ns, &mut self.shared);
            }
        }
        self.renew_stacks();
    }

    /// Sends on the calls with complete texts.
    fn order_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        for called in ready.drain(..) {
            let head = called.head;
            match self.rows.interpret(called) {
                Ok(Some(effect)) => {
                    #[cfg(feature = "trace")]
                    self.urgent.see(head.pid, &effect, self.shared.backend);
                    self.order(Item { head, effect });
                }
                Ok(None) => {}
                Err(_) => self.own.unusable += 1,
            }
        }
        self.ready = ready;
    }

    fn order(&mut self, item: Item) {
        if let Some(item) = self.order.push(item) {
            self.hold(item);
        }
    }

    fn hold(&mut self, item: Item) {
        if let Some(item) = self.hold.push(item) {
            self.apply(item);
        }
    }

    fn apply(&mut self, Item { head, effect }: Item) {
        self.last_ns = self.last_ns.max(head.time_ns);
        let time_ns = self.clock.real(head.time_ns);
        let at = At { stacks: self.stacks_of(&head), ..At::new(time_ns, head.tid) };
        match effect {
            Effect::Note(note) => self.apply_note(time_ns, *note),
            Effect::Fork { child } => self.fork((head.pid, head.tid), child),
            effect => {
                let Some((process, shared)) = self.process(head.pid) else {
                    return;
                };
                let begins = process.begins_to_work(&effect);
                match effect {
                    Effect::Exec => process.exec(at, shared),
                    effect => process.apply(at, Origin::from(&head), effect, shared),
                }
                if begins {
                    self.losses.works(head.pid);
                }
            }
        }
    }

    /// The stacks of a call.
    fn stacks_of(&mut self, head: &Head) -> Stacks {
        let StackIds { native, python, returned } = head.stacks;
        let returned = self.rows.symbol(head.row).filter(|_| returned).map(|symbol| (head.row, symbol));
        let codes = self.processes.get(&head.pid).map(Process::codes);
        let native = native.map(|id| NativeOf { id, returned });
        let python = python.map(|id| PythonOf { id, pid: head.pid, codes });
        self.stacks.find(native.as_ref(), python)
    }

    fn apply_note(&mut self, time_ns: u64, note: Note) {
        match note {
            Note::ProcessStart { pid, parent, attached, command, visible_devices, pid_within, device } => {
                let start = ProcessStart { parent, attached, command: command.into(), pid_within };
                let at = At::new(time_ns, pid);
                if let Some((process, shared)) = self.process(pid) {
                    process.started(at, start, visible_devices.as_deref(), device, shared);
                }
            }
            Note::Settings { pid, settings } => {
                let kind = EventKind::Settings(known_settings(&settings));
                let (device, stacks) = (Device::None, Stacks::default());
                // Not a call of the process, so its events are not counted by it.
                self.shared.out.event(&Event { id: 0, time_ns, pid, tid: pid, device, stacks, kind }, false, true);
            }
            Note::ProcessEnd { pid } => {
                if let Some(mut process) = self.processes.remove(&pid) {
                    process.end(At::new(time_ns, pid), &mut self.shared);
                }
            }
            Note::Clock { mono_ns, real_ns } => self.clock.sample(mono_ns, real_ns),
            Note::Usage { device, used_bytes, total_bytes, processes } => {
                let device = Device::Npu(device);
                let usage = self.shared.usage.update(device, (used_bytes, total_bytes), processes);
                let kind = EventKind::DeviceUsage(usage);
                // Of no process, so no sink has a place for it.
                let stacks = Stacks::default();
                self.shared.out.event(&Event { id: 0, time_ns, pid: 0, tid: 0, device, stacks, kind }, false, true);
            }
            note @ (Note::LookEnds { .. } | Note::NoLook { .. }) => self.apply_look(time_ns, note),
            note
            @ (Note::PoolAsked { .. } | Note::PoolHeld { .. } | Note::PoolFound { .. } | Note::PoolRead { .. }) => {
                self.apply_pool(time_ns, note);
            }
            Note::PoolBlocks { pid, traced } => {
                if let Some((process, shared)) = self.process(pid) {
                    process.trace_pool_blocks(At::new(time_ns, pid), traced, shared);
                }
            }
            Note::UsageEnded => self.shared.usage = Usage::default(),
            Note::End { reason } => self.end_reason = Some(reason),
            Note::Watermark { .. }
            | Note::Rows { .. }
            | Note::Operators { .. }
            | Note::Symbols { .. }
            | Note::Losses { .. }
            | Note::Late { .. }
            | Note::LookBegins { .. }
            | Note::Unknown => {}
        }
    }

    fn fork(&mut self, (parent, thread): (u32, u32), child: u32) {
        let wanted = &self.wanted_steps;
        let forked = match self.processes.get(&parent) {
            Some(parent) => parent.child(thread, child, Arc::clone(wanted)),
            None => Process::new(child, Arc::clone(wanted), self.deferred),
        };
        if self.processes.len() < MAX_PROCESSES {
            self.processes.entry(child).or_insert(forked);
        }
    }

    /// The process, made if it is new; `None` beyond the limit.
    fn process(&mut self, pid: u32) -> Option<(&mut Process, &mut Shared)> {
        if !self.processes.contains_key(&pid) {
            if self.processes.len() >= MAX_PROCESSES {
                self.own.processes_full += 1;
                return None;
            }
            self.processes.insert(pid, Process::new(pid, Arc::clone(&self.wanted_steps), self.deferred));
        }
        self.processes.get_mut(&pid).map(|process| (process, &mut self.shared))
    }
}
