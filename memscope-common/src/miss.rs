//! Why a call was seen and not reported.

/// Reasons, counted per probe row. The number is the counter's index and part of the capture format.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Miss {
    /// The transport had no room: a **lost** record.
    RingFull = 0,
    /// More threads inside probed calls than the table holds: the call was not followed to its return.
    ThreadsFull = 1,
    /// Probed calls nested deeper than [`MAX_DEPTH`]: the call was not followed to its return.
    TooDeep = 2,
    /// The program's memory could not be read (page not present, bad pointer). The record left, marked.
    Fault = 3,
    /// A return without a seen entry: the call was in flight when the probe was attached.
    UnknownReturn = 4,
    /// A call that never returned through its return address (`longjmp`, unwinding, a killed thread).
    NoReturn = 5,
    /// An inner call of a group of which only the outermost one is reported. No loss.
    Nested = 6,
    /// The table of traced processes was full: a child process is not traced.
    ProcessesFull = 7,
    /// A traced process could not, or should not, be stopped for attaching: probes of a new library
    /// may start late.
    StopFailed = 8,
    /// The row's number is not in the table: a programming error.
    UnknownRow = 9,
    /// A call left by an exception. No loss.
    Thrown = 10,
    /// A list of more than [`MAX_ELEMENTS`](crate::row::MAX_ELEMENTS) elements: the rest was not reported.
    TooMany = 11,
    /// No room for one more native stack at that moment: the call's stack has one frame.
    StackBusy = 12,
    /// Watched blocks were not compared there: the thread was inside of a call of the runtime, or a graph was being
    /// captured.
    NotWatched = 13,
    /// Watched blocks were not compared there: the program has its own handler for the signal, or ignores it.
    HandlerTaken = 14,
    /// A thread that had mapped libraries did not wait until they were probed: their first calls
    /// may be missed.
    NotHeld = 15,
    /// A thread that had mapped unknown files waited until user space had examined them. No loss.
    Held = 16,
    /// A process was stopped until user space had examined it. No loss.
    Stopped = 17,
    /// The tracer was behind, so that the call's stack was not taken.
    StackLeftOut = 18,
}

/// Slots reserved per row, so that a reason can be added without moving the others.
pub const MISSES_PER_ROW: u32 = 32;

/// Nested probed calls that one thread may be inside of.
pub const MAX_DEPTH: usize = 8;

/// All reasons, in their numbers' order.
pub const ALL: [Miss; 19] = [
    Miss::RingFull,
    Miss::ThreadsFull,
    Miss::TooDeep,
    Miss::Fault,
    Miss::UnknownReturn,
    Miss::NoReturn,
    Miss::Nested,
    Miss::ProcessesFull,
    Miss::StopFailed,
    Miss::UnknownRow,
    Miss::Thrown,
    Miss::TooMany,
    Miss::StackBusy,
    Miss::NotWatched,
    Miss::HandlerTaken,
    Miss::NotHeld,
    Miss::Held,
    Miss::Stopped,
    Miss::StackLeftOut,
];

impl Miss {
    /// Index of this reason's counter for `row`.
    #[must_use]
    pub const fn counter(self, row: u16) -> u32 {
        row as u32 * MISSES_PER_ROW + self as u32
    }
}
