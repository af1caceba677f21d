//! Blocks end with the owners that they have for good.
//!
//! The analyses inside of [`Named`] see the end of each block with the owner that decompose, peaks and differences give it: what comes to
//! light only in its life included.

use std::sync::Arc;

use super::{
    Analysis, Finding, Observer,
    decompose::{Lives, RuleSet},
};
use crate::model::{Event, EventKind, Free, RunEnd};

/// An analysis or observer that is shown final owners.
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

impl<A> Named<A> {
    /// The event with a final owner, where that differs from what it has.
    fn name(&mut self, event: &Event) -> Option<Event> {
        match &event.kind {
            EventKind::Alloc(alloc) => drop(self.lives.came(event, alloc, true)),
            EventKind::StepEnd { .. } => self.lives.step(event),
            EventKind::Free(free) => {
                let went = self.lives.went(event, free)?;
                let free = Free { owner: self.lives.for_good(&went), ..*free };
                return Some(Event { kind: EventKind::Free(free), ..event.clone() });
            }
            EventKind::ProcessEnd => drop(self.lives.left(event.pid)),
            _ => {}
        }
        None
    }
}

impl<A: Analysis> Analysis for Named<A> {
    fn observe(&mut self, event: &Event) {
        let named = self.name(event);
        self.inner.observe(named.as_ref().unwrap_or(event));
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        self.inner.finish(end)
    }

    fn now(&self) -> Vec<Finding> {
        self.inner.now()
    }
}

impl<O: Observer> Observer for Named<O> {
    fn observe(&mut self, event: &Event) {
        let named = self.name(event);
        self.inner.observe(named.as_ref().unwrap_or(event));
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn finish(&mut self, end: &RunEnd) {
        self.inner.finish(end);
    }
}
