//! How far the reading of inputs is.

/// What is done with the inputs at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is looked for the order in which rows lie: bytes.
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

/// How far a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// What is done of it, in the stage's unit.
    pub done: u64,
    /// All that is to be done, as far as it is known.
    pub total: u64,
}

/// Who wants to know; called once for each row or chunk.
pub type Watcher = Box<dyn FnMut(Progress)>;

/// Reports how far one stage is.
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
