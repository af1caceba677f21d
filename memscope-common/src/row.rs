//! Probe rows: what a program fetches at a probe, as data.

/// Values that a row can fetch.
pub const MAX_VALUES: usize = 8;
/// Rows that the table holds; row 0 is "none".
pub const MAX_ROWS: u32 = 512;
/// Rows, row 0 included, that kernels without attach cookies can serve: each needs a program of its own.
pub const SLOTS: u16 = 160;

/// Programs that those jump to: for entries, ...
pub const JUMP_ENTER: u32 = 0;
/// ... returns, ...
pub const JUMP_LEAVE: u32 = 1;
/// ... and own return instructions.
pub const JUMP_LEAVE_OWN: u32 = 2;
/// Number of these programs.
pub const JUMPS: u32 = 3;
/// `Fetch::arg` counts the C arguments from 0; the first six are in registers on both architectures.
pub const REGISTER_ARGS: usize = 6;

/// When a row reports.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// At entry; no return probe.
    Entry = 1,
    /// At entry, and once more at return if the returned value is not zero.
    EntryAndNonZero = 2,
    /// At return, with the values fetched at entry and at return.
    Return = 3,
    /// At return, only if the returned value is not zero.
    Failure = 5,
    /// `_dl_debug_state` of a dynamic loader: reports and stops the process (`param`: see
    /// [`ProbeRow`]).
    Library = 4,
    /// Each time the place is passed, except inside of another such call; with objects (`param`: [`ObjectShape`]). The
    /// call stays open until a place of a [`When::ObjectsEnd`] row is passed at the same stack pointer.
    Objects = 16,
    /// Ends the call that an [`When::Objects`] row opened.
    ObjectsEnd = 17,
    /// As [`When::Objects`], for a call without a probed end: it does not stay open.
    ObjectsAlone = 19,
    /// Each time the place is passed: elements of an array, as objects, and a text (`param`: [`ArrayShape`]). The first
    /// value is the [`Source::ObjectText`], the second the [`Source::ObjectArray`]. Not reported if the array has no
    /// such elements.
    Array = 20,
    /// An exception is caught: it has left the calls that [`When::Objects`] rows opened deeper on the stack. Reports
    /// nothing.
    ObjectsCatch = 18,
    /// As [`When::Return`], with ordinary probes at the function's own return instructions: for functions that may
    /// throw, where a return probe would end the program.
    OwnReturn = 6,
}

/// Origin of a value.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nothing: the value is 0.
    None = 0,
    /// The argument itself.
    Arg = 1,
    /// Eight bytes at `argument + offset`.
    Memory = 2,
    /// Eight bytes at `argument + offset`, only if the call returned 0 (an out-pointer).
    Out = 3,
    /// The object that the pointer at `argument + offset` points to.
    Object = 4,
    /// The same, if the byte behind that pointer is not 0 (`std::optional`).
    OptionalObject = 5,
    /// The same, if the byte eight bytes before that pointer is not 0 (`c10::optional`).
    FlaggedObject = 11,
    /// The object that the pointer at the pointer at `argument + offset` points to (a reference in
    /// a tuple).
    ObjectReference = 6,
    /// The argument points to pointers to objects, the next argument counts them (`ArrayRef`).
    ObjectPair = 7,
    /// At `argument + offset`: pointer to pointers to objects, their number, and their form of storage (`IListRef`).
    ObjectList = 8,
    /// At `argument`: pointer to a list of tagged values, some of them objects (`c10::List`).
    TaggedObjects = 9,
    /// At `argument + offset`: first and behind the last pointer to objects (`std::vector`).
    ObjectVector = 10,
    /// In [`When::Array`] rows: the elements of the array at `argument + offset`.
    ObjectArray = 14,
    /// In [`When::Array`] rows: the text behind the pointer at `argument + offset`, as the head of an object.
    ObjectText = 15,
    /// In rows with [`ROW_LIST`]: eight bytes of the element, at `offset`.
    Element = 12,
    /// In rows with [`ROW_LIST`]: the element's companion; 0 if it has none.
    Companion = 13,
    /// Eight bytes at `returned pointer + offset`; 0 if that pointer is null.
    Returned = 16,
    /// Eight bytes behind the pointer at an argument: see [`Fetch::behind`].
    Behind = 17,
}

/// As [`Fetch::arg`] of a value that leads to objects: the returned value.
pub const RETURNED_SLOT: u8 = 8;
/// As above: where the caller wants a returned object (`x8` of `AArch64`, as it was at the entry).
pub const RESULT_SLOT: u8 = 9;
/// As above: the first eight bytes of the arguments on the stack; the following ones have the
/// following numbers.
pub const STACK_SLOTS: u8 = 16;

/// One value to fetch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fetch {
    /// A [`Source`] as a number.
    pub source: u8,
    /// C argument, from 0.
    pub arg: u8,
    /// Bytes added to the argument before it is read through.
    pub offset: u16,
}

impl Fetch {
    /// No value.
    pub const NONE: Self = Self { source: Source::None as u8, arg: 0, offset: 0 };

    /// The argument itself.
    #[must_use]
    pub const fn arg(arg: u8) -> Self {
        Self { source: Source::Arg as u8, arg, offset: 0 }
    }

    /// Eight bytes at `argument + offset`.
    #[must_use]
    pub const fn memory(arg: u8, offset: u16) -> Self {
        Self { source: Source::Memory as u8, arg, offset }
    }

    /// Eight bytes at `offset` in the element of the list that the argument leads to.
    #[must_use]
    pub const fn element(arg: u8, offset: u16) -> Self {
        Self { source: Source::Element as u8, arg, offset }
    }

    /// The companion of that element.
    #[must_use]
    pub const fn companion(arg: u8) -> Self {
        Self { source: Source::Companion as u8, arg, offset: 0 }
    }

    /// The elements of the array at `argument + offset`.
    #[must_use]
    pub const fn array(arg: u8, offset: u16) -> Self {
        Self { source: Source::ObjectArray as u8, arg, offset }
    }

    /// The text that the pointer at `argument + offset` points to.
    #[must_use]
    pub const fn text(arg: u8, offset: u16) -> Self {
        Self { source: Source::ObjectText as u8, arg, offset }
    }

    /// Eight bytes at `offset` behind the returned pointer.
    #[must_use]
    pub const fn returned(offset: u16) -> Self {
        Self { source: Source::Returned as u8, arg: 0, offset }
    }

    /// Eight bytes at `then` behind the pointer at `argument + offset`.
    #[must_use]
    pub const fn behind(arg: u8, offset: u8, then: u8) -> Self {
        Self { source: Source::Behind as u8, arg, offset: (then as u16) << 8 | offset as u16 }
    }

    /// The value written through the argument, on success.
    #[must_use]
    pub const fn out(arg: u8) -> Self {
        Self { source: Source::Out as u8, arg, offset: 0 }
    }
}

/// Elements reported of one list; more are counted ([`Miss::TooMany`](crate::Miss::TooMany)).
pub const MAX_ELEMENTS: u64 = 16;

/// The group of interface functions: the outermost one names the calls inside of it, in
/// [`Header::outer`](crate::Header::outer).
pub const GROUP_API: u8 = 3;

/// The returned value is 32 bits wide (an error code): the upper half of the register is noise.
pub const ROW_RETURNS_INT: u16 = 1;
/// The row has a text: a C string, fetched when the row reports first.
pub const ROW_TEXT: u16 = 1 << 1;
/// The argument does not point to the text, but [`ProbeRow::text_at`] bytes behind it is a pointer
/// to the text (`std::string`).
pub const ROW_TEXT_POINTED: u16 = 1 << 2;
/// One record for each element of a list (`param`: [`ListShape`]). Its values are always the first argument, the
/// element's words, and the companion at [`COMPANION_VALUE`]: fetching them one by one would be too much to verify.
pub const ROW_LIST: u16 = 1 << 3;
/// Its calls are operators: probed at both sides, where watched blocks are compared.
pub const ROW_BOUNDARY: u16 = 1 << 4;
/// While a call of this row is open, the runtime may hold its locks.
pub const ROW_CLOSED: u16 = 1 << 5;
/// A graph begins to be captured.
pub const ROW_CAPTURE_BEGIN: u16 = 1 << 6;
/// The capture of a graph ends.
pub const ROW_CAPTURE_END: u16 = 1 << 7;
/// Its calls are about single blocks of a pool: reduced processes go without them.
pub const ROW_POOL_BLOCK: u16 = 1 << 8;
/// Its calls end blocks: [`STACKS_AT_ENDS`](crate::stack::STACKS_AT_ENDS).
pub const ROW_ENDS_BLOCK: u16 = 1 << 9;

/// In rows with [`ROW_LIST`]: most words of an element.
pub const ELEMENT_WORDS: usize = 3;
/// In rows with [`ROW_LIST`]: index of the companion.
pub const COMPANION_VALUE: usize = 1 + ELEMENT_WORDS;

/// The programs' description of a probe.
///
/// `param` of [`When::Library`] rows: distance from the probed instruction to the loader's `_r_debug.r_state`, which
/// separates "about to map" from "mapped"; 0 is unknown. Rows with objects have an [`ObjectShape`] there, or an
/// [`ArrayShape`] ([`When::Array`]), rows with [`ROW_LIST`] a [`ListShape`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeRow {
    /// A [`When`] as a number.
    pub when: u8,
    /// Values fetched, at most [`MAX_VALUES`].
    pub values: u8,
    /// `ROW_*` bits.
    pub flags: u16,
    /// C argument that points to the text.
    pub text_arg: u8,
    /// Calls of one group that nest in each other are reported once, the outermost; 0 is no group.
    pub group: u8,
    /// See [`ROW_TEXT_POINTED`].
    pub text_at: u8,
    /// Which stacks a record of this row has: `STACK_*` bits of [`stack`](crate::stack).
    pub stacks: u8,
    /// Number of first values that are consecutive words in memory, behind one argument. They are read together: reads
    /// are most of a program's cost to the traced thread. 0 is none.
    pub together: u8,
    /// Of calls that begin blocks and end blocks: one more than the index of the value, a word in memory, that is negative where a block
    /// ends; 0 is none.
    pub sign_of: u8,
    /// 0: the size is a whole number of words.
    pub reserved: [u8; 6],
    /// See above.
    pub param: i64,
    /// The values.
    pub fetch: [Fetch; MAX_VALUES],
}
const _: () = assert!(size_of::<ProbeRow>() == 56);

impl ProbeRow {
    /// [`ProbeRow::together`] of these values.
    #[must_use]
    pub const fn values_together(fetch: &[Fetch; MAX_VALUES]) -> u8 {
        let first = fetch[0];
        let mut count = 0;
        while count < MAX_VALUES
            && fetch[count].source == Source::Memory as u8
            && fetch[count].arg == first.arg
            && fetch[count].offset as usize == first.offset as usize + 8 * count
        {
            count += 1;
        }
        if count > 1 { count as u8 } else { 0 }
    }

    /// Whether a return probe belongs to this row.
    #[must_use]
    pub const fn has_return(&self) -> bool {
        !self.has_own_return() && (self.is_paired() || self.when == When::EntryAndNonZero as u8)
    }

    /// Whether probes at the function's own return instructions belong to this row.
    #[must_use]
    pub const fn has_own_return(&self) -> bool {
        self.when == When::OwnReturn as u8
    }

    /// Whether it reports elements of an array: a separate program does that.
    #[must_use]
    pub const fn has_array(&self) -> bool {
        self.when == When::Array as u8
    }

    /// Whether a call is followed from its entry to its return.
    #[must_use]
    pub const fn is_paired(&self) -> bool {
        self.when == When::Return as u8
            || self.when == When::Failure as u8
            || self.when == When::OwnReturn as u8
            || self.group != 0
    }

    /// Whether what the call returns is asked for.
    #[must_use]
    pub fn reads_result(&self) -> bool {
        let of_result = |fetch: &Fetch| fetch.source == Source::Out as u8 || fetch.source == Source::Returned as u8;
        self.flags & ROW_RETURNS_INT != 0 || self.fetch.iter().any(of_result)
    }

    /// Whether nothing is reported before the call returns.
    #[must_use]
    pub const fn waits_for_return(&self) -> bool {
        self.when == When::Return as u8 || self.when == When::Failure as u8 || self.when == When::OwnReturn as u8
    }
}

/// Where a list is that an argument leads to: a struct with a pointer to the elements and their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListShape {
    /// C argument that points to the struct.
    pub arg: u8,
    /// Offset of the number of elements, eight bytes; [`ListShape::NONE`]: there is one.
    pub count_at: u8,
    /// Offset of the pointer to the elements.
    pub elements_at: u8,
    /// Bytes from one element to the next, at most [`ELEMENT_WORDS`] words.
    pub stride: u8,
    /// Offset of a pointer to a second array, in which every element has a companion of eight bytes;
    /// [`ListShape::NONE`]: there is none.
    pub companions_at: u8,
}

impl ListShape {
    /// See the fields.
    pub const NONE: u8 = 255;

    /// As [`ProbeRow::param`].
    #[must_use]
    pub const fn to_param(self) -> i64 {
        let Self { arg, count_at, elements_at, stride, companions_at } = self;
        i64::from_le_bytes([arg, count_at, elements_at, stride, companions_at, 0, 0, 0])
    }

    /// From [`ProbeRow::param`].
    #[must_use]
    pub const fn from_param(param: i64) -> Self {
        let [arg, count_at, elements_at, stride, companions_at, ..] = param.to_le_bytes();
        Self { arg, count_at, elements_at, stride, companions_at }
    }
}

/// The parts of an object that a program copies. Offsets above 255 do not occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectShape {
    /// Start of the copied head within the object; its first eight bytes point to the inner object.
    pub head_from: u8,
    /// Start of the copied part within the inner object.
    pub inner_from: u8,
    /// Offset of a list in the head: its length, then the words or, if they are many, a pointer to them.
    pub list_at: u8,
    /// Offset of the object's kind of device in the head; two bytes later is whether it is set.
    pub device_at: u8,
    /// Objects on this kind of device are skipped; 255 is none.
    pub skip_device: u8,
}

impl ObjectShape {
    /// [`ObjectShape::skip_device`] of a row that wants all objects.
    pub const SKIP_NONE: u8 = 255;

    /// As [`ProbeRow::param`].
    #[must_use]
    pub const fn to_param(self) -> i64 {
        let Self { head_from, inner_from, list_at, device_at, skip_device } = self;
        i64::from_le_bytes([head_from, inner_from, list_at, device_at, skip_device, 0, 0, 0])
    }

    /// From [`ProbeRow::param`].
    #[must_use]
    pub const fn from_param(param: i64) -> Self {
        let [head_from, inner_from, list_at, device_at, skip_device, ..] = param.to_le_bytes();
        Self { head_from, inner_from, list_at, device_at, skip_device }
    }
}

/// An array with its number of elements, which lie in it or, if they are many, behind a pointer
/// that follows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayShape {
    /// Offset of the number of elements, eight bytes.
    pub count_at: u8,
    /// Offset of the first element.
    pub elements_at: u8,
    /// Bytes from one element to the next.
    pub stride: u8,
    /// Elements that fit in the array; behind them is the pointer to others, null if there are none.
    pub room: u8,
    /// First element that the row reports.
    pub first: u8,
    /// Most elements reported. Beyond [`MAX_OBJECTS`](crate::record::MAX_OBJECTS), the program's room, they are
    /// counted.
    pub most: u8,
}

impl ArrayShape {
    /// As [`ProbeRow::param`].
    #[must_use]
    pub const fn to_param(self) -> i64 {
        let Self { count_at, elements_at, stride, room, first, most } = self;
        i64::from_le_bytes([count_at, elements_at, stride, room, first, most, 0, 0])
    }

    /// From [`ProbeRow::param`].
    #[must_use]
    pub const fn from_param(param: i64) -> Self {
        let [count_at, elements_at, stride, room, first, most, ..] = param.to_le_bytes();
        Self { count_at, elements_at, stride, room, first, most }
    }
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding: every bit pattern is a value.
    unsafe impl aya::Pod for super::ProbeRow {}
}

#[cfg(test)]
mod tests {
    use super::{Fetch, MAX_VALUES, ProbeRow};

    fn together(values: &[Fetch]) -> u8 {
        let mut fetch = [Fetch::NONE; MAX_VALUES];
        fetch[..values.len()].copy_from_slice(values);
        ProbeRow::values_together(&fetch)
    }

    /// Values are read together only if they are words without a gap, behind the same argument, from the first value
    /// on.
    #[test]
    fn values_read_at_once() {
        let word = |offset| Fetch::memory(2, offset);
        assert_eq!(together(&[word(8), word(16), word(24)]), 3);
        assert_eq!(together(&[word(0), word(8), Fetch::arg(1), word(16)]), 2);
        assert_eq!(together(&[word(0), word(8), Fetch::memory(3, 16)]), 2);
        assert_eq!(together(&[word(0), word(16)]), 0);
        assert_eq!(together(&[word(8), word(0)]), 0);
        assert_eq!(together(&[Fetch::out(2), word(8), word(16)]), 0);
        assert_eq!(together(&[word(0)]), 0);
        assert_eq!(together(&[]), 0);
        let full: [Fetch; MAX_VALUES] = core::array::from_fn(|at| word(8 * at as u16));
        assert_eq!(usize::from(together(&full)), MAX_VALUES);
    }
}
