//! Events of a run to requests, by process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use super::Requests;
use super::process::Process;
use crate::analyses::Observer;
use crate::analyses::select::{Filter, Matcher};
use crate::model::{Alloc, Confidence, Event, EventKind, Figures, ProcessStart, RunEnd, TENSOR_NOT_READABLE};

/// The source of events, which decides the available facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// A capture: all that the pool reports.
    Capture,
    /// Rows: no streams, no failed requests; returns of blocks maybe.
    #[default]
    Dump,
}

/// Takes the requests of a run.
pub struct Recorder {
    source: Source,
    /// Requests of blocks that match are left out.
    without: Option<Matcher>,
    /// The last uses of blocks that match are looked for.
    early: Option<Matcher>,
    processes: BTreeMap<u32, Process>,
    /// Most requests of a process.
    most: u64,
    /// Processes with more.
    crowded: BTreeSet<u32>,
    attached: Vec<u32>,
    done: Vec<Requests>,
    out: Sender<Vec<Requests>>,
}

impl Recorder {
    /// Of all blocks. The requests come when the run has ended, by process.
    #[must_use]
    pub fn new(source: Source) -> (Self, Receiver<Vec<Requests>>) {
        let (out, made) = mpsc::channel();
        let (processes, attached, done) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (most, crowded) = (u64::MAX, BTreeSet::new());
        (Self { source, without: None, early: None, processes, most, crowded, attached, done, out }, made)
    }

    /// A process with more requests has none in the result, and [`is_cut`](Requests::is_cut).
    #[must_use]
    pub fn up_to(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Of all but matching ones.
    #[must_use]
    pub fn without(self, filter: Filter) -> Self {
        let without = (!filter.is_empty()).then(|| Matcher::from(filter));
        Self { without, ..self }
    }

    /// With the last uses of matching ones, for [`freed_early`](crate::whatif::freed_early).
    #[must_use]
    pub fn with_last_uses(self, filter: Filter) -> Self {
        let early = (!filter.is_empty()).then(|| Matcher::from(filter));
        Self { early, ..self }
    }

    fn end(&mut self, pid: u32, ended: bool) {
        if self.crowded.remove(&pid) {
            self.done.push(Requests { pid, is_cut: true, ..Requests::default() });
        }
        if let Some(process) = self.processes.remove(&pid).filter(|process| process.requests() > 0) {
            self.done.push(process.conclude(ended));
        }
    }
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event) {
        match event.kind {
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => self.attached.push(event.pid),
            EventKind::ProcessEnd => self.end(event.pid, true),
            EventKind::DeviceUsage(_) | EventKind::Looked(_) => {}
            _ if self.crowded.contains(&event.pid) => {}
            _ => {
                let (source, asks_uses) = (self.source, self.early.is_some());
                let [left_out, asks_use] = [&mut self.without, &mut self.early].map(|matcher| holds(matcher, event));
                let new = || Process::new(event.pid, source, asks_uses);
                let process = self.processes.entry(event.pid).or_insert_with(new);
                process.observe(event, left_out, asks_use);
                if process.requests() > self.most {
                    self.processes.remove(&event.pid);
                    self.crowded.insert(event.pid);
                }
            }
        }
    }

    fn finish(&mut self, end: &RunEnd) {
        for pid in self.processes.keys().chain(&self.crowded).copied().collect::<Vec<_>>() {
            self.end(pid, false);
        }
        let lost = Confidence::after(end) == Confidence::Doubtful;
        // Operators with tensors that were left out are known one by one.
        let others = end.losses.iter().filter(|line| line.reason != TENSOR_NOT_READABLE).cloned().collect();
        let lost_uses = RunEnd { losses: others, ..end.clone() }.touches(&[Figures::Operators]);
        let mut all = std::mem::take(&mut self.done);
        for requests in &mut all {
            requests.gaps.lost_records = lost;
            if let Some(uses) = &mut requests.last_uses {
                Arc::make_mut(uses).lost = lost_uses;
            }
        }
        all.sort_by_key(|requests| requests.pid);
        // The receiver may be gone.
        let _ = self.out.send(all);
    }
}

fn holds(matcher: &mut Option<Matcher>, event: &Event) -> bool {
    match (matcher, &event.kind) {
        (Some(matcher), EventKind::Alloc(Alloc { block, .. })) => matcher.holds(event.pid, block),
        _ => false,
    }
}
