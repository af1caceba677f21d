//! Progress of reading inputs.

/// The current work on the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Scanning for runs of rows: bytes.
    Looking,
    /// They are read: bytes.
    Reading,
    /// Rows of several processes are put in order: rows.
    Sorting,
    /// Rows are made events and shown to the analyses: rows.
    Analysing,
    /// Two runs are aligned and reported: entries, each twice.
    Comparing,
    /// Rows get marks in a copy, or where they are: bytes or rows, as the format has it.
    Marking,
}

/// Progress of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// Work done, in the stage's unit.
    pub done: u64,
    /// Work in all, as far as known.
    pub total: u64,
}

/// Gets the progress; called once for each row or chunk.
pub type Watcher = Box<dyn FnMut(Progress)>;

/// Reports the progress of one stage.
pub(super) struct Teller<'a> {
    watcher: &'a mut Watcher,
    stage: Stage,
    total: u64,
}

impl<'a> Teller<'a> {
    pub(super) fn new(watcher: &'a mut Watcher, stage: Stage, total: u64) -> Self {
        Self { watcher, stage, total }
    }

    pub(super) fn at(&mut self, done: u64) {
        (self.watcher)(Progress { stage: self.stage, done, total: self.total });
    }
}
