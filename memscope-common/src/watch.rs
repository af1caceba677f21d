//! Block watch: what the kernel side tells of a thread that it has sent to the watch's handler.

use crate::row::REGISTER_ARGS;

/// A process whose threads are sent there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchedProcess {
    /// First address of the handler's own memory; a thread whose stack is there runs calls of ours, which are nobody's.
    pub from: u64,
    /// Behind the last.
    pub to: u64,
    /// Graphs that are being captured: a stream must not be waited for then. Counted by the kernel side.
    pub capturing: u64,
}

/// Where a thread was when it was last sent there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchSite {
    /// `CLOCK_MONOTONIC`, in nanoseconds; no two of a thread are the same.
    pub time_ns: u64,
    /// Its stack pointer then.
    pub stack_pointer: u64,
    /// The probed instruction.
    pub instruction_pointer: u64,
    /// The call's arguments, as they were at its entry.
    pub args: [u64; REGISTER_ARGS],
    /// Number of the probe row.
    pub row: u16,
    /// 1: the call has returned, or is about to.
    pub returned: u16,
    /// How often the thread was sent there, this time included.
    pub sent: u32,
    /// Where the call returns to.
    pub caller: u64,
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding: every bit pattern is a value.
    unsafe impl aya::Pod for super::WatchedProcess {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::WatchSite {}
}
