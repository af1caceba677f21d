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
            let group = Group { place: target.place.clone(), device: key.device, pool: known(key.pool) };
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
            self.begun.entry(group.clone()).or_insert(last_ns);
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
    let group = Group { place: target.place.clone(), device: key.device, pool: known(key.pool) };
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
mod tests {
    use super::*;
    use crate::{
        agent::books::Books,
        analyses::script::Script,
        backend::ascend::pools,
        model::{Event, EventKind, FreeCause, ProcessStart},
    };

    fn place(pod: &str) -> Target {
        let place = Where { namespace: "train".into(), pod_name: pod.into(), container_name: "main".into() };
        Target { place, ..Target::default() }
    }

    fn started(books: &mut Books, script: &Script) {
        let start = ProcessStart { parent: 0, attached: false, command: "a".into(), pid_within: None };
        books.observe(&Event { kind: EventKind::ProcessStart(start), ..script.events()[0].clone() });
        script.events().iter().for_each(|event| books.observe(event));
    }

    fn number(samples: &[Sample], family: &str, labels: &[(&str, &str)]) -> Option<u64> {
        let has = |sample: &Sample, (name, value): &(&str, &str)| {
            sample.labels.iter().any(|(known, is)| known == name && is == value)
        };
        let mut fitting =
            samples.iter().filter(|sample| sample.family == family && labels.iter().all(|label| has(sample, label)));
        let found = fitting.next()?;
        assert!(fitting.next().is_none(), "more than one {family} {labels:?}");
        match found.number {
            Number::Whole(number) => Some(number),
            _ => None,
        }
    }

    /// Two processes of one pod are one series; its counters do not fall when one of them ends, and what it held is live no more.
    #[test]
    fn containers_outlive_their_processes() {
        let device = Device::Npu(3);
        let mut books = Books::default();
        let mut one = Script::new(7, device);
        one.alloc(pools::HAL, 0x1000, 100).alloc(pools::HAL, 0x2000, 50).free(pools::HAL, 0x2000);
        let mut other = Script::new(8, device);
        other.alloc(pools::HAL, 0x1000, 1000);
        started(&mut books, &one);
        started(&mut books, &other);
        let targets = BTreeMap::from([(7, place("a")), (8, place("a"))]);
        let mut fold = Fold::default();
        let pod = [("pod_name", "a"), ("id", "3"), ("layer", "hal"), ("pool", "hal")];
        let read = |samples: &[Sample]| {
            ["memscope_memory_live_bytes", "memscope_allocated_bytes", "memscope_frees"]
                .map(|family| number(samples, family, &pod))
        };
        let samples = fold.samples(&books.take(), &targets, 0, true);
        assert_eq!(read(&samples), [Some(1100), Some(1150), Some(1)]);
        let of_process = |pid| number(&samples, "memscope_process_memory_bytes", &[("process_id", pid)]);
        assert_eq!((of_process("7"), of_process("8")), (Some(100), Some(1000)));
        let mut end = Script::new(8, device);
        end.alloc(pools::HAL, 0x9000, 1).end(FreeCause::ProcessEnd, pools::HAL, 0x9000).process_end();
        end.events().iter().for_each(|event| books.observe(event));
        for _ in 0..3 {
            let samples = fold.samples(&books.take(), &targets, 0, true);
            assert_eq!(read(&samples), [Some(100), Some(1151), Some(1)]);
        }
    }

    /// A pod that is gone is forgotten, after a while.
    #[test]
    fn empty_containers_are_forgotten() {
        let mut books = Books::default();
        let mut script = Script::new(7, Device::Npu(0));
        script.alloc(pools::HAL, 0x1000, 100).end(FreeCause::ProcessEnd, pools::HAL, 0x1000).process_end();
        started(&mut books, &script);
        let mut fold = Fold::default();
        let targets = BTreeMap::from([(7, place("a"))]);
        let mut pages = 0;
        while number(&fold.samples(&books.take(), &targets, 0, true), "memscope_allocations", &[]).is_some() {
            pages += 1;
        }
        assert_eq!(pages, PAGES_KEPT + 1);
    }

    /// Counts begin with the agent, or with the last page that had none of them; also those that are back after they were forgotten.
    #[test]
    fn counts_have_a_start() {
        let mut script = Script::new(7, Device::Npu(0));
        script.alloc(pools::HAL, 0x1000, 100);
        let (mut books, mut fold) = (Books::default(), Fold::default());
        started(&mut books, &script);
        let targets = BTreeMap::from([(7, place("a")), (8, place("b"))]);
        let start = |samples: &[Sample], pod: &str| {
            let is_of = |sample: &&Sample| sample.labels.iter().any(|(_, value)| value == pod);
            samples.iter().filter(is_of).find(|sample| sample.family == "memscope_allocations").map(|it| it.start_ns)
        };
        let samples = fold.samples(&books.take(), &targets, 1_000, true);
        assert_eq!((start(&samples, "a"), start(&samples, "b")), (Some(None), None));
        let mut other = Script::new(8, Device::Npu(0));
        other.alloc(pools::HAL, 0x1000, 1).end(FreeCause::ProcessEnd, pools::HAL, 0x1000).process_end();
        started(&mut books, &other);
        for now_ns in 2_000..2_000 + u64::from(PAGES_KEPT) {
            let samples = fold.samples(&books.take(), &targets, now_ns, true);
            assert_eq!((start(&samples, "a"), start(&samples, "b")), (Some(None), Some(Some(1_000))));
        }
        for now_ns in [3_000, 4_000] {
            fold.samples(&books.take(), &targets, now_ns, true);
        }
        started(&mut books, &other);
        let samples = fold.samples(&books.take(), &targets, 5_000, true);
        assert_eq!((start(&samples, "a"), start(&samples, "b")), (Some(None), Some(Some(4_000))));
    }

    /// Layers have their labels; names of programs become none.
    #[test]
    fn labels_are_a_fixed_list() {
        let mut books = Books::default();
        let mut script = Script::new(7, Device::Npu(0));
        let custom = Pool::custom("my_pool");
        script.alloc(custom, 0x1000, 1).alloc(pools::PTA_WORKSPACE, 0x2000, 2).alloc(pools::HOST, 0x3000, 3);
        started(&mut books, &script);
        let samples = Fold::default().samples(&books.take(), &BTreeMap::new(), 0, false);
        for (layer, pool, bytes) in
            [("custom", "custom", 1), ("workspace", "pta_workspace", 2), ("host_pinned", "host", 3)]
        {
            let found = number(&samples, "memscope_memory_live_bytes", &[("layer", layer), ("pool", pool)]);
            assert_eq!(found, Some(bytes), "{layer}");
        }
        assert!(!samples.iter().any(|sample| sample.labels.iter().any(|(_, value)| value.contains("my_pool"))));
        assert!(!samples.iter().any(|sample| sample.family == "memscope_process_memory_bytes"));
    }

    /// Of two processes on a device, the one that is full first; one that has no date does not hide it.
    #[test]
    fn the_soonest_counts() {
        let left = |middle: f64| Some([Some(middle / 2.0), Some(middle), None]);
        assert_eq!(soonest(left(50.0), left(40.0)), left(40.0));
        assert_eq!(soonest(left(50.0), Some([Some(1.0), None, None])), left(50.0));
        assert_eq!(
            [soonest(None, left(9.0)), soonest(left(9.0), None), soonest(None, None)],
            [left(9.0), left(9.0), None]
        );
    }
}
