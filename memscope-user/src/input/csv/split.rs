//! Parts a row into its cells.
//!
//! Inside of quotes, `""` is a quote (RFC 4180, ours), and so is a quote that neither a comma nor the end of the line follows
//! (msMemScope does not escape them).

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memchr2};

const EVENT_COLUMN: usize = 1;

/// End of a cell that is not known yet.
const OPEN: usize = usize::MAX;

/// A part of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Where the content starts.
    pub(crate) start: usize,
    /// Where it ends.
    pub(crate) end: usize,
    /// It holds doubled quotes.
    pub(super) doubled: bool,
}

/// How a row could be parted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Split {
    /// Into that many cells.
    Cells(usize),
    /// The text ends within quotes.
    Open,
}

/// Content of a cell of a row; `whole` is the row, if all of it is text.
pub(super) fn content<'a>(Cell { start, end, doubled }: Cell, row: &'a [u8], whole: Option<&'a str>) -> Cow<'a, str> {
    let text = match whole.and_then(|whole| whole.get(start..end)) {
        Some(text) => Cow::Borrowed(text),
        None => String::from_utf8_lossy(&row[start..end]),
    };
    if doubled { Cow::Owned(text.replace("\"\"", "\"")) } else { text }
}

pub(super) fn trimmed(row: &[u8]) -> &[u8] {
    let row = row.strip_suffix(b"\n").unwrap_or(row);
    row.strip_suffix(b"\r").unwrap_or(row)
}

/// Parts a row into cells.
pub(super) fn split(row: &[u8], cells: &mut [Cell]) -> Split {
    Splitter::default().go_on(row, cells)
}

/// The result of splitting a row in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parted {
    /// Its length in bytes and lines, its end included.
    Row { len: usize, lines: u64 },
    /// It has no end in these bytes.
    Unfinished,
}

/// Splits the first row of `bytes` into exactly these cells, as [`Splitter`] would; `None` where only that one decides.
pub(super) fn part(bytes: &[u8], cells: &mut [Cell]) -> Option<Parted> {
    let (mut at, mut lines) = (0, 1);
    let last = cells.len().checked_sub(1)?;
    for column in 0..=last {
        let Some(&first) = bytes.get(at) else { return Some(Parted::Unfinished) };
        let mut cell = Cell { start: at, end: at, doubled: false };
        if first == b'"' {
            cell.start = at + 1;
            let Some(end) = closing(bytes, &mut cell) else { return Some(Parted::Unfinished) };
            let within = memchr_iter(b'\n', &bytes[cell.start..cell.end]).count() as u64;
            // An unescaped name of a mark may end before that.
            let is_mark = || bytes[0] == b'"' || bytes[cells[EVENT_COLUMN].start..].starts_with(b"MSTX");
            if within > 0 && (column <= EVENT_COLUMN || is_mark()) {
                return None;
            }
            lines += within;
            at = end;
        } else {
            let Some(length) = memchr2(b',', b'\n', &bytes[at..]) else { return Some(Parted::Unfinished) };
            at += length;
            cell.end = at;
            if bytes[at] == b'\n' && at > cell.start && bytes[at - 1] == b'\r' {
                cell.end -= 1;
            }
        }
        cells[column] = cell;
        match bytes[at] {
            b',' if column < last => at += 1,
            b',' => return None,
            // The end of the line, or the carriage return before it.
            _ if column < last => return None,
            end => at += if end == b'\r' { 2 } else { 1 },
        }
    }
    Some(Parted::Row { len: at, lines })
}

/// Position of the closing quote of a cell, and the byte behind it: a comma or the end of a line. `None` if that is not
/// in these bytes.
pub(super) fn closing(bytes: &[u8], cell: &mut Cell) -> Option<usize> {
    let mut at = cell.start;
    loop {
        at += memchr(b'"', &bytes[at..])?;
        match (*bytes.get(at + 1)?, bytes.get(at + 2)) {
            (b',' | b'\n', _) | (b'\r', Some(b'\n')) => {
                cell.end = at;
                return Some(at + 1);
            }
            (b'\r', None) => return None,
            (b'"', _) => {
                cell.doubled = true;
                at += 2;
            }
            _ => at += 1,
        }
    }
}

/// Where the parting of a row stands, so that a row of many lines is gone through once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Splitter {
    at: usize,
    count: usize,
    /// The cell with its closing quote still to come.
    open: Option<Cell>,
}

impl Splitter {
    /// Continues where it stopped; `row` is the earlier one, and more. Cells beyond the limit are only counted.
    pub(super) fn go_on(&mut self, row: &[u8], cells: &mut [Cell]) -> Split {
        loop {
            let mut cell = self.open.take().unwrap_or(Cell { start: self.at, end: self.at, doubled: false });
            let is_open = cell.end == OPEN;
            if is_open || row.get(self.at) == Some(&b'"') {
                if !is_open {
                    self.at += 1;
                    cell = Cell { start: self.at, end: OPEN, doubled: false };
                }
                if !self.close(row, &mut cell) {
                    self.at = row.len();
                    self.open = Some(cell);
                    return Split::Open;
                }
            } else {
                self.at += row[self.at..].iter().position(|&byte| byte == b',').unwrap_or(row.len() - self.at);
                cell.end = self.at;
            }
            if let Some(slot) = cells.get_mut(self.count) {
                *slot = cell;
            }
            self.count += 1;
            if self.at >= row.len() {
                return Split::Cells(self.count);
            }
            self.at += 1;
        }
    }

    /// Looks for the quote that closes the cell, and steps behind it.
    fn close(&mut self, row: &[u8], cell: &mut Cell) -> bool {
        while let Some(quote) = memchr(b'"', &row[self.at..]) {
            self.at += quote;
            match row.get(self.at + 1) {
                None | Some(b',') => {
                    cell.end = self.at;
                    self.at += 1;
                    return true;
                }
                Some(b'"') => {
                    cell.doubled = true;
                    self.at += 2;
                }
                Some(_) => self.at += 1,
            }
        }
        false
    }
}

/// End of the name of a mark with unescaped quotes: the first quote that time, process, thread, device and pointer
/// follow.
pub(super) fn bare_mark(row: &[u8]) -> Option<usize> {
    let event = nth_comma(row, 1)? + 1;
    if !row[event..].starts_with(b"MSTX,") {
        return None;
    }
    let name = nth_comma(row, 3)? + 1;
    if row.get(name) != Some(&b'"') {
        return None;
    }
    let quotes = (name + 1..row.len()).filter(|&at| row[at] == b'"');
    quotes.take(4096).find(|&quote| {
        let rest = row.get(quote + 1..).unwrap_or_default();
        let mut cells = rest.splitn(7, |&byte| byte == b',');
        let number = |cell: Option<&[u8]>| {
            cell.is_some_and(|cell| cell == b"N/A" || (!cell.is_empty() && cell.iter().all(u8::is_ascii_digit)))
        };
        cells.next() == Some(b"")
            && number(cells.next())
            && number(cells.next())
            && number(cells.next())
            && cells.next().is_some()
            && cells.next() == Some(b"N/A")
    })
}

/// Where the `n`-th comma is, from 1.
pub(super) fn nth_comma(row: &[u8], n: usize) -> Option<usize> {
    row.iter().enumerate().filter(|&(_, &byte)| byte == b',').nth(n - 1).map(|(at, _)| at)
}
