//! The Python trace: a row for each call that ends, gathered by thread and handed over by the sixty, through one marker.
//!
//! No file, socket or thread is used here. All of it runs with Python's lock held, but for a thread's end.

mod callables;
mod hooks;

pub(crate) use hooks::{trace_profile, trace_profile_end, trace_thread};

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::CString,
    ptr,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use pyo3::{prelude::*, types::PyModule};

use crate::{
    chunk::{BEGAN_BEFORE, Chunk, ELEMENTS, Element, PLAIN, ROWS, Row, STILL_OPEN},
    labels::printable,
    markers, monotonic_ns,
};

/// An incomplete chunk is handed over if its first row is older.
const MAX_AGE_NS: u64 = 100_000_000;
/// Calls that a thread can be inside of; deeper ones have no row.
const MAX_DEPTH: usize = 1 << 16;
/// Different functions; all further ones have the text of id 0.
const MAX_TEXTS: usize = 1 << 16;
const OTHER_TEXT: &std::ffi::CStr = c"<one of too many functions>";

/// What a callable is to the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Has rows.
    Shown(u32),
    /// Has a row, and what it calls has none: `__torch_dispatch__`.
    Opaque(u32),
    /// Has none: it belongs to this package, or to what surrounds a `with`.
    Ignored,
}

/// A call that a thread is inside of.
#[derive(Clone, Copy, Debug)]
struct Open {
    text: u32,
    start_ns: u64,
    /// Has no row: it is inside of an opaque one.
    hidden: bool,
    opaque: bool,
}

/// One thread.
#[derive(Debug)]
struct Thread {
    tid: u32,
    open: Vec<Open>,
    /// Calls beyond [`MAX_DEPTH`].
    deeper: usize,
    chunk: Box<Chunk>,
    rows: usize,
    first_ns: u64,
}

impl Thread {
    fn new() -> Self {
        let chunk = Chunk { name: ptr::null(), elements_used: 0, elements: [Element::default(); ELEMENTS], further: 0 };
        // SAFETY: asks for a number.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        Self { tid, open: Vec::new(), deeper: 0, chunk: Box::new(chunk), rows: 0, first_ns: 0 }
    }

    fn enter(&mut self, what: What, now_ns: u64) {
        let (text, opaque) = match what {
            What::Shown(text) => (text, false),
            What::Opaque(text) => (text, true),
            What::Ignored => return,
        };
        if self.open.len() >= MAX_DEPTH {
            self.deeper += 1;
            return;
        }
        let hidden = self.open.last().is_some_and(|outer| outer.hidden || outer.opaque);
        self.open.push(Open { text, start_ns: now_ns, hidden, opaque });
    }

    fn leave(&mut self, what: What, now_ns: u64) {
        let (What::Shown(text) | What::Opaque(text)) = what else { return };
        if self.deeper > 0 {
            self.deeper -= 1;
            return;
        }
        // Others above it were left without a word: stacks can be switched.
        let Some(at) = self.open.iter().rposition(|open| open.text == text) else {
            self.put(Row { start_ns: 0, end_ns: now_ns, text, kind: BEGAN_BEFORE });
            return;
        };
        while self.open.len() > at + 1 {
            self.give_up();
        }
        if let Some(Open { start_ns, hidden: false, .. }) = self.open.pop() {
            self.put(Row { start_ns, end_ns: now_ns, text, kind: PLAIN });
        }
    }

    /// The innermost call has no end.
    fn give_up(&mut self) {
        if let Some(Open { text, start_ns, hidden: false, .. }) = self.open.pop() {
            self.put(Row { start_ns, end_ns: 0, text, kind: STILL_OPEN });
        }
    }

    fn put(&mut self, row: Row) {
        let (element, place) = (self.rows / ROWS, self.rows % ROWS);
        let Some(element) = self.chunk.elements.get_mut(element) else { return };
        element.tid = self.tid;
        element.rows_used = place as u32 + 1;
        element.rows[place] = row;
        let now_ns = row.end_ns.max(row.start_ns);
        if self.rows == 0 {
            self.first_ns = now_ns;
        }
        self.rows += 1;
        if self.rows == ROWS * ELEMENTS || now_ns.saturating_sub(self.first_ns) > MAX_AGE_NS {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        if self.rows == 0 {
            return;
        }
        self.chunk.elements_used = self.rows.div_ceil(ROWS) as u64;
        self.chunk.name = (&raw const self.chunk.further).cast();
        markers::trace(&self.chunk);
        self.rows = 0;
    }
}

/// What every thread shares.
#[derive(Default)]
struct Shared {
    /// By callable, and what it is bound to: see [`callables`].
    known: HashMap<callables::Key, What, callables::ByAddress>,
    /// Texts by id, from 1.
    texts: Vec<CString>,
    ids: HashMap<CString, u32>,
    threads: Vec<Arc<Mutex<Thread>>>,
    /// Functions of these files have no rows.
    our_folders: Vec<String>,
}

static SHARED: LazyLock<Mutex<Shared>> = LazyLock::new(Mutex::default);
/// Whether calls are reported.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Of which process the threads are.
static GENERATION: AtomicU32 = AtomicU32::new(0);

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Id of a text; 0 if there are too many.
    fn id(&mut self, text: &str) -> u32 {
        let text = printable(text);
        if let Some(id) = self.ids.get(&text) {
            return *id;
        }
        if self.texts.len() >= MAX_TEXTS {
            return 0;
        }
        let id = self.texts.len() as u32 + 1;
        markers::trace_text(id, &text);
        self.texts.push(text.clone());
        self.ids.insert(text, id);
        id
    }
}

/// This thread, and of which process it is; handed over when it ends.
struct Local(u32, Arc<Mutex<Thread>>);

impl Local {
    fn new() -> Self {
        let thread = Arc::new(Mutex::new(Thread::new()));
        let mut shared = locked(&SHARED);
        // Those that have ended.
        shared.threads.retain(|thread| Arc::strong_count(thread) > 1);
        shared.threads.push(Arc::clone(&thread));
        Self(GENERATION.load(Relaxed), thread)
    }
}

impl Drop for Local {
    /// Without Python's lock: only what is this thread's is touched.
    fn drop(&mut self) {
        if self.0 == GENERATION.load(Relaxed) {
            locked(&self.1).hand_over();
        }
    }
}

thread_local!(static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) });

/// Does something with this thread; not while it ends.
fn with(act: impl FnOnce(&mut Thread)) {
    let _ = LOCAL.try_with(|local| {
        let Ok(mut local) = local.try_borrow_mut() else { return };
        if local.as_ref().is_none_or(|local| local.0 != GENERATION.load(Relaxed)) {
            *local = Some(Local::new());
        }
        if let Some(Local(_, thread)) = local.as_ref() {
            act(&mut locked(thread));
        }
    });
}

fn is_active() -> bool {
    ACTIVE.load(Relaxed)
}

/// Hands over what all threads have.
fn hand_over_all(end: bool) {
    let threads: Vec<Arc<Mutex<Thread>>> = locked(&SHARED).threads.clone();
    for thread in threads {
        // One that is ending does it itself.
        let Ok(mut thread) = thread.try_lock() else { continue };
        while end && !thread.open.is_empty() {
            thread.give_up();
        }
        if end {
            thread.deeper = 0;
        }
        thread.hand_over();
    }
}

/// Calls are reported from here on, but those of files in these folders; [`hooks`] says how they are heard. A tracer that came late gets
/// all texts.
#[pyfunction]
pub(crate) fn trace_begin(our_folders: Vec<String>) {
    locked(&SHARED).our_folders = our_folders;
    markers::trace_text(0, OTHER_TEXT);
    for (id, text) in (1..).zip(&locked(&SHARED).texts) {
        markers::trace_text(id, text);
    }
    ACTIVE.store(true, Relaxed);
}

/// No longer; calls that are open have a row without an end.
#[pyfunction]
pub(crate) fn trace_end() {
    ACTIVE.store(false, Relaxed);
    hand_over_all(true);
}

/// All rows there are leave at once.
#[pyfunction]
pub(crate) fn trace_hand_over() {
    hand_over_all(false);
}

/// This is a child now: its parent's other threads are not there, and the one that is has another number.
#[pyfunction]
pub(crate) fn trace_forked() {
    GENERATION.fetch_add(1, Relaxed);
    locked(&SHARED).threads.clear();
}

/// A range that is no function's begins or ends.
#[pyfunction]
pub(crate) fn trace_named(text: &str, begins: bool) {
    if is_active() {
        let what = What::Shown(locked(&SHARED).id(text));
        with(|thread| if begins { thread.enter(what, monotonic_ns()) } else { thread.leave(what, monotonic_ns()) });
    }
}

/// Puts what Python calls into the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    hooks::add_to(module)
}
