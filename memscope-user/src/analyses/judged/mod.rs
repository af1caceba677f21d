//! Which part of a process is judged? The span in which it worked.
//!
//! - A program that ends in order frees the memory it held until then: Python empties its modules, a framework its
//!   pools. Those frees say nothing about its work. Analyses inside of [`Judged`] see them as
//!   [`FreeCause::Exit`] (`tail`).
//! - In leaks each byte counts once: a driver block that is a pool's segment contains that pool's blocks. As soon as it
//!   is known to be one, these analyses see its end (`segments`).
//! - Others see all blocks: up to the exit alone, or with the exit's frees marked (`readers`).
//!
//! With a filter the exit and the segments are still those of all blocks; the analyses inside see the chosen ones.
//!
//! Events of one process stay in order, those of several do not: frees are held back until the process works on. So an
//! analysis that adds up several processes at a moment does not belong here.

mod finding;
mod readers;
mod tail;
#[cfg(test)]
mod tests;
mod text;

pub use self::finding::{Exit, ExitCall, ExitFreed, Span};

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use self::{
    readers::{Readers, Seen, Sight},
    tail::Tail,
};
use super::{
    Analysis, Finding,
    concluded::Concluded,
    decompose::RuleSet,
    named::Names,
    segments::Segments,
    select::{Filter, Matcher},
};
use crate::model::{Alloc, Block, DriverFigures, Event, EventKind, Free, FreeCause, RunEnd};

/// Analyses that judge the work of a program.
#[derive(Default)]
pub struct Judged {
    readers: Readers,
    names: Option<Names>,
    chosen: Matcher,
    processes: BTreeMap<u32, Process>,
    spans: Concluded<Span>,
    is_silent: bool,
}

#[derive(Debug, Default)]
struct Process {
    segments: Segments,
    tail: Tail,
}

impl Judged {
    /// With these analyses of leaks, in which each byte counts once.
    #[must_use]
    pub fn leaks(leaks: Vec<Box<dyn Analysis>>) -> Self {
        Self { readers: Readers { leaks, ..Readers::default() }, ..Self::default() }
    }

    /// Analyses of leaks see the final owners of blocks, by these rules.
    #[must_use]
    pub fn naming(self, rules: Arc<RuleSet>) -> Self {
        Self { names: Some(Names::new(rules)), ..self }
    }

    /// Adds an analysis that sees all blocks, and which frees are of the exit.
    #[must_use]
    pub fn marking(mut self, analysis: Box<dyn Analysis>) -> Self {
        self.readers.marked.push(analysis);
        self
    }

    /// Adds an analysis that sees all blocks up to the exit: blocks live then are held to the end.
    #[must_use]
    pub fn freezing(mut self, analysis: Box<dyn Analysis>) -> Self {
        self.readers.frozen.push(analysis);
        self
    }

    /// Reports no spans: another one does.
    #[must_use]
    pub fn silent(self) -> Self {
        Self { is_silent: true, ..self }
    }

    fn conclude(&mut self, pid: u32, process: Process, end: Option<&Event>) {
        let Self { readers, chosen, .. } = self;
        let span =
            process.tail.end(pid, end.map(|event| event.time_ns), readers, &mut |block| chosen.holds(pid, block));
        if let Some(end) = end {
            self.readers.ends(end, span.as_ref().map(|span| span.until_ns));
        }
        self.spans.extend(span);
    }
}

impl Analysis for Judged {
    fn observe(&mut self, event: &Event) {
        let owner = self.names.as_mut().and_then(|names| names.of(event));
        if matches!(event.kind, EventKind::ProcessEnd) {
            let process = self.processes.remove(&event.pid).unwrap_or_default();
            return self.conclude(event.pid, process, Some(event));
        }
        let Self { readers, processes, .. } = self;
        let Process { segments, tail } = processes.entry(event.pid).or_default();
        let mut pass = |event: &Event, sight| {
            tail.observe(&Seen { event: Cow::Borrowed(event), sight, owner }, readers);
        };
        let mut sight = Sight::All;
        match &event.kind {
            EventKind::Alloc(Alloc { block, .. }) => {
                let is_segment = segments.came(block, &mut |segment| {
                    let moved =
                        Event { kind: EventKind::Free(moved(segment)), stacks: segment.stacks, ..event.clone() };
                    pass(&moved, Sight::WithoutSegments);
                });
                if is_segment {
                    sight = Sight::WithSegments;
                }
            }
            EventKind::Free(Free { block, .. }) if block.pool.is_driver() && segments.ends(block) => {
                sight = Sight::WithSegments;
            }
            EventKind::Region(region) => segments.mapped(region),
            EventKind::ProcessStart(_) => *segments = Segments::default(),
            _ => {}
        }
        pass(event, sight);
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for (pid, process) in std::mem::take(&mut self.processes) {
            self.conclude(pid, process, None);
        }
        let spans = self.spans.take(|span| span.pid, Finding::Span);
        let spans = spans.into_iter().filter(|_| !self.is_silent);
        spans.chain(self.readers.all_mut().flat_map(|analysis| analysis.finish(end))).collect()
    }

    fn now(&self) -> Vec<Finding> {
        self.readers.all().flat_map(|analysis| analysis.now()).collect()
    }

    fn choose(&mut self, filter: &Filter) -> bool {
        self.readers.choose(filter);
        self.chosen = filter.clone().into();
        true
    }
}

/// Whether it is no free: a driver block goes over into a pool as its segment.
pub(super) const fn is_moved(free: &Free) -> bool {
    matches!(free.cause, FreeCause::Replaced) && free.without_row
}

/// Those that count bytes once see the end of a segment as soon as it is known to be one: it goes over into the pool.
const fn moved(block: Block) -> Free {
    Free {
        block,
        used_bytes: 0,
        total_bytes: None,
        driver: DriverFigures { process_used_bytes: None, device_used_bytes: None },
        cause: FreeCause::Replaced,
        owner: None,
        row_time_ns: None,
        without_row: true,
    }
}
