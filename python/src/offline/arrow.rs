//! Columns, and how they are handed over without a copy: Arrow's C stream interface, three structures that never change
//! (<https://arrow.apache.org/docs/format/CStreamInterface.html>).
//!
//! Written out here, as the crates for it would bring twenty more into every script's process, one under a licence that is not allowed.

use std::{
    ffi::{CString, c_char, c_int, c_void},
    ptr,
    sync::Arc,
};

use memscope::analyses::table::{Cell, Type};

/// Values of one column. A missing value has its bit not set, and a value without meaning.
#[derive(Debug, Default)]
pub(super) struct Column {
    pub(super) name: &'static str,
    values: Values,
    present: Bits,
}

/// By type.
#[derive(Debug)]
enum Values {
    Unsigned(Vec<u64>),
    Signed(Vec<i64>),
    Float(Vec<f64>),
    Flag(Bits),
    Text { ends: Vec<i64>, bytes: Vec<u8> },
}

impl Default for Values {
    fn default() -> Self {
        Self::Unsigned(Vec::new())
    }
}

/// One bit each, lowest first.
#[derive(Debug, Default)]
struct Bits {
    bytes: Vec<u8>,
    len: usize,
    unset: usize,
}

impl Bits {
    fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut() {
            *last |= u8::from(bit) << (self.len % 8);
        }
        self.len += 1;
        self.unset += usize::from(!bit);
    }

    fn get(&self, index: usize) -> bool {
        self.bytes.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
    }
}

impl Column {
    pub(super) fn new(name: &'static str, kind: Type) -> Self {
        let values = match kind {
            Type::Unsigned => Values::Unsigned(Vec::new()),
            Type::Signed => Values::Signed(Vec::new()),
            Type::Float => Values::Float(Vec::new()),
            Type::Flag => Values::Flag(Bits::default()),
            Type::Text => Values::Text { ends: vec![0], bytes: Vec::new() },
        };
        Self { name, values, present: Bits::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.present.len
    }

    /// A cell of another type is as good as missing.
    pub(super) fn push(&mut self, cell: &Cell) {
        let fits = match (&mut self.values, cell) {
            (Values::Unsigned(values), Cell::Unsigned(value)) => keep(values, *value),
            (Values::Signed(values), Cell::Signed(value)) => keep(values, *value),
            (Values::Float(values), Cell::Float(value)) => keep(values, *value),
            (Values::Flag(values), Cell::Flag(value)) => {
                values.push(*value);
                true
            }
            (Values::Text { ends, bytes }, Cell::Text(value)) => {
                bytes.extend_from_slice(value.as_bytes());
                keep(ends, bytes.len() as i64)
            }
            (values, _) => {
                match values {
                    Values::Unsigned(values) => values.push(0),
                    Values::Signed(values) => values.push(0),
                    Values::Float(values) => values.push(0.0),
                    Values::Flag(values) => values.push(false),
                    Values::Text { ends, bytes } => ends.push(bytes.len() as i64),
                }
                false
            }
        };
        self.present.push(fits);
    }

    pub(super) fn get(&self, index: usize) -> Cell {
        if !self.present.get(index) {
            return Cell::Missing;
        }
        match &self.values {
            Values::Unsigned(values) => Cell::Unsigned(values[index]),
            Values::Signed(values) => Cell::Signed(values[index]),
            Values::Float(values) => Cell::Float(values[index]),
            Values::Flag(values) => Cell::Flag(values.get(index)),
            Values::Text { ends, bytes } => {
                let text = &bytes[ends[index] as usize..ends[index + 1] as usize];
                Cell::Text(String::from_utf8_lossy(text).into_owned())
            }
        }
    }

    /// As Arrow spells the type.
    fn format(&self) -> &'static str {
        match self.values {
            Values::Unsigned(_) => "L",
            Values::Signed(_) => "l",
            Values::Float(_) => "g",
            Values::Flag(_) => "b",
            Values::Text { .. } => "U",
        }
    }

    fn buffers(&self) -> Vec<*const c_void> {
        let present = if self.present.unset == 0 { ptr::null() } else { self.present.bytes.as_ptr().cast() };
        match &self.values {
            Values::Unsigned(values) => vec![present, values.as_ptr().cast()],
            Values::Signed(values) => vec![present, values.as_ptr().cast()],
            Values::Float(values) => vec![present, values.as_ptr().cast()],
            Values::Flag(values) => vec![present, values.bytes.as_ptr().cast()],
            Values::Text { ends, bytes } => vec![present, ends.as_ptr().cast(), bytes.as_ptr().cast()],
        }
    }
}

fn keep<T>(values: &mut Vec<T>, value: T) -> bool {
    values.push(value);
    true
}

/// `struct ArrowSchema`.
#[repr(C)]
struct Schema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut Schema,
    dictionary: *mut Schema,
    release: Option<unsafe extern "C" fn(*mut Schema)>,
    private_data: *mut c_void,
}

/// `struct ArrowArray`.
#[repr(C)]
struct Array {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut Array,
    dictionary: *mut Array,
    release: Option<unsafe extern "C" fn(*mut Array)>,
    private_data: *mut c_void,
}

/// `struct ArrowArrayStream`: all columns at once, then the end.
#[repr(C)]
pub(super) struct Stream {
    get_schema: Option<unsafe extern "C" fn(*mut Self, *mut Schema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut Self, *mut Array) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut Self) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut Self)>,
    private_data: *mut c_void,
}

/// Flag of a field that may be missing.
const NULLABLE: i64 = 2;

// SAFETY: all it points to is of its own, or shared and never changed.
unsafe impl Send for Stream {}

struct OfStream {
    columns: Arc<Vec<Column>>,
    ended: bool,
}

/// What a schema needs for as long as it is there.
struct OfSchema {
    format: CString,
    name: CString,
    children: Vec<*mut Schema>,
}

/// The same of an array; the columns are shared.
struct OfArray {
    _columns: Arc<Vec<Column>>,
    buffers: Vec<*const c_void>,
    children: Vec<*mut Array>,
}

impl Stream {
    pub(super) fn new(columns: Arc<Vec<Column>>) -> Self {
        let of_stream = Box::new(OfStream { columns, ended: false });
        Self {
            get_schema: Some(get_schema),
            get_next: Some(get_next),
            get_last_error: Some(get_last_error),
            release: Some(release_stream),
            private_data: Box::into_raw(of_stream).cast(),
        }
    }
}

impl Drop for Stream {
    /// It was not taken: a consumer empties `release`.
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: it has not been released, as `release` is there.
            unsafe { release(self) };
        }
    }
}

unsafe extern "C" fn get_schema(stream: *mut Stream, out: *mut Schema) -> c_int {
    // SAFETY: the consumer gives a stream of ours that is not released, and room for a schema.
    unsafe {
        let OfStream { columns, .. } = &*(*stream).private_data.cast::<OfStream>();
        let children =
            columns.iter().map(|column| Box::into_raw(Box::new(schema(column.format(), column.name, vec![]))));
        let all = schema("+s", "", children.collect());
        out.write(all);
    }
    0
}

fn schema(format: &str, name: &str, children: Vec<*mut Schema>) -> Schema {
    let of_schema = OfSchema {
        format: CString::new(format).unwrap_or_default(),
        name: CString::new(name).unwrap_or_default(),
        children,
    };
    let mut of_schema = Box::new(of_schema);
    Schema {
        format: of_schema.format.as_ptr(),
        name: of_schema.name.as_ptr(),
        metadata: ptr::null(),
        flags: NULLABLE,
        n_children: of_schema.children.len() as i64,
        children: of_schema.children.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_schema),
        private_data: Box::into_raw(of_schema).cast(),
    }
}

unsafe extern "C" fn release_schema(schema: *mut Schema) {
    // SAFETY: a schema of ours that is not released; what `children` points to came from boxes. A child that was taken is released by
    // who took it.
    unsafe {
        let of_schema = Box::from_raw((*schema).private_data.cast::<OfSchema>());
        for child in of_schema.children {
            let mut child = Box::from_raw(child);
            if let Some(release) = child.release {
                release(&raw mut *child);
            }
        }
        (*schema).release = None;
    }
}

unsafe extern "C" fn get_next(stream: *mut Stream, out: *mut Array) -> c_int {
    // SAFETY: as in `get_schema`.
    unsafe {
        let OfStream { columns, ended } = &mut *(*stream).private_data.cast::<OfStream>();
        let rows = columns.first().map_or(0, Column::len);
        let end = std::mem::replace(ended, true);
        let children = if end { &[][..] } else { columns.as_slice() };
        let children = children.iter().map(|column| {
            Box::into_raw(Box::new(array(columns, rows, column.present.unset, column.buffers(), vec![])))
        });
        let mut all = array(columns, rows, 0, vec![ptr::null()], children.collect());
        if end {
            // One that is released already says that there are no more.
            release_array(&raw mut all);
        }
        out.write(all);
    }
    0
}

fn array(
    columns: &Arc<Vec<Column>>,
    rows: usize,
    missing: usize,
    buffers: Vec<*const c_void>,
    children: Vec<*mut Array>,
) -> Array {
    let mut of_array = Box::new(OfArray { _columns: Arc::clone(columns), buffers, children });
    Array {
        length: rows as i64,
        null_count: missing as i64,
        offset: 0,
        n_buffers: of_array.buffers.len() as i64,
        n_children: of_array.children.len() as i64,
        buffers: of_array.buffers.as_mut_ptr(),
        children: of_array.children.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_array),
        private_data: Box::into_raw(of_array).cast(),
    }
}

unsafe extern "C" fn release_array(array: *mut Array) {
    // SAFETY: as in `release_schema`.
    unsafe {
        let of_array = Box::from_raw((*array).private_data.cast::<OfArray>());
        for child in of_array.children {
            let mut child = Box::from_raw(child);
            if let Some(release) = child.release {
                release(&raw mut *child);
            }
        }
        (*array).release = None;
    }
}

/// Nothing here fails.
unsafe extern "C" fn get_last_error(_: *mut Stream) -> *const c_char {
    ptr::null()
}

unsafe extern "C" fn release_stream(stream: *mut Stream) {
    // SAFETY: a stream of ours that is not released.
    unsafe {
        drop(Box::from_raw((*stream).private_data.cast::<OfStream>()));
        (*stream).release = None;
    }
}
