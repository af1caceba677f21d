//! Makes samples of findings, the kernel's figures of processes, and earlier values.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{history::History, options::Samples};
use crate::{
    analyses::{
        Finding, Kind as _,
        device_use::DeviceUse,
        fragmentation::{Fragmentation, FreeSpaceMoment},
        held::Held,
        sample::{PoolSample, ProcessSample, Sample},
    },
    follow::Change as ProcessChange,
    hash::HashMap,
    model::{Device, Pool},
    usage::host,
};

/// Most figures with a history; further ones have no changes.
const MAX_HISTORIES: usize = 4096;
/// The driver's figures are no news any more when they are this old, beyond one interval.
const STALE: Duration = Duration::from_secs(5);

/// A process's host memory, or one of its pools.
type Key = (u32, Option<(Device, Pool)>);

/// Takes samples.
#[derive(Debug)]
pub(super) struct Monitor {
    interval: Duration,
    count: Option<u64>,
    started: Instant,
    shown: u64,
    shown_at: Duration,
    /// One is requested, and has not come yet.
    asked: bool,
    living: BTreeSet<u32>,
    histories: HashMap<Key, History>,
}

impl Monitor {
    /// With the options' interval and number.
    pub(super) fn new(Samples { interval, count }: Samples) -> Self {
        Self {
            interval,
            count,
            started: Instant::now(),
            shown: 0,
            shown_at: Duration::ZERO,
            asked: false,
            living: BTreeSet::new(),
            histories: HashMap::default(),
        }
    }

    /// The interval of samples.
    pub(super) const fn interval(&self) -> Duration {
        self.interval
    }

    /// A process came, or went.
    pub(super) fn changed(&mut self, change: &ProcessChange) {
        match *change {
            ProcessChange::Started { pid, .. } => {
                self.living.insert(pid);
            }
            ProcessChange::Set { .. } => {}
            ProcessChange::Ended { pid } => {
                self.living.remove(&pid);
                self.histories.retain(|key, _| key.0 != pid);
            }
        }
    }

    /// Whether the next sample is the last one, which is taken when the trace has ended.
    pub(super) fn only_last_is_left(&self) -> bool {
        self.count.is_some_and(|count| self.shown + 1 >= count)
    }

    /// Whether to ask for the next sample: not while the last one is on its way.
    pub(super) const fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// A requested sample.
    pub(super) fn take(&mut self, findings: &[Finding], lost: u64) -> Sample {
        self.asked = false;
        self.sample(findings, lost, false)
    }

    /// The last sample, with all events.
    pub(super) fn last(mut self, findings: &[Finding], lost: u64) -> Sample {
        self.sample(findings, lost, true)
    }

    fn sample(&mut self, findings: &[Finding], lost: u64, is_last: bool) -> Sample {
        let now = self.started.elapsed();
        let interval = now.saturating_sub(self.shown_at);
        (self.shown, self.shown_at) = (self.shown + 1, now);
        let time_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let mut processes: BTreeMap<u32, ProcessSample> = BTreeMap::new();
        for &pid in &self.living {
            let host = host::of(pid);
            processes.insert(pid, ProcessSample { pid, host, recent: None, pools: Vec::new() });
        }
        let spaces = spaces(findings);
        for held in findings.iter().filter_map(Held::of) {
            let pid = held.pid;
            let none = || ProcessSample { pid, host: None, recent: None, pools: Vec::new() };
            let space = spaces.get(&(pid, held.device, held.pool)).copied();
            processes.entry(pid).or_insert_with(none).pools.push(pool_sample(held, space));
        }
        let mut processes: Vec<ProcessSample> = processes.into_values().collect();
        for process in &mut processes {
            self.compare(process, now, interval);
        }
        let devices = self.devices(findings, time_ns);
        let interval_ns = interval.as_nanos() as u64;
        Sample { time_ns, interval_ns, last: is_last, lost, devices, processes }
    }

    /// Adds the changes since before.
    fn compare(&mut self, process: &mut ProcessSample, now: Duration, interval: Duration) {
        if let Some(host) = process.host {
            let history = history(&mut self.histories, (process.pid, None));
            process.recent = history.and_then(|history| history.bytes(now, host.resident_bytes));
        }
        for pool in &mut process.pools {
            let key = (process.pid, Some((pool.device, pool.pool)));
            let Some(history) = history(&mut self.histories, key) else { continue };
            pool.recent = history.bytes(now, pool.live_bytes);
            let (allocations, frees) = history.counts(pool.allocations, pool.frees);
            let rate = |count: u64| (!interval.is_zero()).then(|| count as f64 / interval.as_secs_f64());
            (pool.allocations_per_second, pool.frees_per_second) = (rate(allocations), rate(frees));
        }
    }

    /// The driver's recent figures.
    fn devices(&self, findings: &[Finding], time_ns: u64) -> Option<Vec<DeviceUse>> {
        let oldest_ns = time_ns.saturating_sub((self.interval + STALE).as_nanos() as u64);
        let fresh = findings.iter().filter_map(DeviceUse::of).filter(|device| device.time_ns >= oldest_ns);
        Some(fresh.cloned().collect()).filter(|devices: &Vec<DeviceUse>| !devices.is_empty())
    }
}

fn history(histories: &mut HashMap<Key, History>, key: Key) -> Option<&mut History> {
    let full = histories.len() >= MAX_HISTORIES && !histories.contains_key(&key);
    (!full).then(|| histories.entry(key).or_default())
}

/// Free space of each pool.
fn spaces(findings: &[Finding]) -> HashMap<(u32, Device, Pool), &FreeSpaceMoment> {
    let mut spaces = HashMap::default();
    for found in findings.iter().filter_map(Fragmentation::of) {
        spaces.insert((found.pid, found.device, found.pool), &found.end);
    }
    spaces
}

fn pool_sample(held: &Held, space: Option<&FreeSpaceMoment>) -> PoolSample {
    PoolSample {
        device: held.device,
        pool: held.pool,
        live_blocks: held.blocks,
        live_bytes: held.size_bytes,
        unseen_bytes: held.unseen_bytes,
        peak_bytes: held.peak_bytes,
        recent: None,
        allocations: held.allocations,
        frees: held.frees + held.older_frees,
        failed: held.failed,
        allocations_per_second: None,
        frees_per_second: None,
        space: space.filter(|moment| moment.space.total_bytes > 0).map(|moment| moment.space),
        unknown_bytes: space.map(|moment| moment.unknown_bytes),
    }
}
