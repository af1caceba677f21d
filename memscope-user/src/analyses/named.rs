//! Blocks end with the owners that they have for good.
//!
//! The analyses inside of [`Named`] see the end of each block with the owner that decompose, peaks and differences give it: what comes to
//! light only in its life included.

use std::sync::Arc;

use super::{
    Analysis, Finding,
    decompose::{Lives, RuleSet},
};
use crate::model::{Event, EventKind, Free, RunEnd};

/// An analysis that is shown final owners.
pub struct Named<A> {
    lives: Lives,
    inner: A,
}

impl<A> Named<A> {
    /// Owners are named by these rules.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>, inner: A) -> Self {
        Self { lives: Lives::new(rules), inner }
    }
}

impl<A: Analysis> Analysis for Named<A> {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => drop(self.lives.came(event, alloc, true)),
            EventKind::StepEnd { .. } => self.lives.step(event),
            EventKind::Free(free) => {
                if let Some(went) = self.lives.went(event, free) {
                    let free = Free { owner: self.lives.for_good(&went), ..*free };
                    return self.inner.observe(&Event { kind: EventKind::Free(free), ..event.clone() });
                }
            }
            EventKind::ProcessEnd => drop(self.lives.left(event.pid)),
            _ => {}
        }
        self.inner.observe(event);
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        self.inner.finish(end)
    }

    fn now(&self) -> Vec<Finding> {
        self.inner.now()
    }
}
