//! One record.

use std::num::NonZeroU64;

use memscope_common::record::{
    CALL_TEXT_AT, CALL_TEXT_FAULT, CALL_TEXT_MORE, CALL_TEXT_NULL, CALL_VALUES_AT, MAX_OBJECTS, OBJECT_FAULT,
    OBJECT_HEAD, OBJECT_INNER, OBJECT_INNER_FAULT, OBJECT_LIST_FAULT, OBJECTS_AT, TEXT_TEXT_AT,
};
use memscope_common::row::MAX_VALUES;
use memscope_common::stack::{CODE_FILE_CUT, CODE_LINES_CUT, CODE_NAME_CUT, MAX_FRAMES, STACK_NATIVE, STACK_PYTHON};
use memscope_common::{CallRecord, CodeRecord, Kind, Object, ObjectsRecord, PythonFrame, StackEnd, StackRecord, stack};

use super::DecodeError;
use super::fields::Fields;
use super::records::{HEADER, record_len};

/// A record, borrowed from the bytes it lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Number of the probe row; 0 is none.
    pub row: u16,
    /// Row of the outermost allocation call that the thread is inside of; 0 is none.
    pub outer: u16,
    /// The contents.
    pub body: Body<'a>,
}

/// The contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A probed call.
    Call(Call<'a>),
    /// A further part of the text of the thread's last call of this row.
    TextPart(TextPart<'a>),
    /// A place of a row with objects was passed.
    Objects(Objects<'a>),
    /// The stack behind an id.
    Stack(Stack<'a>),
    /// A code object of Python.
    Code(Code<'a>),
    /// The process forked.
    Fork {
        /// The new process.
        child: u32,
        /// It was stopped and waits for `SIGCONT`.
        stopped: bool,
    },
    /// The process executed another program.
    Exec {
        /// It was stopped and waits for `SIGCONT`.
        stopped: bool,
    },
    /// The dynamic loader reports.
    Library {
        /// `r_debug.r_state`.
        state: u32,
        /// The process waited until it was examined.
        stopped: bool,
    },
    /// JSON of user space: see [`Note`](crate::capture::Note).
    Note(&'a [u8]),
    /// A kind that this version does not know; to be counted and passed over.
    Unknown {
        /// Its number.
        kind: u16,
    },
}

/// When a call was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// At its entry.
    Enter,
    /// At its return.
    Return,
}

/// A probed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// When it was reported.
    pub phase: Phase,
    /// The returned value; 0 at entry.
    pub status: i64,
    /// The row's values.
    pub values: Values,
    /// First part of the text; empty when there is none.
    pub text: &'a [u8],
    /// The text continues in a [`TextPart`].
    pub text_more: bool,
    /// The text could not be read to its end.
    pub text_fault: bool,
    /// The text pointer was null.
    pub text_null: bool,
    /// Id of its native stack.
    pub native_stack: Option<NonZeroU64>,
    /// Id of its Python stack.
    pub python_stack: Option<NonZeroU64>,
}

/// Values of a call, in the row's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values {
    words: [u64; MAX_VALUES],
    count: u8,
    faults: u8,
}

impl Values {
    /// Value `index`; `None` when missing or unreadable.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<u64> {
        let there = index < usize::from(self.count) && self.faults >> index & 1 == 0;
        if there { self.words.get(index).copied() } else { None }
    }

    /// Number of values, those included that could not be read.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count as usize
    }
}

/// A further part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPart<'a> {
    /// 1 for the first part after the call's own.
    pub part: u16,
    /// The bytes.
    pub text: &'a [u8],
    /// Another part follows.
    pub more: bool,
    /// The text could not be read to its end.
    pub fault: bool,
}

/// The stack behind an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack<'a> {
    /// The id.
    pub id: NonZeroU64,
    /// Which mappings the addresses belong to.
    pub generation: u64,
    /// Why it ends.
    pub end: StackEnd,
    /// The frames, innermost first.
    pub frames: Frames<'a>,
}

/// Frames of a stack, innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames<'a> {
    /// Addresses: return addresses, but for the first.
    Native(&'a [[u8; 8]]),
    /// Places in code objects.
    Python(&'a [[u8; size_of::<PythonFrame>()]]),
}

impl<'a> Frames<'a> {
    /// The addresses of a native stack; nothing of another one.
    pub fn addresses(self) -> impl Iterator<Item = u64> + use<'a> {
        let words = if let Self::Native(words) = self { words } else { &[] };
        words.iter().map(|word| u64::from_le_bytes(*word))
    }

    /// The frames of a Python stack; nothing of another one.
    pub fn python(self) -> impl Iterator<Item = PythonFrame> + use<'a> {
        let frames = if let Self::Python(frames) = self { frames } else { &[] };
        frames.iter().map(|bytes| {
            let fields = Fields(bytes);
            PythonFrame { code: fields.u64(0), last_instruction: fields.u32(8), fingerprint: fields.u32(12) }
        })
    }
}

/// A code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code<'a> {
    /// Its address.
    pub address: u64,
    /// Distinguishes code objects that reuse an address.
    pub fingerprint: u32,
    /// Line of its `def`.
    pub first_line: u32,
    /// Minor version of Python.
    pub version: u8,
    /// Its name.
    pub name: CodeText<'a>,
    /// File that it was compiled from.
    pub file: CodeText<'a>,
    /// Its line table; `None` if it is not whole.
    pub lines: Option<&'a [u8]>,
}

/// A text of Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeText<'a> {
    /// Its bytes, `kind` for each character.
    pub bytes: &'a [u8],
    /// 1, 2 or 4.
    pub kind: u8,
    /// It is cut.
    pub cut: bool,
}

/// A probed place, and the objects found there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objects<'a> {
    /// Number of the place among those of the row.
    pub detail: u32,
    /// Objects that did not fit into the record.
    pub left_out: u16,
    /// As in [`Call`].
    pub native_stack: Option<NonZeroU64>,
    /// As above.
    pub python_stack: Option<NonZeroU64>,
    bytes: &'a [u8],
}

impl<'a> Objects<'a> {
    /// The objects, in the order of the row's values.
    pub fn iter(&self) -> impl Iterator<Item = ObjectCopy<'a>> + use<'a> {
        self.bytes.as_chunks::<{ size_of::<Object>() }>().0.iter().map(|bytes| ObjectCopy::of(bytes))
    }
}

/// The copied parts of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectCopy<'a> {
    /// Where it is.
    pub address: u64,
    /// Index of the row's value that led to it.
    pub value: u8,
    /// Its place, if the value is a list.
    pub index: u16,
    /// It could be read.
    pub readable: bool,
    /// The memory that it points to was readable.
    pub inner_readable: bool,
    /// Its long list, if it has one, could be read.
    pub list_readable: bool,
    /// Its bytes.
    pub head: &'a [u8],
    /// Bytes that it points to.
    pub inner: &'a [u8],
}

impl<'a> ObjectCopy<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        const HEAD: usize = std::mem::offset_of!(Object, head);
        const INNER: usize = std::mem::offset_of!(Object, inner);
        let fields = Fields(bytes);
        let flags = fields.u8(9);
        Self {
            address: fields.u64(0),
            value: fields.u8(8),
            index: fields.u16(10),
            readable: flags & OBJECT_FAULT == 0,
            inner_readable: flags & OBJECT_INNER_FAULT == 0,
            list_readable: flags & OBJECT_LIST_FAULT == 0,
            head: bytes.get(HEAD..HEAD + OBJECT_HEAD).unwrap_or_default(),
            inner: bytes.get(INNER..INNER + OBJECT_INNER).unwrap_or_default(),
        }
    }
}

/// Decodes the record at the start of `bytes`, and ignores what follows it.
///
/// # Errors
///
/// When the bytes are too few, or the record contradicts itself. Unknown kinds are no error.
pub fn decode(bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let len = record_len(bytes)?;
    let fields = Fields(bytes.get(..len).unwrap_or_default());
    Ok(Record {
        time_ns: fields.u64(0),
        pid: fields.u32(8),
        tid: fields.u32(12),
        row: fields.u16(18),
        outer: fields.u16(22),
        body: body(fields)?,
    })
}

fn body(fields: Fields<'_>) -> Result<Body<'_>, DecodeError> {
    const ENTER: u16 = Kind::Enter as u16;
    const RETURN: u16 = Kind::Return as u16;
    const TEXT: u16 = Kind::Text as u16;
    const OBJECTS: u16 = Kind::Objects as u16;
    const STACK: u16 = Kind::Stack as u16;
    const CODE: u16 = Kind::Code as u16;
    const FORK: u16 = Kind::Fork as u16;
    const EXEC: u16 = Kind::Exec as u16;
    const LIBRARY: u16 = Kind::Library as u16;
    const NOTE: u16 = Kind::Note as u16;

    let kind = fields.u16(16);
    if matches!(kind, FORK | EXEC | LIBRARY) {
        fields.require(HEADER + 8)?;
    }
    let (first, stopped) = (fields.u32(HEADER), fields.u32(HEADER + 4) != 0);
    Ok(match kind {
        ENTER => Body::Call(call(fields, Phase::Enter)?),
        RETURN => Body::Call(call(fields, Phase::Return)?),
        TEXT => Body::TextPart(text_part(fields)?),
        OBJECTS => Body::Objects(objects(fields)?),
        STACK => Body::Stack(stack(fields)?),
        CODE => Body::Code(code(fields)?),
        FORK => Body::Fork { child: first, stopped },
        EXEC => Body::Exec { stopped },
        LIBRARY => Body::Library { state: first, stopped },
        NOTE => Body::Note(fields.0.get(HEADER..).unwrap_or_default()),
        kind => Body::Unknown { kind },
    })
}

fn call(fields: Fields<'_>, phase: Phase) -> Result<Call<'_>, DecodeError> {
    fields.require(CALL_VALUES_AT)?;
    let count = fields.u8(32);
    if usize::from(count) > MAX_VALUES {
        return Err(DecodeError::Values { count });
    }
    fields.require(CALL_VALUES_AT + 8 * usize::from(count))?;
    let mut values = Values { count, faults: fields.u8(33), ..Values::default() };
    for (index, value) in values.words.iter_mut().take(count.into()).enumerate() {
        *value = fields.u64(CALL_VALUES_AT + 8 * index);
    }
    let text = match fields.u32(36) {
        0 => &[],
        len => fields.text(CALL_TEXT_AT, len)?,
    };
    let flags = fields.u8(34);
    // After a fault the record has the text's address instead.
    let text = if flags & CALL_TEXT_FAULT == 0 { text } else { &[] };
    Ok(Call {
        phase,
        status: fields.u64(24).cast_signed(),
        values,
        text,
        text_more: flags & CALL_TEXT_MORE != 0,
        text_fault: flags & CALL_TEXT_FAULT != 0,
        text_null: flags & CALL_TEXT_NULL != 0,
        native_stack: NonZeroU64::new(fields.u64(std::mem::offset_of!(CallRecord, native_stack))),
        python_stack: NonZeroU64::new(fields.u64(std::mem::offset_of!(CallRecord, python_stack))),
    })
}

fn stack(fields: Fields<'_>) -> Result<Stack<'_>, DecodeError> {
    const FRAMES: usize = size_of::<StackRecord>();
    fields.require(FRAMES)?;
    let count = usize::from(fields.u16(std::mem::offset_of!(StackRecord, frame_count)));
    let end = fields.u8(std::mem::offset_of!(StackRecord, end));
    let end = stack::ENDS.into_iter().find(|known| *known as u8 == end).ok_or(DecodeError::Stack)?;
    let which = fields.u8(std::mem::offset_of!(StackRecord, which));
    if count > MAX_FRAMES || !matches!(which, STACK_NATIVE | STACK_PYTHON) {
        return Err(DecodeError::Stack);
    }
    let native = which == STACK_NATIVE;
    let stop = FRAMES + count * if native { 8 } else { size_of::<PythonFrame>() };
    fields.require(stop)?;
    let bytes = fields.0.get(FRAMES..stop).unwrap_or_default();
    Ok(Stack {
        id: NonZeroU64::new(fields.u64(std::mem::offset_of!(StackRecord, id))).ok_or(DecodeError::Stack)?,
        generation: fields.u64(std::mem::offset_of!(StackRecord, generation)),
        end,
        frames: if native { Frames::Native(bytes.as_chunks().0) } else { Frames::Python(bytes.as_chunks().0) },
    })
}

fn code(fields: Fields<'_>) -> Result<Code<'_>, DecodeError> {
    const NAME: usize = size_of::<CodeRecord>();
    fields.require(NAME)?;
    let len = |at| usize::from(fields.u16(at));
    let file = NAME + len(std::mem::offset_of!(CodeRecord, name_len));
    let lines = file + len(std::mem::offset_of!(CodeRecord, file_len));
    let end = lines + len(std::mem::offset_of!(CodeRecord, lines_len));
    fields.require(end)?;
    let bytes = |from: usize, to: usize| fields.0.get(from..to).unwrap_or_default();
    let flags = fields.u8(std::mem::offset_of!(CodeRecord, flags));
    let text = |bytes, kind, cut| CodeText { bytes, kind: fields.u8(kind), cut: flags & cut != 0 };
    Ok(Code {
        address: fields.u64(std::mem::offset_of!(CodeRecord, code)),
        fingerprint: fields.u32(std::mem::offset_of!(CodeRecord, fingerprint)),
        first_line: fields.u32(std::mem::offset_of!(CodeRecord, first_line)),
        version: fields.u8(std::mem::offset_of!(CodeRecord, version)),
        name: text(bytes(NAME, file), std::mem::offset_of!(CodeRecord, name_kind), CODE_NAME_CUT),
        file: text(bytes(file, lines), std::mem::offset_of!(CodeRecord, file_kind), CODE_FILE_CUT),
        lines: (flags & CODE_LINES_CUT == 0).then(|| bytes(lines, end)),
    })
}

fn objects(fields: Fields<'_>) -> Result<Objects<'_>, DecodeError> {
    fields.require(OBJECTS_AT)?;
    let count = fields.u16(28);
    if usize::from(count) > MAX_OBJECTS {
        return Err(DecodeError::Objects { count });
    }
    let end = OBJECTS_AT + usize::from(count) * size_of::<Object>();
    fields.require(end)?;
    let bytes = fields.0.get(OBJECTS_AT..end).unwrap_or_default();
    Ok(Objects {
        detail: fields.u32(24),
        left_out: fields.u16(30),
        native_stack: NonZeroU64::new(fields.u64(std::mem::offset_of!(ObjectsRecord, native_stack))),
        python_stack: NonZeroU64::new(fields.u64(std::mem::offset_of!(ObjectsRecord, python_stack))),
        bytes,
    })
}

fn text_part(fields: Fields<'_>) -> Result<TextPart<'_>, DecodeError> {
    fields.require(TEXT_TEXT_AT)?;
    let flags = fields.u16(26);
    let fault = flags & u16::from(CALL_TEXT_FAULT) != 0;
    let text = fields.text(TEXT_TEXT_AT, fields.u32(28))?;
    Ok(TextPart {
        part: fields.u16(24),
        text: if fault { &[] } else { text },
        more: flags & u16::from(CALL_TEXT_MORE) != 0,
        fault,
    })
}

/// Eight bytes of a copied object.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map(u64::from_le_bytes)
}
