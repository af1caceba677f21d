//! What the screen shows: the last moment, and how full the devices were before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::analyses::live_use::Moment;
use crate::analyses::sample::ProcessSample;
use crate::model::{Device, Pool};

/// Fullness is followed for this long.
const SPAN_NS: u64 = 600_000_000_000;
/// At points that are at least this far apart.
const APART_NS: u64 = 5_000_000_000;
/// Rates are of this time at most.
const RATE_NS: u64 = 60_000_000_000;
/// And of this time at least.
const LEAST_RATE_NS: u64 = 10_000_000_000;
/// Devices that are followed.
const MAX_DEVICES: usize = 64;

/// How full a device is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Full {
    pub(super) device: Device,
    /// Bytes in use: by the driver's word, else driver blocks of the traced processes.
    pub(super) used_bytes: u64,
    /// Bytes that it has, by the driver's word.
    pub(super) total_bytes: Option<u64>,
    /// Change in bytes for each minute.
    pub(super) per_minute: Option<i64>,
    /// Seconds until it is full at this rate.
    pub(super) seconds_left: Option<f64>,
}

/// What is known.
#[derive(Debug, Default)]
pub(crate) struct State {
    moment: Option<Moment>,
    curves: BTreeMap<Device, VecDeque<(u64, u64)>>,
    /// The last message of the trace.
    message: Option<String>,
    /// The trace has ended.
    ended: bool,
}

impl State {
    /// Takes a moment, later than the last one.
    pub(crate) fn take(&mut self, moment: Moment) {
        let time_ns = moment.sample.time_ns;
        for (device, used_bytes, _) in used(&moment) {
            if self.curves.len() >= MAX_DEVICES && !self.curves.contains_key(&device) {
                continue;
            }
            let curve = self.curves.entry(device).or_default();
            if curve.back().is_none_or(|(last, _)| time_ns.saturating_sub(*last) >= APART_NS) {
                curve.push_back((time_ns, used_bytes));
            }
            while curve.front().is_some_and(|(first, _)| time_ns.saturating_sub(*first) > SPAN_NS) {
                curve.pop_front();
            }
        }
        self.moment = Some(moment);
    }

    /// The trace says something.
    pub(crate) fn say(&mut self, text: String) {
        self.message = Some(text);
    }

    /// The trace has ended: nothing changes any more.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    pub(super) const fn moment(&self) -> Option<&Moment> {
        self.moment.as_ref()
    }

    pub(super) fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Processes of the last moment.
    pub(super) fn pids(&self) -> Vec<u32> {
        let Some(moment) = &self.moment else { return Vec::new() };
        let pids = moment.sample.processes.iter().map(|process| process.pid);
        pids.chain(moment.places.iter().map(|place| place.pid)).collect::<BTreeSet<u32>>().into_iter().collect()
    }

    /// Pools of the last moment, by how much they have.
    pub(super) fn pools(&self) -> Vec<Pool> {
        let Some(moment) = &self.moment else { return Vec::new() };
        let mut pools: BTreeMap<Pool, u64> = BTreeMap::new();
        for pool in moment.sample.processes.iter().flat_map(|process| &process.pools) {
            *pools.entry(pool.pool).or_default() += pool.live_bytes;
        }
        pools.into_keys().collect()
    }

    /// How full each device is.
    pub(super) fn full(&self) -> Vec<Full> {
        let Some(moment) = &self.moment else { return Vec::new() };
        let full = |(device, used_bytes, total_bytes): (Device, u64, Option<u64>)| {
            let per_minute = self.rate(device, moment.sample.time_ns, used_bytes);
            let left = total_bytes.map(|total| total.saturating_sub(used_bytes));
            let rising = per_minute.filter(|rate| *rate > 0);
            let seconds_left = left.zip(rising).map(|(left, rate)| left as f64 / rate as f64 * 60.0);
            Full { device, used_bytes, total_bytes, per_minute, seconds_left }
        };
        used(moment).into_iter().map(full).collect()
    }

    fn rate(&self, device: Device, time_ns: u64, used_bytes: u64) -> Option<i64> {
        let curve = self.curves.get(&device)?;
        let recent = curve.iter().find(|(at, _)| time_ns.saturating_sub(*at) <= RATE_NS)?;
        let span_ns = time_ns.saturating_sub(recent.0);
        let change = i128::from(used_bytes) - i128::from(recent.1);
        let rate = || i64::try_from(change * 60_000_000_000 / i128::from(span_ns)).unwrap_or(i64::MAX);
        (span_ns >= LEAST_RATE_NS).then(rate)
    }

    /// How full a device was, the oldest first.
    pub(super) fn curve(&self, device: Device) -> Vec<u64> {
        self.curves.get(&device).into_iter().flatten().map(|(_, bytes)| *bytes).collect()
    }
}

/// Bytes in use of each device, and bytes that it has.
fn used(moment: &Moment) -> Vec<(Device, u64, Option<u64>)> {
    let mut devices: BTreeMap<Device, (u64, Option<u64>)> = BTreeMap::new();
    for (device, bytes) in moment.sample.processes.iter().flat_map(used_by) {
        devices.entry(device).or_default().0 += bytes;
    }
    for device in moment.sample.devices.iter().flatten() {
        devices.insert(device.device, (device.used_bytes, Some(device.total_bytes)));
    }
    devices.into_iter().map(|(device, (used, total))| (device, used, total)).collect()
}

/// What a process has of each device: blocks of the driver, in which pools lie. An attach sees only later ones; then its largest pool
/// says more, by its own figures; where no block of the driver was seen, all pools do.
fn used_by(process: &ProcessSample) -> BTreeMap<Device, u64> {
    let mut devices: BTreeMap<Device, [u64; 3]> = BTreeMap::new();
    for pool in process.pools.iter().filter(|pool| matches!(pool.device, Device::Npu(_))) {
        let [driver, largest, all] = devices.entry(pool.device).or_default();
        let live_bytes = pool.live_bytes.saturating_add(pool.unseen_bytes);
        if pool.pool.is_driver() {
            *driver += live_bytes;
        } else {
            let known_bytes = pool.space.map_or(0, |space| space.total_bytes);
            let held_bytes = known_bytes.saturating_add(pool.unknown_bytes.unwrap_or(0));
            *largest = (*largest).max(held_bytes).max(live_bytes);
            *all += live_bytes;
        }
    }
    let used = |[driver, largest, all]: [u64; 3]| if driver > 0 { driver.max(largest) } else { all.max(largest) };
    devices.into_iter().map(|(device, sums)| (device, used(sums))).collect()
}
