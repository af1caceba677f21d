//! Live figures for a status line: what the rows say, shared with another thread.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Sink, SinkError};
use crate::model::{Device, Event, EventKind, System};

/// What a status line shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Events that are written.
    pub events: u64,
    /// Live driver bytes by device.
    pub live_bytes: BTreeMap<Device, u64>,
}

/// Read by whoever shows the figures.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<Mutex<Figures>>);

impl Gauge {
    /// The figures as of the last flush.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Counts; hands the figures over at each flush, so that the hot path takes no lock.
#[derive(Debug, Default)]
pub struct GaugeSink {
    gauge: Gauge,
    figures: Figures,
}

impl GaugeSink {
    /// The sink, and what reads it.
    #[must_use]
    pub fn new() -> (Self, Gauge) {
        let sink = Self::default();
        let gauge = sink.gauge.clone();
        (sink, gauge)
    }
}

impl Sink for GaugeSink {
    fn write(&mut self, event: &Event) -> Result<(), SinkError> {
        // Is about a process, and no row.
        let of_process = matches!(event.kind, EventKind::ProcessStart(_) | EventKind::ProcessEnd);
        if of_process || matches!(event.kind, EventKind::System(System::Exit | System::PythonEnds)) {
            return Ok(());
        }
        self.figures.events += 1;
        let (block, grows) = match &event.kind {
            EventKind::Alloc(alloc) => (&alloc.block, true),
            EventKind::Free(free) => (&free.block, false),
            _ => return Ok(()),
        };
        if block.pool.is_driver() {
            let live = self.figures.live_bytes.entry(block.device).or_default();
            *live = if grows { live.saturating_add(block.size_bytes) } else { live.saturating_sub(block.size_bytes) };
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.gauge.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&self.figures);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.flush()
    }
}
