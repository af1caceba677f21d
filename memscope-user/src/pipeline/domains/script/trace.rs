//! The Python trace of a script: rows as the kernel side copied them, and the texts that they name.
//!
//! The program may have anything in those bytes. A record with more rows than possible counts as empty.

use std::sync::Arc;

use crate::decode::{Objects, word};
use crate::hash::HashMap;

/// Offsets of an element (`python/src/trace`): thread, number of rows, and rows of 24 bytes.
const TID_AT: usize = 0;
const USED_AT: usize = 4;
const ROWS_AT: usize = 8;
const ROW_BYTES: usize = 24;
const MAX_ROWS: u32 = 4;
/// The value that leads to elements.
const ELEMENTS: u8 = 1;

/// Most texts of one process; a row without a text shows its number.
const MAX_TEXTS: usize = 1 << 17;
const MAX_CHARS: usize = 1024;

/// A call, in times of the records' clock; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipeline) struct TraceRow {
    pub(super) tid: u32,
    pub(super) start_mono_ns: u64,
    pub(super) end_mono_ns: u64,
    text: u32,
    kind: u32,
}

/// The rows of a record. Unreadable ones are counted where the read failed.
pub(super) fn rows(objects: &Objects<'_>) -> Vec<TraceRow> {
    let mut rows = Vec::new();
    for object in objects.iter().filter(|object| object.value == ELEMENTS) {
        let half = |at: usize| object.head.get(at..).and_then(<[u8]>::first_chunk).copied().map(u32::from_le_bytes);
        let (Some(tid), Some(used @ 1..=MAX_ROWS), true) = (half(TID_AT), half(USED_AT), object.readable) else {
            continue;
        };
        for at in (ROWS_AT..).step_by(ROW_BYTES).take(used as usize) {
            let (start, end) = (word(object.head, at), word(object.head, at + 8));
            if let (Some(start_mono_ns), Some(end_mono_ns), Some(text), Some(kind)) =
                (start, end, half(at + 16), half(at + 20))
            {
                rows.push(TraceRow { tid, start_mono_ns, end_mono_ns, text, kind });
            }
        }
    }
    rows
}

/// Texts of one process's calls.
#[derive(Clone, Debug, Default)]
pub(super) struct TraceTexts(Arc<HashMap<u32, Arc<str>>>);

impl TraceTexts {
    /// Sets the text of a number.
    pub(super) fn text(&mut self, id: u32, text: &str) {
        let known = self.0.get(&id);
        if known.is_some_and(|known| **known == *text) || (known.is_none() && self.0.len() >= MAX_TEXTS) {
            return;
        }
        let text: String = text.chars().take(MAX_CHARS).collect();
        Arc::make_mut(&mut self.0).insert(id, text.into());
    }

    /// Text of a row: the called function, and the kind of call (contract §5.1).
    pub(super) fn of(&self, row: &TraceRow) -> Arc<str> {
        let text = self.0.get(&row.text).map_or_else(|| format!("<function {}>", row.text).into(), Arc::clone);
        match row.kind {
            1 => format!("start: {text}").into(),
            2 => format!("stop: {text}").into(),
            _ => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: u32, kind: u32) -> TraceRow {
        TraceRow { tid: 1, start_mono_ns: 0, end_mono_ns: 0, text, kind }
    }

    /// Texts are kept once, replaced by later ones, and missing ones are shown by number.
    #[test]
    fn texts_of_rows() {
        let mut texts = TraceTexts::default();
        texts.text(3, "a.py(1): f");
        assert_eq!(&*texts.of(&row(3, 0)), "a.py(1): f");
        assert_eq!(&*texts.of(&row(3, 1)), "start: a.py(1): f");
        assert_eq!(&*texts.of(&row(3, 2)), "stop: a.py(1): f");
        assert_eq!(&*texts.of(&row(4, 0)), "<function 4>");
        let copy = texts.clone();
        texts.text(3, "b.py(1): g");
        assert_eq!((&*texts.of(&row(3, 9)), &*copy.of(&row(3, 0))), ("b.py(1): g", "a.py(1): f"));
    }
}
