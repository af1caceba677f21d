//! Processes with too many events: they are traced without their pools, or left out of the trace. Their pools are read now and then, so the page
//! has what they hold.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::Node;
use crate::{
    agent::{
        books::{Account, Known, free_bytes},
        evidence::minutes::{Changes, PoolMinute},
        failures::{self, Bundle, BundlePool},
        fold::Target,
        metrics::Sample,
        otlp::since_epoch_ns,
        process,
        reader::PoolReading,
        series::{Series, SeriesKey},
        source::Source,
    },
    model::{Device, Pool},
};

/// A process that is left out, or could not join, is tried again after this time; one without its pools is traced whole again.
pub(super) const LEFT_OUT: Duration = Duration::from_secs(600);
/// A process without its pools is judged by its events from the page on that has none from before; if that does not come, after this time.
const SETTLES: Duration = Duration::from_secs(30);

/// What is left out of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOut {
    /// Calls about blocks of its pools.
    Pools,
    /// All of it.
    All,
}

/// The processes, and what was read of them.
#[derive(Debug, Default)]
pub(super) struct Aside {
    processes: BTreeMap<u32, Process>,
    series: BTreeMap<SeriesKey, Series>,
    /// When the pool of each was read last.
    read_at: BTreeMap<u32, Instant>,
    read: u64,
    failed: u64,
}

#[derive(Debug)]
struct Process {
    what: LeftOut,
    since: Instant,
    target: Target,
    /// Times that it had lost its pools before.
    reductions: u64,
    /// All of its events are those without pools, from the last page on.
    is_settled: bool,
    /// The minute of it, since the Unix epoch: in that one its pools have the rows of when they were traced.
    minute: u32,
}

impl Aside {
    pub(super) fn contains(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// What is left out of a process.
    pub(super) fn of(&self, pid: u32) -> Option<LeftOut> {
        self.processes.get(&pid).map(|process| process.what)
    }

    pub(super) fn count(&self, what: LeftOut) -> u64 {
        self.processes.values().filter(|process| process.what == what).count() as u64
    }

    /// Whether the events of a process say what it goes on to make: not when it is left out, nor as long as they are of before it lost its pools.
    pub(super) fn is_judged(&self, pid: u32) -> bool {
        self.processes.get(&pid).is_none_or(|process| process.what == LeftOut::Pools && process.is_settled)
    }

    /// A page of this account is made.
    fn settle(&mut self, account: &Account, now: Instant) {
        for (pid, process) in &mut self.processes {
            let reductions = account.processes.get(pid).map_or(u64::MAX, |known| known.reductions);
            process.is_settled |= reductions > process.reductions || now > process.since + SETTLES;
        }
    }

    /// It may join once more.
    pub(super) fn remove(&mut self, pid: u32) {
        self.processes.remove(&pid);
        self.series.retain(|key, _| key.pid != pid);
        self.read_at.remove(&pid);
    }

    /// All may be traced once more.
    fn take(&mut self) -> Vec<(u32, LeftOut)> {
        self.series.clear();
        self.read_at.clear();
        std::mem::take(&mut self.processes).into_iter().map(|(pid, process)| (pid, process.what)).collect()
    }

    /// Forgets those that have ended, and gives those that may be traced once more.
    fn forget(&mut self, now: Instant) -> Vec<(u32, LeftOut)> {
        self.processes.retain(|pid, _| process::uid_of(*pid).is_some());
        let is_over = |_: &u32, process: &mut Process| process.since + LEFT_OUT <= now;
        let over = self.processes.extract_if(.., is_over).map(|(pid, process)| (pid, process.what)).collect();
        let Self { processes, series, read_at, .. } = self;
        series.retain(|key, _| processes.contains_key(&key.pid));
        read_at.retain(|pid, _| processes.contains_key(pid));
        over
    }

    /// Keeps what was read. A process without a reading keeps the last one.
    fn keep(&mut self, readings: Vec<PoolReading>, now: Instant) {
        for PoolReading { pid, pools } in readings {
            let Ok(pools) = pools else {
                self.failed += 1;
                continue;
            };
            self.read += 1;
            if self.processes.contains_key(&pid) {
                self.read_at.insert(pid, now);
            }
            for sums in pools.iter().filter(|_| self.processes.contains_key(&pid)) {
                let key = SeriesKey { pid, device: sums.device, pool: sums.pool };
                self.series.entry(key).or_default().read(sums);
            }
        }
    }

    /// A minute is over: what they hold becomes a point of their growth.
    fn minute(&mut self, minute: u32, devices: &BTreeMap<u32, (u64, u64)>) {
        for (key, series) in &mut self.series {
            series.minute(minute, free_bytes(devices, key.device));
        }
    }

    /// Adds what is known of them to an account, and who they are to the targets. The account may have the last of one that has left: that
    /// comes once, as of a process that has ended. It may also have the pools of one that is about to lose them.
    fn add_to(&self, account: &mut Account, targets: &mut BTreeMap<u32, Target>) {
        let last: BTreeSet<SeriesKey> = account.series.iter().map(|(key, _)| *key).collect();
        let is_known = |pid: u32| last.iter().any(|key| key.pid == pid);
        let is_missing = |key: &SeriesKey, what: LeftOut| match account.processes.get(&key.pid) {
            Some(known) => what == LeftOut::Pools && !known.ended && !last.contains(key),
            None => !is_known(key.pid),
        };
        let mut added = Vec::new();
        for (key, series) in &self.series {
            let Some(process) = self.processes.get(&key.pid) else { continue };
            if is_missing(key, process.what) {
                added.push((key, series, &process.target));
            }
        }
        for (key, series, target) in added {
            account.processes.entry(key.pid).or_insert(Known { attached: true, ..Known::default() });
            account.series.push((*key, series.clone()));
            targets.entry(key.pid).or_insert_with(|| target.clone());
        }
    }

    /// Rows of a minute that has ended: the last figures of each pool; and their targets.
    pub(super) fn minute_rows(&self, ended: u32) -> (Vec<PoolMinute>, BTreeMap<u32, Target>) {
        let (mut rows, mut targets) = (Vec::new(), BTreeMap::new());
        for (key, series) in &self.series {
            let Some(process) = self.processes.get(&key.pid).filter(|process| process.minute < ended) else { continue };
            rows.push(PoolMinute::of(*key, series, Changes::default(), 0));
            targets.entry(key.pid).or_insert_with(|| process.target.clone());
        }
        (rows, targets)
    }

    /// Adds the last figures of pools that are not traced to what processes held when a request failed.
    pub(super) fn complete(&self, bundles: &mut [Bundle], now: Instant) {
        for bundle in bundles {
            let Some(read_at) = self.read_at.get(&bundle.pid) else { continue };
            let age_ns = now.saturating_duration_since(*read_at).as_nanos() as u64;
            let read_time_ns = Some(since_epoch_ns().saturating_sub(age_ns));
            let known: BTreeSet<(Device, Pool)> = bundle.pools.iter().map(|pool| (pool.device, pool.pool)).collect();
            let is_missing = |key: &SeriesKey| key.pid == bundle.pid && !known.contains(&(key.device, key.pool));
            let missing = self.series.iter().filter(|(key, _)| is_missing(key));
            let missing = missing.map(|(key, series)| BundlePool { read_time_ns, ..failures::pool(*key, series) });
            bundle.pools.extend(missing);
            bundle.pools.sort_by_key(|pool| (pool.device, pool.pool));
        }
    }

    pub(super) fn samples(&self, now: Instant) -> impl Iterator<Item = Sample> {
        let counts = [("ok", self.read), ("error", self.failed)].map(|(result, count)| {
            Sample::whole("memscope_agent_pool_readings", vec![("result", result.to_owned())], count)
        });
        let oldest = self.read_at.values().min().map(|at| now.saturating_duration_since(*at).as_secs_f64());
        let age = oldest.map(|age| Sample::real("memscope_agent_pool_reading_age_seconds", Vec::new(), age));
        counts.into_iter().chain(age)
    }
}

impl<S: Source> Node<S> {
    /// A process leaves the trace for a while.
    pub(super) fn leave_out(&mut self, pid: u32, now: Instant) {
        self.source.leave(pid);
        self.put_aside(pid, LeftOut::All, 0, now);
        self.discovery.forget(pid, now + LEFT_OUT);
    }

    /// A process with too many events loses those of its pools for a while; one without these leaves the trace. Gives what is left out.
    pub(super) fn quieten(&mut self, pid: u32, account: &Account, now: Instant) -> LeftOut {
        if self.aside.of(pid).is_some() {
            self.leave_out(pid, now);
            return LeftOut::All;
        }
        self.source.reduce(pid);
        self.put_aside(pid, LeftOut::Pools, account.processes.get(&pid).map_or(0, |known| known.reductions), now);
        LeftOut::Pools
    }

    fn put_aside(&mut self, pid: u32, what: LeftOut, reductions: u64, now: Instant) {
        let target = self.targets.get(&pid).cloned().unwrap_or_default();
        let minute = self.minute as u32;
        let process = Process { what, since: now, target, reductions, is_settled: false, minute };
        self.aside.processes.insert(pid, process);
    }

    /// All processes may be traced whole again.
    pub(super) fn take_back(&mut self, now: Instant) {
        for (pid, what) in self.aside.take() {
            self.trace_whole(pid, what, now);
        }
    }

    /// Some may: their time is over.
    pub(super) fn end_aside(&mut self, account: &Account, now: Instant) {
        self.aside.settle(account, now);
        for (pid, what) in self.aside.forget(now) {
            self.trace_whole(pid, what, now);
        }
    }

    fn trace_whole(&mut self, pid: u32, what: LeftOut, now: Instant) {
        match what {
            LeftOut::Pools => self.source.restore(pid),
            LeftOut::All => self.discovery.forget(pid, now),
        }
    }

    /// Takes what was read of those that are left out, and asks for more. `minute`: one has ended.
    pub(super) fn read_aside(&mut self, account: &Account, minute: Option<u32>, now: Instant) {
        self.aside.keep(self.source.take_readings(), now);
        self.source.read_pools(self.aside.processes.keys().copied().collect());
        if let Some(minute) = minute {
            self.aside.minute(minute, &account.devices);
        }
    }

    /// Adds what they hold; gives all targets.
    pub(super) fn add_aside(&self, account: &mut Account) -> BTreeMap<u32, Target> {
        let mut targets = self.targets.clone();
        self.aside.add_to(account, &mut targets);
        targets
    }
}
