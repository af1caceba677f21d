//! The agent's state: who is traced, what that takes, and the pages made of it.

mod aside;
mod recording;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::OsStr,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

use self::aside::{Aside, LEFT_OUT, LeftOut};
use super::{
    books::{Account, Known},
    budget::{Budget, Level, Reading, Reason, Step},
    bundles,
    config::Config,
    control::Status,
    cost::Meter,
    cri::Directory,
    discover::Discovery,
    evidence::Evidence,
    failures::Bundle,
    fold::{Fold, Target},
    http::Pages,
    metrics::{Number, Sample},
    names::Names,
    otlp::{self, Feed},
    page::{self, Format},
    process::{self, Look, Users},
    rules::Action,
    source::Source,
};
use crate::{os::process::is_alive, session::Speaker};

/// Changes of the level that `status` shows.
const MAX_CHANGES: usize = 16;
const MINUTE_NS: u64 = 60_000_000_000;

/// The state.
pub(super) struct Node<S> {
    config: Config,
    source: S,
    speaker: Speaker,
    discovery: Discovery,
    names: Names,
    users: Users,
    targets: BTreeMap<u32, Target>,
    excluded: BTreeSet<u32>,
    aside: Aside,
    refused: u64,
    fold: Fold,
    budget: Budget,
    meter: Meter,
    pages: Pages,
    otlp: Feed,
    changes: VecDeque<String>,
    level_changes: BTreeMap<Reason, u64>,
    started: Instant,
    minute: u64,
    last: Last,
    evidence: Option<Evidence>,
    bundles_written: u64,
    bundles_failed: u64,
    dropped: u64,
    status: Status,
}

/// What the rules say of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Selected {
    Yes,
    No,
    /// Nothing yet: its container's name is to come.
    Later,
}

/// As of the last page.
#[derive(Default)]
struct Last {
    at: Option<Instant>,
    events: BTreeMap<u32, u64>,
    all_events: u64,
    newest_ns: u64,
    lost: u64,
}

impl Last {
    /// Seconds in which the events since then were made, at least those that have passed. A trace that was behind has those of a longer time.
    fn seconds(&self, account: &Account, passed: Duration) -> f64 {
        let before_ns = if self.newest_ns == 0 { account.newest_ns } else { self.newest_ns };
        let covered = Duration::from_nanos(account.newest_ns.saturating_sub(before_ns));
        passed.max(covered).as_secs_f64().max(1e-3)
    }

    /// Processes with their events since then, the busiest first.
    fn busiest(&self, account: &Account) -> Vec<(u32, u64)> {
        let before = |pid: &u32| self.events.get(pid).copied().unwrap_or_default();
        let living = account.processes.iter().filter(|(_, known)| !known.ended);
        let mut busy: Vec<(u32, u64)> =
            living.map(|(pid, known)| (*pid, known.events.saturating_sub(before(pid)))).collect();
        busy.sort_by_key(|(pid, count)| (std::cmp::Reverse(*count), *pid));
        busy
    }
}

impl<S: Source> Node<S> {
    pub(super) fn new(config: Config, source: S, pages: Pages, otlp: Feed, speaker: Speaker) -> Self {
        let seconds = Duration::from_secs_f64;
        let (interval, longest) = (config.discovery.interval_seconds, config.discovery.longest_seconds);
        Self {
            discovery: Discovery::new(seconds(interval), seconds(longest)),
            names: Names::new(&config.names.container_logs),
            budget: Budget::new(config.budget.cores),
            meter: Meter::new(config.budget.trap_ns),
            users: Users::default(),
            targets: BTreeMap::new(),
            excluded: BTreeSet::new(),
            aside: Aside::default(),
            refused: 0,
            fold: Fold::default(),
            pages,
            otlp,
            changes: VecDeque::new(),
            level_changes: BTreeMap::new(),
            started: Instant::now(),
            minute: 0,
            last: Last::default(),
            evidence: None,
            bundles_written: 0,
            bundles_failed: 0,
            dropped: 0,
            status: Status::default(),
            config,
            source,
            speaker,
        }
    }

    /// The container runtime knows names and labels.
    pub(super) fn with_runtime(self, runtime: Option<Rc<Directory>>) -> Self {
        Self { names: self.names.with_runtime(runtime), ..self }
    }

    pub(super) const fn source(&mut self) -> &mut S {
        &mut self.source
    }

    /// As of the last page.
    pub(super) fn status(&self) -> Status {
        self.status.clone()
    }

    /// Traced processes of a pod.
    pub(super) fn of_pod(&self, pod: &str) -> Vec<u32> {
        self.targets.iter().filter(|(_, target)| target.place.pod_name == pod).map(|(pid, _)| *pid).collect()
    }

    /// Looks for processes. Gives those that are to join.
    pub(super) fn look(&mut self, now: Instant) -> Vec<u32> {
        if self.budget.level() == Level::Detached {
            return Vec::new();
        }
        let found = self.discovery.look(now);
        self.choose(found.into_iter().map(|found| found.pid), now)
    }

    /// Of processes that were found, those that are to join.
    fn choose(&mut self, found: impl Iterator<Item = u32>, now: Instant) -> Vec<u32> {
        let mut joining = Vec::new();
        for pid in found {
            if self.targets.contains_key(&pid) {
                continue;
            }
            // Those that are joining are among them.
            if self.targets.len() >= self.config.discovery.max_processes {
                self.discovery.forget(pid, now + LEFT_OUT);
                self.refused += 1;
                continue;
            }
            let again = match self.select(pid) {
                Selected::Yes => {
                    self.aside.remove(pid);
                    joining.push(pid);
                    continue;
                }
                Selected::Later => self.config.discovery.interval_seconds,
                // It may run another program later, or its pod have a name.
                Selected::No => self.config.discovery.longest_seconds,
            };
            self.discovery.forget(pid, now + Duration::from_secs_f64(again));
        }
        joining
    }

    /// Asks the rules about a process.
    fn select(&mut self, pid: u32) -> Selected {
        let (facts, target) = match process::look(pid, &mut self.names, &mut self.users, &self.config.evidence.job_from)
        {
            Look::Known(known) => *known,
            Look::Gone => return Selected::No,
            Look::Later => return Selected::Later,
        };
        if self.config.rules.decide(&facts) == Action::Exclude {
            self.excluded.insert(pid);
            return Selected::No;
        }
        self.excluded.remove(&pid);
        self.targets.insert(pid, target);
        Selected::Yes
    }

    /// A process has joined, or has not.
    pub(super) fn joined(&mut self, pid: u32, result: Result<(), String>, now: Instant) {
        if let Err(why) = result {
            self.targets.remove(&pid);
            self.discovery.forget(pid, now + LEFT_OUT);
            if !is_alive(pid) {
                // It was too short-lived to be traced.
                return;
            }
            self.refused += 1;
            self.speaker.warn(format_args!("process {pid} is not traced: {why}"));
        }
    }

    /// Makes a page.
    pub(super) fn page(&mut self, now: Instant) {
        let now_ns = otlp::since_epoch_ns();
        let minute = now_ns / MINUTE_NS;
        let last_minute = std::mem::replace(&mut self.minute, minute);
        let is_new = last_minute != minute;
        if is_new {
            self.source.minute(minute as u32);
        }
        let mut account = self.source.account();
        let minutes = std::mem::take(&mut account.minutes);
        let level = self.budget.level();
        self.adopt(&account, now);
        self.keep_to_budget(&account, now);
        self.read_aside(&account, is_new.then_some(minute as u32), now);
        self.aside.complete(&mut account.bundles, now);
        self.write_bundles(&account);
        self.keep_evidence(minutes, is_new.then_some(last_minute as u32), level, now);
        let own = self.own_samples(&account, now);
        self.otlp.suspect(&account, &self.targets);
        let targets = self.add_aside(&mut account);
        let mut samples = self.fold.samples(&account, &targets, now_ns, self.config.metrics.per_process);
        samples.extend(own);
        self.bound(&mut samples);
        self.status = self.new_status(&account, &targets);
        self.pages.set(page::write(&samples, Format::Text), page::write(&samples, Format::OpenMetrics));
        self.otlp.page(&samples, now);
        self.part(&account, now);
    }

    /// Children of traced processes are in the trace already: rules decide whether they stay.
    fn adopt(&mut self, account: &Account, now: Instant) {
        let unknown: Vec<u32> = account
            .processes
            .iter()
            .filter(|(pid, known)| !known.ended && !self.targets.contains_key(pid) && !self.aside.contains(**pid))
            .map(|(pid, _)| *pid)
            .collect();
        for pid in unknown {
            self.discovery.know(pid, now);
            if self.select(pid) == Selected::No {
                self.source.leave(pid);
            }
        }
    }

    /// Measures what the agent takes, and takes less where that is too much.
    fn keep_to_budget(&mut self, account: &Account, now: Instant) {
        let spent = self.source.spent();
        let cores = self.meter.read(now, spent.programs);
        let newest = Last {
            at: Some(now),
            events: events(account),
            all_events: account.events,
            newest_ns: account.newest_ns,
            lost: spent.lost,
        };
        let last = std::mem::replace(&mut self.last, newest);
        let Some(before) = last.at else { return };
        let reading = Reading {
            now: now.duration_since(self.started),
            cores,
            records: account.events.saturating_sub(last.all_events),
            lost: spent.lost.saturating_sub(last.lost),
        };
        let mut busy = last.busiest(account);
        let seconds = last.seconds(account, now.duration_since(before));
        let most = (self.config.budget.events_per_process as f64 * seconds) as u64;
        busy.retain(|(pid, _)| self.aside.is_judged(*pid));
        for (pid, count) in busy.iter().filter(|(_, count)| *count > most) {
            let rate = *count as f64 / seconds;
            let what = match self.quieten(*pid, account, now) {
                LeftOut::Pools => "traced without its pools",
                LeftOut::All => "left out",
            };
            self.speaker.warn(format_args!("process {pid} is {what} for 10 min: {rate:.0} events in a second"));
        }
        busy.retain(|(_, count)| *count <= most);
        if let Some(step) = self.budget.read(&reading) {
            self.step(step, &busy, account, now);
        }
    }

    fn step(&mut self, step: Step, busy: &[(u32, u64)], account: &Account, now: Instant) {
        self.source.set_level(step.to);
        self.otlp.level_changed(step);
        *self.level_changes.entry(step.reason).or_default() += 1;
        let seconds = now.duration_since(self.started).as_secs();
        self.changes.push_back(format!("after {seconds} s: {step}"));
        if self.changes.len() > MAX_CHANGES {
            self.changes.pop_front();
        }
        self.speaker.warn(format_args!("{step}: see `memscope-bpf agent status`"));
        match (step.from, step.to) {
            (_, Level::Detached) => {
                for pid in self.targets.keys().copied().collect::<Vec<u32>>() {
                    self.leave_out(pid, now);
                }
            }
            (Level::NoStacks, Level::NoBusy) => {
                if let Some((pid, _)) = busy.first() {
                    self.quieten(*pid, account, now);
                }
            }
            (Level::Detached, _) | (Level::NoBusy, Level::NoStacks) => self.take_back(now),
            _ => {}
        }
    }

    /// Forgets processes that have ended, or are left out.
    fn part(&mut self, account: &Account, now: Instant) {
        for (pid, _) in account.processes.iter().filter(|(_, known)| known.ended) {
            self.targets.remove(pid);
        }
        self.end_aside(account, now);
        self.excluded.retain(|pid| process::uid_of(*pid).is_some());
    }

    fn write_bundles(&mut self, account: &Account) {
        for bundle in &account.bundles {
            let path = self.write_bundle(bundle);
            let file = path.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
            if let (Some(evidence), Some(file)) = (&mut self.evidence, file) {
                evidence.bundle(bundle.pid, bundle.request, file.to_owned());
            }
            self.otlp.oom(bundle, self.targets.get(&bundle.pid), file);
        }
    }

    fn write_bundle(&mut self, bundle: &Bundle) -> Option<PathBuf> {
        let settings = &self.config.bundles;
        if settings.directory.as_os_str().is_empty() {
            return None;
        }
        match bundles::write(&settings.directory, settings.max_files, bundle, self.targets.get(&bundle.pid)) {
            Ok(path) => {
                self.bundles_written += 1;
                let text = format_args!("process {} ran out of memory: {}", bundle.pid, path.display());
                self.speaker.warn(text);
                Some(path)
            }
            Err(error) => {
                self.bundles_failed += 1;
                self.speaker.warn(format_args!("cannot write a bundle: {error}"));
                None
            }
        }
    }

    /// Samples about the agent itself.
    fn own_samples(&self, account: &Account, now: Instant) -> Vec<Sample> {
        let whole = |family, label: Option<(&'static str, &str)>, number| {
            let labels = label.map(|(name, value)| (name, value.to_owned())).into_iter().collect();
            Sample::whole(family, labels, number)
        };
        let is_whole = |(pid, known): &(&u32, &Known)| !known.ended && !self.aside.contains(**pid);
        let traced = account.processes.iter().filter(is_whole).count() as u64;
        let [reduced, left_out] = [LeftOut::Pools, LeftOut::All].map(|what| self.aside.count(what));
        let mut samples = vec![
            whole("memscope_events", None, account.events),
            whole("memscope_events_lost", Some(("reason", "ring_full")), self.last.lost),
            whole("memscope_events_lost", Some(("reason", "series_full")), account.refused_series),
            Sample::real(
                "memscope_map_fill_ratio",
                vec![("map", "places".to_owned())],
                account.places as f64 / Account::MAX_PLACES as f64,
            ),
            Sample::real("memscope_map_fill_ratio", vec![("map", "stacks".to_owned())], account.stacks_fill),
            whole("memscope_targets", Some(("state", "traced")), traced),
            whole("memscope_targets", Some(("state", "reduced")), reduced),
            whole("memscope_targets", Some(("state", "excluded")), self.excluded.len() as u64),
            whole("memscope_targets", Some(("state", "left_out")), left_out),
            whole("memscope_targets", Some(("state", "refused")), self.refused),
            whole("memscope_bundles", Some(("result", "ok")), self.bundles_written),
            whole("memscope_bundles", Some(("result", "error")), self.bundles_failed),
            info(),
        ];
        samples.extend(self.aside.samples(now));
        samples.extend(self.evidence.iter().flat_map(Evidence::samples));
        samples.extend(self.meter.samples());
        samples.push(Sample::real("memscope_agent_budget_ratio", Vec::new(), self.config.budget.cores));
        samples.push(whole("memscope_agent_level", None, self.budget.level().number().into()));
        for reason in Reason::ALL {
            let count = self.level_changes.get(&reason).copied().unwrap_or_default();
            samples.push(whole("memscope_agent_level_changes", Some(("reason", reason.name())), count));
        }
        samples.push(whole("memscope_agent_series_dropped", None, self.dropped));
        samples.extend(self.names.samples());
        samples.extend(self.otlp.samples());
        samples
    }

    /// Keeps the page small: series of single processes go first.
    fn bound(&mut self, samples: &mut Vec<Sample>) {
        let most = self.config.metrics.max_series;
        let all = samples.iter().map(series).sum::<usize>();
        if all > most {
            samples.retain(|sample| !sample.family.starts_with("memscope_process"));
        }
        let is_own = |sample: &Sample| sample.labels.iter().all(|(name, _)| *name != "pod_name");
        let mut room = most.saturating_sub(samples.iter().filter(|sample| is_own(sample)).map(series).sum());
        samples.retain(|sample| {
            let fits = is_own(sample) || series(sample) <= room;
            if fits && !is_own(sample) {
                room -= series(sample);
            }
            fits
        });
        self.dropped += all.saturating_sub(samples.iter().map(series).sum()) as u64;
    }
}

fn events(account: &Account) -> BTreeMap<u32, u64> {
    account.processes.iter().map(|(pid, known)| (*pid, known.events)).collect()
}

/// Series that a sample is on the page.
const fn series(sample: &Sample) -> usize {
    match &sample.number {
        Number::Whole(_) | Number::Real(_) => 1,
        Number::Histogram { counts, .. } => counts.len() + 2,
    }
}

fn info() -> Sample {
    let labels = vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("arch", std::env::consts::ARCH.to_owned()),
        ("mode", "stream".to_owned()),
    ];
    Sample::whole("memscope_agent", labels, 1)
}

#[cfg(test)]
mod tests;
