//! What can be wrong with an input.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::cell::Fault;
use crate::capture::CaptureError;

/// An input cannot be read, or not be understood.
#[derive(Debug, Error)]
pub enum InputError {
    /// The file cannot be opened or read.
    #[error("cannot read `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Rows cannot be put aside for sorting.
    #[error("cannot sort in a temporary file (TMPDIR names its folder)")]
    Sort(#[source] io::Error),
    /// What reads the files cannot be started.
    #[error("cannot start a thread (`ulimit -u` and the container's limit of processes say how many there may be)")]
    Thread(#[source] io::Error),
    /// The database cannot be read.
    #[error("cannot read database `{}`", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: rusqlite::Error,
    },
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The file is something else.
    #[error("`{}` is {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// A row cannot be understood.
    #[error("`{}` {unit} {line}, column {column}: {what}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// `line` or `row`.
        unit: &'static str,
        /// Its number, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// What is wrong.
        what: String,
    },
    /// These inputs cannot be read together.
    #[error("{0}")]
    Together(&'static str),
}

impl InputError {
    /// For `map_err`.
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// For `map_err`.
    pub(super) fn database(path: &Path) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Database { path: path.to_owned(), source }
    }

    pub(super) fn row(path: &Path, unit: &'static str, line: u64, fault: Fault) -> Self {
        Self::Row { path: path.to_owned(), unit, line, column: fault.column, what: fault.what }
    }
}
