//! Events of a run to requests, by process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, Sender};

use super::Requests;
use super::process::Process;
use crate::analyses::Observer;
use crate::analyses::select::{Filter, Matcher};
use crate::model::{Alloc, Confidence, Event, EventKind, ProcessStart, RunEnd};

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
        (Self { source, without: None, processes, most, crowded, attached, done, out }, made)
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

    fn is_left_out(&mut self, event: &Event) -> bool {
        match (&mut self.without, &event.kind) {
            (Some(matcher), EventKind::Alloc(Alloc { block, .. })) => matcher.holds(event.pid, block),
            _ => false,
        }
    }

    fn end(&mut self, pid: u32) {
        if self.crowded.remove(&pid) {
            self.done.push(Requests { pid, is_cut: true, ..Requests::default() });
        }
        if let Some(process) = self.processes.remove(&pid).filter(|process| process.requests() > 0) {
            self.done.push(process.conclude());
        }
    }
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event) {
        match event.kind {
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => self.attached.push(event.pid),
            EventKind::ProcessEnd => self.end(event.pid),
            EventKind::DeviceUsage(_) | EventKind::Looked(_) => {}
            _ if self.crowded.contains(&event.pid) => {}
            _ => {
                let (source, left_out) = (self.source, self.is_left_out(event));
                let process = self.processes.entry(event.pid).or_insert_with(|| Process::new(event.pid, source));
                process.observe(event, left_out);
                if process.requests() > self.most {
                    self.processes.remove(&event.pid);
                    self.crowded.insert(event.pid);
                }
            }
        }
    }

    fn finish(&mut self, end: &RunEnd) {
        for pid in self.processes.keys().chain(&self.crowded).copied().collect::<Vec<_>>() {
            self.end(pid);
        }
        let lost = Confidence::after(end) == Confidence::Doubtful;
        let mut all = std::mem::take(&mut self.done);
        for requests in &mut all {
            requests.gaps.lost_records = lost;
        }
        all.sort_by_key(|requests| requests.pid);
        // The receiver may be gone.
        let _ = self.out.send(all);
    }
}
