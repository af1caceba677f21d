//! One row of the Python trace (contract §5.1), a file or a table beside the dump's.

use super::row::Name;
use crate::model::{Device, Event, EventKind};

/// Columns, in order.
pub const TRACE_COLUMNS: [&str; 5] = ["FuncInfo", "StartTime(ns)", "EndTime(ns)", "Thread Id", "Process Id"];

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRow<'a> {
    /// What ran.
    pub function: Name<'a>,
    /// Nanoseconds since the Unix epoch; `None` if unknown.
    pub start_ns: Option<u64>,
    /// The same of the end.
    pub end_ns: Option<u64>,
    /// Thread.
    pub tid: u32,
    /// Process.
    pub pid: u32,
    /// The thread's device: the row is in its file.
    pub device: Device,
}

impl<'a> TraceRow<'a> {
    /// The row of an event; `None` for kinds without one.
    #[must_use]
    pub fn of(event: &'a Event) -> Option<Self> {
        let EventKind::NamedRange { name, start_ns, end_ns } = &event.kind else { return None };
        let &Event { tid, pid, device, .. } = event;
        Some(Self { function: Name::Plain(name), start_ns: *start_ns, end_ns: *end_ns, tid, pid, device })
    }

    /// Appends the row as one CSV line, newline included. Texts are quoted as in dumps.
    pub fn write_csv(&self, out: &mut Vec<u8>) {
        self.function.write_csv(out);
        out.extend_from_slice(format!(",{},{},{},{}\n", self.start(), self.end(), self.tid, self.pid).as_bytes());
    }

    /// Text of the start.
    #[must_use]
    pub fn start(&self) -> String {
        time(self.start_ns)
    }

    /// Text of the end.
    #[must_use]
    pub fn end(&self) -> String {
        time(self.end_ns)
    }
}

fn time(time_ns: Option<u64>) -> String {
    time_ns.map_or_else(|| "N/A".to_owned(), |time_ns| time_ns.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::fixtures::event;

    #[test]
    fn rows_are_quoted_where_they_have_to_be() {
        let csv = |name: &str, start_ns, end_ns| {
            let event = event(EventKind::NamedRange { name: name.into(), start_ns, end_ns });
            let mut bytes = Vec::new();
            TraceRow::of(&event).expect("a row").write_csv(&mut bytes);
            String::from_utf8(bytes).expect("text")
        };
        assert_eq!(csv("forward", Some(900), Some(1000)), "forward,900,1000,34,12\n");
        assert_eq!(csv("a, \"b\"\n", None, None), "\"a, \"\"b\"\"\\n\",N/A,N/A,34,12\n");
        assert_eq!(csv("=1+1", Some(1), Some(1000)), "'=1+1,1,1000,34,12\n");
    }
}
