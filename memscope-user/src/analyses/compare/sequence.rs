//! The operators and kernels of a run, with their figures.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use super::Figures;
use crate::analyses::Observer;
use crate::hash::HashMap;
use crate::model::{Device, Event, EventKind, FreeCause, OpPhase, Pool, RunEnd, StepsFrom, UnknownFree};

/// Most threads with followed operators.
const MAX_THREADS: usize = 64 << 10;
/// Open operators of one thread.
const MAX_DEPTH: usize = 256;

/// The choice of entries to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Which {
    /// Operators, when they end.
    pub op: bool,
    /// Kernel launches.
    pub kernel: bool,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// An operator.
    Op,
    /// A kernel launch.
    Kernel,
}

/// An operator or a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its kind.
    pub kind: EntryKind,
    /// Number of its name.
    pub name: u32,
    /// Its name is only an address, which means nothing in another run.
    pub nameless: bool,
    /// See [`Figures::next_bytes`].
    pub next_bytes: u64,
    /// See [`Figures::delta_bytes`].
    pub delta_bytes: i64,
}

impl Entry {
    /// Its figures.
    #[must_use]
    pub const fn figures(&self) -> Figures {
        Figures { next_bytes: self.next_bytes, delta_bytes: self.delta_bytes }
    }
}

/// Names of entries, shared by both runs.
#[derive(Clone, Debug, Default)]
pub struct Names {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl Names {
    fn number(&mut self, name: &Arc<str>) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(Arc::clone(name));
        self.numbers.insert(Arc::clone(name), number);
        number
    }

    /// The name of a number.
    #[must_use]
    pub fn text(&self, number: u32) -> Arc<str> {
        self.texts.get(number as usize).cloned().unwrap_or_default()
    }
}

/// The entries of a run by device.
#[derive(Debug, Default)]
pub struct Sequences {
    devices: BTreeMap<u32, OfDevice>,
    frameworks: BTreeSet<Pool>,
    /// The origin of the step, if the entries are of one.
    pub(super) steps_from: StepsFrom,
}

#[derive(Debug, Default)]
struct OfDevice {
    entries: Vec<Entry>,
    /// The first entry without a figure of the reference yet.
    open: usize,
}

impl Sequences {
    /// Devices with entries.
    pub(super) fn devices(&self) -> impl Iterator<Item = u32> {
        self.devices.iter().filter(|(_, of)| !of.entries.is_empty()).map(|(device, _)| *device)
    }

    /// Entries of a device.
    pub(super) fn of(&self, device: u32) -> &[Entry] {
        self.devices.get(&device).map_or(&[], |of| &of.entries)
    }

    /// The origin of the step; unset if the entries are of all steps.
    #[must_use]
    pub const fn steps_from(&self) -> StepsFrom {
        self.steps_from
    }

    /// Whether there is no entry at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices().next().is_none()
    }

    /// Frameworks with blocks.
    pub(super) fn frameworks(&self) -> BTreeSet<Pool> {
        self.frameworks.clone()
    }
}

/// Takes the sequences out of a run's events, and sends them when the run has ended.
#[derive(Debug)]
pub struct Recorder {
    recording: Recording,
    out: Sender<Recorded>,
}

/// A run's entries, and the names of all runs so far.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The run's entries.
    pub sequences: Sequences,
    /// Names.
    pub names: Names,
}

/// A recording under way.
#[derive(Debug)]
pub(super) struct Recording {
    which: Which,
    names: Names,
    sequences: Sequences,
    threads: HashMap<(u32, u32), Thread>,
    /// Processes and devices with recorded entries; `None`: all of them.
    within: Option<BTreeSet<(u32, Device)>>,
}

/// Account of a thread.
#[derive(Debug, Default)]
struct Thread {
    /// Allocated less freed.
    bytes: i64,
    /// It had an event since the start of the events.
    started: bool,
    /// The same at its last kernel launch, and its last operator that ended.
    at_launch: i64,
    at_end: i64,
    /// Operators that have begun, with the thread's bytes before.
    open: Vec<(u32, i64)>,
}

impl Recorder {
    /// Records with these names; and the receiver.
    #[must_use]
    pub fn new(which: Which, names: Names) -> (Self, Receiver<Recorded>) {
        let (out, recorded) = mpsc::channel();
        (Self { recording: Recording::new(which, names), out }, recorded)
    }
}

impl Recording {
    pub(super) fn new(which: Which, names: Names) -> Self {
        Self { which, names, sequences: Sequences::default(), threads: HashMap::default(), within: None }
    }

    /// Takes the recording.
    pub(super) fn take(&mut self) -> Recorded {
        Recorded { sequences: std::mem::take(&mut self.sequences), names: std::mem::take(&mut self.names) }
    }

    /// Records the entries [`within`](Self::within) a part, not all of them.
    pub(super) fn only_within(self) -> Self {
        Self { within: Some(BTreeSet::new()), ..self }
    }

    /// From here on entries of a process on a device are recorded, or not.
    pub(super) fn within(&mut self, pid: u32, device: Device, is_within: bool) {
        let within = self.within.get_or_insert_default();
        if is_within {
            within.insert((pid, device));
        } else {
            within.remove(&(pid, device));
        }
    }

    fn thread(&mut self, event: &Event) -> Option<&mut Thread> {
        let key = (event.pid, event.tid);
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&key) {
            return None;
        }
        let thread = self.threads.entry(key).or_default();
        thread.started |= !matches!(&event.kind, EventKind::Alloc(alloc) if alloc.restored);
        Some(thread)
    }

    /// A row of a framework's pool is the next one of all entries without a figure (contract §8.4).
    fn pool_row(&mut self, pool: Pool, device: Device, size_bytes: u64) {
        if !pool.is_framework() {
            return;
        }
        let sequences = &mut self.sequences;
        sequences.frameworks.insert(pool);
        if let Device::Npu(number) = device {
            let OfDevice { entries, open } = sequences.devices.entry(number).or_default();
            entries[*open..].iter_mut().for_each(|entry| entry.next_bytes = size_bytes);
            *open = entries.len();
        }
    }

    fn changed(&mut self, event: &Event, pool: Pool, change: i64) {
        if !pool.is_framework() {
            return;
        }
        if let Some(thread) = self.thread(event) {
            thread.bytes = thread.bytes.saturating_add(change);
            if !thread.started {
                // Live at the start of the events: of no operator or kernel that was seen.
                (thread.at_launch, thread.at_end) = (thread.bytes, thread.bytes);
            }
        }
    }

    fn entry(&mut self, event: &Event, kind: EntryKind, name: &Arc<str>, delta_bytes: i64) {
        let Device::Npu(number) = event.device else { return };
        if self.within.as_ref().is_some_and(|within| !within.contains(&(event.pid, event.device))) {
            return;
        }
        let nameless = kind == EntryKind::Kernel && is_address(name);
        let entry = Entry { kind, name: self.names.number(name), nameless, next_bytes: 0, delta_bytes };
        self.sequences.devices.entry(number).or_default().entries.push(entry);
    }

    /// Takes one event.
    pub(super) fn observe(&mut self, event: &Event) {
        match &event.kind {
            // Found at the attach: no call was made.
            EventKind::Alloc(alloc) if alloc.block.found => {}
            EventKind::Alloc(alloc) => {
                let (block, size) = (&alloc.block, alloc.block.size_bytes);
                self.changed(event, block.pool, size.cast_signed());
                self.pool_row(block.pool, block.device, size);
            }
            EventKind::Free(free) => {
                let (block, size) = (&free.block, free.block.size_bytes);
                let change = if free.cause == FreeCause::Program { size.cast_signed().saturating_neg() } else { 0 };
                self.changed(event, block.pool, change);
                if !free.without_row {
                    self.pool_row(block.pool, block.device, size);
                }
            }
            // Its block is in no row; the row has a size all the same.
            EventKind::UnknownFree(UnknownFree { pool, size_bytes: Some(size), refused: false, .. }) => {
                self.pool_row(*pool, event.device, *size);
            }
            EventKind::Op(op) if self.which.op => match op.phase {
                OpPhase::Start => self.op_begins(event, &op.name),
                OpPhase::End => self.op_ends(event, &op.name),
                OpPhase::Submit => {}
            },
            EventKind::AtbOp(op) if self.which.op && op.begins => self.op_begins(event, &op.name),
            EventKind::AtbOp(op) if self.which.op => self.op_ends(event, &op.name),
            EventKind::Launch(launch) if self.which.kernel => {
                let delta = self.thread(event).map_or(0, |thread| {
                    let before = std::mem::replace(&mut thread.at_launch, thread.bytes);
                    thread.bytes - before
                });
                self.entry(event, EntryKind::Kernel, &launch.name, delta);
            }
            _ => {}
        }
    }

    fn op_begins(&mut self, event: &Event, name: &Arc<str>) {
        let name = self.names.number(name);
        if let Some(thread) = self.thread(event) {
            if thread.open.len() >= MAX_DEPTH {
                thread.open.remove(0);
            }
            thread.open.push((name, thread.bytes));
        }
    }

    fn op_ends(&mut self, event: &Event, name: &Arc<str>) {
        let number = self.names.number(name);
        let delta = self.thread(event).map_or(0, |thread| {
            // Inner operators that threw an exception have no end.
            let begun = thread.open.iter().rposition(|(open, _)| *open == number);
            let before = begun.map_or(thread.at_end, |at| thread.open[at].1);
            thread.open.truncate(begun.unwrap_or(thread.open.len()));
            thread.at_end = thread.bytes;
            thread.bytes - before
        });
        self.entry(event, EntryKind::Op, name, delta);
    }
}

/// The placeholder name of a kernel without a known name.
fn is_address(name: &str) -> bool {
    name.strip_prefix("0x").is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_hexdigit()))
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event) {
        self.recording.observe(event);
    }

    fn finish(&mut self, _: &RunEnd) {
        // A receiver that is gone does not want it.
        let _ = self.out.send(self.recording.take());
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use crate::analyses::script::{Script, observe};
    use crate::backend::ascend::pools;
    use crate::model::{Launch, Op};

    const BOTH: Which = Which { op: true, kernel: true };

    impl Script {
        fn op(&mut self, phase: OpPhase, name: &str) -> &mut Self {
            self.event(EventKind::Op(Op { phase, name: name.into() }))
        }
    }

    fn record_events(events: &[Event], names: &mut Names) -> Sequences {
        let (recorder, taken) = Recorder::new(BOTH, std::mem::take(names));
        observe(recorder, events, &RunEnd::default());
        let found = taken.recv().expect("a recording");
        *names = found.names;
        found.sequences
    }

    fn record(script: &Script, names: &mut Names) -> Sequences {
        record_events(script.events(), names)
    }

    fn brief(sequences: &Sequences, names: &Names) -> Vec<(String, u64, i64)> {
        sequences.of(0).iter().map(|it| (names.text(it.name).to_string(), it.next_bytes, it.delta_bytes)).collect()
    }

    /// The reference's figure is the size of the next event, even a free of another operator; ours is the change
    /// inside.
    #[test]
    fn both_figures() {
        let mut script = Script::new(1, Device::Npu(0));
        script.op(OpPhase::Start, "outer").alloc(pools::PTA, 0x1000, 100).op(OpPhase::Start, "inner");
        script.alloc(pools::PTA, 0x2000, 10).alloc(pools::HAL, 0x9000, 5000).op(OpPhase::End, "inner").launch();
        script.free(pools::PTA, 0x1000).op(OpPhase::End, "outer").op(OpPhase::End, "unknown start").launch();
        let mut names = Names::default();
        let expected =
            [("inner", 100, 10), ("Add", 100, 110), ("outer", 0, 10), ("unknown start", 0, 0), ("Add", 0, -100)];
        let expected = expected.map(|(name, next, delta)| (name.to_owned(), next, delta));
        let sequences = record(&script, &mut names);
        assert_eq!(brief(&sequences, &names), expected);
    }

    /// If the events begin within a run, memory live before belongs to no kernel and no operator.
    #[test]
    fn what_was_there_before_is_of_no_entry() {
        let mut script = Script::new(1, Device::Npu(0));
        script.alloc(pools::PTA, 0x1000, 100).free(pools::PTA, 0x1000).restore(pools::PTA, 0x1000);
        script.alloc(pools::PTA, 0x2000, 8).launch();
        let mut names = Names::default();
        let sequences = record_events(&script.events()[2..], &mut names);
        assert_eq!(brief(&sequences, &names), [("Add".to_owned(), 0, 8)]);
    }

    /// A free of a block without a row is a row with a size, as in the reference; a free without a row is none: the
    /// address came back, or the events end. By hand: `K(k1), F(PTA,4096), K(k2), M(PTA,100)`, then a reuse, then the
    /// end.
    #[test]
    fn rows_count_and_nothing_else() {
        let mut script = Script::new(1, Device::Npu(0));
        let free = |size_bytes, refused| {
            EventKind::UnknownFree(UnknownFree { pool: pools::PTA, addr: 1, size_bytes, maybe_older: true, refused })
        };
        script.launch().event(free(Some(4096), false)).launch().alloc(pools::PTA, 0x2000, 100);
        script.launch().event(free(None, false)).event(free(Some(1), true));
        script.end(FreeCause::Replaced, pools::PTA, 0x2000).alloc(pools::PTA, 0x2000, 30);
        script.launch().end(FreeCause::TraceEnd, pools::PTA, 0x2000);
        let mut events = script.events().to_vec();
        for event in &mut events {
            if let EventKind::Free(free) = &mut event.kind {
                free.without_row = true;
            }
        }
        let sequences = record_events(&events, &mut Names::default());
        let next: Vec<u64> = sequences.of(0).iter().map(|entry| entry.next_bytes).collect();
        assert_eq!(next, [4096, 100, 30, 0]);
    }

    /// A kernel with an address for a name matches no kernel of the other run, even at an equal address; the result
    /// says so.
    #[test]
    fn kernels_known_by_address_are_not_aligned() {
        let launch = |name: &str| EventKind::Launch(Launch { name: name.into(), stream: 0, stream_id: None });
        let script = |names: &[&str]| {
            let mut script = Script::new(1, Device::Npu(0));
            for name in names {
                script.event(launch(name));
            }
            script
        };
        let mut names = Names::default();
        let base = record(&script(&["Add", "0x7f10", "0xMul", "0x", "0x7f10"]), &mut names);
        let other = record(&script(&["Add", "0x7f10", "0xMul", "0x"]), &mut names);
        let mut rows = Vec::new();
        let found = compare(&base, &other, &names, |row| rows.push(row.clone()), |_, _| {});
        let aligned: Vec<&str> =
            rows.iter().filter(|row| row.base.is_some() && row.compare.is_some()).map(|row| &*row.name).collect();
        assert_eq!(aligned, ["Add", "0xMul", "0x"]);
        assert_eq!((found[0].aligned, found[0].only_base, found[0].only_compare), (3, 2, 1));
        assert_eq!((found[0].nameless_base, found[0].nameless_compare), (2, 1));
    }

    /// Threads and devices are apart.
    #[test]
    fn threads_do_not_mix() {
        let mut script = Script::new(1, Device::Npu(0));
        script.op(OpPhase::Start, "f").on(2, Device::Npu(1)).op(OpPhase::Start, "f").alloc(pools::PTA, 0x1000, 7);
        script.on(1, Device::Npu(0)).op(OpPhase::End, "f").on(2, Device::Npu(1)).op(OpPhase::End, "f");
        let mut names = Names::default();
        let sequences = record(&script, &mut names);
        assert_eq!((sequences.of(0)[0].delta_bytes, sequences.of(1)[0].delta_bytes), (0, 7));
    }

    #[test]
    fn rows_and_summary() {
        let mut names = Names::default();
        let mut base = Script::new(1, Device::Npu(0));
        base.alloc(pools::PTA, 0x1000, 8).launch().alloc(pools::PTA, 0x2000, 16);
        let mut other = Script::new(1, Device::Npu(0));
        other.launch().launch().alloc(pools::PTA, 0x2000, 4);
        let (base, other) = (record(&base, &mut names), record(&other, &mut names));
        let mut rows = Vec::new();
        let mut reported = Vec::new();
        let out = |row: &ComparedRow| rows.push((row.base, row.compare));
        let found = compare(&base, &other, &names, out, |done, total| reported.push((done, total)));
        assert!(reported.is_sorted() && reported.last().is_some_and(|(done, total)| done == total), "{reported:?}");
        let figures = |next_bytes, delta_bytes| Some(Figures { next_bytes, delta_bytes });
        assert_eq!(rows, [(figures(16, 8), figures(4, 0)), (None, figures(4, 0))]);
        let ComparedDevice { aligned, only_base, only_compare, shortest, names, .. } = &found[0];
        assert_eq!((*aligned, *only_base, *only_compare, *shortest), (1, 0, 1, true));
        assert_eq!((names[0].base_count, names[0].compare_count, names[0].base_delta_bytes), (1, 2, 8));
        assert_eq!(check(&base, &other, BOTH), Ok(()));
    }

    #[test]
    fn two_frameworks_are_refused() {
        let mut names = Names::default();
        let mut base = Script::new(1, Device::Npu(0));
        base.alloc(pools::PTA, 0x1000, 8);
        let mut other = Script::new(1, Device::Npu(0));
        other.alloc(pools::MIND_SPORE, 0x1000, 8);
        let (base, other) = (record(&base, &mut names), record(&other, &mut names));
        assert_eq!(check(&base, &other, BOTH), Err(Incomparable::Frameworks));
        assert_eq!(check(&other, &other, BOTH), Err(Incomparable::OperatorsOfMindSpore));
        assert_eq!(check(&other, &other, Which { op: false, kernel: true }), Ok(()));
    }
}
