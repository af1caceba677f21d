//! The account of all processes as samples: by pod, container, device and pool, and by process.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    books::Account,
    metrics::{Labels, Number, Sample},
    series::{SIZE_BOUNDS, Series, SeriesKey},
};
use crate::model::{Device, Pool, PoolLevel};

/// Ages of survivors, in minutes.
const AGES: [u32; 4] = [1, 10, 60, 360];
/// Earliest, middle and latest of an interval of 90 %.
const ENDS: [&str; 3] = ["0.05", "0.5", "0.95"];
/// The fastest growing places of a container on a device.
pub(super) const SUSPECTS: usize = 5;
/// Counters of a container without a process stay for this many pages more.
const PAGES_KEPT: u32 = 60;
const MINUTE_NS: u64 = 60_000_000_000;

/// Where a process runs, as its labels say.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Where {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Name of the pod, or its UID where the name is not known.
    pub pod_name: String,
    /// Name of the container, or the begin of its number.
    pub container_name: String,
}

impl Where {
    fn labels(&self) -> Labels {
        vec![
            ("namespace", self.namespace.clone()),
            ("pod_name", self.pod_name.clone()),
            ("container_name", self.container_name.clone()),
        ]
    }
}

/// A traced process, as its labels say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Where it runs.
    pub place: Where,
    /// Number of its container.
    pub container_id: String,
    /// Short name of its program.
    pub comm: String,
    /// Its rank in a job, as its environment says.
    pub rank: String,
    /// Its job, as its environment says.
    pub job: String,
    /// Number of its user.
    pub uid: u32,
}

/// Who is counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    place: Where,
    device: Device,
    pool: Pool,
}

/// What only grows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counters {
    allocations: u64,
    frees: u64,
    allocated_bytes: u64,
    freed_bytes: u64,
    older_frees: u64,
    out_of_memory: u64,
    recovered: u64,
    refused: u64,
    sizes: [u64; SIZE_BOUNDS.len() + 1],
}

impl Counters {
    fn add(&mut self, series: &Series) {
        let sums = [
            (&mut self.allocations, series.allocations),
            (&mut self.frees, series.frees),
            (&mut self.allocated_bytes, series.allocated_bytes),
            (&mut self.freed_bytes, series.freed_bytes),
            (&mut self.older_frees, series.older_frees),
            (&mut self.out_of_memory, series.out_of_memory),
            (&mut self.recovered, series.recovered),
            (&mut self.refused, series.refused),
        ];
        for (sum, number) in sums.into_iter().chain(self.sizes.iter_mut().zip(series.sizes)) {
            *sum = sum.saturating_add(number);
        }
    }
}

/// What is live.
#[derive(Clone, Debug, Default)]
struct Live {
    blocks: u64,
    bytes: u64,
    untracked_bytes: u64,
    /// Of the processes with known ages, if there is one.
    older_bytes: Option<[u64; AGES.len()]>,
    growth: Option<f64>,
    seconds_left: Option<[Option<f64>; 3]>,
    suspects: Vec<f64>,
    used_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
    active_bytes: Option<u64>,
}

impl Live {
    fn add(&mut self, series: &Series, now_minute: u32) {
        self.blocks += series.live_blocks;
        self.bytes = self.bytes.saturating_add(series.live_bytes);
        self.untracked_bytes = self.untracked_bytes.saturating_add(series.untracked_bytes());
        if series.has_ages() {
            for (sum, minutes) in self.older_bytes.get_or_insert_default().iter_mut().zip(AGES) {
                *sum = sum.saturating_add(series.older_bytes(minutes, now_minute));
            }
        }
        self.growth = added(self.growth, series.growth(), |one, other| one + other);
        self.seconds_left = soonest(self.seconds_left, series.seconds_left());
        self.suspects.extend(series.growing_places(SUSPECTS).iter().map(|(_, slope)| slope));
        self.used_bytes = added(self.used_bytes, series.used_bytes, u64::saturating_add);
        self.reserved_bytes = added(self.reserved_bytes, series.reserved_bytes, u64::saturating_add);
        self.active_bytes = added(self.active_bytes, series.active_bytes, u64::saturating_add);
    }
}

/// Of two processes that fill a device, the one that has filled it first.
fn soonest(one: Option<[Option<f64>; 3]>, other: Option<[Option<f64>; 3]>) -> Option<[Option<f64>; 3]> {
    let middle = |left: &[Option<f64>; 3]| left[1].unwrap_or(f64::INFINITY);
    one.into_iter().chain(other).min_by(|one, other| middle(one).total_cmp(&middle(other)))
}

fn added<T>(sum: Option<T>, more: Option<T>, add: impl Fn(T, T) -> T) -> Option<T> {
    match (sum, more) {
        (Some(sum), Some(more)) => Some(add(sum, more)),
        (sum, more) => sum.or(more),
    }
}

/// Adds accounts up. Counters of processes that have ended stay in those of their container, which so never fall.
#[derive(Debug, Default)]
pub struct Fold {
    ended: BTreeMap<Group, (Counters, u32)>,
    /// When the counters of a group began: the last page without them, if there was one.
    begun: BTreeMap<Group, Option<u64>>,
    last_ns: Option<u64>,
}

impl Fold {
    /// Samples of an account. `now_ns`: since the Unix epoch.
    pub fn samples(
        &mut self,
        account: &Account,
        targets: &BTreeMap<u32, Target>,
        now_ns: u64,
        per_process: bool,
    ) -> Vec<Sample> {
        let now_minute = (now_ns / MINUTE_NS) as u32;
        let unknown = Target::default();
        let mut counters: BTreeMap<Group, Counters> =
            self.ended.iter().map(|(group, (counters, _))| (group.clone(), counters.clone())).collect();
        let mut live: BTreeMap<Group, Live> = BTreeMap::new();
        let mut samples = Vec::new();
        for (key, series) in &account.series {
            let target = targets.get(&key.pid).unwrap_or(&unknown);
            let group = Group::of(key, target);
            counters.entry(group.clone()).or_default().add(series);
            if account.processes.get(&key.pid).is_none_or(|process| process.ended) {
                self.ended.entry(group).or_default().0.add(series);
                continue;
            }
            live.entry(group).or_default().add(series, now_minute);
            if per_process {
                samples.push(of_process(key, series, target));
            }
        }
        for (key, series) in &account.parted {
            let group = Group::of(key, targets.get(&key.pid).unwrap_or(&unknown));
            counters.entry(group.clone()).or_default().add(series);
            self.ended.entry(group).or_default().0.add(series);
        }
        self.forget(&live);
        self.begin(&counters, now_ns);
        let begun = |group: &Group| self.begun.get(group).copied().flatten();
        let of_counters = |(group, sums)| since(begun(group), of_counters(group, sums));
        samples.extend(counters.iter().flat_map(of_counters));
        samples.extend(live.iter().flat_map(|(group, live)| since(begun(group), of_live(group, live))));
        samples.extend(suspects(&live));
        samples.extend(devices(account, &live));
        if per_process {
            samples.extend(processes(account, targets));
        }
        samples
    }

    /// A group that comes back after it was forgotten counts from 0, so it begins once more.
    fn begin(&mut self, counters: &BTreeMap<Group, Counters>, now_ns: u64) {
        self.begun.retain(|group, _| counters.contains_key(group));
        let last_ns = self.last_ns.replace(now_ns);
        for group in counters.keys() {
            let begun = self.begun.entry(group.clone()).or_insert(last_ns);
            // A count cannot begin later than now: the clock was set back.
            *begun = begun.map(|begun_ns| begun_ns.min(now_ns));
        }
    }

    /// A container without a process is forgotten after a while.
    fn forget(&mut self, live: &BTreeMap<Group, Live>) {
        let places: BTreeSet<&Where> = live.keys().map(|group| &group.place).collect();
        self.ended.retain(|group, (_, pages)| {
            *pages = if places.contains(&group.place) { 0 } else { *pages + 1 };
            *pages <= PAGES_KEPT
        });
    }
}

fn since(start_ns: Option<u64>, samples: Vec<Sample>) -> impl Iterator<Item = Sample> {
    samples.into_iter().map(move |sample| sample.since(start_ns))
}

/// A pool that a program has named is one of many, and its name the program's: all of them are one.
pub(super) fn known(pool: Pool) -> Pool {
    if pool.custom_name().is_some() { Pool::custom("custom") } else { pool }
}

/// The layer of a pool, as its label says.
pub(super) const fn layer(pool: Pool) -> &'static str {
    match pool.level() {
        PoolLevel::Driver => "hal",
        PoolLevel::Host => "host_pinned",
        PoolLevel::Framework => "pool",
        PoolLevel::Workspace => "workspace",
        PoolLevel::Custom => "custom",
    }
}

pub(super) fn id(device: Device) -> String {
    match device {
        Device::Npu(number) => number.to_string(),
        Device::Cpu => "host".to_owned(),
        Device::None => "unknown".to_owned(),
    }
}

impl Group {
    fn of(key: &SeriesKey, target: &Target) -> Self {
        Self { place: target.place.clone(), device: key.device, pool: known(key.pool) }
    }

    fn labels(&self) -> Labels {
        let mut labels = self.place.labels();
        labels.extend([
            ("id", id(self.device)),
            ("layer", layer(self.pool).to_owned()),
            ("pool", self.pool.event_type().to_ascii_lowercase()),
        ]);
        labels
    }

    fn with(&self, name: &'static str, value: impl Into<String>) -> Labels {
        let mut labels = self.labels();
        labels.push((name, value.into()));
        labels
    }
}

fn of_counters(group: &Group, counters: &Counters) -> Vec<Sample> {
    let count = |family, number| Sample::whole(family, group.labels(), number);
    let failed = |reason, number| Sample::whole("memscope_allocation_failures", group.with("reason", reason), number);
    vec![
        count("memscope_allocations", counters.allocations),
        count("memscope_frees", counters.frees),
        count("memscope_allocated_bytes", counters.allocated_bytes),
        count("memscope_freed_bytes", counters.freed_bytes),
        count("memscope_blocks_before_attach_freed", counters.older_frees),
        failed("oom", counters.out_of_memory),
        failed("recovered", counters.recovered),
        failed("refused", counters.refused),
        Sample {
            family: "memscope_allocation_size_bytes",
            labels: group.labels(),
            number: Number::Histogram {
                bounds: &SIZE_BOUNDS,
                counts: counters.sizes.to_vec(),
                sum: counters.allocated_bytes,
            },
            start_ns: None,
        },
    ]
}

fn of_live(group: &Group, live: &Live) -> Vec<Sample> {
    let whole = |family, number| Sample::whole(family, group.labels(), number);
    let mut samples = vec![
        whole("memscope_memory_live_bytes", live.bytes),
        whole("memscope_memory_live_blocks", live.blocks),
        whole("memscope_memory_untracked_bytes", live.untracked_bytes),
    ];
    for (minutes, bytes) in AGES.into_iter().zip(live.older_bytes.into_iter().flatten()) {
        samples.push(Sample::whole(
            "memscope_memory_live_older_bytes",
            group.with("age", (minutes * 60).to_string()),
            bytes,
        ));
    }
    let growth = live
        .growth
        .map(|slope| Sample::real("memscope_memory_growth_bytes_per_second", group.with("window", "1h"), slope));
    samples.extend(growth);
    let left = ENDS.into_iter().zip(live.seconds_left.into_iter().flatten());
    samples.extend(left.filter_map(|(end, seconds)| {
        Some(Sample::real("memscope_pool_full_seconds", group.with("quantile", end), seconds?))
    }));
    let reported = [
        ("memscope_pool_reserved_bytes", live.reserved_bytes),
        ("memscope_pool_active_bytes", live.active_bytes),
        ("memscope_pool_allocated_bytes", live.used_bytes),
    ];
    samples.extend(reported.into_iter().filter_map(|(family, bytes)| Some(whole(family, bytes?))));
    samples
}

/// The fastest growing places of each container and device.
fn suspects(live: &BTreeMap<Group, Live>) -> Vec<Sample> {
    let mut found: BTreeMap<(&Where, Device), Vec<f64>> = BTreeMap::new();
    for (group, live) in live {
        found.entry((&group.place, group.device)).or_default().extend(&live.suspects);
    }
    let mut samples = Vec::new();
    for ((place, device), mut slopes) in found {
        slopes.sort_by(|one, other| other.total_cmp(one));
        for (slot, slope) in slopes.into_iter().take(SUSPECTS).enumerate() {
            let mut labels = place.labels();
            labels.extend([("id", id(device)), ("slot", slot.to_string())]);
            samples.push(Sample::real("memscope_leak_suspect_growth_bytes_per_second", labels, slope));
        }
    }
    samples
}

/// What the driver says, and what of it no traced process explains.
fn devices(account: &Account, live: &BTreeMap<Group, Live>) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (number, (used, total)) in &account.devices {
        let is_of_driver = |group: &&Group| group.device == Device::Npu(*number) && group.pool.is_driver();
        let of_driver = live.iter().filter(|(group, _)| is_of_driver(group)).map(|(_, live)| live.bytes);
        let explained = of_driver.fold(0, u64::saturating_add);
        let figures = [
            ("memscope_device_memory_used_bytes", *used),
            ("memscope_device_memory_total_bytes", *total),
            ("memscope_device_memory_unexplained_bytes", used.saturating_sub(explained)),
        ];
        let labels = || vec![("id", number.to_string())];
        samples.extend(figures.into_iter().map(|(family, bytes)| Sample::whole(family, labels(), bytes)));
    }
    samples
}

fn of_process(key: &SeriesKey, series: &Series, target: &Target) -> Sample {
    let group = Group::of(key, target);
    Sample::whole("memscope_process_memory_bytes", group.with("process_id", key.pid.to_string()), series.live_bytes)
}

fn processes(account: &Account, targets: &BTreeMap<u32, Target>) -> Vec<Sample> {
    let living = account.processes.iter().filter(|(_, process)| !process.ended).map(|(pid, _)| pid);
    let known = living.filter_map(|pid| Some((pid, targets.get(pid)?)));
    let info = known.map(|(pid, target)| {
        let mut labels = target.place.labels();
        labels.extend([
            ("process_id", pid.to_string()),
            ("container_id", target.container_id.clone()),
            ("comm", target.comm.clone()),
            ("rank", target.rank.clone()),
        ]);
        Sample::whole("memscope_process", labels, 1)
    });
    info.collect()
}

#[cfg(test)]
mod tests;
