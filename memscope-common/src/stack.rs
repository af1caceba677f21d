//! Call stacks as they lie in the ring and in captures.
//!
//! A call that is reported with stacks carries two ids. A [`StackRecord`] defines an id once, before the first call
//! that carries it. A native stack that the kernel side could not complete is sent as a [`SnapshotRecord`] instead:
//! user space completes it and replaces it by a [`StackRecord`] with the same id, so that captures and all later stages
//! know one form only.

use crate::Header;

/// In [`ProbeRow::stacks`](crate::ProbeRow::stacks) and [`Config::stacks`](crate::Config::stacks):
/// native frames.
pub const STACK_NATIVE: u8 = 1;
/// As above: Python frames.
pub const STACK_PYTHON: u8 = 1 << 1;
/// In [`Config::stacks`](crate::Config::stacks): native frames only where the thread has no Python frame.
pub const STACK_NATIVE_WITHOUT_PYTHON: u8 = 1 << 2;
/// Among the stacks that are left out: those of calls that end blocks.
pub const STACKS_AT_ENDS: u8 = 1 << 3;
/// In [`Config::stacks`](crate::Config::stacks): stacks may be left out while the trace runs, so each call looks for that.
pub const STACKS_VARY: u32 = 1 << 8;

/// Most frames of one stack.
pub const MAX_FRAMES: usize = 1000;

/// Concurrent walks on one CPU: another thread's program can interrupt a program.
pub const SCRATCH_PER_CPU: u32 = 4;

/// Why a stack ends where it does. Only [`StackEnd::Root`] means a whole stack; part of the capture format.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StackEnd {
    /// The outermost frame was reached.
    Root = 1,
    /// The wanted number of frames was reached.
    Depth = 2,
    /// Memory of the program could not be read.
    Fault = 3,
    /// A frame without a rule, and the stack could not be sent to user space, which learns rules.
    NoRule = 4,
    /// Code without unwind information (made at run time, hand-written), or with an unknown form of it.
    NoUnwindInfo = 5,
    /// The next frame would not lie further out.
    NoProgress = 6,
    /// Too many stacks were being walked at that moment.
    Busy = 7,
    /// The thread has never run Python: expected, no error.
    NotPython = 16,
    /// The memory for the thread's state holds something else.
    BadState = 17,
    /// The process has no interpreter, or an unknown one.
    NoInterpreter = 18,
    /// As [`StackEnd::Root`], in a process with several interpreters: the frames may be another one's.
    OneOfSeveral = 19,
}

/// All ends, in their numbers' order.
pub const ENDS: [StackEnd; 11] = [
    StackEnd::Root,
    StackEnd::Depth,
    StackEnd::Fault,
    StackEnd::NoRule,
    StackEnd::NoUnwindInfo,
    StackEnd::NoProgress,
    StackEnd::Busy,
    StackEnd::NotPython,
    StackEnd::BadState,
    StackEnd::NoInterpreter,
    StackEnd::OneOfSeveral,
];

/// The frames behind a stack id. Followed by `frame_count` frames, innermost first: eight-byte addresses
/// ([`STACK_NATIVE`]) or [`PythonFrame`]s.
///
/// Native addresses are return addresses, but for the first: the thread's own instruction.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRecord {
    /// Of the first call that has the stack.
    pub header: Header,
    /// Hash of all that follows; never 0.
    pub id: u64,
    /// Generation of the mappings that the addresses belong to: see
    /// [`ProcessState::generation`](crate::config::ProcessState::generation).
    pub generation: u64,
    /// Frames that follow.
    pub frame_count: u16,
    /// A [`StackEnd`] as a number.
    pub end: u8,
    /// [`STACK_NATIVE`] or [`STACK_PYTHON`].
    pub which: u8,
    /// Padding, zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<StackRecord>() == 48);

/// A frame of Python.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonFrame {
    /// Address of the code object, and [`FRAME_ENTRY`].
    pub code: u64,
    /// Position in the code, in this Python version's unit: bytes; from 3.10 on units of two bytes; from 3.11 on bytes
    /// from the first instruction.
    pub last_instruction: u32,
    /// Distinguishes code objects that lived at the same address in turn.
    pub fingerprint: u32,
}
const _: () = assert!(size_of::<PythonFrame>() == 16);

/// In [`PythonFrame::code`], the lowest bit, else 0: C called this frame. It is the outermost of the frames that one
/// native frame of the interpreter runs.
pub const FRAME_ENTRY: u64 = 1;
/// Tag bits of a pointer to an object.
pub const POINTER_TAGS: u64 = 7;

impl PythonFrame {
    /// Address of the code object.
    #[must_use]
    #[inline]
    pub const fn address(&self) -> u64 {
        self.code & !POINTER_TAGS
    }

    /// Whether C called it.
    #[must_use]
    #[inline]
    pub const fn is_entry(&self) -> bool {
        self.code & FRAME_ENTRY != 0
    }
}

/// The name could not be read, or did not fit: the record has a part of it.
pub const CODE_NAME_CUT: u8 = 1;
/// The same of the file's name.
pub const CODE_FILE_CUT: u8 = 1 << 1;
/// The line table is not whole.
pub const CODE_LINES_CUT: u8 = 1 << 2;

/// A code object of Python, sent once. Followed by `name_len`, `file_len` and `lines_len` bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRecord {
    /// Of the first call from this code.
    pub header: Header,
    /// Its address.
    pub code: u64,
    /// As in [`PythonFrame`].
    pub fingerprint: u32,
    /// `co_firstlineno`.
    pub first_line: u32,
    /// Minor version of Python: decides how to read the line table.
    pub version: u8,
    /// Bytes per character of the name: 1, 2 or 4.
    pub name_kind: u8,
    /// The same of the file's name.
    pub file_kind: u8,
    /// `CODE_*` bits.
    pub flags: u8,
    /// Bytes of `co_qualname`, before 3.11 `co_name`.
    pub name_len: u16,
    /// Bytes of `co_filename`.
    pub file_len: u16,
    /// Bytes of the line table.
    pub lines_len: u16,
    /// Padding, zero.
    pub reserved: [u8; 6],
}
const _: () = assert!(size_of::<CodeRecord>() == 56);

/// Most calls with return probes that a thread is inside of. Their return addresses are not on the stack.
pub const MAX_RETURNS: usize = crate::miss::MAX_DEPTH;

/// A return address that a return probe has replaced.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Stack pointer at the entry of the call.
    pub stack_pointer: u64,
    /// The replaced address.
    pub address: u64,
}

/// A native stack for user space to complete. Followed by `len` bytes from `stack_pointer` on.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// Of the call that has the stack.
    pub header: Header,
    /// The id in the call's record.
    pub id: u64,
    /// As in [`StackRecord`].
    pub generation: u64,
    /// Registers at the probe.
    pub instruction_pointer: u64,
    /// As above.
    pub stack_pointer: u64,
    /// As above: `rbp`, `x29`.
    pub frame_pointer: u64,
    /// As above: `x30`; 0 where there is none.
    pub link_register: u64,
    /// Return addresses that are not on the stack, outermost call first.
    pub replaced: [Replaced; MAX_RETURNS],
    /// Number of these.
    pub replaced_count: u16,
    /// Padding, zero.
    pub reserved: u16,
    /// Bytes that follow.
    pub len: u32,
}
const _: () = assert!(size_of::<SnapshotRecord>() == 208);
