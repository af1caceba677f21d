//! Owner labels (contract §8.5): ids for texts, and the stacks of each thread.
//!
//! Every change reports the thread's whole state in two registers, so one that is lost heals with the next, and the kernel side keeps nothing.

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::{CStr, CString},
    fmt::Write as _,
    sync::{
        LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::markers;

/// Levels of an owner.
pub(crate) const LEVELS: usize = 8;
/// Levels below are the system's: each has a stack. The rest is one stack of the user's.
pub(crate) const USER_LEVEL: usize = 5;
/// Different labels of one level, of which the newest counts; more are not taken.
const MAX_DIFFERENT: usize = 3;
/// Stands for all texts beyond 65534.
const OTHER: u16 = u16::MAX;

/// Ids of texts, from 1. They are never given back. Locked by holders of Python's lock alone, as `fork` is called, so it is not locked for
/// good in a child.
static IDS: LazyLock<Mutex<HashMap<CString, u16>>> = LazyLock::new(Mutex::default);
/// A listener was there at the last report of texts.
static REPORTED: AtomicBool = AtomicBool::new(false);

fn ids() -> MutexGuard<'static, HashMap<CString, u16>> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Text as it is reported: control characters are written as escapes, so none has a NUL.
pub(crate) fn printable(text: &str) -> CString {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\u{8}' => printable.push_str("\\b"),
            '\t' => printable.push_str("\\t"),
            '\n' => printable.push_str("\\n"),
            '\u{b}' => printable.push_str("\\v"),
            '\u{c}' => printable.push_str("\\f"),
            '\r' => printable.push_str("\\r"),
            '\0'..' ' | '\u{7f}' => drop(write!(printable, "\\x{:02x}", u32::from(character))),
            _ => printable.push(character),
        }
    }
    CString::new(printable).unwrap_or_default()
}

/// Id of a text.
pub(crate) fn id(text: &str) -> u16 {
    let text = printable(text);
    let mut ids = ids();
    if let Some(id) = ids.get(&text) {
        return *id;
    }
    let id = u16::try_from(ids.len() + 1).unwrap_or(OTHER);
    if id == OTHER {
        return OTHER;
    }
    markers::label_text(id, &text);
    ids.insert(text, id);
    id
}

/// Reports all texts: a tracer that came late knows none.
pub(crate) fn tell_all() {
    for (text, id) in ids().iter() {
        markers::label_text(*id, text);
    }
    markers::label_text(OTHER, c"too_many_labels");
}

/// The same, if a tracer is there that was not before.
fn tell_newcomer() {
    let there = markers::has_listener();
    if there && !REPORTED.load(Relaxed) {
        tell_all();
    }
    REPORTED.store(there, Relaxed);
}

/// Two registers' worth of ids.
pub(crate) fn packed(labels: [u16; LEVELS]) -> (u64, u64) {
    let pack = |ids: &[u16]| ids.iter().rev().fold(0, |word, id| word << 16 | u64::from(*id));
    let (low, high) = labels.split_at(LEVELS / 2);
    (pack(low), pack(high))
}

/// Labels of one thread.
#[derive(Default)]
struct Labels {
    /// By level: id, and how often it was pushed.
    system: [Vec<(u16, u32)>; USER_LEVEL],
    user: Vec<u16>,
    /// How many of the user's were pushed that found no room.
    over: u32,
}

impl Labels {
    fn current(&self) -> [u16; LEVELS] {
        let mut current = [0; LEVELS];
        let (system, user) = current.split_at_mut(USER_LEVEL);
        for (slot, stack) in system.iter_mut().zip(&self.system) {
            *slot = stack.last().map_or(0, |(id, _)| *id);
        }
        for (slot, id) in user.iter_mut().zip(&self.user) {
            *slot = *id;
        }
        current
    }

    fn report(&self) {
        tell_newcomer();
        let (low, high) = packed(self.current());
        markers::labels(low, high);
    }
}

impl Drop for Labels {
    /// The kernel gives the thread's number to another one.
    fn drop(&mut self) {
        if self.current() != [0; LEVELS] {
            markers::labels(0, 0);
        }
    }
}

thread_local!(static LABELS: RefCell<Labels> = RefCell::default());

/// Does something with the labels of this thread; not while it ends.
fn with(act: impl FnOnce(&mut Labels)) {
    let _ = LABELS.try_with(|labels| act(&mut labels.borrow_mut()));
}

/// Reports the labels of this thread again.
pub(crate) fn report() {
    with(|labels| labels.report());
}

/// A label of the user's; a fourth is not taken.
pub(crate) fn push_user(id: u16) {
    with(|labels| {
        if labels.user.len() == LEVELS - USER_LEVEL {
            labels.over += 1;
        } else {
            labels.user.push(id);
            labels.report();
        }
    });
}

/// Takes the user's newest label back.
pub(crate) fn pop_user() {
    with(|labels| {
        if labels.over > 0 {
            labels.over -= 1;
        } else if labels.user.pop().is_some() {
            labels.report();
        }
    });
}

/// A label of a level below [`USER_LEVEL`]. One that is there already counts up.
pub(crate) fn push(id: u16, level: usize) {
    with(|labels| {
        let Some(stack) = labels.system.get_mut(level) else { return };
        if let Some((_, count)) = stack.iter_mut().find(|(known, _)| *known == id) {
            *count += 1;
        } else if stack.len() < MAX_DIFFERENT {
            stack.push((id, 1));
            labels.report();
        }
    });
}

/// Takes a label of a level back; it is gone once that was done as often as it was pushed.
pub(crate) fn pop(id: u16, level: usize) {
    with(|labels| {
        let Some(stack) = labels.system.get_mut(level) else { return };
        let Some(at) = stack.iter().position(|(known, _)| *known == id) else { return };
        stack[at].1 -= 1;
        if stack[at].1 == 0 {
            stack.remove(at);
            labels.report();
        }
    });
}

/// Texts of this thread's labels, by level.
pub(crate) fn texts() -> [Option<String>; LEVELS] {
    let mut current = [0; LEVELS];
    with(|labels| current = labels.current());
    let ids = ids();
    let text = |wanted: u16| {
        let found = ids.iter().find(|(_, id)| **id == wanted).map(|(text, _)| text.as_c_str());
        let text: Option<&CStr> = if wanted == OTHER { Some(c"too_many_labels") } else { found };
        text.map(|text| text.to_string_lossy().into_owned())
    };
    current.map(text)
}
