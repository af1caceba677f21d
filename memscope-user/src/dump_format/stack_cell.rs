//! Cells of call stacks (contract §3.2): in quotes, a line for each frame, innermost first, each with its end of line.
//!
//! Frames are texts of the traced program: each is escaped like a name, see [`text`](super::text). A cut stack has one
//! line more, with the reason; a thread that has never run Python has `"NA"`. All of it can be read back.
//!
//! Instead of the frames a cell may have a `Reference` into a table beside the rows, without quotes and without a
//! frame's end of line. The table's cells equal those of full rows.

use super::number::push_decimal;
use super::text::{push_text, unescaped};
use crate::hash::HashMap;
use crate::model::{Kept, Stack, StackEnd, end_text};

/// Stands for the stack of a thread that runs no Python.
const NOT_PYTHON: &str = "NA";
const TRUNCATED: &str = "... [truncated: ";
/// Whole, but maybe another one's.
const UNCERTAIN: &str = "... [uncertain: ";
/// Text of the cells that a [`Parser`] remembers.
const MAX_KNOWN_BYTES: usize = 16 << 20;

/// Prefix of a CSV file's table of stacks; the rest is as in the name of its rows.
pub(crate) const TABLE_PREFIX: &str = "memscope_stacks_";
const DUMP_PREFIX: &str = "memscope_dump_";
/// Columns of a table of stacks: the reference in rows, and the full cell.
pub(crate) const TABLE_COLUMNS: [&str; 2] = ["Stack", "Call Stack"];
/// The table of stacks in a database.
pub(crate) const TABLE_NAME: &str = "memscope_stack";

/// The name of the table beside a CSV file of rows.
pub(crate) fn table_name(rows: &str) -> String {
    format!("{TABLE_PREFIX}{}", rows.strip_prefix(DUMP_PREFIX).unwrap_or(rows))
}

/// A stack in a table: `#7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference(pub(crate) u32);

impl Reference {
    /// Appends the cell.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        out.push(b'#');
        push_decimal(out, u64::from(self.0));
    }

    /// Reads a cell.
    pub(crate) fn parse(cell: &str) -> Option<Self> {
        let digits = cell.strip_prefix('#')?;
        let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if all_digits { digits.parse().ok().map(Self) } else { None }
    }
}

/// Appends a cell: nothing, or the quoted frames.
pub(crate) fn write(out: &mut Vec<u8>, stack: Option<Stack>, double_quotes: bool) {
    let Some(stack) = stack else { return };
    let (frames, end) = (stack.frames(), stack.end());
    out.push(b'"');
    if frames.is_empty() && matches!(end, StackEnd::NotPython | StackEnd::NoInterpreter) {
        out.extend_from_slice(NOT_PYTHON.as_bytes());
    } else {
        for frame in frames {
            push_text(out, &frame, double_quotes);
            out.push(b'\n');
        }
        if let Some(why) = last_line(end) {
            out.extend_from_slice(why.as_bytes());
            out.push(b'\n');
        }
    }
    out.push(b'"');
}

/// The line behind the outermost frame of a stack that is cut, or not certain.
#[must_use]
pub fn last_line(end: StackEnd) -> Option<String> {
    let lead = if end == StackEnd::OneOfSeveral { UNCERTAIN } else { TRUNCATED };
    end_text(end).map(|why| format!("{lead}{why}]"))
}

/// Keeps the stack of a cell by any tool; `None` for an empty one. Quotes around it may have been removed.
#[must_use]
pub(crate) fn parse(cell: &str, kept: &Kept) -> Option<Stack> {
    let inner = cell.strip_prefix('"').and_then(|cell| cell.strip_suffix('"')).unwrap_or(cell);
    if inner == NOT_PYTHON {
        return Some(kept.stack([], StackEnd::NotPython));
    }
    let mut lines: Vec<&str> = inner.lines().filter(|line| !line.is_empty()).collect();
    let end = lines.last().and_then(|line| parse_end(line));
    if end.is_some() {
        lines.pop();
    }
    if lines.is_empty() && end.is_none() {
        return None;
    }
    let frames: Vec<String> = lines.into_iter().map(unescaped).collect();
    Some(kept.stack(frames.iter().map(String::as_str), end.unwrap_or(StackEnd::Root)))
}

/// Reads cells of stacks; caches frequent ones.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    known: HashMap<Box<str>, Option<Stack>>,
    known_bytes: usize,
}

impl Parser {
    /// As [`parse`].
    pub(crate) fn parse(&mut self, cell: &str, kept: &Kept) -> Option<Stack> {
        if cell.is_empty() {
            return None;
        }
        if let Some(known) = self.known.get(cell) {
            return *known;
        }
        let stack = parse(cell, kept);
        self.known_bytes += cell.len();
        if self.known_bytes > MAX_KNOWN_BYTES {
            self.known.clear();
            self.known_bytes = cell.len();
        }
        self.known.insert(cell.into(), stack);
        stack
    }
}

fn parse_end(line: &str) -> Option<StackEnd> {
    if !line.starts_with(TRUNCATED) && !line.starts_with(UNCERTAIN) {
        return None;
    }
    let known = memscope_common::stack::ENDS.into_iter().find(|end| last_line(*end).as_deref() == Some(line));
    // A later version may have more reasons.
    known.or_else(|| (line.starts_with(TRUNCATED) && line.ends_with(']')).then_some(StackEnd::Depth))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cell(stack: Stack, double_quotes: bool) -> String {
        let mut out = Vec::new();
        write(&mut out, Some(stack), double_quotes);
        String::from_utf8(out).expect("text")
    }

    /// Spelt as the contract has it.
    #[test]
    fn cells_are_those_of_the_contract() {
        let frames = ["libc.so.6(qsort+0x1f) [0x7f123456]", "app(main+0x4) [0x401004]"];
        let text = "\"libc.so.6(qsort+0x1f) [0x7f123456]\napp(main+0x4) [0x401004]\n\"";
        assert_eq!(cell(Stack::keep(frames, StackEnd::Root), true), text);
        assert_eq!(cell(Stack::keep(["a.py(1): f"], StackEnd::Root), false), "\"a.py(1): f\n\"");
        assert_eq!(cell(Stack::keep([], StackEnd::NotPython), true), "\"NA\"");
        assert_eq!(cell(Stack::keep([], StackEnd::NoInterpreter), true), "\"NA\"");
        assert_eq!(cell(Stack::keep([], StackEnd::Root), true), "\"\"");
        let mut none = Vec::new();
        write(&mut none, None, true);
        assert!(none.is_empty());
    }

    #[test]
    fn cut_stacks_say_why() {
        let cut = |end| cell(Stack::keep(["f"], end), true);
        assert_eq!(cut(StackEnd::Depth), "\"f\n... [truncated: as deep as was asked for]\n\"");
        assert_eq!(cut(StackEnd::OneOfSeveral), "\"f\n... [uncertain: the process has several interpreters]\n\"");
    }

    /// A program chooses its functions' names; it neither ends a cell nor moves the cursor of a terminal.
    #[test]
    fn hostile_frames_are_escaped() {
        let stack = Stack::keep(["=f\n\u{1b}[2J\u{202e}", "a\"b,\\"], StackEnd::Root);
        assert_eq!(cell(stack, true), "\"'=f\\n\\u{1b}[2J\\u{202e}\na\"\"b,\\\\\n\"");
        assert_eq!(cell(stack, false), "\"'=f\\n\\u{1b}[2J\\u{202e}\na\"b,\\\\\n\"");
    }

    /// Cells as msMemScope writes them; and possible ones of a later version of ours.
    #[test]
    fn cells_of_others_are_read() {
        let stack = parse("\"a.py(1): f\r\nb.py(2): g\r\n\"", &Kept::process()).expect("a stack");
        assert_eq!((stack.texts(), stack.end()), (vec!["a.py(1): f", "b.py(2): g"], StackEnd::Root));
        let later = parse("f\n... [truncated: a new reason]\n", &Kept::process()).expect("a stack");
        assert_eq!((later.texts(), later.end()), (vec!["f"], StackEnd::Depth));
        assert_eq!((parse("", &Kept::process()), parse("\"\"", &Kept::process())), (None, None));
    }

    proptest! {
        /// Written cells are read back, quotes doubled and undone or not.
        #[test]
        fn cells_survive(
            frames in prop::collection::vec("[^\u{0}]{1,20}", 1..5),
            end in prop::sample::select(memscope_common::stack::ENDS.to_vec()),
        ) {
            let stack = Stack::keep(frames.iter().map(String::as_str), end);
            prop_assert_eq!(parse(&cell(stack, false), &Kept::process()), Some(stack));
            let csv = cell(stack, true);
            prop_assert_eq!(parse(&csv[1..csv.len() - 1].replace("\"\"", "\""), &Kept::process()), Some(stack));
        }
    }
}
