//! One file per question. Pure: events in, findings out; no clock, file, lock or thread.

use crate::model::{Event, Finding, RunEnd};

/// Watches enriched events and ends in findings.
pub trait Analysis: Send {
    /// Takes one event. Events come in time order, each block's free after its allocation.
    fn observe(&mut self, event: &Event);

    /// Ends the run and concludes, most important first.
    fn finish(&mut self, end: &RunEnd) -> Vec<Finding>;
}
