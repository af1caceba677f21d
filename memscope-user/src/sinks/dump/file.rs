//! One file of rows: writing, closing and reopening it.

use super::super::SinkError;
use super::super::csv::CsvFile;
use super::super::row::Row;
use super::super::sqlite::DbFile;
use super::super::stack_ids::StackIds;
use super::super::trace_row::TraceRow;
use super::super::tree::{OutputTree, Place};
use crate::dump_format::stack_cell::{self, Reference};

/// Format of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text.
    #[default]
    Csv,
    /// SQLite.
    Db,
}

/// A row of either.
#[derive(Clone, Copy)]
pub(super) enum Entry<'a> {
    Dump(&'a Row<'a>),
    Trace(&'a TraceRow<'a>),
}

impl Entry<'_> {
    /// Whether it has a call stack.
    pub(super) fn has_stacks(self) -> bool {
        matches!(self, Self::Dump(row) if !row.stacks.is_empty())
    }
}

pub(super) struct Output {
    pub(super) place: Place,
    pub(super) writer: Option<Writer>,
    /// Stacks that rows refer to; none where rows have them in full.
    pub(super) stacks: Option<StackTable>,
    /// When it was written last, by the sink's clock.
    pub(super) last_used: u64,
    /// It has the rows without a device that came before it.
    pub(super) begun: bool,
    /// What its files have taken, as of the last look.
    pub(super) size_bytes: u64,
}

/// The table of stacks of one file.
pub(super) struct StackTable {
    pub(super) ids: StackIds,
    /// Its own file; that of the rows if it is a database.
    pub(super) place: Option<Place>,
}

pub(super) enum Writer {
    Csv(CsvRows),
    Db(Box<DbFile>),
}

/// Rows as text, and the file with the stacks that they refer to.
pub(super) struct CsvRows {
    pub(super) rows: CsvFile,
    pub(super) stacks: Option<CsvFile>,
}

impl Output {
    /// Takes a row. Lost rows are added to `lost_rows`.
    pub(super) fn put(&mut self, entry: Entry<'_>, lost_rows: &mut u64) -> Result<(), SinkError> {
        let ids = self.stacks.as_mut().map(|table| &mut table.ids);
        match &mut self.writer {
            Some(Writer::Csv(file)) => {
                if file.is_full() {
                    file.flush().inspect_err(|_| *lost_rows += 1)?;
                }
                file.write(entry, ids)
            }
            Some(Writer::Db(file)) => {
                let result = match entry {
                    Entry::Dump(row) => file.write(row, ids),
                    Entry::Trace(row) => file.write_trace(row),
                };
                *lost_rows += file.take_lost_rows();
                result
            }
            None => Ok(()),
        }
    }

    pub(super) fn flush(&mut self, lost_rows: &mut u64) -> Result<(), SinkError> {
        match &mut self.writer {
            Some(Writer::Csv(file)) => file.flush(),
            Some(Writer::Db(file)) => {
                let result = file.flush();
                *lost_rows += file.take_lost_rows();
                result
            }
            None => Ok(()),
        }
    }

    /// Measures the size of its files.
    pub(super) fn measure(&mut self) {
        match &mut self.writer {
            Some(Writer::Csv(file)) => self.size_bytes += file.take_written(),
            Some(Writer::Db(file)) => self.size_bytes = file.size_bytes(),
            None => {}
        }
    }

    /// Opens its files again.
    pub(super) fn open_again(&mut self, tree: &OutputTree, format: Format) -> Result<(), SinkError> {
        let file = tree.reopen(&self.place)?;
        self.writer = Some(match format {
            Format::Csv => {
                let again = |place: &Place| Ok(CsvFile::append(tree.reopen(place)?, place.path()));
                let stacks = self.stacks.as_ref().and_then(|table| table.place.as_ref());
                let stacks = stacks.map(again).transpose()?;
                Writer::Csv(CsvRows { rows: CsvFile::append(file, self.place.path()), stacks })
            }
            Format::Db => {
                // Closing it later would drop the locks that SQLite takes on the same file (POSIX locks).
                drop(file);
                open_db(tree, &self.place)?
            }
        });
        Ok(())
    }
}

impl CsvRows {
    fn write(&mut self, entry: Entry<'_>, ids: Option<&mut StackIds>) -> Result<(), SinkError> {
        match (entry, &mut self.stacks, ids) {
            (Entry::Dump(row), Some(file), Some(ids)) => {
                let add = |id: Reference, stack| {
                    file.take(|out| {
                        id.write(out);
                        out.push(b',');
                        stack_cell::write(out, Some(stack), true);
                        out.push(b'\n');
                    });
                };
                let mut add = add;
                self.rows.take(|out| {
                    row.write_csv_with(out, |out, stack| ids.write(out, stack, true, &mut add));
                });
            }
            (Entry::Dump(row), ..) => self.rows.take(|out| row.write_csv(out)),
            (Entry::Trace(row), ..) => self.rows.take(|out| row.write_csv(out)),
        }
        let is_due = self.rows.is_due() || self.stacks.as_ref().is_some_and(CsvFile::is_due);
        if is_due { self.flush() } else { Ok(()) }
    }

    fn take_written(&mut self) -> u64 {
        self.rows.take_written() + self.stacks.as_mut().map_or(0, CsvFile::take_written)
    }

    fn is_full(&self) -> bool {
        self.rows.is_full() || self.stacks.as_ref().is_some_and(CsvFile::is_full)
    }

    /// Stacks first: at no moment rows on the disk refer to a missing one.
    fn flush(&mut self) -> Result<(), SinkError> {
        self.stacks.as_mut().map_or(Ok(()), CsvFile::flush)?;
        self.rows.flush()
    }

    /// Returns the number of dropped rows.
    pub(super) fn close(self) -> (Result<(), SinkError>, u64) {
        let (stacks, _) = self.stacks.map_or((Ok(()), 0), CsvFile::close);
        match stacks {
            Ok(()) => self.rows.close(),
            Err(error) => (Err(error), self.rows.give_up()),
        }
    }
}

/// SQLite opens by name, and only an existing file, in the folder that we opened. It follows no link at the last step.
fn open_db(tree: &OutputTree, place: &Place) -> Result<Writer, SinkError> {
    let folder = tree.folder(place)?;
    place.verify(&folder)?;
    let file = DbFile::open(tree.folder(place)?, place.name())?;
    place.verify(&folder)?;
    Ok(Writer::Db(Box::new(file)))
}
