//! Raw records on disk: what came out of the ring, byte for byte, so that outputs can be made again.
//!
//! The format is written down in `docs/capture-format.md` and in [`mod@format`].

mod chunks;
pub mod format;
mod note;
mod reader;
#[cfg(feature = "trace")]
mod tail;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::path::PathBuf;

use thiserror::Error;

pub use chunks::Ending;
pub use format::{CaptureHeader, Collected};
pub use note::{Function, LookBlock, LookMoment, LookPlace, LossCount, Note, Symbol, note_record};
pub use reader::Reader;
#[cfg(feature = "trace")]
pub use tail::Tail;
pub use writer::{Writer, WriterOptions};

/// A capture could not be written or opened.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The file could not be created, written or read.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is no capture.
    #[error("`{}` is no capture", path.display())]
    NoCapture {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a later version of this program.
    #[error("`{}` has capture format {found}, this program reads up to {}", path.display(), format::VERSION)]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The header is cut off or damaged, so no record can be understood.
    #[error("header of `{}` is damaged: {what}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The mistake.
        what: String,
    },
}
