//! Rows of the Python trace, as the marker hands them over.

/// Rows of one element, elements of one chunk: what the tracer's program copies at once (`probes/script.rs`).
pub(crate) const ROWS: usize = 4;
pub(crate) const ELEMENTS: usize = 15;

/// A call. A time that is not known is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) text: u32,
    /// 0: plain; 1: it had begun before the trace did; 2: it had not ended when the trace did.
    pub(crate) kind: u32,
}

pub(crate) const PLAIN: u32 = 0;
pub(crate) const BEGAN_BEFORE: u32 = 1;
pub(crate) const STILL_OPEN: u32 = 2;

/// Rows of one thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Element {
    pub(crate) tid: u32,
    pub(crate) rows_used: u32,
    pub(crate) rows: [Row; ROWS],
}

/// What the marker hands over: an array as the tracer's rows of arrays describe them.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Chunk {
    /// A text, which arrays have: an empty one, in this memory, which is there for sure.
    pub(crate) name: *const std::ffi::c_char,
    pub(crate) elements_used: u64,
    pub(crate) elements: [Element; ELEMENTS],
    /// Where further elements would be: none are.
    pub(crate) further: u64,
}
const _: () = assert!(size_of::<Element>() == 104 && std::mem::offset_of!(Chunk, further) == 16 + ELEMENTS * 104);

// SAFETY: the pointer is set when it is handed over, and leads to itself.
unsafe impl Send for Chunk {}
