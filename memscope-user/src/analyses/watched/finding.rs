//! What block watch found in a process.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::Device;

/// What block watch found in a process.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Watched {
    /// Process.
    pub pid: u32,
    /// Block watch was set up in it; otherwise no block was watched.
    pub was_set_up: bool,
    /// The watched blocks, in the order in which their watch began.
    pub blocks: Vec<WatchedBlock>,
    /// Number of further blocks, unchanged until they were freed.
    pub quiet_blocks: u64,
    /// Sides of operators without a look, by reason.
    pub passed: Vec<PassedSides>,
    /// Operators without a look because the program had a handler of its own, the first of them.
    pub operators: Vec<PassedOperator>,
    /// Number of further ones.
    pub operators_left_out: u64,
}

/// A watched block.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct WatchedBlock {
    /// The operator with this output, or the script's name.
    pub name: String,
    /// Number of the output; 0 for blocks of the script.
    pub output: u32,
    /// Start of the block.
    pub addr: u64,
    /// Its size.
    pub size_bytes: u64,
    /// The verdict.
    pub conclusion: Conclusion,
    /// Looks that succeeded.
    pub looks: u64,
    /// Changes between looks.
    pub changes: u64,
    /// Looks that failed.
    pub failed_looks: u64,
    /// The reason of the first of those.
    pub failed_because: Option<String>,
    /// Its memory was freed, and its watch ended.
    pub freed: Option<WatchedFree>,
}

/// The verdict on a block.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Conclusion {
    /// It was changed.
    Changed {
        /// When first: during an operator, or between two sides of operators.
        when: String,
    },
    /// No look succeeded.
    NeverRead,
    /// No change between the looks, but operators passed without one.
    Undecided,
    /// No change between the looks that succeeded.
    UnchangedWhereRead,
    /// No change until it was freed.
    UnchangedUntilFreed,
    /// No change.
    Unchanged,
}

/// The end of a watched block.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct WatchedFree {
    /// The function that freed it.
    pub function: String,
    /// Thread that called it.
    pub tid: u32,
}

/// Sides of operators without a look.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PassedSides {
    /// Their number.
    pub sides: u64,
    /// The reason.
    pub reason: &'static str,
}

/// An operator without a look.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PassedOperator {
    /// Its name.
    pub name: String,
    /// Number of calls.
    pub calls: u64,
}

impl Answer for Watched {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, Device::None)
    }

    /// The trace shows it behind the report ([`write`](super::write())): it is about what the program did, not its memory.
    fn write(&self, _: &Context<'_>, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}
