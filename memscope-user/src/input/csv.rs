//! CSV dumps, by us and by msMemScope, read as they are.
//!
//! A row ends at a newline outside of quotes. Inside of quotes, `""` is a quote (RFC 4180, ours), and so is a quote
//! that neither a comma nor the end of the line follows (msMemScope does not escape them). If the name of a mark of
//! msMemScope still does not fit, the numbers behind it show its end.

mod split;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use memchr::memchr;

pub(crate) use self::split::Cell;
use self::split::{Parted, Split, Splitter, bare_mark, content, nth_comma, part, split, trimmed};
use super::attr::Attr;
use super::cell::{Digits, Fault, plain_number};
use super::error::Tally;
use super::row::{Cells, Known, Understood, understand};
use super::runs::{Place, Run, Runs};
use super::stack_table::StackTable;
use super::window::Window;
use super::{BadRow, InputError, Notes};
use crate::dump_format::row::DumpRow;
use crate::dump_format::{COLUMNS, stack_cell::TABLE_COLUMNS};
use crate::model::Kept;
use crate::regular;

/// Bytes of one row: a thousand frames of both stacks fit.
const MAX_ROW_BYTES: usize = 4 << 20;
const ID_COLUMN: usize = 0;
const TIME_COLUMN: usize = 4;
const PROCESS_COLUMN: usize = 5;
/// Columns without stacks, as early versions wrote them.
const MIN_COLUMNS: usize = 10;
/// Most bytes read again because a quote was not closed, in one file: about 16 times the longest row. Beyond that, the
/// bytes that such a quote has swallowed are dropped with it, so the time for a hostile file is linear in its length.
const MAX_AGAIN_BYTES: usize = 64 << 20;
/// A file with a line beyond this is refused: no dump has one, and a hole of gigabytes is not read to its end.
const MAX_LONG_LINE_BYTES: usize = 64 << 20;
/// Most lines of an unescaped name of a mark.
const MAX_NAME_LINES: u64 = 256;
const OPEN_QUOTE: &str = "a quote is not closed";
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raw {
    /// A row in its cells.
    Row,
    /// Bytes that are no row. They are noted.
    Bad,
    /// Nothing: the end of the file, or of its part.
    End,
}

/// Reads the rows of one file.
#[derive(Debug)]
pub(crate) struct CsvReader<R> {
    input: Window<R>,
    path: std::path::PathBuf,
    columns: usize,
    /// Line on which the row starts, and the one after it.
    line: u64,
    next_line: u64,
    read_bytes: u64,
    /// Bytes before the row, and those where the reading ends.
    row_start: u64,
    end: u64,
    cells: [Cell; COLUMNS.len()],
    known: Known,
    tally: Tally,
    /// Within a line that is longer than any row.
    in_long_line: bool,
    /// Bytes of that line behind its first [`MAX_ROW_BYTES`].
    long_bytes: usize,
    /// The rest of [`MAX_AGAIN_BYTES`].
    again_bytes: usize,
}

impl CsvReader<File> {
    pub(crate) fn open(path: &Path) -> Result<Self, InputError> {
        CsvReader::new(regular::open(path).map_err(InputError::io(path))?, path)
    }

    /// Keeps stacks of rows there, instead of in the process's.
    pub(super) fn keeping_in(mut self, kept: &Kept) -> Self {
        self.known.kept = kept.clone();
        self
    }

    /// Reads a run of the same file.
    pub(super) fn of_run(&self, run: Run) -> Result<Self, InputError> {
        let mut file = regular::open(&self.path).map_err(InputError::io(&self.path))?;
        file.seek(SeekFrom::Start(run.start)).map_err(InputError::io(&self.path))?;
        Ok(Self {
            input: Window::new(file, MAX_ROW_BYTES),
            path: self.path.clone(),
            columns: self.columns,
            line: run.line,
            next_line: run.line,
            read_bytes: run.start,
            row_start: run.start,
            end: run.end,
            cells: Default::default(),
            known: self.known.for_others(),
            tally: Tally::default(),
            in_long_line: false,
            long_bytes: 0,
            again_bytes: MAX_AGAIN_BYTES,
        })
    }
}

impl<R: Read> CsvReader<R> {
    /// Reads the header.
    pub(crate) fn new(input: R, path: &Path) -> Result<Self, InputError> {
        Self::with_header(input, path, header)
    }

    /// Reads the first line; `header` returns the number of columns.
    fn with_header(input: R, path: &Path, header: fn(&[u8]) -> Result<usize, String>) -> Result<Self, InputError> {
        let (input, cells) = (Window::new(input, MAX_ROW_BYTES), Default::default());
        let known = Known::with(Arc::new(StackTable::beside(path)));
        let path = path.to_owned();
        let (columns, line, next_line, read_bytes, row_start, end) = (0, 1, 1, 0, 0, u64::MAX);
        let (tally, in_long_line, again_bytes) = (Tally::default(), false, MAX_AGAIN_BYTES);
        let mut reader = Self {
            input,
            path,
            columns,
            line,
            next_line,
            read_bytes,
            row_start,
            end,
            cells,
            known,
            tally,
            in_long_line,
            long_bytes: 0,
            again_bytes,
        };
        reader.append_line()?;
        reader.columns =
            header(reader.raw()).map_err(|what| InputError::Foreign { path: reader.path.clone(), what })?;
        Ok(reader)
    }

    /// Bytes of the last row, without the newline.
    pub(crate) fn raw(&self) -> &[u8] {
        self.input.row()
    }

    /// Bytes read of the file.
    pub(crate) const fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Cell of the last row.
    pub(crate) fn cell(&self, column: usize) -> Cell {
        self.cells[column]
    }

    /// Number of understood rows.
    pub(super) const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Reads the next row's cells. A row torn at the end of the file is dropped and noted; so is one that cannot be
    /// split.
    pub(crate) fn next_raw(&mut self, notes: &mut Notes) -> Result<Raw, InputError> {
        loop {
            (self.line, self.row_start) = (self.next_line, self.read_bytes);
            self.input.next_row();
            if self.read_bytes >= self.end {
                return Ok(Raw::End);
            }
            if !self.in_long_line && self.whole_row()? {
                return Ok(Raw::Row);
            }
            if !self.append_line()? {
                return Ok(Raw::End);
            }
            if std::mem::replace(&mut self.in_long_line, false) {
                self.next_line -= 1;
                self.in_long_line = self.is_too_long() && !self.ends_a_line();
                self.long_bytes = if self.in_long_line { self.long_bytes + self.raw().len() } else { 0 };
                if self.long_bytes > MAX_LONG_LINE_BYTES {
                    let what = format!("no dump: line {} is longer than 64 MiB", self.next_line - 1);
                    return Err(InputError::Foreign { path: self.path.clone(), what });
                }
                return Ok(Raw::Bad);
            }
            if !self.raw().iter().all(u8::is_ascii_whitespace) {
                break;
            }
        }
        let mut splitter = Splitter::default();
        loop {
            let parted = splitter.go_on(trimmed(self.input.row()), &mut self.cells);
            if !self.is_too_long() && (parted == Split::Cells(self.columns) || self.part_mark()) {
                return Ok(Raw::Row);
            }
            let open = parted == Split::Open;
            if !self.is_too_long() && self.ends_a_line() && open && self.append_line()? {
                continue;
            }
            // Only the last row can have been torn, and no other can be in it.
            let torn = if open { !has_rows(self.raw()) } else { !self.ends_a_line() };
            if torn && !self.is_too_long() {
                notes.torn_rows += 1;
                return Ok(Raw::End);
            }
            let what = match parted {
                _ if self.is_too_long() => {
                    format!("the row is longer than {MAX_ROW_BYTES} bytes: a quote is not closed, or this is no dump")
                }
                Split::Cells(count) => format!("the row has {count} cells, the header {}", self.columns),
                Split::Open => OPEN_QUOTE.to_owned(),
            };
            self.bad(Fault { column: "ID", what }, notes);
            self.keep_first_line();
            return Ok(Raw::Bad);
        }
    }

    /// Notes that this row is left out.
    fn bad(&mut self, fault: Fault, notes: &mut Notes) {
        self.tally.bad(BadRow::new(&self.path, "line", self.line, fault), notes);
    }

    fn is_too_long(&self) -> bool {
        self.raw().len() > MAX_ROW_BYTES
    }

    fn ends_a_line(&self) -> bool {
        self.raw().last() == Some(&b'\n')
    }

    /// A bad row ends with its first line: an open quote must not swallow the next rows.
    fn keep_first_line(&mut self) {
        let len = self.raw().len();
        let Some(first) = memchr(b'\n', self.raw()).map(|newline| newline + 1) else {
            self.in_long_line = self.is_too_long();
            return;
        };
        if len - first > self.again_bytes {
            self.in_long_line = !self.ends_a_line();
            return;
        }
        self.again_bytes -= len - first;
        self.input.shorten(first);
        self.read_bytes -= (len - first) as u64;
        self.next_line = self.line + 1;
    }

    /// The runs of rows; `None` beyond the limit, or with bad rows. A torn end is noted, and in no run. `progress` gets
    /// the number of read bytes, `census` all rows; without one, reading stops once there are no runs.
    pub(super) fn runs(
        &mut self,
        notes: &mut Notes,
        progress: &mut dyn FnMut(u64),
        mut census: Option<&mut dyn FnMut(Place)>,
    ) -> Option<Runs> {
        let (mut runs, mut torn) = (Runs::default(), Notes::default());
        let mut in_order = true;
        loop {
            let raw = self.next_raw(&mut torn).ok()?;
            if raw == Raw::End {
                break;
            }
            progress(self.read_bytes);
            let place = if raw == Raw::Row { self.place() } else { None };
            if let (Some(place), Some(census)) = (place, &mut census) {
                census(place);
            }
            let bytes = (self.row_start, self.read_bytes);
            in_order = in_order && place.is_some_and(|place| runs.take(place, bytes, self.line));
            if !in_order && census.is_none() {
                return None;
            }
        }
        if in_order {
            notes.add(torn);
        }
        in_order.then_some(runs)
    }

    /// Process, number and time of the row.
    fn place(&self) -> Option<Place> {
        let row = self.raw();
        let number = |column: usize| plain_number(&row[self.cells[column].start..self.cells[column].end]);
        let pid = u32::try_from(number(PROCESS_COLUMN)?).ok()?;
        Some(Place { pid, id: number(ID_COLUMN)?, time_ns: number(TIME_COLUMN)? })
    }

    /// Reads and understands the next row that events need. Bad rows are noted.
    pub(super) fn next_row(&mut self, file: u32, notes: &mut Notes) -> Result<Option<DumpRow>, InputError> {
        loop {
            match self.next_raw(notes)? {
                Raw::Row => {}
                Raw::Bad => continue,
                Raw::End => return Ok(None),
            }
            let bytes = self.input.row();
            let whole = str::from_utf8(bytes).ok();
            let text: [Cow<'_, str>; COLUMNS.len()] = std::array::from_fn(|column| {
                if column < self.columns { content(self.cells[column], bytes, whole) } else { Cow::Borrowed("") }
            });
            let [id, event, event_type, name, time, pid, tid, device, ptr, attr, python, native] = &text;
            let [id, time, pid, tid, device] = [id, time, pid, tid, device].map(|cell| Digits::Text(cell));
            let cells = Cells { id, event, event_type, name, time, pid, tid, device, ptr, python, native };
            let place = (file, self.line);
            let row = Attr::of_csv(attr).and_then(|attr| understand(&cells, &attr, place, &mut self.known));
            match row {
                Ok(Understood::Row(row)) => {
                    self.tally.understood();
                    self.known.note(notes);
                    return Ok(Some(row));
                }
                Ok(Understood::Unused(kind)) => {
                    self.tally.understood();
                    notes.unused(kind);
                }
                // A cut row may still look like one.
                Err(_) if !self.ends_a_line() => notes.torn_rows += 1,
                // A quote of a later row has closed one that is open here.
                Err(_) if has_rows(self.raw()) => {
                    self.bad(Fault { column: "ID", what: OPEN_QUOTE.to_owned() }, notes);
                    self.keep_first_line();
                }
                Err(fault) => self.bad(fault, notes),
            }
        }
    }

    /// Splits the next row during the search for its end, if it has the common form; otherwise nothing is read.
    fn whole_row(&mut self) -> Result<bool, InputError> {
        loop {
            match part(self.input.ahead(), &mut self.cells[..self.columns]) {
                Some(Parted::Row { len, lines }) if len <= MAX_ROW_BYTES => {
                    self.input.add(len);
                    self.next_line += lines;
                    self.read_bytes += len as u64;
                    return Ok(true);
                }
                Some(Parted::Unfinished) if self.input.more().map_err(InputError::io(&self.path))? => {}
                _ => return Ok(false),
            }
        }
    }

    /// Splits a row with an unescaped name; false if that does not give one cell for each column.
    fn part_mark(&mut self) -> bool {
        if self.next_line - self.line > MAX_NAME_LINES {
            return false;
        }
        let row = trimmed(self.input.row());
        bare_mark(row).is_some_and(|name_end| {
            // As if the name were empty, to part the rest; then the name gets its place.
            let Some(name) = nth_comma(row, 3).map(|comma| comma + 1) else { return false };
            let after = name_end + 1;
            let mut rest = [Cell::default(); COLUMNS.len()];
            let Split::Cells(count) = split(&row[after..], &mut rest) else { return false };
            if count + 3 != self.columns || split(&row[..name], &mut self.cells) != Split::Cells(4) {
                return false;
            }
            self.cells[3] = Cell { start: name + 1, end: name_end, doubled: false };
            // `after` is at the comma behind the name, so the first cell is empty.
            for (cell, found) in self.cells[3..].iter_mut().zip(&rest[..count]).skip(1) {
                *cell = Cell { start: found.start + after, end: found.end + after, ..*found };
            }
            true
        })
    }

    /// Appends one line to the row, newline included, or the part that makes the row longer than any; false at the end
    /// of the file.
    fn append_line(&mut self) -> Result<bool, InputError> {
        let read = self.input.add_line().map_err(InputError::io(&self.path))?;
        self.next_line += u64::from(read > 0);
        self.read_bytes += read as u64;
        Ok(read > 0)
    }
}

/// Calls `take` with the rows of a table of stacks. Bad rows are dropped: references to them have no stack.
pub(super) fn stacks(path: &Path, mut take: impl FnMut(&str, &str)) -> Result<(), InputError> {
    let file = regular::open(path).map_err(InputError::io(path))?;
    let mut reader = CsvReader::with_header(file, path, stacks_header)?;
    let mut notes = Notes::default();
    loop {
        match reader.next_raw(&mut notes)? {
            Raw::Row => {}
            Raw::Bad => continue,
            Raw::End => return Ok(()),
        }
        let bytes = reader.raw();
        let whole = str::from_utf8(bytes).ok();
        let [key, cell] = [0, 1].map(|column| content(reader.cell(column), bytes, whole));
        take(&key, &cell);
    }
}

fn stacks_header(line: &[u8]) -> Result<usize, String> {
    let line = trimmed(line.strip_prefix(UTF8_MARK).unwrap_or(line));
    let wanted = TABLE_COLUMNS.join(",");
    let is_right = line == wanted.as_bytes();
    if is_right { Ok(TABLE_COLUMNS.len()) } else { Err(format!("no table of stacks: line 1 is not `{wanted}`")) }
}

/// An Attr in the spelling of CSV without a key, if it is there.
pub(crate) fn without_key(attr: &str, key: &str) -> String {
    let Some(start) = attr.find(&format!(",{key}:")) else { return attr.to_owned() };
    let value = start + key.len() + 2;
    // The value ends at the last comma before the next colon.
    let end = match attr[value..].find(':') {
        Some(colon) => attr[..value + colon].rfind(',').unwrap_or(attr.len()),
        None => attr.len(),
    };
    format!("{}{}", &attr[..start], &attr[end..])
}

/// Checks the header; gives the number of columns.
fn header(line: &[u8]) -> Result<usize, String> {
    let line = line.strip_prefix(UTF8_MARK).unwrap_or(line);
    let text = String::from_utf8_lossy(line);
    let names: Vec<&str> = text.trim().split(',').map(|name| name.trim().trim_matches('"')).collect();
    let right = COLUMNS.iter().zip(&names).take_while(|(wanted, name)| wanted == name).count();
    if right == names.len() && right >= MIN_COLUMNS {
        return Ok(right);
    }
    if right == 0 {
        return Err("no dump: line 1 does not start with the column `ID`".to_owned());
    }
    let found: String = names.get(right).unwrap_or(&"").chars().take(40).flat_map(char::escape_debug).collect();
    let wanted = COLUMNS.get(right).copied().unwrap_or("no more columns");
    Err(format!("no dump: in line 1, column {} is `{found}` instead of `{wanted}`", right + 1))
}

/// Whether a line within the row looks like the start of another one.
fn has_rows(row: &[u8]) -> bool {
    const EVENTS: [&[u8]; 9] =
        [b"MALLOC", b"FREE", b"ACCESS", b"OP_LAUNCH", b"KERNEL_LAUNCH", b"MSTX", b"SYSTEM", b"SNAPSHOT", b"OOM_DETAIL"];
    row.split(|&byte| byte == b'\n').skip(1).any(|line| {
        let mut cells = line.splitn(3, |&byte| byte == b',');
        cells.next().is_some_and(|id| !id.is_empty() && id.iter().all(u8::is_ascii_digit))
            && cells.next().is_some_and(|event| EVENTS.contains(&event))
    })
}
