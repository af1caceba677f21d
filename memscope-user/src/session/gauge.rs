//! Live figures for a status line: those of the written events.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::{
    analyses::Observer,
    model::{Device, Event, EventKind, RunEnd, System},
};

/// Figures of a status line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Written events.
    pub events: u64,
    /// Live driver bytes by device.
    pub live_bytes: BTreeMap<Device, u64>,
}

/// For the reader of the figures.
#[derive(Clone, Debug)]
pub struct Gauge(watch::Receiver<Figures>);

impl Gauge {
    /// The figures as of the last flush.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.0.borrow().clone()
    }
}

/// Counts written events; publishes the figures at each flush, so that an event costs only its count.
#[derive(Debug)]
pub(super) struct Counter {
    figures: Figures,
    out: watch::Sender<Figures>,
}

/// What counts, and what reads it.
pub(super) fn gauge() -> (Counter, Gauge) {
    let (out, figures) = watch::channel(Figures::default());
    (Counter { figures: Figures::default(), out }, Gauge(figures))
}

impl Observer for Counter {
    fn observe(&mut self, event: &Event) {
        // Is about a process, and no row.
        let of_process = matches!(event.kind, EventKind::ProcessStart(_) | EventKind::ProcessEnd);
        if of_process || matches!(event.kind, EventKind::System(System::Exit | System::PythonEnds)) {
            return;
        }
        self.figures.events += 1;
        let (block, grows) = match &event.kind {
            EventKind::Alloc(alloc) => (&alloc.block, true),
            EventKind::Free(free) => (&free.block, false),
            _ => return,
        };
        if block.pool.is_driver() {
            let live = self.figures.live_bytes.entry(block.device).or_default();
            *live = if grows { live.saturating_add(block.size_bytes) } else { live.saturating_sub(block.size_bytes) };
        }
    }

    fn flush(&mut self) {
        self.out.send_replace(self.figures.clone());
    }

    fn finish(&mut self, _: &RunEnd) {
        self.flush();
    }
}
