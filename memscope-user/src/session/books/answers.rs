//! Every answer against the books.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::super::monitor::Monitor;
use super::super::options::{Analyses, CollectOptions, Samples};
use super::super::outputs;
use super::{Account, Book, Place};
use crate::analyses::diff::{At, Recorder, diff};
use crate::analyses::ledger::Moment;
use crate::analyses::{Finding, Questions, decompose::RuleSet, live_use::LiveUse};
use crate::model::{Device, Event, LiveSum, Pool, RunEnd};
use crate::overview::{Checked, Overview, ProcessOverview, Topic};
use crate::report::{self, Reduced, Reducer};
use crate::sinks::folded;

/// Verdicts on a program, by process: leaks, growth, failed requests, fragmentation.
pub(super) type Verdicts = [&'static str; 4];

/// All answers about a run.
pub(super) struct Answers {
    pub(super) findings: Vec<Finding>,
    pub(super) end: RunEnd,
    events: Vec<Event>,
    reduced: Reduced,
}

/// Everything is asked, as of a trace with all analyses.
pub(super) fn answers(book: &Book, apart_ns: u64) -> Answers {
    let (events, end) = book.events(apart_ns);
    let words = ["leaks", "decompose", "inefficient", "oom", "peaks", "fragmentation", "waits", "lifetimes"];
    let questions = words.into_iter().fold(Questions::NONE, Questions::with);
    let analyses = Analyses { questions, oom_blocks: 3, ..Analyses::NONE };
    let options = CollectOptions { analyses, ..CollectOptions::default() };
    let rules = Arc::new(RuleSet::builtin());
    let mut chosen = outputs::analyses(&options, Some(&rules)).analyses;
    let (mut page, made) = Reducer::naming(rules);
    for event in &events {
        for analysis in &mut chosen {
            analysis.observe(event);
        }
        page.observe(event);
    }
    page.finish(&end);
    let findings = chosen.iter_mut().flat_map(|analysis| analysis.finish(&end)).collect();
    let reduced = made.try_recv().expect("a run");
    Answers { findings, end, events, reduced }
}

/// A sum with further blocks.
const fn added(sum: LiveSum, blocks: u64, size_bytes: u64) -> LiveSum {
    LiveSum { blocks: sum.blocks + blocks, size_bytes: sum.size_bytes + size_bytes }
}

impl Answers {
    pub(super) fn process(&self, pid: u32) -> ProcessOverview {
        let overview = Overview::new(&self.findings, &self.end);
        overview.processes.into_iter().find(|process| process.pid == pid).expect("a process with device memory")
    }

    /// The verdicts of a process.
    pub(super) fn verdicts(&self, pid: u32) -> Verdicts {
        let process = self.process(pid);
        [Topic::Leaks, Topic::Growth, Topic::OutOfMemory, Topic::Fragmentation].map(|topic| {
            let check = process.checks.iter().find(|check| check.topic == topic).expect("each topic");
            match check.checked {
                Checked::Found => "found",
                Checked::Undecided => "undecided",
                Checked::NotFound => "not found",
                Checked::NotJudged(_) => "not judged",
            }
        })
    }

    fn of<T>(&self, place: Place, pick: impl Fn(&Finding) -> Option<&T>) -> Option<&T> {
        let about = |finding: &&Finding| {
            finding.subject().is_some_and(|it| (it.pid, it.device, it.pool) == (Some(place.0), place.1, Some(place.2)))
        };
        self.findings.iter().filter(about).find_map(pick)
    }

    fn snapshot(&self, at: At) -> BTreeMap<(Device, Pool), LiveSum> {
        let (recorder, snapshot) = Recorder::new(at, Arc::new(RuleSet::builtin()));
        let mut recorder = recorder.judging();
        for event in &self.events {
            recorder.observe(event);
        }
        recorder.finish(&self.end);
        let found = snapshot.try_recv().expect("a moment");
        let pools = diff(&found, &found).into_iter().map(|pool| ((pool.device, pool.pool), pool.change.to));
        pools.filter(|(_, sum)| sum.blocks > 0).collect()
    }

    /// Bytes of a pool that the page has when memory was out.
    pub(super) fn bytes_at_oom(&self, pool: Pool) -> u64 {
        let layers = self.reduced.views.iter().flat_map(|view| &view.layers).filter(|layer| layer.pool == pool);
        let moments = layers.flat_map(|layer| &layer.moments).filter(|moment| moment.kind == "oom");
        moments.map(|moment| moment.bytes).sum()
    }

    /// All sums equal those of the books.
    pub(super) fn check(&self, book: &Book) {
        for (&place, account) in &book.accounts {
            self.check_pool(place, account, book.attached.contains(&place.0));
        }
        self.check_differences(book);
        self.check_ledgers(book);
        self.check_exports(book);
        self.check_samples(book);
    }

    /// `stat` and `top` count what is live when the trace has ended. Places and owners of `top` are of blocks that were not taken.
    fn check_samples(&self, book: &Book) {
        let samples = Samples { interval: Duration::from_secs(1), count: None };
        let sample = Monitor::new(samples).last(&self.findings, 0);
        let mut live = LiveUse::new(Arc::new(RuleSet::builtin()));
        self.events.iter().for_each(|event| live.observe(event));
        let moment = live.look(sample);
        for (&(pid, device, pool), account) in &book.accounts {
            let process = moment.sample.processes.iter().find(|process| process.pid == pid).expect("a process");
            let found = process.pools.iter().find(|it| (it.device, it.pool) == (device, pool)).expect("a pool");
            let left = LiveSum { blocks: found.live_blocks, size_bytes: found.live_bytes };
            assert_eq!(
                (left, found.allocations, found.frees),
                (account.left, account.allocated.blocks, account.frees + account.older_frees),
                "stat, {pid} {device:?} {pool:?}"
            );
            let places = moment.places.iter().filter(|it| (it.pid, it.device, it.site.pool) == (pid, device, pool));
            let places = places.fold(LiveSum::default(), |sum, it| added(sum, it.blocks, it.live_bytes));
            let owners = moment.owners.iter().filter(|it| (it.pid, it.device, it.pool) == (pid, device, pool));
            let owners = owners.fold(LiveSum::default(), |sum, it| added(sum, it.blocks, it.live_bytes));
            assert_eq!((places, owners), (account.left, account.left), "top, {pid} {device:?} {pool:?}");
        }
    }

    fn check_pool(&self, place: Place, account: &Account, attached: bool) {
        let (judged, allocated, frees) = account.judged.expect("it has ended");
        let found = self.of(place, |it| if let Finding::Decompose(it) = it { Some(it) } else { None }).expect("owners");
        assert_eq!((found.peak_bytes, found.end_bytes), (account.peak_bytes, judged.size_bytes), "owners of {place:?}");
        let parts = found
            .parts
            .iter()
            .fold((0, 0, 0), |sum, part| (sum.0 + part.peak_bytes, sum.1 + part.end_bytes, sum.2 + part.blocks));
        assert_eq!(parts, (account.peak_bytes, judged.size_bytes, allocated.blocks), "parts of {place:?}");
        let last = found.timeline.samples.last().expect("a sample");
        assert_eq!(last.bytes.iter().sum::<u64>(), judged.size_bytes, "the end of the timeline of {place:?}");

        let found =
            self.of(place, |it| if let Finding::Lifetimes(it) = it { Some(it) } else { None }).expect("lifetimes");
        let bars = (found.all.blocks, found.all.freed.iter().sum(), found.all.live_blocks);
        assert_eq!(bars, (allocated.blocks, frees, judged.blocks), "lifetimes of {place:?}");

        let found = self.of(place, |it| if let Finding::ByStack(it) = it { Some(it) } else { None }).expect("stacks");
        let sums = found
            .sums
            .iter()
            .fold((0, 0, 0), |sum, one| (sum.0 + one.live_blocks, sum.1 + one.live_bytes, sum.2 + one.allocations));
        assert_eq!(sums, (judged.blocks, judged.size_bytes, account.allocated.blocks), "stacks of {place:?}");

        let held = self.of(place, |it| if let Finding::Held(it) = it { Some(it) } else { None }).expect("an account");
        let left = LiveSum { blocks: held.blocks, size_bytes: held.size_bytes };
        assert_eq!(
            (left, held.allocations, held.frees),
            (account.left, account.allocated.blocks, account.frees),
            "{place:?}"
        );
        if !attached {
            let found = self.of(place, |it| if let Finding::Peak(it) = it { Some(it) } else { None }).expect("a peak");
            let peak = (found.peak_bytes, found.seen.size_bytes, found.unseen_bytes, held.peak_bytes);
            assert_eq!(peak, (account.peak_bytes, account.peak_bytes, 0, account.peak_bytes), "the peak of {place:?}");
        }
        if let Some(found) = self.of(place, |it| if let Finding::Fragmentation(it) = it { Some(it) } else { None }) {
            let used = found.end.space.used_bytes + found.end.outside_bytes;
            assert_eq!(used, judged.size_bytes, "pieces of {place:?}");
        }
    }

    /// At the end each device has what its processes had when they stopped working, at the peak the most of all together.
    fn check_differences(&self, book: &Book) {
        let (mut ends, mut peaks) = (BTreeMap::new(), BTreeMap::new());
        for ((_, device, pool), account) in &book.accounts {
            let sum: &mut LiveSum = ends.entry((*device, *pool)).or_default();
            let judged = account.judged.expect("it has ended").0;
            (sum.blocks, sum.size_bytes) = (sum.blocks + judged.blocks, sum.size_bytes + judged.size_bytes);
        }
        ends.retain(|_, sum| sum.blocks > 0);
        for (place, bytes) in &book.together {
            peaks.insert(*place, *bytes);
        }
        assert_eq!(self.snapshot(At::End), ends, "differences at the end");
        let at_peak = self.snapshot(At::Peak).into_iter().map(|(place, sum)| (place, sum.size_bytes));
        assert_eq!(at_peak.collect::<BTreeMap<_, _>>(), peaks, "differences at the peak");
    }

    /// Memory that the exits freed plus the rest is the memory held when they began; the ledgers have the rest.
    fn check_ledgers(&self, book: &Book) {
        for (&(pid, device, pool), account) in &book.accounts {
            let freed = self.findings.iter().filter_map(|it| match it {
                Finding::Span(span) if span.pid == pid => {
                    span.freed.iter().find(|freed| (freed.device, freed.pool) == (device, pool))
                }
                _ => None,
            });
            let freed: u64 = freed.map(|freed| freed.size_bytes + freed.segments.size_bytes).sum();
            let (judged, ..) = account.judged.expect("it has ended");
            assert_eq!(freed + account.left.size_bytes, judged.size_bytes, "what the exit of {pid} freed of {pool:?}");
            let ledger = self.findings.iter().find_map(|it| match it {
                Finding::Ledger(it) if (it.pid, it.device, it.moment) == (pid, device, Moment::End) => Some(it),
                _ => None,
            });
            if let Some(ledger) = ledger.filter(|_| pool.is_driver()) {
                assert_eq!(ledger.hal.total.size_bytes, u128::from(account.left.size_bytes), "the ledger of {pid}");
            }
        }
    }

    /// The page and exports.
    fn check_exports(&self, book: &Book) {
        for view in &self.reduced.views {
            for layer in &view.layers {
                let account = &book.accounts[&(view.pid, view.device, layer.pool)];
                let peak = layer.moments.iter().find(|moment| moment.kind == "peak").expect("a peak");
                let blocks: u64 = peak.blocks.iter().map(|rec| rec.size_bytes).sum();
                assert_eq!((peak.bytes, blocks), (account.peak_bytes, account.peak_bytes), "the page's peak");
                let counts = (layer.allocations, layer.allocated_bytes, layer.frees);
                assert_eq!(counts, (account.allocated.blocks, account.allocated.size_bytes, account.frees), "the page");
            }
        }
        let mut bytes = Vec::new();
        report::export::speedscope::write(&self.reduced, &mut bytes).expect("memory takes everything");
        let profiles: Value = serde_json::from_slice(&bytes).expect("JSON");
        for view in &self.reduced.views {
            let account = &book.accounts[&(view.pid, view.device, view.layers[0].pool)];
            let Device::Npu(number) = view.device else { panic!("{:?}", view.device) };
            let head = format!(" of process {} on NPU {number}, ", view.pid);
            for (when, expected) in
                [("at the peak", account.peak_bytes), ("all allocations", account.allocated.size_bytes)]
            {
                let is_it =
                    |it: &&Value| it["name"].as_str().is_some_and(|name| name.contains(&head) && name.ends_with(when));
                let profile = profiles["profiles"].as_array().expect("profiles").iter().find(is_it).expect("a profile");
                let weights = profile["weights"].as_array().expect("weights").iter().filter_map(Value::as_u64);
                assert_eq!(weights.sum::<u64>(), expected, "speedscope, {when}");
            }
        }
        self.check_folded(book);
    }

    fn check_folded(&self, book: &Book) {
        let found = self.findings.iter().filter_map(|it| if let Finding::ByStack(it) = it { Some(it) } else { None });
        let found: Vec<_> = found.collect();
        for (live, of) in [
            (true, (|account: &Account| account.judged.unwrap_or_default().0) as fn(&Account) -> LiveSum),
            (false, |account| account.allocated),
        ] {
            for bytes in [true, false] {
                let mut text = Vec::new();
                folded::write(&found, (folded::Which::Best, false), folded::Weight { bytes, live }, &mut text)
                    .expect("memory");
                let text = String::from_utf8(text).expect("text");
                let weights = text.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
                let sum = |sum: LiveSum| if bytes { sum.size_bytes } else { sum.blocks };
                let expected: u64 = book.accounts.values().map(|account| sum(of(account))).sum();
                assert_eq!(weights.sum::<u64>(), expected, "folded stacks, live: {live}, bytes: {bytes}");
            }
        }
    }
}
