//! What changes in each minute, by pool and by place. The books keep it beside their totals, which are of all time.
//!
//! A minute ends with the first event of the next one, or by the clock where no event comes. A process that ends has its last rows at once:
//! the books forget it.

use std::collections::{BTreeSet, VecDeque};

use crate::{
    agent::series::{Place, Series, SeriesKey},
    hash::HashMap,
    model::{Alloc, AllocFailed, Event, Free},
};

const MINUTE_NS: u64 = 60_000_000_000;
/// Places with changes in one minute; changes of further ones are counted.
const MAX_CHANGED: usize = 65_536;
/// Failed requests that wait for the end of the next minute, so that a late success is known; further ones are counted.
const MAX_FAILURES: usize = 1024;
/// Rows of minutes that were not taken yet, some 20 MiB; the oldest go, and are counted.
const MAX_READY_ROWS: usize = 1 << 17;

/// What came and went, of blocks since the attach. Signed: a free that is taken back in a later minute counts as -1 there, so that sums over minutes are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Blocks allocated.
    pub allocations: i64,
    /// Their bytes.
    pub allocated_bytes: i64,
    /// Blocks freed.
    pub frees: i64,
    /// Their bytes.
    pub freed_bytes: i64,
}

impl Changes {
    fn alloc(&mut self, alloc: &Alloc) {
        let size_bytes = alloc.block.size_bytes.cast_signed();
        if alloc.block.found {
            return;
        }
        if alloc.restored {
            self.frees -= 1;
            self.freed_bytes = self.freed_bytes.saturating_sub(size_bytes);
        } else {
            self.allocations += 1;
            self.allocated_bytes = self.allocated_bytes.saturating_add(size_bytes);
        }
    }

    fn free(&mut self, free: &Free) {
        if !free.block.found {
            self.frees += 1;
            self.freed_bytes = self.freed_bytes.saturating_add(free.block.size_bytes.cast_signed());
        }
    }

    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.allocations += other.allocations;
        self.allocated_bytes = self.allocated_bytes.saturating_add(other.allocated_bytes);
        self.frees += other.frees;
        self.freed_bytes = self.freed_bytes.saturating_add(other.freed_bytes);
    }
}

/// A pool at the end of a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMinute {
    /// The pool.
    pub key: SeriesKey,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// What the pool says it has handed out.
    pub used_bytes: Option<u64>,
    /// What it says it holds.
    pub reserved_bytes: Option<u64>,
    /// What it says is handed out, or waits for a stream.
    pub active_bytes: Option<u64>,
    /// Bytes that are in no place.
    pub untracked_bytes: u64,
    /// What came and went.
    pub changes: Changes,
    /// Requests that failed for want of memory.
    pub failures: u64,
}

impl PoolMinute {
    /// A pool as it is now. `changes`, `failures`: in the minute, as far as they are known.
    #[must_use]
    pub fn of(key: SeriesKey, series: &Series, changes: Changes, failures: u64) -> Self {
        Self {
            key,
            live_bytes: series.live_bytes,
            live_blocks: series.live_blocks,
            used_bytes: series.used_bytes,
            reserved_bytes: series.reserved_bytes,
            active_bytes: series.active_bytes,
            untracked_bytes: series.untracked_bytes(),
            changes,
            failures,
        }
    }
}

/// A place at the end of a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceMinute {
    /// The pool.
    pub key: SeriesKey,
    /// The place.
    pub place: Place,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// What came and went.
    pub changes: Changes,
}

/// A request that failed for want of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The minute that it is counted in.
    pub minute: u32,
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The pool that was asked.
    pub key: SeriesKey,
    /// Where it was asked for.
    pub place: Place,
    /// How much.
    pub requested_bytes: u64,
    /// Number of the request in its process.
    pub request: u64,
    /// It succeeded at a further attempt.
    pub recovered: bool,
}

/// Rows of a minute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Minute {
    /// The minute, since the Unix epoch.
    pub minute: u32,
    /// It is over; else these rows are the last ones of a process that has ended in it.
    pub is_over: bool,
    /// Pools.
    pub pools: Vec<PoolMinute>,
    /// Places with live blocks, or with changes.
    pub places: Vec<PlaceMinute>,
    /// Failed requests; of an earlier minute, too.
    pub failures: Vec<Failure>,
}

impl Minute {
    fn rows(&self) -> usize {
        self.pools.len() + self.places.len() + self.failures.len()
    }
}

/// Minutes that are over, and what found no room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Minutes {
    /// The minutes, the oldest first.
    pub ready: Vec<Minute>,
    /// Rows, and changes of places, without room; ever.
    pub dropped_rows: u64,
}

/// What the books know of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum State {
    /// Its start may still come: its rows wait.
    Unstarted,
    /// It goes on.
    Runs,
    /// It has ended.
    Ended,
}

/// Keeps the minute that goes on.
#[derive(Debug, Default)]
pub(in crate::agent) struct Recorder {
    minute: Option<u32>,
    pools: HashMap<SeriesKey, (Changes, u64)>,
    places: HashMap<SeriesKey, HashMap<Place, Changes>>,
    changed: usize,
    failures: Vec<Failure>,
    /// Processes that had their last rows.
    parted: BTreeSet<u32>,
    has_finished: bool,
    ready: VecDeque<Minute>,
    ready_rows: usize,
    dropped_rows: u64,
}

impl Recorder {
    /// Whether this event is the first of a later minute.
    pub(in crate::agent) fn is_over(&self, event: &Event) -> bool {
        self.minute.is_some_and(|minute| minute_of(event) > minute)
    }

    /// The minute that events belong to from here on. The one before ends with these pools.
    pub(in crate::agent) fn begin<'a>(
        &mut self,
        minute: u32,
        series: impl Iterator<Item = (&'a SeriesKey, &'a Series)>,
        state: impl Fn(u32) -> State,
    ) {
        // A clock may go back, by a minute within a leap of its correction; beyond that events would wait for it.
        let goes_on = |known: u32| minute == known || minute.saturating_add(1) == known;
        if self.has_finished || self.minute.is_some_and(goes_on) {
            return;
        }
        if let Some(last) = self.minute.replace(minute) {
            self.close(last, series, state, minute);
        }
    }

    /// Ends the minute that goes on, for good: the agent ends.
    pub(in crate::agent) fn finish<'a>(
        &mut self,
        series: impl Iterator<Item = (&'a SeriesKey, &'a Series)>,
        state: impl Fn(u32) -> State,
    ) {
        if let Some(last) = self.minute.take() {
            self.close(last, series, state, u32::MAX);
        }
        self.has_finished = true;
    }

    fn close<'a>(
        &mut self,
        minute: u32,
        series: impl Iterator<Item = (&'a SeriesKey, &'a Series)>,
        state: impl Fn(u32) -> State,
        next: u32,
    ) {
        let mut rows = Minute { minute, is_over: true, ..Minute::default() };
        let mut ended = Vec::new();
        for (key, series) in series {
            match state(key.pid) {
                State::Unstarted => continue,
                State::Runs => {}
                State::Ended if self.parted.contains(&key.pid) => continue,
                State::Ended => ended.push(key.pid),
            }
            self.rows_of(*key, series, &mut rows);
        }
        self.parted.extend(ended);
        self.pools.retain(|key, _| state(key.pid) == State::Unstarted);
        self.places.retain(|key, _| state(key.pid) == State::Unstarted);
        self.changed = self.places.values().map(HashMap::len).sum();
        // Those of the minute that ends now wait for one more.
        let failures = self.failures.extract_if(.., |failure| failure.minute.saturating_add(1) < next);
        rows.failures.extend(failures);
        self.push(rows);
    }

    /// A process is about to be forgotten: its pools have their last rows.
    pub(in crate::agent) fn part<'a>(&mut self, pid: u32, series: impl Iterator<Item = (&'a SeriesKey, &'a Series)>) {
        let Some(minute) = self.minute else { return };
        let mut rows = Minute { minute, ..Minute::default() };
        if !self.parted.remove(&pid) {
            series.for_each(|(key, series)| self.rows_of(*key, series, &mut rows));
        }
        rows.failures.extend(self.failures.extract_if(.., |failure| failure.key.pid == pid));
        if rows.rows() > 0 {
            self.push(rows);
        }
    }

    /// Pools of a process that goes on are known no longer: they have their last rows.
    pub(in crate::agent) fn part_pools<'a>(&mut self, series: impl Iterator<Item = (&'a SeriesKey, &'a Series)>) {
        let Some(minute) = self.minute else { return };
        let mut rows = Minute { minute, ..Minute::default() };
        series.for_each(|(key, series)| self.rows_of(*key, series, &mut rows));
        if rows.rows() > 0 {
            self.push(rows);
        }
    }

    fn rows_of(&mut self, key: SeriesKey, series: &Series, rows: &mut Minute) {
        let (changes, failures) = self.pools.remove(&key).unwrap_or_default();
        let mut by_place = self.places.remove(&key).unwrap_or_default();
        self.changed -= by_place.len();
        rows.pools.push(PoolMinute::of(key, series, changes, failures));
        let row =
            |place, live_bytes, live_blocks, changes| PlaceMinute { key, place, live_bytes, live_blocks, changes };
        for (place, sum) in series.by_place() {
            let changes = by_place.remove(place);
            if sum.live_blocks > 0 || changes.is_some() {
                rows.places.push(row(*place, sum.live_bytes, sum.live_blocks, changes.unwrap_or_default()));
            }
        }
        rows.places.extend(by_place.into_iter().map(|(place, changes)| row(place, 0, 0, changes)));
    }

    fn push(&mut self, rows: Minute) {
        self.ready_rows += rows.rows();
        self.ready.push_back(rows);
        while self.ready_rows > MAX_READY_ROWS
            && let Some(oldest) = self.ready.pop_front()
        {
            self.ready_rows -= oldest.rows();
            self.dropped_rows += oldest.rows() as u64;
        }
    }

    /// A block has come. `place`: where, if that is kept apart.
    pub(in crate::agent) fn alloc(&mut self, key: SeriesKey, alloc: &Alloc, place: Option<Place>) {
        self.pools.entry(key).or_default().0.alloc(alloc);
        if let Some(changes) = place.and_then(|place| self.place(key, place)) {
            changes.alloc(alloc);
        }
    }

    /// A block has gone.
    pub(in crate::agent) fn free(&mut self, key: SeriesKey, free: &Free, place: Option<Place>) {
        self.pools.entry(key).or_default().0.free(free);
        if let Some(changes) = place.and_then(|place| self.place(key, place)) {
            changes.free(free);
        }
    }

    fn place(&mut self, key: SeriesKey, place: Place) -> Option<&mut Changes> {
        let of_pool = self.places.entry(key).or_default();
        if !of_pool.contains_key(&place) {
            if self.changed >= MAX_CHANGED {
                self.dropped_rows += 1;
                return None;
            }
            self.changed += 1;
        }
        Some(of_pool.entry(place).or_default())
    }

    /// Changes the places of the minute that goes on, and of requests that wait. Those that become one count together.
    pub(in crate::agent) fn change_places(&mut self, mut change: impl FnMut(Place) -> Place) {
        for of_pool in self.places.values_mut() {
            for (place, changes) in std::mem::take(of_pool) {
                of_pool.entry(change(place)).or_default().add(changes);
            }
        }
        self.changed = self.places.values().map(HashMap::len).sum();
        for failure in &mut self.failures {
            failure.place = change(failure.place);
        }
    }

    /// A request has failed for want of memory.
    pub(in crate::agent) fn failed(&mut self, key: SeriesKey, event: &Event, failed: &AllocFailed) {
        self.pools.entry(key).or_default().1 += 1;
        if self.failures.len() >= MAX_FAILURES {
            self.dropped_rows += 1;
            return;
        }
        let size_bytes = if event.stacks.is_empty() { failed.size_bytes } else { 0 };
        self.failures.push(Failure {
            minute: self.minute.unwrap_or_else(|| minute_of(event)),
            time_ns: event.time_ns,
            key,
            place: Place { stacks: event.stacks, size_bytes },
            requested_bytes: failed.size_bytes,
            request: failed.request,
            recovered: false,
        });
    }

    /// A request has succeeded after all.
    pub(in crate::agent) fn recovered(&mut self, pid: u32, request: u64) {
        let of_request =
            self.failures.iter_mut().filter(|failure| (failure.key.pid, failure.request) == (pid, request));
        of_request.for_each(|failure| failure.recovered = true);
    }

    /// What is ready.
    pub(in crate::agent) fn take(&mut self) -> Minutes {
        self.ready_rows = 0;
        Minutes { ready: std::mem::take(&mut self.ready).into(), dropped_rows: self.dropped_rows }
    }
}

/// The minute of an event.
pub(in crate::agent) fn minute_of(event: &Event) -> u32 {
    u32::try_from(event.time_ns / MINUTE_NS).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
