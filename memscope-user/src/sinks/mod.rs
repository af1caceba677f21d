//! Writing: rows to CSV and SQLite, findings to the console. Sinks decide nothing.

use crate::model::Event;

/// Takes events that are to be written.
pub trait Sink: Send {
    /// Writes one event; kinds that have no row are passed over.
    fn write(&mut self, event: &Event) -> Result<(), SinkError>;

    /// Puts everything taken so far where another process can read it. Called at least twice a second.
    fn flush(&mut self) -> Result<(), SinkError>;

    /// Ends all outputs: held-back rows, final flush.
    fn finish(&mut self) -> Result<(), SinkError>;
}

/// An output could not be written.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A file or directory could not be written.
    #[error("cannot write `{}`: {source}", path.display())]
    Io {
        /// What was written.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A database could not be written.
    #[error("cannot write `{}`: {source}", path.display())]
    Database {
        /// What was written.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: rusqlite::Error,
    },
}
