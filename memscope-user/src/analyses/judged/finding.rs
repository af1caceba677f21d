//! The time in which a program worked.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Device, LiveSum, Pool};

/// The judged span of a process: all of it up to its exit.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Span {
    /// Process.
    pub pid: u32,
    /// Its first event: nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// The begin of its exit: nanoseconds since the Unix epoch.
    pub until_ns: u64,
    /// What shows that.
    pub exit: Exit,
    /// Memory that the exit freed, by device and pool.
    pub freed: Vec<ExitFreed>,
}

/// Memory of one pool that an exit freed: held when the exit began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ExitFreed {
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
    /// Driver blocks that are segments of pools: their bytes count with the pools, not here.
    pub segments: LiveSum,
}

/// A call by which a process begins to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitCall {
    /// `exit` of the C library: `main` has returned, or the program has called it.
    Exit,
    /// Python's `Py_FinalizeEx`.
    PyFinalize,
}

impl ExitCall {
    /// The function.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::PyFinalize => "Py_FinalizeEx",
        }
    }
}

/// How the exit of a process was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Exit {
    /// `aclFinalize` was called, and no work came behind it.
    pub finalized: bool,
    /// The call that began it, with no work behind it; `null` where none was seen.
    pub called: Option<ExitCall>,
    /// The process ended, and freed the memory it held between its last work and its end.
    pub ended: bool,
    /// Blocks of device memory that it freed meanwhile.
    pub freed_blocks: u64,
    /// Their bytes.
    pub freed_bytes: u64,
}

impl Answer for Span {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, Device::None)
    }

    fn weight_bytes(&self) -> u64 {
        self.exit.freed_bytes
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, context.clock, out)
    }
}
