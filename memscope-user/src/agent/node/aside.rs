//! Processes that are left out of the trace. Their pools are read now and then, so the page has what they hold.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::Node;
use crate::agent::{
    books::{Account, Known, free_bytes},
    fold::Target,
    metrics::Sample,
    process,
    reader::PoolReading,
    series::{Series, SeriesKey},
    source::Source,
};

/// A process that is left out, or could not join, is tried again after this time.
pub(super) const LEFT_OUT: Duration = Duration::from_secs(600);

/// The processes, and what was read of them.
#[derive(Debug, Default)]
pub(super) struct Aside {
    processes: BTreeMap<u32, (Instant, Target)>,
    series: BTreeMap<SeriesKey, Series>,
    /// When the pool of each was read last.
    read_at: BTreeMap<u32, Instant>,
    read: u64,
    failed: u64,
}

impl Aside {
    pub(super) fn contains(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    pub(super) fn len(&self) -> usize {
        self.processes.len()
    }

    fn insert(&mut self, pid: u32, until: Instant, target: Target) {
        self.processes.insert(pid, (until, target));
    }

    /// It may join once more.
    pub(super) fn remove(&mut self, pid: u32) {
        self.processes.remove(&pid);
        self.series.retain(|key, _| key.pid != pid);
        self.read_at.remove(&pid);
    }

    /// All may join once more.
    pub(super) fn take(&mut self) -> Vec<u32> {
        self.series.clear();
        self.read_at.clear();
        std::mem::take(&mut self.processes).into_keys().collect()
    }

    /// Forgets those that have ended, and those that may join.
    pub(super) fn forget(&mut self, now: Instant) {
        self.processes.retain(|pid, (until, _)| *until > now && process::uid_of(*pid).is_some());
        let Self { processes, series, read_at, .. } = self;
        series.retain(|key, _| processes.contains_key(&key.pid));
        read_at.retain(|pid, _| processes.contains_key(pid));
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
    /// comes once, as of a process that has ended.
    fn add_to(&self, account: &mut Account, targets: &mut BTreeMap<u32, Target>) {
        let last: BTreeSet<u32> = account.series.iter().map(|(key, _)| key.pid).collect();
        let is_over = |pid: &u32| !account.processes.contains_key(pid) && !last.contains(pid);
        let known = |pid: &u32| self.processes.get(pid).filter(|_| is_over(pid));
        let added: Vec<(&SeriesKey, &Series, &Target)> =
            self.series.iter().filter_map(|(key, series)| Some((key, series, &known(&key.pid)?.1))).collect();
        for (key, series, target) in added {
            account.processes.insert(key.pid, Known { attached: true, ..Known::default() });
            account.series.push((*key, series.clone()));
            targets.insert(key.pid, target.clone());
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
        let target = self.targets.get(&pid).cloned().unwrap_or_default();
        self.aside.insert(pid, now + LEFT_OUT, target);
        self.discovery.forget(pid, now + LEFT_OUT);
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
