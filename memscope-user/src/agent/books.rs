//! What each process holds: exact totals of each pool on each device, by place and by age. Made from events, of which none is kept.
//!
//! Totals are of all blocks. Places are bounded: what finds no room is in the totals alone, and the difference is a figure of its own.

use std::{collections::BTreeMap, time::Duration};

use super::{
    evidence::minutes::{Minutes, Recorder, State, minute_of},
    failures::{Bundle, Failures, Then},
    flight::Flight,
    series::{Place, Series, SeriesKey},
};
use crate::{
    hash::HashMap,
    model::{
        Alloc, AllocFailed, AllocRecovered, Device, Event, EventKind, Free, OutOfMemory, ProcessStart, Stack, Stacks,
        UnknownFree,
    },
};

/// Series of pools at once: 1024 processes on two devices with four pools.
const MAX_SERIES: usize = 8192;
/// Places of all series.
const MAX_PLACES: usize = 32_768;
/// Accounts that the series of a process may wait for its start: a child's first calls come before the note of its start.
const ACCOUNTS_WAITED: u32 = 10;

/// A process that is traced, or has ended since the books were last read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Process that forked it; 0 for one that the agent has found.
    pub parent: u32,
    /// It was running before it was traced.
    pub attached: bool,
    /// Its events so far.
    pub events: u64,
    /// Times that it lost its pools so far.
    pub reductions: u64,
    /// It has ended, or left the trace.
    pub ended: bool,
}

/// What is known at a moment.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Processes, with those that have ended since the last account.
    pub processes: BTreeMap<u32, Known>,
    /// Their pools.
    pub series: Vec<(SeriesKey, Series)>,
    /// Pools of living processes that are known no longer, with their last figures; each once.
    pub parted: Vec<(SeriesKey, Series)>,
    /// Bytes in use and in all of each device, as the driver says.
    pub devices: BTreeMap<u32, (u64, u64)>,
    /// Requests that failed for want of memory since the last account.
    pub bundles: Vec<Bundle>,
    /// Minutes that have ended since the last account, where they are kept.
    pub minutes: Minutes,
    /// Places at the moment.
    pub places: usize,
    /// Series that found no room, ever.
    pub refused_series: u64,
    /// How full the table of call stacks is, from 0 to 1.
    pub stacks_fill: f64,
    /// Events, ever.
    pub events: u64,
    /// Time of the newest event, nanoseconds since the Unix epoch: how far the trace has come.
    pub newest_ns: u64,
}

impl Account {
    /// Places at most.
    pub const MAX_PLACES: usize = MAX_PLACES;
}

/// Keeps the account.
#[derive(Debug, Default)]
pub struct Books {
    processes: BTreeMap<u32, Known>,
    series: HashMap<SeriesKey, Series>,
    parted: Vec<(SeriesKey, Series)>,
    /// Processes that have series and no start yet, with the accounts taken since.
    unstarted: BTreeMap<u32, u32>,
    devices: BTreeMap<u32, (u64, u64)>,
    failures: Failures,
    flight: Flight,
    /// Where rows by minute are asked for.
    recorder: Option<Recorder>,
    places: usize,
    refused_series: u64,
    events: u64,
    newest_ns: u64,
    /// A stack of the run that places are of.
    stack: Option<Stack>,
}

/// What the driver has free on a device; `devices`: bytes in use and in all.
pub(super) fn free_bytes(devices: &BTreeMap<u32, (u64, u64)>, device: Device) -> Option<u64> {
    let Device::Npu(number) = device else { return None };
    devices.get(&number).map(|(used, total)| total.saturating_sub(*used))
}

impl Books {
    /// Books that also keep what changes in each minute.
    #[must_use]
    pub fn by_minute() -> Self {
        Self { recorder: Some(Recorder::default()), ..Self::default() }
    }

    /// Holders are looked for when a request has failed: bundles wait so long for them.
    pub fn expect_holders(&mut self, patience: Duration) {
        self.failures.expect_holders(patience);
    }

    /// A bundle has the newest `events` of its process, at most.
    pub fn keep_recent(&mut self, events: usize) {
        self.flight = Flight::of_most(events);
    }

    /// Takes an event. Events come in the order of their times.
    ///
    /// The trace moves stacks that are in use to a further run from time to time: places move with the first stack of it, and an event that
    /// was on its way moves alone.
    pub fn observe(&mut self, event: &Event) {
        match (stacks(event).any(), self.stack) {
            (Some(stack), Some(current)) if !stack.is_beside(current) => {
                if stack.is_before(current) {
                    return self.take_event(&moved(event, current));
                }
                self.move_places(stack);
                self.stack = Some(stack);
            }
            (Some(stack), None) => self.stack = Some(stack),
            _ => {}
        }
        self.take_event(event);
    }

    fn move_places(&mut self, beside: Stack) {
        let mut known: HashMap<Stack, Stack> = HashMap::default();
        let mut moved = |stack: Stack| *known.entry(stack).or_insert_with(|| stack.moved_beside(beside));
        self.flight.move_stacks(&mut moved);
        let mut place = |place: Place| place.moved(&mut moved);
        for series in self.series.values_mut() {
            self.places -= series.change_places(&mut place);
        }
        for (_, series) in &mut self.parted {
            series.change_places(&mut place);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.change_places(place);
        }
    }

    fn take_event(&mut self, event: &Event) {
        if self.recorder.as_ref().is_some_and(|recorder| recorder.is_over(event)) {
            self.begin_minute(minute_of(event));
        }
        self.events += 1;
        // They go back only where the clock was set back.
        self.newest_ns = event.time_ns;
        if let Some(known) = self.processes.get_mut(&event.pid) {
            known.events += 1;
        }
        self.flight.observe(event);
        match &event.kind {
            EventKind::ProcessStart(start) => self.start(event.pid, start),
            EventKind::ProcessEnd => self.end(event.pid),
            EventKind::Alloc(alloc) => self.alloc(event, alloc),
            EventKind::Free(free) => self.free(event, free),
            EventKind::UnknownFree(free) => self.unknown_free(event, free),
            EventKind::BlockReturned(returned) => {
                let key = SeriesKey { pid: event.pid, device: event.device, pool: returned.pool };
                if let Some(series) = self.series(key) {
                    series.active_bytes = Some(returned.active_bytes);
                    series.reported(returned.used_bytes, Some(returned.total_bytes));
                }
            }
            EventKind::AllocFailed(failed) => self.failed(event, failed),
            EventKind::PoolsLeftOut => self.leave_out_pools(event.pid),
            EventKind::OutOfMemory(OutOfMemory::Trigger(failed)) => self.failed_for_good(event, failed),
            EventKind::AllocRecovered(recovered) => self.recovered(event, recovered),
            EventKind::Looked(look) => self.failures.looked(event.pid, look),
            EventKind::DeviceUsage(usage) => {
                if let Device::Npu(number) = event.device {
                    self.devices.insert(number, (usage.used_bytes, usage.total_bytes));
                }
            }
            _ => {}
        }
    }

    /// A minute is over: what series and places hold becomes a point of their growth.
    pub fn minute(&mut self, minute: u32) {
        self.begin_minute(minute);
        for (key, series) in &mut self.series {
            series.minute(minute, free_bytes(&self.devices, key.device));
        }
    }

    fn begin_minute(&mut self, minute: u32) {
        let Self { recorder: Some(recorder), processes, series, unstarted, .. } = self else { return };
        recorder.begin(minute, series.iter(), |pid| state(processes, unstarted, pid));
    }

    /// The minute that goes on is the last one: the next account has it.
    pub fn end_minute(&mut self) {
        self.failures.hurry();
        let Self { recorder: Some(recorder), processes, series, unstarted, .. } = self else { return };
        recorder.finish(series.iter(), |pid| state(processes, unstarted, pid));
    }

    /// The last rows of a process that is about to be forgotten.
    fn part(&mut self, pid: u32) {
        if let Some(recorder) = &mut self.recorder {
            recorder.part(pid, self.series.iter().filter(|(key, _)| key.pid == pid));
        }
    }

    /// The account, from which on what has ended is forgotten.
    pub fn take(&mut self) -> Account {
        let ended = self.processes.iter().filter(|(_, known)| known.ended).map(|(pid, _)| *pid);
        ended.collect::<Vec<u32>>().into_iter().for_each(|pid| self.part(pid));
        let minutes = self.recorder.as_mut().map(Recorder::take).unwrap_or_default();
        let waits = |pid: u32| self.unstarted.get(&pid).is_some_and(|accounts| *accounts < ACCOUNTS_WAITED);
        let ready = self.series.iter().filter(|(key, _)| !waits(key.pid));
        let account = Account {
            processes: self.processes.clone(),
            series: ready.map(|(key, series)| (*key, series.clone())).collect(),
            parted: std::mem::take(&mut self.parted),
            devices: self.devices.clone(),
            bundles: self.failures.take(),
            minutes,
            places: self.places,
            refused_series: self.refused_series,
            stacks_fill: self.stack.map_or(0.0, Stack::fill_of_run),
            events: self.events,
            newest_ns: self.newest_ns,
        };
        self.processes.retain(|_, known| !known.ended);
        let Self { processes, series, unstarted, places, flight, .. } = self;
        unstarted.retain(|_, accounts| {
            *accounts += 1;
            *accounts <= ACCOUNTS_WAITED
        });
        let stays = |pid: u32| processes.contains_key(&pid) || unstarted.contains_key(&pid);
        flight.retain(stays);
        // Also the series of a process that never started here: each is counted once.
        series.retain(|key, series| {
            let stays = stays(key.pid);
            *places -= if stays { 0 } else { series.places() };
            stays
        });
        account
    }

    fn start(&mut self, pid: u32, start: &ProcessStart) {
        match self.processes.get_mut(&pid) {
            // It runs another program now.
            Some(known) if !known.ended => known.parent = start.parent,
            known => {
                if known.is_some() {
                    // The account of the last process of this number was not read.
                    self.part(pid);
                    drop(self.take_series(|key| key.pid == pid));
                    self.flight.forget(pid);
                }
                self.unstarted.remove(&pid);
                let known = Known { parent: start.parent, attached: start.attached, ..Known::default() };
                self.processes.insert(pid, known);
            }
        }
    }

    fn end(&mut self, pid: u32) {
        if let Some(known) = self.processes.get_mut(&pid) {
            known.ended = true;
        }
        self.failures.ended(pid);
    }

    /// A process goes on without events of its pools.
    fn leave_out_pools(&mut self, pid: u32) {
        if let Some(known) = self.processes.get_mut(&pid) {
            known.reductions += 1;
        }
        let pools = self.take_series(|key| key.pid == pid && !key.pool.is_base());
        if let Some(recorder) = &mut self.recorder {
            recorder.part_pools(pools.iter().map(|(key, series)| (key, series)));
        }
        self.parted.extend(pools);
    }

    /// Takes series out, with their places.
    fn take_series(&mut self, is_taken: impl Fn(&SeriesKey) -> bool) -> Vec<(SeriesKey, Series)> {
        let taken: Vec<(SeriesKey, Series)> = self.series.extract_if(|key, _| is_taken(key)).collect();
        self.places -= taken.iter().map(|(_, series)| series.places()).sum::<usize>();
        taken
    }

    fn series(&mut self, key: SeriesKey) -> Option<&mut Series> {
        if self.series.len() >= MAX_SERIES && !self.series.contains_key(&key) {
            self.refused_series += 1;
            return None;
        }
        if !self.processes.contains_key(&key.pid) {
            self.unstarted.entry(key.pid).or_default();
        }
        Some(self.series.entry(key).or_default())
    }

    fn alloc(&mut self, event: &Event, alloc: &Alloc) {
        let (has_room, by_minute) = (self.places < MAX_PLACES, self.recorder.is_some());
        let key = SeriesKey { pid: event.pid, device: alloc.block.device, pool: alloc.block.pool };
        let Some(series) = self.series(key) else { return };
        let new_places = series.alloc(alloc, has_room);
        let place = by_minute.then(|| series.place_of(&alloc.block)).flatten();
        self.places += new_places;
        if let Some(recorder) = &mut self.recorder {
            recorder.alloc(key, alloc, place);
        }
    }

    fn free(&mut self, event: &Event, free: &Free) {
        if !free.cause.gave_back() {
            // It is held until the end.
            return;
        }
        let by_minute = self.recorder.is_some();
        let key = SeriesKey { pid: event.pid, device: free.block.device, pool: free.block.pool };
        let Some(series) = self.series(key) else { return };
        let place = by_minute.then(|| series.place_of(&free.block)).flatten();
        let gone_places = series.free(free);
        self.places -= gone_places;
        if let Some(recorder) = &mut self.recorder {
            recorder.free(key, free, place);
        }
    }

    fn unknown_free(&mut self, event: &Event, free: &UnknownFree) {
        let key = SeriesKey { pid: event.pid, device: event.device, pool: free.pool };
        if let Some(series) = self.series(key) {
            series.unknown_free(free);
        }
    }

    fn failed(&mut self, event: &Event, failed: &AllocFailed) {
        let key = SeriesKey { pid: event.pid, device: event.device, pool: failed.pool };
        let Some(series) = self.series(key) else { return };
        // Attempts of one request are one failure.
        if failed.attempt > 1 {
            return;
        }
        if !failed.out_of_memory {
            series.refused += 1;
            return;
        }
        self.failures.failed(event, failed, || then(&self.series, &self.flight, event.pid));
        if let Some(recorder) = &mut self.recorder {
            recorder.failed(key, event, failed);
        }
    }

    fn failed_for_good(&mut self, event: &Event, failed: &AllocFailed) {
        let key = SeriesKey { pid: event.pid, device: event.device, pool: failed.pool };
        let is_new = self.failures.is_certain(event, failed, || then(&self.series, &self.flight, event.pid));
        if let Some(series) = self.series(key).filter(|_| is_new) {
            series.out_of_memory += 1;
        }
    }

    fn recovered(&mut self, event: &Event, recovered: &AllocRecovered) {
        let key = SeriesKey { pid: event.pid, device: event.device, pool: recovered.pool };
        if let Some(series) = self.series(key) {
            series.recovered += 1;
        }
        self.failures.recovered(event.pid, recovered.request);
        if let Some(recorder) = &mut self.recorder {
            recorder.recovered(event.pid, recovered.request);
        }
    }
}

/// What a process holds now, and what it did last.
fn then<'a>(series: &'a HashMap<SeriesKey, Series>, flight: &Flight, pid: u32) -> Then<'a> {
    let sheets = series.iter().filter(|(key, _)| key.pid == pid).map(|(key, series)| (*key, series)).collect();
    Then { sheets, recent_events: flight.recent(pid) }
}

/// The stacks that become a place.
const fn stacks(event: &Event) -> Stacks {
    match &event.kind {
        EventKind::Alloc(alloc) => alloc.block.stacks,
        EventKind::Free(free) => free.block.stacks,
        _ => event.stacks,
    }
}

/// The event with its stacks beside another.
fn moved(event: &Event, beside: Stack) -> Event {
    let move_all = |stacks: &mut Stacks| *stacks = stacks.map(|stack| stack.moved_beside(beside));
    let mut event = event.clone();
    move_all(&mut event.stacks);
    match &mut event.kind {
        EventKind::Alloc(alloc) => move_all(&mut alloc.block.stacks),
        EventKind::Free(free) => move_all(&mut free.block.stacks),
        _ => {}
    }
    event
}

fn state(processes: &BTreeMap<u32, Known>, unstarted: &BTreeMap<u32, u32>, pid: u32) -> State {
    match processes.get(&pid) {
        Some(known) if known.ended => State::Ended,
        None if unstarted.contains_key(&pid) => State::Unstarted,
        _ => State::Runs,
    }
}

#[cfg(test)]
mod tests;
