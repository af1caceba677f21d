//! Errors of inputs.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::Notes;
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
    /// Rows cannot be written to temporary files for sorting.
    #[error("cannot sort in a temporary file (TMPDIR names its folder)")]
    Sort(#[source] io::Error),
    /// The thread that reads the files cannot be started.
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
    /// The file has another format.
    #[error("`{}` is {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its format.
        what: String,
    },
    /// Not one row can be understood; this is the first.
    #[error("{0}; no row of the file can be understood")]
    Rows(BadRow),
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
}

/// A bad row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// The file.
    pub path: PathBuf,
    /// `line` or `row`.
    pub unit: &'static str,
    /// Its number, from 1.
    pub line: u64,
    /// The column.
    pub column: &'static str,
    /// Its fault.
    pub what: String,
}

impl BadRow {
    pub(super) fn new(path: &Path, unit: &'static str, line: u64, fault: Fault) -> Self {
        Self { path: path.to_owned(), unit, line, column: fault.column, what: fault.what }
    }
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, unit, line, column, what } = self;
        write!(f, "`{}` {unit} {line}, column {column}: {what}", path.display())
    }
}

/// Number of understood rows of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    understood: u64,
    /// The first one that could not.
    first_bad: Option<BadRow>,
}

impl Tally {
    pub(super) const fn understood(&mut self) {
        self.understood += 1;
    }

    /// Notes a dropped row.
    pub(super) fn bad(&mut self, row: BadRow, notes: &mut Notes) {
        self.first_bad.get_or_insert_with(|| row.clone());
        notes.bad_row(row);
    }

    /// Adds another part of the same file.
    pub(super) fn add(&mut self, other: &Self) {
        self.understood += other.understood;
        let first = [&self.first_bad, &other.first_bad].into_iter().flatten().min_by_key(|row| row.line).cloned();
        self.first_bad = first;
    }

    /// An error if the file has rows, and none of them could be understood.
    pub(super) fn check(self) -> Result<(), InputError> {
        match self {
            Self { understood: 0, first_bad: Some(row) } => Err(InputError::Rows(row)),
            _ => Ok(()),
        }
    }
}
