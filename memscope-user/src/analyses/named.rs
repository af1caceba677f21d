//! Blocks end with the owners that they have for good.
//!
//! The analyses inside of [`Named`] see the end of each block with its final owner, the one of decompose, peaks and
//! differences, which also depends on the block's lifetime.

use std::sync::Arc;

use super::{
    Analysis, Finding, Observer,
    decompose::{Lives, RuleSet},
};
use crate::model::{Event, EventKind, Free, Name, RunEnd};

/// The owner that a block has for good, if it has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Final(pub(super) Option<Name>);

/// Final owners of blocks.
#[derive(Debug)]
pub(super) struct Names {
    lives: Lives,
}

impl Names {
    /// By these rules.
    pub(super) fn new(rules: Arc<RuleSet>) -> Self {
        Self { lives: Lives::new(rules) }
    }

    /// Takes an event; of one that ends a block its final owner.
    pub(super) fn of(&mut self, event: &Event) -> Option<Final> {
        match &event.kind {
            EventKind::Alloc(alloc) => drop(self.lives.came(event, alloc, true)),
            EventKind::StepEnd { .. } | EventKind::Region(_) | EventKind::Looked(_) => self.lives.note(event),
            EventKind::Free(free) => return self.lives.went(event, free).map(|went| Final(self.lives.for_good(&went))),
            EventKind::ProcessEnd => drop(self.lives.left(event.pid)),
            _ => {}
        }
        None
    }
}

/// An analysis or observer that sees final owners.
pub struct Named<A> {
    names: Names,
    inner: A,
}

impl<A> Named<A> {
    /// Owners are named by these rules.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>, inner: A) -> Self {
        Self { names: Names::new(rules), inner }
    }
}

impl<A> Named<A> {
    /// The event with a final owner, where it ends a block.
    fn name(&mut self, event: &Event) -> Option<Event> {
        match (self.names.of(event), &event.kind) {
            (Some(Final(owner)), EventKind::Free(free)) => {
                let free = Free { owner, ..*free };
                Some(Event { kind: EventKind::Free(free), ..event.clone() })
            }
            _ => None,
        }
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
