//! The time in which a program worked.

use serde::Serialize;

/// What analyses of leaks judge of a process: all of it up to its exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// Process.
    pub pid: u32,
    /// Its first event: nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// The begin of its exit: nanoseconds since the Unix epoch.
    pub until_ns: u64,
    /// What shows that.
    pub exit: Exit,
}

/// How the exit of a process was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Exit {
    /// `aclFinalize` was called, and nothing but frees came behind it.
    pub finalized: bool,
    /// The process ended, with nothing but frees behind its last work.
    pub ended: bool,
    /// Blocks of device memory that it freed meanwhile.
    pub freed_blocks: u64,
    /// Their bytes.
    pub freed_bytes: u64,
}
