//! What do analyses of leaks judge? The span in which a program worked, and each byte once.
//!
//! - A program that ends in order frees what it held until then: Python empties its modules, a framework its pools. Those frees say
//!   nothing of leaks. The analyses inside of [`Judged`] see them as [`FreeCause::Exit`](crate::model::FreeCause::Exit), at the moment
//!   when the exit began (`tail`).
//! - A driver block that is a pool's segment is seen with that pool's blocks in it. As soon as it is known for one, the analyses
//!   inside see its end (`segments`).
//!
//! Events of a process stay in order, those of several do not: frees are held back until the process works on.

mod finding;
mod segments;
mod tail;
#[cfg(test)]
mod tests;
mod text;

pub use self::finding::{Exit, ExitCall, ExitFreed, Span};

use std::collections::BTreeMap;

use self::{segments::Segments, tail::Tail};
use super::{Analysis, Finding, concluded::Concluded};
use crate::model::{Event, EventKind, RunEnd};

/// Analyses that judge what a program held while it worked.
pub struct Judged {
    inner: Vec<Box<dyn Analysis>>,
    processes: BTreeMap<u32, Process>,
    spans: Concluded<Span>,
}

#[derive(Debug, Default)]
struct Process {
    segments: Segments,
    tail: Tail,
}

impl Judged {
    /// Of these analyses.
    #[must_use]
    pub fn new(inner: Vec<Box<dyn Analysis>>) -> Self {
        Self { inner, processes: BTreeMap::new(), spans: Concluded::default() }
    }

    fn conclude(&mut self, pid: u32, process: Process, end: Option<&Event>) {
        let Self { inner, spans, .. } = self;
        let mut pass = |event: &Event| inner.iter_mut().for_each(|analysis| analysis.observe(event));
        let span = process.tail.end(pid, end.map(|event| event.time_ns), &mut pass);
        if let Some(end) = end {
            pass(&Event { time_ns: span.as_ref().map_or(end.time_ns, |span| span.until_ns), ..end.clone() });
        }
        spans.extend(span);
    }
}

impl Analysis for Judged {
    fn observe(&mut self, event: &Event) {
        if matches!(event.kind, EventKind::ProcessEnd) {
            let process = self.processes.remove(&event.pid).unwrap_or_default();
            return self.conclude(event.pid, process, Some(event));
        }
        let Self { inner, processes, .. } = self;
        let Process { segments, tail } = processes.entry(event.pid).or_default();
        let mut pass = |event: &Event| inner.iter_mut().for_each(|analysis| analysis.observe(event));
        segments.observe(event, &mut |event| tail.observe(event, &mut pass));
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for (pid, process) in std::mem::take(&mut self.processes) {
            self.conclude(pid, process, None);
        }
        let spans = self.spans.take(|span| span.pid, Finding::Span);
        spans.into_iter().chain(self.inner.iter_mut().flat_map(|analysis| analysis.finish(end))).collect()
    }

    fn now(&self) -> Vec<Finding> {
        self.inner.iter().flat_map(|analysis| analysis.now()).collect()
    }
}
