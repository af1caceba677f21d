//! Rows of one process as they should have been: each once, with times that never run back.

use super::Notes;
use crate::dump_format::row::DumpRow;

/// Takes the rows of one process by number, and gives them back one behind.
#[derive(Debug, Default)]
pub(super) struct Repair {
    last: Option<DumpRow>,
}

impl Repair {
    /// Takes a row; gives the one before, if this is another one.
    pub(super) fn take(&mut self, mut row: DumpRow, notes: &mut Notes) -> Option<DumpRow> {
        if let Some(last) = &self.last {
            if last.id == row.id {
                let (time_ns, file, line) = (row.time_ns.max(last.time_ns), last.file, last.line);
                if (DumpRow { time_ns, file, line, ..row.clone() }) == *last {
                    // Rows without a device are in every file of their process.
                    notes.duplicates += u64::from(row.file == last.file);
                    return None;
                }
                notes.contradictions += 1;
            }
            if row.time_ns < last.time_ns {
                notes.clock_back += 1;
                notes.clock_back_ns = notes.clock_back_ns.max(last.time_ns - row.time_ns);
                row.time_ns = last.time_ns;
            }
        }
        notes.rows += 1;
        self.last.replace(row)
    }

    /// The last row, when no more follows.
    pub(super) fn end(&mut self) -> Option<DumpRow> {
        self.last.take()
    }
}
