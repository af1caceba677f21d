//! Tells people at once what they should not have to look for in the report.

use std::collections::HashSet;

use super::{args::LogLevel, message};
use crate::{
    model::{Event, EventKind, ProcessStart},
    sinks::{Sink, SinkError},
};

/// Says what an event warns of.
pub(super) struct Notices {
    level: LogLevel,
    /// Living processes that are known by another number in their own pid namespace, and were introduced.
    introduced: HashSet<u32>,
}

impl Notices {
    /// Messages below `level` are left out.
    pub(super) fn new(level: LogLevel) -> Self {
        Self { level, introduced: HashSet::new() }
    }

    /// Says what a process calls itself, once; louder of those that nobody of their namespace came before.
    fn introduce(&mut self, pid: u32, start: &ProcessStart) {
        let Some(within) = start.pid_within else { return };
        if self.introduced.insert(pid) {
            let known = self.introduced.contains(&start.parent);
            let level = if known { LogLevel::Debug } else { LogLevel::Info };
            let text = format_args!("process {pid} ({}) is process {within} in its own pid namespace", start.command);
            message(self.level, level, text);
        }
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
        match &event.kind {
            EventKind::ProcessStart(start) => self.introduce(event.pid, start),
            EventKind::ProcessEnd => drop(self.introduced.remove(&event.pid)),
            _ => {}
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
