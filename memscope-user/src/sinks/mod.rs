//! Writing: rows to CSV and SQLite, findings to the console. Sinks decide nothing.
//!
//! [`DumpSink`] is the one for rows: it picks the file of a row by process and device, in the tree of contract §2.1.
//! [`row`] has the cells of a row, `csv` and `sqlite` their spelling, `tree` the places of files.

pub mod compare;
pub mod config_json;
mod csv;
mod dump;
#[cfg(test)]
mod fixtures;
pub mod folded;
pub mod folder;
pub mod log;
pub mod report;
pub mod row;
mod sqlite;
pub(crate) mod sqlite_vfs;
mod stack_ids;
pub mod trace_row;
pub mod tree;
pub mod watch;

pub use dump::{DumpOptions, DumpSink, FileChange, Format, Rotation};
pub use stack_ids::StackCells;

use crate::model::Event;

/// Writes events.
pub trait Sink: Send {
    /// Writes one event; kinds without a row are ignored.
    fn write(&mut self, event: &Event) -> Result<(), SinkError>;

    /// Puts everything taken so far where another process can read it. Called at least twice a second.
    fn flush(&mut self) -> Result<(), SinkError>;

    /// Ends all outputs: held-back rows, final flush.
    fn finish(&mut self) -> Result<(), SinkError>;

    /// Rows taken that no output has, since writing them failed for good.
    fn lost_rows(&self) -> u64 {
        0
    }
}

/// An output could not be written.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A file or directory could not be written.
    #[error("cannot write `{}`", path.display())]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A database could not be written.
    #[error("cannot write `{}`", path.display())]
    Database {
        /// The file.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: rusqlite::Error,
    },
}

impl SinkError {
    /// For `map_err`.
    fn io(path: impl Into<std::path::PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// For `map_err`.
    fn database(path: impl Into<std::path::PathBuf>) -> impl FnOnce(rusqlite::Error) -> Self {
        let path = path.into();
        move |source| Self::Database { path, source }
    }
}
