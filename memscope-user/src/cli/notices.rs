//! Tells people at once what they should not have to look for in the report.

use super::{args::LogLevel, message};
use crate::{
    model::{Event, EventKind},
    sinks::{Sink, SinkError},
};

/// Says what an event warns of.
pub(super) struct Notices {
    level: LogLevel,
}

impl Notices {
    /// Messages below `level` are left out.
    pub(super) const fn new(level: LogLevel) -> Self {
        Self { level }
    }
}

impl Sink for Notices {
    fn write(&mut self, event: &Event) -> Result<(), SinkError> {
        if let EventKind::ProbeDisabled { symbol } = event.kind {
            let text = format_args!(
                "what was taken for `{symbol}` in process {} is another function: its calls are passed over, and rows \
                 of that pool are missing; please report the library's build-id (see doctor --pid {})",
                event.pid, event.pid
            );
            message(self.level, LogLevel::Error, text);
        }
        if event.kind == EventKind::StepsRefused {
            let text = format_args!(
                "process {} marks steps by ranges and by step(); what it did first counts, the other is passed over",
                event.pid
            );
            message(self.level, LogLevel::Error, text);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}
