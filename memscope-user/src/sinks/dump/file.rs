//! One file of rows: what is written to it, and opening it again.

use super::super::SinkError;
use super::super::csv::CsvFile;
use super::super::row::Row;
use super::super::sqlite::DbFile;
use super::super::trace_row::TraceRow;
use super::super::tree::{OutputTree, Place};

/// What the rows are written as.
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
    fn write_csv(self, out: &mut Vec<u8>) {
        match self {
            Self::Dump(row) => row.write_csv(out),
            Self::Trace(row) => row.write_csv(out),
        }
    }

    fn write_db(self, file: &mut DbFile) -> Result<(), SinkError> {
        match self {
            Self::Dump(row) => file.write(row),
            Self::Trace(row) => file.write_trace(row),
        }
    }
}

pub(super) struct Output {
    pub(super) place: Place,
    pub(super) writer: Option<Writer>,
    /// When it was written last, by the sink's clock.
    pub(super) last_used: u64,
    /// It has the rows without a device that came before it.
    pub(super) begun: bool,
}

pub(super) enum Writer {
    Csv(CsvFile),
    Db(Box<DbFile>),
}

impl Output {
    /// Takes a row. Rows that are lost are added to `lost_rows`.
    pub(super) fn put(&mut self, entry: Entry<'_>, lost_rows: &mut u64) -> Result<(), SinkError> {
        match &mut self.writer {
            Some(Writer::Csv(file)) if file.is_full() => {
                let flushed = file.flush();
                if flushed.is_err() {
                    *lost_rows += 1;
                    return flushed;
                }
                file.write(|out| entry.write_csv(out))
            }
            Some(Writer::Csv(file)) => file.write(|out| entry.write_csv(out)),
            Some(Writer::Db(file)) => {
                let result = entry.write_db(file);
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
}

pub(super) fn open_again(tree: &OutputTree, format: Format, place: &Place) -> Result<Writer, SinkError> {
    let file = tree.reopen(place)?;
    match format {
        Format::Csv => Ok(Writer::Csv(CsvFile::append(file, place.path()))),
        Format::Db => {
            // Closing it later would drop the locks that SQLite takes on the same file (POSIX locks).
            drop(file);
            open_db(tree, place)
        }
    }
}

/// SQLite opens by name, and only a file that is there, in the folder that we opened. It follows no link at the last step.
fn open_db(tree: &OutputTree, place: &Place) -> Result<Writer, SinkError> {
    let folder = tree.folder(place)?;
    place.verify(&folder)?;
    let file = DbFile::open(tree.folder(place)?, place.name())?;
    place.verify(&folder)?;
    Ok(Writer::Db(Box::new(file)))
}
