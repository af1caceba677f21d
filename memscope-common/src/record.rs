//! Records as they lie in the ring and in captures. Little-endian, `repr(C)`, padding always zero.
//!
//! Every record starts with a [`Header`]. Its `len` covers the whole record, so a reader can skip unknown kinds.

use crate::row::MAX_VALUES;

/// What a record is. Part of the capture format: never reuse a number.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A probed call was entered: [`CallRecord`].
    Enter = 1,
    /// A probed call returned: [`CallRecord`].
    Return = 2,
    /// A further part of the text of the thread's last call: [`TextRecord`].
    Text = 3,
    /// What the id of a stack stands for: [`StackRecord`](crate::StackRecord).
    Stack = 5,
    /// A native stack for user space to complete: [`SnapshotRecord`](crate::SnapshotRecord). Not in captures.
    Snapshot = 6,
    /// A code object of Python: [`CodeRecord`](crate::CodeRecord).
    Code = 7,
    /// A probed place was passed, with the objects that its arguments lead to: [`ObjectsRecord`].
    Objects = 4,
    /// A traced process forked: [`ProcessRecord`].
    Fork = 20,
    /// A traced process executed another program: [`ProcessRecord`].
    Exec = 21,
    /// A traced process has mapped or unmapped libraries: [`LibraryRecord`].
    Library = 22,
    /// Written by user space into captures: UTF-8 JSON after the header.
    Note = 200,
}

/// Starts every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub time_ns: u64,
    /// Process, as user space names it (the kernel's `tgid`).
    pub tgid: u32,
    /// Thread, as user space names it (the kernel's `pid`).
    pub tid: u32,
    /// A [`Kind`] as a number.
    pub kind: u16,
    /// Number of the probe row; 0 is none.
    pub row: u16,
    /// Bytes of the record, this header included.
    pub len: u16,
    /// Row of the outermost call of [`GROUP_API`](crate::row::GROUP_API) that the thread is inside
    /// of; 0 is none.
    pub outer: u16,
}
const _: () = assert!(size_of::<Header>() == 24);

/// Room for text in one record, with its final NUL; longer texts continue in [`TextRecord`]s.
pub const TEXT_CHUNK: usize = 128;
/// Text records after the first.
pub const MAX_TEXT_PARTS: usize = 7;
/// Longest text, in bytes; longer ones are cut and marked.
pub const MAX_TEXT: usize = (TEXT_CHUNK - 1) * (1 + MAX_TEXT_PARTS);

/// The program could not read the text: its page was not in memory. The record has the text's address instead, eight
/// bytes, so that user space can read it.
pub const CALL_TEXT_FAULT: u8 = 1;
/// The text continues in a [`TextRecord`] of the same thread.
pub const CALL_TEXT_MORE: u8 = 1 << 1;
/// The text pointer was null.
pub const CALL_TEXT_NULL: u8 = 1 << 2;

/// A probed call. Without text it ends after `value_count` values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CallRecord {
    /// Time of entry ([`Kind::Enter`]) or return ([`Kind::Return`]).
    pub header: Header,
    /// The returned value, sign-extended; 0 at entry.
    pub status: i64,
    /// Values that follow.
    pub value_count: u8,
    /// Bit *n*: value *n* could not be read and is 0.
    pub faults: u8,
    /// `CALL_*` bits.
    pub flags: u8,
    /// Padding, zero.
    pub reserved: u8,
    /// Bytes of text after the values (then all [`MAX_VALUES`] are present).
    pub text_len: u32,
    /// Id of the native stack; 0 is none.
    pub native_stack: u64,
    /// Id of the Python stack; 0 is none.
    pub python_stack: u64,
    /// The row's values, in the row's order.
    pub values: [u64; MAX_VALUES],
    /// The text, without a final NUL.
    pub text: [u8; TEXT_CHUNK],
}

/// Bytes before the values.
pub const CALL_VALUES_AT: usize = 56;
/// Bytes before the text.
pub const CALL_TEXT_AT: usize = CALL_VALUES_AT + 8 * MAX_VALUES;
const _: () = assert!(core::mem::offset_of!(CallRecord, values) == CALL_VALUES_AT);
const _: () = assert!(core::mem::offset_of!(CallRecord, text) == CALL_TEXT_AT);

/// A further part of a text.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TextRecord {
    /// Same row and thread as the call.
    pub header: Header,
    /// 1 for the first part after the call's own.
    pub part: u16,
    /// [`CALL_TEXT_MORE`] and [`CALL_TEXT_FAULT`].
    pub flags: u16,
    /// Bytes that follow.
    pub text_len: u32,
    /// The bytes.
    pub text: [u8; TEXT_CHUNK],
}
/// Bytes before the text.
pub const TEXT_TEXT_AT: usize = 32;
const _: () = assert!(core::mem::offset_of!(TextRecord, text) == TEXT_TEXT_AT);

/// A process came to be, or runs another program.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// The parent ([`Kind::Fork`]) or the process itself ([`Kind::Exec`]).
    pub header: Header,
    /// The new process ([`Kind::Fork`]); otherwise 0.
    pub child: u32,
    /// Whether the process was stopped and waits for `SIGCONT`: [`WAITS_STOPPED`], why it does not
    /// (`WITHHELD_*`), or 0.
    pub stopped: u32,
}
const _: () = assert!(size_of::<ProcessRecord>() == 32);

/// A dynamic loader reports.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryRecord {
    /// The process.
    pub header: Header,
    /// `r_debug.r_state`: 0 consistent, 1 adding, 2 deleting; 255 unknown.
    pub state: u32,
    /// Whether the process waits: [`WAITS_STOPPED`], [`WAITS_HELD`], why it does not
    /// (`WITHHELD_*`), or 0.
    pub stopped: u32,
}
const _: () = assert!(size_of::<LibraryRecord>() == 32);

/// The process was sent `SIGSTOP` and waits for `SIGCONT`.
pub const WAITS_STOPPED: u32 = 1;
/// The thread waits in the kernel until user space has answered.
pub const WAITS_HELD: u32 = 2;

/// No hold: too many threads are held.
pub const WITHHELD_ROOM: u32 = 3;
/// No stop: the process is another user's, and could not be continued.
pub const WITHHELD_USER: u32 = 4;
/// No stop: a debugger has the process.
pub const WITHHELD_DEBUGGER: u32 = 5;
/// No stop: the process is under job control.
pub const WITHHELD_JOB: u32 = 6;
/// No stop: another process has stopped it, or too many are stopped.
pub const WITHHELD_STOPPED: u32 = 7;
/// No stop: its parent asks for `SIGCHLD`, which a stop would send it.
pub const WITHHELD_PARENT: u32 = 8;
/// No hold: the tracer has not answered the thread's last one.
pub const WITHHELD_SILENT: u32 = 9;

/// Most objects in one record; further ones are counted in [`ObjectsRecord::left_out`].
pub const MAX_OBJECTS: usize = 16;
/// Bytes copied of an object, from the place on that its row names.
pub const OBJECT_HEAD: usize = 160;
/// Bytes copied behind the head's first word, a pointer.
pub const OBJECT_INNER: usize = 40;
/// Bytes copied of an element of an array; the rest of its head is 0.
pub const OBJECT_ELEMENT: usize = 104;
/// Words of a counted list within the head that are stored in place; longer lists are behind a pointer.
pub const OBJECT_LIST_INLINE: u64 = 5;
/// Words of a longer list that are copied over the place of the short one.
pub const OBJECT_LIST_WORDS: usize = 10;

/// The object could not be read: `head` and `inner` are 0.
pub const OBJECT_FAULT: u8 = 1;
/// The memory behind the object's pointer was unreadable: `inner` is 0.
pub const OBJECT_INNER_FAULT: u8 = 1 << 1;
/// The object's long list could not be read.
pub const OBJECT_LIST_FAULT: u8 = 1 << 2;

/// An object that an argument leads to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// Where it is.
    pub address: u64,
    /// Index of the row's value that leads to it.
    pub value: u8,
    /// `OBJECT_*` bits.
    pub flags: u8,
    /// Its place, if the value is a list.
    pub index: u16,
    /// Padding, zero.
    pub reserved: u32,
    /// Its first bytes; of a text, those up to its NUL or the end of the room.
    pub head: [u8; OBJECT_HEAD],
    /// Bytes behind the pointer in the first eight bytes of `head`.
    pub inner: [u8; OBJECT_INNER],
}
const _: () = assert!(size_of::<Object>() == 216);

/// A probed place in a function was passed, and its row asks for objects. It ends after `object_count` objects.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ObjectsRecord {
    /// Time of passing.
    pub header: Header,
    /// Upper half of the probe's cookie: the function, where many share a row.
    pub detail: u32,
    /// Objects that follow.
    pub object_count: u16,
    /// Objects that did not fit.
    pub left_out: u16,
    /// Id of the native stack; 0 is none.
    pub native_stack: u64,
    /// Id of the Python stack; 0 is none.
    pub python_stack: u64,
    /// The objects.
    pub objects: [Object; MAX_OBJECTS],
}

/// Bytes before the objects.
pub const OBJECTS_AT: usize = 48;
const _: () = assert!(core::mem::offset_of!(ObjectsRecord, objects) == OBJECTS_AT);
