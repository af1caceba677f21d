//! Live memory at one moment of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use super::Live;
use super::places::Places;
use crate::analyses::decompose::{Came, Lives, RuleSet, Went};
use crate::analyses::groups::{Change, Groups, Room};
use crate::analyses::select::{Filter, Matcher, When};
use crate::analyses::{Analysis, Finding, Judged, Observer};
use crate::model::{Alloc, Block, Confidence, Device, Event, EventKind, Free, FreeCause, Pool, ProcessStart, RunEnd};

/// A moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The end: live when its process ends, or when its exit begins.
    End,
    /// When all processes together had the most bytes live: of each pool on each device on its own.
    Peak,
    /// A time, with all that happens then.
    When(When),
}

impl At {
    /// The last nanosecond that counts, of a run with this first one; `None` if no time is named.
    #[must_use]
    pub fn last_ns(self, first_ns: u64) -> Option<u64> {
        match self {
            Self::End | Self::Peak => None,
            Self::When(when) => Some(when.time_ns(first_ns)),
        }
    }
}

impl Snapshot {
    /// The reason why a run does not have this moment.
    #[must_use]
    pub fn refuses(&self, at: At) -> Option<String> {
        let Self { first_ns, length_ns, .. } = *self;
        let seconds = |time_ns: u64| time_ns as f64 / 1e9;
        match at.last_ns(first_ns)? {
            at_ns if at_ns < first_ns => Some(format!("begins {:.3} s later", seconds(first_ns - at_ns))),
            at_ns if at_ns - first_ns > length_ns => {
                Some(format!("ends {:.3} s after its first event", seconds(length_ns)))
            }
            _ => None,
        }
    }
}

/// Live memory at a moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(in crate::analyses) pools: BTreeMap<(Device, Pool), Live>,
    /// Time of the first event, nanoseconds since the Unix epoch.
    pub first_ns: u64,
    /// The time from the first event to the last in nanoseconds.
    pub length_ns: u64,
    /// A process was running before the trace.
    pub attached: bool,
    /// Some allocation of the run has a call stack.
    pub stacks: bool,
    /// How sure.
    pub confidence: Confidence,
}

/// Takes a snapshot of a run, and sends it when the run has ended.
#[derive(Debug)]
pub struct Recorder {
    at: At,
    lives: Lives,
    only: Matcher,
    places: Places,
    pools: BTreeMap<(Device, Pool), Account>,
    room: Room,
    /// The moment has passed: later events only name blocks.
    passed: bool,
    /// Processes in their exit.
    exiting: BTreeSet<u32>,
    /// First and last event.
    times_ns: Option<(u64, u64)>,
    attached: bool,
    stacks: bool,
    out: Sender<Snapshot>,
}

/// Shows a recorder which frees are of an exit.
struct Judging(Judged);

impl Observer for Judging {
    fn observe(&mut self, event: &Event) {
        self.0.observe(event);
    }

    fn finish(&mut self, end: &RunEnd) {
        drop(self.0.finish(end));
    }
}

/// A recorder among analyses.
struct Inside(Recorder);

impl Analysis for Inside {
    fn observe(&mut self, event: &Event) {
        self.0.observe(event);
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        self.0.finish(end);
        Vec::new()
    }
}

/// One pool on one device.
#[derive(Debug, Default)]
struct Account {
    groups: Groups,
    peak_bytes: u128,
    /// The marked moment's place among all allocations and frees.
    moment: u64,
}

impl Account {
    fn mark(&mut self, moment: u64) {
        self.moment = moment;
        self.groups.mark();
    }
}

impl Recorder {
    /// Of this moment, with owners by these rules; and the receiver.
    #[must_use]
    pub fn new(at: At, rules: Arc<RuleSet>) -> (Self, Receiver<Snapshot>) {
        let (out, snapshot) = mpsc::channel();
        let recorder = Self {
            at,
            lives: Lives::new(rules),
            only: Matcher::default(),
            places: Places::default(),
            pools: BTreeMap::new(),
            room: Room::default(),
            passed: false,
            exiting: BTreeSet::new(),
            times_ns: None,
            attached: false,
            stacks: false,
            out,
        };
        (recorder, snapshot)
    }

    /// Of blocks that satisfy the filter only.
    #[must_use]
    pub fn only(self, filter: Filter) -> Self {
        Self { only: filter.into(), ..self }
    }

    /// The observer to show the run to. For the end it needs to know what exits free; for other moments processes are
    /// added up in order.
    #[must_use]
    pub fn judging(self) -> Box<dyn Observer> {
        match self.at {
            At::End => Box::new(Judging(Judged::default().silent().marking(Box::new(Inside(self))))),
            At::Peak | At::When(_) => Box::new(self),
        }
    }

    fn alloc(&mut self, event: &Event, alloc: &Alloc) {
        let kept = self.only.holds(event.pid, &alloc.block);
        let Some(Came { live, moment, back }) = self.lives.came(event, alloc, kept) else { return };
        let block = Block { stacks: self.places.of(alloc.block.stacks), ..alloc.block };
        let owner = self.lives.owner(&live);
        let account = self.pools.entry((block.device, block.pool)).or_default();
        if let Some(back) = back.filter(|_| live.moment <= account.moment) {
            if back.moment <= account.moment {
                account.groups.join(owner, &block, &mut self.room);
                account.peak_bytes += u128::from(block.size_bytes);
            } else if let Some(owners) = self.lives.named_back(&live, &back) {
                account.groups.rename(owners, live.size_bytes);
            }
        }
        if self.passed {
            return;
        }
        account.groups.change(owner, &block, Change::Comes, &mut self.room);
        if self.at == At::Peak && account.groups.live_bytes() > account.peak_bytes {
            account.peak_bytes = account.groups.live_bytes();
            account.mark(moment);
        }
    }

    fn free(&mut self, event: &Event, free: &Free) {
        let Some(went) = self.lives.went(event, free) else { return };
        let block = Block { stacks: self.places.of(free.block.stacks), ..free.block };
        let Some(account) = self.pools.get_mut(&(block.device, went.live.pool)) else { return };
        if !self.passed {
            account.groups.change(self.lives.owner(&went.live), &block, Change::Goes, &mut self.room);
            if self.at == At::End && !free.cause.gave_back() {
                account.groups.change(self.lives.for_good(&went), &block, Change::Comes, &mut self.room);
            }
        }
        self.named(block.device, &went);
    }

    /// A block of the marked moment has its final name.
    fn named(&mut self, device: Device, went: &Went) {
        if let Some(account) = self.pools.get_mut(&(device, went.live.pool))
            && went.live.moment <= account.moment
            && let Some(owners) = self.lives.renamed(went)
        {
            account.groups.rename(owners, went.live.size_bytes);
        }
    }

    /// Marks this moment as the one asked for.
    fn pass(&mut self) {
        self.passed = true;
        let moment = self.lives.moment();
        self.pools.values_mut().for_each(|account| account.mark(moment));
    }

    /// The blocks that a process leaves have their final names.
    fn conclude(&mut self, pid: u32) {
        for left in self.lives.left(pid) {
            for went in &left.blocks {
                self.named(left.device, went);
            }
        }
    }
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event) {
        if !event.kind.is_of_run() {
            return;
        }
        if let EventKind::Alloc(alloc) = &event.kind {
            self.stacks |= !alloc.block.stacks.is_empty();
        }
        let (first_ns, last_ns) = self.times_ns.get_or_insert((event.time_ns, event.time_ns));
        *last_ns = event.time_ns.max(*last_ns);
        if let Some(until_ns) = self.at.last_ns(*first_ns)
            && event.time_ns > until_ns
            && !self.passed
        {
            self.pass();
        }
        match &event.kind {
            // Allocations of an exit come after the moment.
            EventKind::Alloc(_) if self.exiting.contains(&event.pid) => {}
            EventKind::Alloc(alloc) => self.alloc(event, alloc),
            EventKind::Free(free) => {
                if free.cause == FreeCause::Exit {
                    self.exiting.insert(event.pid);
                }
                self.free(event, free);
            }
            EventKind::StepEnd { .. } | EventKind::Region(_) | EventKind::Looked(_) => self.lives.note(event),
            EventKind::ProcessEnd => {
                self.exiting.remove(&event.pid);
                self.conclude(event.pid);
            }
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) if !self.passed => self.attached = true,
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) {
        if !self.passed && self.at != At::Peak {
            self.pass();
        }
        for pid in self.lives.processes() {
            self.conclude(pid);
        }
        let pools = std::mem::take(&mut self.pools).into_iter().map(|(key, account)| {
            let groups = account.groups;
            (key, (groups.sum(), groups.live_groups()))
        });
        let (first_ns, last_ns) = self.times_ns.unwrap_or_default();
        let snapshot = Snapshot {
            pools: pools.collect(),
            first_ns,
            length_ns: last_ns - first_ns,
            attached: self.attached,
            stacks: self.stacks,
            confidence: Confidence::after(end),
        };
        // A receiver that is gone does not want it.
        let _ = self.out.send(snapshot);
    }
}
