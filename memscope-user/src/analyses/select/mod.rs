//! Parts of a run: `--filter`, `--since` and `--until`.
//!
//! ```text
//! events ─▶ window ─┬──────────▶ analyses that take the filter themselves
//!                   └▶ filter ─▶ the other ones, observers
//! ```
//!
//! - *Filter*: an event of a block is seen if the block's allocation satisfies all conditions, so that allocations keep
//!   their frees and sums stay right. Sums of used bytes are those of the selected blocks where the filter splits
//!   pools. Events of no block are seen, but for those of other processes and devices if the filter names one.
//! - *Window*: of the time before its start, only blocks that are still live are reported, as if they were restored at
//!   that moment ([`Alloc::restored`](crate::model::Alloc::restored)), and open steps. At its end, the trace ends.
//!
//! An analysis that judges a block by what happens around it takes the filter itself: by [`Analysis::choose`], or as
//! [`InefficientAnalysis::only`](crate::analyses::InefficientAnalysis::only) does.

mod filter;
#[cfg(test)]
mod tests;
mod window;

use std::sync::mpsc::{self, Receiver, Sender};

use self::filter::Sieve;
use self::window::Cut;
use super::{Analysis, Finding, Observer};
use crate::model::{Event, EventKind, RunEnd};

pub use filter::{Condition, Filter, Matcher, Test};
#[cfg(feature = "cli")]
pub(crate) use window::Before;
pub use window::{When, Window};

/// The choice of events of a run.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// When.
    pub window: Window,
    /// Which blocks.
    pub filter: Filter,
}

impl Selection {
    /// Whether it is everything.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.window.is_whole() && self.filter.is_empty()
    }
}

/// Analyses that see a part of a run.
pub struct Selected {
    cut: Option<Cut>,
    to: Readers,
}

/// The readers of the events in the window.
struct Readers {
    /// They have taken the filter.
    choosing: Vec<Box<dyn Analysis>>,
    sieve: Option<Sieve>,
    chosen: Watching,
}

/// The readers of the chosen events.
struct Watching {
    analyses: Vec<Box<dyn Analysis>>,
    observers: Vec<Box<dyn Observer>>,
    /// Until a block was seen.
    any_block: Option<Sender<()>>,
}

/// Receives whether the choice has a block.
#[derive(Debug)]
pub struct AnyBlock(Receiver<()>);

impl AnyBlock {
    /// Whether a block was seen so far.
    #[must_use]
    pub fn was_seen(self) -> bool {
        self.0.try_recv().is_ok()
    }
}

impl Selected {
    /// Shows these the chosen events; and receives whether they have a block.
    #[must_use]
    pub fn new(
        selection: &Selection,
        analyses: Vec<Box<dyn Analysis>>,
        observers: Vec<Box<dyn Observer>>,
    ) -> (Self, AnyBlock) {
        let (sender, any_block) = mpsc::channel();
        let filter = &selection.filter;
        let takes = |analysis: &mut Box<dyn Analysis>| !filter.is_empty() && analysis.choose(filter);
        let mut analyses = analyses;
        let choosing = analyses.extract_if(.., takes).collect();
        let to = Readers {
            choosing,
            sieve: (!filter.is_empty()).then(|| Sieve::new(filter.clone())),
            chosen: Watching { analyses, observers, any_block: Some(sender) },
        };
        let selected = Self { cut: (!selection.window.is_whole()).then(|| Cut::new(selection.window)), to };
        (selected, AnyBlock(any_block))
    }
}

impl Readers {
    fn observe(&mut self, event: &Event) {
        for analysis in &mut self.choosing {
            analysis.observe(event);
        }
        match &mut self.sieve {
            Some(sieve) => sieve.pass(event, &mut |event| self.chosen.observe(event)),
            None => self.chosen.observe(event),
        }
    }
}

impl Watching {
    fn observe(&mut self, event: &Event) {
        if matches!(event.kind, EventKind::Alloc(_))
            && let Some(any_block) = self.any_block.take()
        {
            // A receiver that is gone does not want it.
            let _ = any_block.send(());
        }
        for analysis in &mut self.analyses {
            analysis.observe(event);
        }
        for observer in &mut self.observers {
            observer.observe(event);
        }
    }
}

impl Analysis for Selected {
    fn observe(&mut self, event: &Event) {
        let Self { cut, to } = self;
        match cut {
            Some(cut) => {
                if event.kind.is_of_run() {
                    // The run's first event, be it selected or not.
                    cut.begins(event.time_ns);
                }
                cut.pass(event, &mut |event| to.observe(event));
            }
            None => to.observe(event),
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        let time_ns = self.cut.as_ref().map_or(end.time_ns, |cut| cut.end_ns(end.time_ns));
        let end = RunEnd { time_ns, ..end.clone() };
        let Readers { choosing, chosen, .. } = &mut self.to;
        for observer in &mut chosen.observers {
            observer.finish(&end);
        }
        choosing.iter_mut().chain(&mut chosen.analyses).flat_map(|analysis| analysis.finish(&end)).collect()
    }

    fn now(&self) -> Vec<Finding> {
        let Readers { choosing, chosen, .. } = &self.to;
        choosing.iter().chain(&chosen.analyses).flat_map(|analysis| analysis.now()).collect()
    }
}
