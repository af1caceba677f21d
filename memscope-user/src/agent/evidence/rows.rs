//! Rows of the tables, and how a minute becomes rows.

use std::sync::Arc;

use super::{
    key::PlaceText,
    minutes::{Changes, Failure, Minute, PlaceMinute, PoolMinute},
};
use crate::{
    agent::series::Place,
    model::{Device, Pool},
};

/// What a row takes in memory, about, beside its texts.
const ROW_BYTES: usize = 160;

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// What each place held in each minute.
    PlaceMinute,
    /// What each pool held.
    DeviceMinute,
    /// What places are.
    Places,
    /// Requests that failed for want of memory.
    Failures,
}

impl Table {
    /// All.
    pub const ALL: [Self; 4] = [Self::PlaceMinute, Self::DeviceMinute, Self::Places, Self::Failures];

    /// Its name, as its folder has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PlaceMinute => "place_minute",
            Self::DeviceMinute => "device_minute",
            Self::Places => "places",
            Self::Failures => "failures",
        }
    }
}

/// A process, as rows have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Its job.
    pub job: String,
    /// Its rank; -1 if unknown.
    pub rank: i32,
    /// Kubernetes namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its container.
    pub container: String,
}

/// What rows of all minutes begin with.
#[derive(Clone, Debug)]
pub struct Head {
    /// Minutes since the Unix epoch.
    pub epoch_minute: i32,
    /// The process.
    pub who: Arc<Who>,
    /// Its number.
    pub pid: i32,
    /// Device: -1 for memory of the host, -2 if unknown.
    pub device_id: i32,
    /// The pool.
    pub pool: Pool,
}

/// A row.
#[derive(Clone, Debug)]
pub enum Row {
    /// Of `place_minute`.
    Place(PlaceRow),
    /// Of `device_minute`.
    Pool(PoolRow),
    /// Of `places`.
    Text(TextRow),
    /// Of `failures`.
    Failure(FailureRow),
}

/// A row of `place_minute`.
#[derive(Clone, Debug)]
pub struct PlaceRow {
    /// Of what.
    pub head: Head,
    /// The place.
    pub place_key: i64,
    /// Live bytes at the end of the minute.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// What came and went.
    pub changes: Changes,
    /// The agent's level.
    pub level: i32,
}

/// A row of `device_minute`.
#[derive(Clone, Debug)]
pub struct PoolRow {
    /// Of what.
    pub head: Head,
    /// The figures.
    pub pool: Arc<PoolMinute>,
    /// Records that the agent has lost in the minute.
    pub lost: u64,
    /// The agent's level.
    pub level: i32,
}

/// A row of `places`.
#[derive(Clone, Debug)]
pub struct TextRow {
    /// The minute that the place was seen in.
    pub epoch_minute: i32,
    /// The place.
    pub text: PlaceText,
}

/// A row of `failures`.
#[derive(Clone, Debug)]
pub struct FailureRow {
    /// Of what.
    pub head: Head,
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Where it was asked for.
    pub place_key: i64,
    /// How much.
    pub requested_bytes: u64,
    /// It succeeded at a further attempt.
    pub recovered: bool,
    /// Name of its bundle; empty without one.
    pub bundle: String,
}

impl Row {
    /// The table that it belongs to.
    #[must_use]
    pub const fn table(&self) -> Table {
        match self {
            Self::Place(_) => Table::PlaceMinute,
            Self::Pool(_) => Table::DeviceMinute,
            Self::Text(_) => Table::Places,
            Self::Failure(_) => Table::Failures,
        }
    }

    /// Its minute.
    #[must_use]
    pub const fn epoch_minute(&self) -> i32 {
        match self {
            Self::Place(row) => row.head.epoch_minute,
            Self::Pool(row) => row.head.epoch_minute,
            Self::Text(row) => row.epoch_minute,
            Self::Failure(row) => row.head.epoch_minute,
        }
    }

    /// What it takes in memory, about.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        let texts = match self {
            Self::Place(_) => 0,
            Self::Pool(_) => size_of::<PoolMinute>(),
            Self::Text(row) => row.text.place.len() + row.text.frames.len(),
            Self::Failure(row) => row.bundle.len(),
        };
        ROW_BYTES + texts
    }
}

/// What the rows of a minute need beside it.
pub(super) struct About<'a> {
    /// The process of a number; `None`: it has no rows.
    pub(super) who: &'a dyn Fn(u32) -> Option<Arc<Who>>,
    /// The key of a place.
    pub(super) key: &'a mut dyn FnMut(&Place) -> i64,
    /// Name of the bundle of a failed request.
    pub(super) bundle: &'a dyn Fn(u32, u64) -> String,
    /// Records lost in the minute.
    pub(super) lost: u64,
    /// The agent's level.
    pub(super) level: i32,
}

/// The rows of a minute but those of `places`.
pub(super) fn of_minute(minute: Minute, about: &mut About<'_>) -> Vec<Row> {
    let Minute { minute, pools, places, failures, .. } = minute;
    let mut rows = of_places(minute, &places, about);
    for pool in pools {
        let Some(head) = head(minute, pool.key.pid, pool.key.device, pool.key.pool, about) else { continue };
        if is_idle(&pool) {
            continue;
        }
        rows.push(Row::Pool(PoolRow { head, pool: Arc::new(pool), lost: about.lost, level: about.level }));
    }
    rows.extend(failures.iter().filter_map(|failure| of_failure(failure, about)));
    rows
}

/// Nothing is there, and nothing has happened.
fn is_idle(pool: &PoolMinute) -> bool {
    let reported = [pool.used_bytes, pool.reserved_bytes, pool.active_bytes];
    pool.live_blocks == 0
        && pool.changes == Changes::default()
        && pool.failures == 0
        && reported.iter().all(|bytes| bytes.unwrap_or_default() == 0)
}

/// Places that differ in what the key leaves out (addresses, native frames below Python's) are one row.
fn of_places(minute: u32, places: &[PlaceMinute], about: &mut About<'_>) -> Vec<Row> {
    let mut keyed: Vec<(i64, &PlaceMinute)> = places.iter().map(|place| ((about.key)(&place.place), place)).collect();
    keyed.sort_by_key(|(key, place)| (place.key, *key));
    let mut rows = Vec::with_capacity(keyed.len());
    for of_row in keyed.chunk_by(|(key, one), (next, other)| (one.key, key) == (other.key, next)) {
        let Some((place_key, first)) = of_row.first() else { continue };
        let Some(head) = head(minute, first.key.pid, first.key.device, first.key.pool, about) else { continue };
        let empty = Changes::default();
        let mut row =
            PlaceRow { head, place_key: *place_key, live_bytes: 0, live_blocks: 0, changes: empty, level: about.level };
        for (_, place) in of_row {
            row.live_bytes = row.live_bytes.saturating_add(place.live_bytes);
            row.live_blocks += place.live_blocks;
            row.changes.add(place.changes);
        }
        rows.push(Row::Place(row));
    }
    rows
}

fn of_failure(failure: &Failure, about: &mut About<'_>) -> Option<Row> {
    let pid = failure.key.pid;
    Some(Row::Failure(FailureRow {
        head: head(failure.minute, pid, failure.key.device, failure.key.pool, about)?,
        time_ns: failure.time_ns,
        place_key: (about.key)(&failure.place),
        requested_bytes: failure.requested_bytes,
        recovered: failure.recovered,
        bundle: (about.bundle)(pid, failure.request),
    }))
}

fn head(minute: u32, pid: u32, device: Device, pool: Pool, about: &About<'_>) -> Option<Head> {
    let device_id = match device {
        Device::Npu(number) => number.cast_signed(),
        Device::Cpu => -1,
        Device::None => -2,
    };
    let who = (about.who)(pid)?;
    Some(Head { epoch_minute: minute.cast_signed(), who, pid: pid.cast_signed(), device_id, pool })
}
