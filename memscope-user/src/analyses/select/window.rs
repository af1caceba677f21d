//! Which part of a run is of interest.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::hash::{HashMap, HashSet};
use crate::model::{Alloc, Device, DriverFigures, Event, EventKind, Free, FreeCause, Pool, RegionKind, Stacks};

/// A moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nanoseconds since the Unix epoch.
    At(u64),
    /// Time since the first event of a process.
    After(Duration),
}

impl When {
    /// The moment in a run that begins at `start_ns`, both in nanoseconds since the Unix epoch.
    pub(in crate::analyses) fn time_ns(self, start_ns: u64) -> u64 {
        match self {
            Self::At(time_ns) => time_ns,
            Self::After(time) => start_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        }
    }
}

/// A part of a run: from a moment on, up to another; both belong to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Where it begins, if not with the run.
    pub since: Option<When>,
    /// Where it ends, if not with the run.
    pub until: Option<When>,
}

impl Window {
    /// Whether it is the whole run.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.since.is_none() && self.until.is_none()
    }
}

/// Cuts a part out of a run: of the time before it, only blocks still live at its start are reported; at its end, the
/// trace ends.
#[derive(Debug)]
pub(super) struct Cut {
    window: Window,
    /// First and last nanosecond, known from the first event on.
    bounds_ns: Option<(u64, u64)>,
    /// `None` once the start is reached.
    before: Option<Before>,
    /// By process, if there is an end to cut at.
    live: HashMap<u32, Live>,
}

/// Live blocks of one process.
#[derive(Debug, Default)]
struct Live {
    numbers: HashSet<u64>,
    /// By the last report.
    used_bytes: HashMap<(Pool, Device), u64>,
}

impl Cut {
    pub(super) fn new(window: Window) -> Self {
        Self { window, bounds_ns: None, before: Some(Before::default()), live: HashMap::default() }
    }

    /// The end of the cut run, for the end of the real one.
    pub(super) fn end_ns(&self, time_ns: u64) -> u64 {
        self.bounds_ns.map_or(time_ns, |(_, until)| time_ns.min(until))
    }

    /// The run begins; only the first call counts.
    pub(super) fn begins(&mut self, start_ns: u64) {
        let Window { since, until } = self.window;
        self.bounds_ns.get_or_insert_with(|| {
            (since.map_or(0, |when| when.time_ns(start_ns)), until.map_or(u64::MAX, |when| when.time_ns(start_ns)))
        });
    }

    /// Takes an event; passes the visible ones to `out`.
    pub(super) fn pass(&mut self, event: &Event, out: &mut dyn FnMut(&Event)) {
        let (since_ns, until_ns) = self.bounds_ns.unwrap_or((u64::MAX, u64::MAX));
        if let Some(before) = &mut self.before
            && event.time_ns < since_ns
        {
            return before.take(event);
        }
        if let Some(before) = self.before.take()
            && since_ns <= until_ns
        {
            before.report(since_ns, &mut |event| self.within(event, out));
        }
        if event.time_ns <= until_ns {
            self.within(event, out);
        } else {
            self.after(event, until_ns, out);
        }
    }

    fn within(&mut self, event: &Event, out: &mut dyn FnMut(&Event)) {
        if self.window.until.is_some() {
            match &event.kind {
                EventKind::Alloc(Alloc { block, used_bytes, .. }) => {
                    let live = self.live.entry(event.pid).or_default();
                    live.numbers.insert(block.allocation_id);
                    live.used_bytes.insert((block.pool, block.device), *used_bytes);
                }
                EventKind::Free(Free { block, used_bytes, .. }) => {
                    let live = self.live.entry(event.pid).or_default();
                    live.numbers.remove(&block.allocation_id);
                    live.used_bytes.insert((block.pool, block.device), *used_bytes);
                }
                EventKind::ProcessEnd => drop(self.live.remove(&event.pid)),
                _ => {}
            }
        }
        out(event);
    }

    /// Blocks live at the end of the window end with the trace, whatever ends them later. Every block's end is
    /// reported, at the latest that of the trace.
    fn after(&mut self, event: &Event, until_ns: u64, out: &mut dyn FnMut(&Event)) {
        let EventKind::Free(Free { block, owner, .. }) = event.kind else { return };
        let Some(live) = self.live.get_mut(&event.pid) else { return };
        if !live.numbers.remove(&block.allocation_id) {
            return;
        }
        let used_bytes = live.used_bytes.entry((block.pool, block.device)).or_default();
        *used_bytes = used_bytes.saturating_sub(block.size_bytes);
        let (used_bytes, driver, cause) = (*used_bytes, DriverFigures::default(), FreeCause::TraceEnd);
        let kind = EventKind::Free(Free {
            block,
            used_bytes,
            total_bytes: None,
            driver,
            cause,
            owner,
            row_time_ns: None,
            without_row: false,
        });
        out(&Event { time_ns: until_ns, stacks: Stacks::default(), kind, ..event.clone() });
    }
}

/// Blocks and steps that have begun before the window and have not ended: at most as many as are live in the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before {
    taken: u64,
    /// In their order.
    events: BTreeMap<u64, Event>,
    processes: HashMap<u32, HashMap<Begun, u64>>,
}

/// The same, of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Begun {
    Process,
    Settings,
    Block(u64),
    Region(RegionKind, u64),
    Step(Device),
    /// The driver's last figures of a device.
    Usage(Device),
}

impl Before {
    pub(crate) fn take(&mut self, event: &Event) {
        let (begun, begins) = match &event.kind {
            EventKind::Alloc(alloc) => (Begun::Block(alloc.block.allocation_id), true),
            EventKind::Free(free) => (Begun::Block(free.block.allocation_id), false),
            EventKind::Region(region) => (Begun::Region(region.kind, region.addr), region.begins),
            EventKind::StepStart { .. } => (Begun::Step(event.device), true),
            EventKind::StepEnd { .. } => (Begun::Step(event.device), false),
            EventKind::DeviceUsage(_) => (Begun::Usage(event.device), true),
            EventKind::ProcessStart(_) => (Begun::Process, true),
            EventKind::Settings(_) => (Begun::Settings, true),
            EventKind::ProcessEnd => {
                for number in self.processes.remove(&event.pid).into_iter().flat_map(HashMap::into_values) {
                    self.events.remove(&number);
                }
                return;
            }
            _ => return,
        };
        let process = self.processes.entry(event.pid).or_default();
        if let Some(number) = process.remove(&begun) {
            self.events.remove(&number);
        }
        if begins {
            self.taken += 1;
            process.insert(begun, self.taken);
            self.events.insert(self.taken, event.clone());
        }
    }

    /// Passes the rest to `out`, as of the start of the window. Figures are those of the remaining blocks: older
    /// figures of a pool are out of date.
    pub(crate) fn report(self, since_ns: u64, out: &mut dyn FnMut(&Event)) {
        let mut used: HashMap<(u32, Pool, Device), u64> = HashMap::default();
        for event in self.events.into_values() {
            let mut event = Event { time_ns: event.time_ns.max(since_ns), ..event };
            if let EventKind::Alloc(alloc) = &mut event.kind {
                let used_bytes = used.entry((event.pid, alloc.block.pool, alloc.block.device)).or_default();
                *used_bytes = used_bytes.saturating_add(alloc.block.size_bytes);
                *alloc = Alloc { used_bytes: *used_bytes, total_bytes: None, restored: true, ..*alloc };
            }
            out(&event);
        }
    }
}
