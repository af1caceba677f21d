//! What is live at one moment of a run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Live;
use super::places::Places;
use crate::analyses::Analysis;
use crate::analyses::decompose::{Classifier, RuleSet};
use crate::analyses::groups::{Change, Groups, Room};
use crate::analyses::select::{Filter, Matcher};
use crate::model::{Block, Confidence, Device, Event, EventKind, Finding, Free, Pool, ProcessStart, RunEnd};

/// A moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Its end; what is live when its process ends counts as live, as it does everywhere else.
    End,
    /// When all processes together had the most bytes live: of each pool on each device on its own.
    Peak,
    /// This many nanoseconds after the first event, with all that happens at that time.
    After(u64),
}

/// What was live at a moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) pools: BTreeMap<(Device, Pool), Live>,
    /// The time from the first event to the last in nanoseconds.
    pub length_ns: u64,
    /// A process was running before the trace.
    pub attached: bool,
    /// How sure.
    pub confidence: Confidence,
}

/// Where a snapshot goes when the run has ended.
pub type SharedSnapshot = Arc<Mutex<Option<Snapshot>>>;

/// Takes a snapshot of a run.
#[derive(Debug)]
pub struct Recorder {
    at: At,
    owners: Classifier,
    only: Matcher,
    places: Places,
    pools: BTreeMap<(Device, Pool), Account>,
    room: Room,
    /// First and last event.
    times_ns: Option<(u64, u64)>,
    attached: bool,
    out: SharedSnapshot,
}

/// One pool on one device.
#[derive(Debug, Default)]
struct Account {
    groups: Groups,
    peak_bytes: u128,
}

impl Recorder {
    /// Of this moment, with owners by these rules.
    #[must_use]
    pub fn new(at: At, rules: Arc<RuleSet>, out: SharedSnapshot) -> Self {
        Self {
            at,
            owners: Classifier::new(rules),
            only: Matcher::default(),
            places: Places::default(),
            pools: BTreeMap::new(),
            room: Room::default(),
            times_ns: None,
            attached: false,
            out,
        }
    }

    /// Of blocks that satisfy the filter only.
    #[must_use]
    pub fn only(self, filter: Filter) -> Self {
        Self { only: filter.into(), ..self }
    }

    fn change(&mut self, pid: u32, block: &Block, change: Change) {
        if !self.only.holds(pid, block) {
            return;
        }
        let owner = self.owners.owner(block);
        let block = Block { stacks: self.places.of(block.stacks), ..*block };
        let account = self.pools.entry((block.device, block.pool)).or_default();
        account.groups.change(owner, &block, change, &mut self.room);
        if self.at == At::Peak && account.groups.live_bytes() > account.peak_bytes {
            account.peak_bytes = account.groups.live_bytes();
            account.groups.mark();
        }
    }

    fn free(&mut self, pid: u32, free: &Free) {
        if self.at != At::End || free.cause.gave_back() {
            self.change(pid, &free.block, Change::Goes);
        }
    }
}

impl Analysis for Recorder {
    fn observe(&mut self, event: &Event) {
        // What the driver says of a device is of no run.
        if matches!(event.kind, EventKind::DeviceUsage(_)) {
            return;
        }
        let (first_ns, last_ns) = self.times_ns.get_or_insert((event.time_ns, event.time_ns));
        *last_ns = event.time_ns.max(*last_ns);
        if let At::After(after_ns) = self.at
            && event.time_ns.saturating_sub(*first_ns) > after_ns
        {
            return;
        }
        match &event.kind {
            EventKind::Alloc(alloc) => self.change(event.pid, &alloc.block, Change::Comes),
            EventKind::Free(free) => self.free(event.pid, free),
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => self.attached = true,
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        let told = std::mem::take(&mut self.pools).into_iter().map(|(key, mut account)| {
            if self.at != At::Peak {
                account.groups.mark();
            }
            (key, (account.groups.sum(), account.groups.told()))
        });
        let (first_ns, last_ns) = self.times_ns.unwrap_or_default();
        let snapshot = Snapshot {
            pools: told.collect(),
            length_ns: last_ns - first_ns,
            attached: self.attached,
            confidence: Confidence::after(end),
        };
        *self.out.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
        Vec::new()
    }
}
