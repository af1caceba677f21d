//! Whether a process's script collects, its demands, and its labels: needed by every domain.

use super::super::super::blocks::Live;
use super::super::super::labels::{LabelIds, Labels};
use super::super::super::turn::Turn;
use super::super::super::wishes::{Rows, Settings};
use crate::analyses::AnalysisBit;
use crate::analyses::decompose::owner;
use crate::model::{Block, Event, EventKind, Free, FreeCause, Name};

/// The collection of one process's script.
#[derive(Debug)]
pub(in crate::pipeline) struct Collection {
    /// Whether what happens is reported.
    on: bool,
    /// The script has started it, at least once.
    started: bool,
    /// How `on` begins.
    deferred: bool,
    /// When collecting ended.
    stopped_ns: u64,
    /// Its demands.
    asked: Settings,
    /// Which rows.
    wanted: Option<Rows>,
    pub(super) labels: Labels,
    /// Reported blocks that ended while the script was not collecting.
    ended: Vec<Live>,
}

impl Collection {
    /// Of a script without any call. `deferred`: it collects only once its script says so.
    pub(in crate::pipeline) fn new(deferred: bool) -> Self {
        Self {
            on: !deferred,
            started: false,
            deferred,
            stopped_ns: 0,
            asked: Settings::default(),
            wanted: None,
            labels: Labels::default(),
            ended: Vec::new(),
        }
    }

    /// Of a child that thread `parent` has forked.
    pub(in crate::pipeline) fn child(&self, parent: u32, child: u32) -> Self {
        let (wanted, labels) = (self.wanted.clone(), self.labels.child(parent, child));
        Self { wanted, labels, ended: Vec::new(), ..*self }
    }

    /// Of another program that replaces it.
    pub(in crate::pipeline) fn after_exec(&self) -> Self {
        Self::new(self.deferred)
    }

    /// Whether what happens is reported.
    pub(in crate::pipeline) const fn is_on(&self) -> bool {
        self.on
    }

    /// Whether the script wants a row of the event, and whether the tracer's options decide, too.
    pub(in crate::pipeline) fn wants(&self, event: &Event) -> (bool, bool) {
        self.wanted.as_ref().map_or((true, true), |Rows { filter, adds }| (filter.passes(event), !adds))
    }

    /// Number of blocks named when memory is out, if the script asks for it.
    pub(in crate::pipeline) const fn oom_blocks(&self) -> Option<usize> {
        self.asked.oom_blocks()
    }

    /// Labels of the thread's allocations.
    pub(in crate::pipeline) fn labels_of(&self, tid: u32) -> LabelIds {
        self.labels.at(tid)
    }

    /// Time of rows of blocks that end after collection has stopped: just behind the stop (contract §7.3, §7.4).
    pub(in crate::pipeline) fn time_behind_stop(&self) -> Option<u64> {
        (!self.on).then(|| self.stopped_ns.saturating_add(1))
    }

    /// The script asks for these settings and rows.
    pub(super) fn ask(&mut self, asked: Settings, rows: Rows) {
        (self.asked, self.wanted) = (asked, Some(rows));
    }

    /// Collects nothing before the script starts it, unless it has once.
    pub(super) fn wait_for_start(&mut self, time_ns: u64) {
        if self.on && !self.started {
            (self.on, self.stopped_ns) = (false, time_ns);
        }
    }

    /// Collects; false if the script had it started already.
    pub(super) fn start(&mut self) -> bool {
        let known = self.on && self.started;
        (self.on, self.started) = (true, true);
        !known
    }

    pub(super) fn stop(&mut self, time_ns: u64) {
        (self.on, self.started, self.stopped_ns) = (false, true, time_ns);
    }
}

impl Turn<'_> {
    /// Keeps a block that has ended while nothing is collected.
    pub(in crate::pipeline) fn ended_unwatched(&mut self, live: Live) {
        // It still takes room.
        self.shared.live += 1;
        self.home.collection.ended.push(live);
    }

    /// Takes a block back that did not end unwatched after all.
    pub(in crate::pipeline) fn did_not_end(&mut self, allocation_id: u64) -> bool {
        let ended = &mut self.home.collection.ended;
        let is_it = |live: &Live| live.block.allocation_id == allocation_id;
        let Some(index) = ended.iter().rposition(is_it) else { return false };
        ended.remove(index);
        self.shared.live = self.shared.live.saturating_sub(1);
        true
    }

    /// Reports blocks that ended unwatched.
    pub(in crate::pipeline) fn report_ended(&mut self, row_time_ns: Option<u64>) {
        for Live { block, inside, later_owner, .. } in std::mem::take(&mut self.home.collection.ended) {
            self.shared.live = self.shared.live.saturating_sub(1);
            let free = Free {
                block,
                used_bytes: self.home.blocks.used_bytes(block.pool, block.device),
                total_bytes: None,
                driver: self.shared.usage.of(self.home.pid, block.device),
                cause: FreeCause::Unwatched,
                owner: later_owner,
                row_time_ns,
                without_row: false,
            };
            self.report(block.device, EventKind::Free(free), inside);
        }
    }

    /// Owner of a block: by its labels, and by the rules where its labels leave that open; none unless requested.
    pub(in crate::pipeline) fn owner_of(&mut self, block: &Block, ids: LabelIds) -> Option<Name> {
        let collection = &self.home.collection;
        if !self.shared.owned_by_options && !AnalysisBit::DECOMPOSE.is_in(collection.asked.analyses) {
            return None;
        }
        let rules = self.shared.owners.as_mut()?;
        let by_rules = rules.owner(&Block { owner: None, ..*block });
        if ids.is_empty() {
            return by_rules;
        }
        let [framework, system, user] = collection.labels.texts(ids);
        // A label of level 0 replaces the allocator's name. Host memory has none.
        let replaced = !framework.is_empty() && !block.pool.is_host();
        let base = match (replaced, system.is_empty()) {
            (true, _) => None,
            (false, true) => by_rules,
            (false, false) => owner(block.pool, block.module_id, &system),
        };
        let base = if replaced { system.as_str() } else { base.map_or("", Name::as_str) };
        let parts = [framework.as_str(), base, &user];
        let given = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("@");
        let given = (!given.is_empty()).then(|| Name::keep(&given));
        rules.owner(&Block { owner: given, ..*block })
    }
}
