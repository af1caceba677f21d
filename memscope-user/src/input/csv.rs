//! CSV dumps, by us and by msMemScope, read as they are.
//!
//! A row ends at a newline outside of quotes. Inside of quotes, `""` is a quote (RFC 4180, ours), and so is a quote that
//! neither a comma nor the end of the line follows (msMemScope does not escape them). Where a mark's name of
//! msMemScope still does not fit, its end is told by the numbers that follow it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use memchr::{memchr, memchr_iter, memchr2};

use super::attr::Attr;
use super::cell::{Digits, Fault, plain_number};
use super::error::Tally;
use super::row::{Cells, DumpRow, Known, Understood, understand};
use super::runs::{Place, Run, Runs};
use super::stack_table::StackTable;
use super::window::Window;
use super::{BadRow, InputError, Notes};
use crate::dump_format::{COLUMNS, stack_cell::TABLE_COLUMNS};
use crate::regular;

/// Bytes of one row: a thousand frames of both stacks fit.
const MAX_ROW_BYTES: usize = 4 << 20;
const ID_COLUMN: usize = 0;
const EVENT_COLUMN: usize = 1;
const TIME_COLUMN: usize = 4;
const PROCESS_COLUMN: usize = 5;
/// Columns without stacks, as early versions wrote them.
const MIN_COLUMNS: usize = 10;
/// Bytes that are looked at again because a quote was not closed, in one file: about 16 times the longest row. Beyond that, what
/// such a quote has swallowed is left out with it, so a hostile file takes no longer than its length.
const MAX_AGAIN_BYTES: usize = 64 << 20;
/// A file with a line beyond this is refused: no dump has one, and a hole of gigabytes is not read to its end.
const MAX_LONG_LINE_BYTES: usize = 64 << 20;
/// Lines of a mark's name that is not escaped.
const MAX_NAME_LINES: u64 = 256;
/// End of a cell that is not known yet.
const OPEN: usize = usize::MAX;
const OPEN_QUOTE: &str = "a quote is not closed";
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// A part of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Where the content starts.
    pub(crate) start: usize,
    /// Where it ends.
    pub(crate) end: usize,
    /// It holds doubled quotes.
    doubled: bool,
}

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raw {
    /// A row in its cells.
    Row,
    /// Bytes that are no row. They are noted.
    Bad,
    /// Nothing: the file, or the part of it, has ended.
    End,
}

/// How a row could be parted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// Into that many cells.
    Cells(usize),
    /// The text ends within quotes.
    Open,
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
    /// Within a line that is longer than a row can be.
    in_long_line: bool,
    /// Bytes of that line behind its first [`MAX_ROW_BYTES`].
    long_bytes: usize,
    /// What is left of [`MAX_AGAIN_BYTES`].
    again_bytes: usize,
}

impl CsvReader<File> {
    pub(crate) fn open(path: &Path) -> Result<Self, InputError> {
        CsvReader::new(regular::open(path).map_err(InputError::io(path))?, path)
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

    /// Reads the first line, of which `header` makes the number of columns.
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

    /// Bytes of the row that was read last, without the newline.
    pub(crate) fn raw(&self) -> &[u8] {
        self.input.row()
    }

    /// Bytes of the file that were read.
    pub(crate) const fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Cell of the row that was read last.
    pub(crate) fn cell(&self, column: usize) -> Cell {
        self.cells[column]
    }

    /// How many rows could be understood.
    pub(super) const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Reads the next row's cells. A row torn at the end of the file is left out and noted; so is one that cannot be parted.
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

    /// What is no row ends with its first line: an open quote must not swallow the rows behind it.
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

    /// In which runs the rows lie; `None` if there are too many of them, or rows that are none. A torn end is noted, and in no
    /// run. `told` hears of the bytes that were read, `census` of all rows; without one, nothing is read once there are no runs.
    pub(super) fn runs(
        &mut self,
        notes: &mut Notes,
        told: &mut dyn FnMut(u64),
        mut census: Option<&mut dyn FnMut(Place)>,
    ) -> Option<Runs> {
        let (mut runs, mut torn) = (Runs::default(), Notes::default());
        let mut in_order = true;
        loop {
            let raw = self.next_raw(&mut torn).ok()?;
            if raw == Raw::End {
                break;
            }
            told(self.read_bytes);
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

    /// Reads and understands the next row that events need. Rows that cannot be understood are noted.
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
                    self.known.tell(notes);
                    return Ok(Some(row));
                }
                Ok(Understood::Unused(kind)) => {
                    self.tally.understood();
                    notes.unused(kind);
                }
                // What was cut off may still look like a row.
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

    /// Parts the next row while its end is looked for, if it is one as nearly all are; otherwise nothing is read.
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

    /// Parts a row whose name is not escaped; false if that does not give one cell for each column.
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

    /// Appends one line to the row, newline included, or what of it makes the row longer than one can be; false at the end of the
    /// file.
    fn append_line(&mut self) -> Result<bool, InputError> {
        let read = self.input.add_line().map_err(InputError::io(&self.path))?;
        self.next_line += u64::from(read > 0);
        self.read_bytes += read as u64;
        Ok(read > 0)
    }
}

/// Gives the rows of a table of stacks to `take`. What is no row is left out: who refers to it misses it.
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

/// Content of a cell of a row; `whole` is the row, if all of it is text.
fn content<'a>(Cell { start, end, doubled }: Cell, row: &'a [u8], whole: Option<&'a str>) -> Cow<'a, str> {
    let text = match whole.and_then(|whole| whole.get(start..end)) {
        Some(text) => Cow::Borrowed(text),
        None => String::from_utf8_lossy(&row[start..end]),
    };
    if doubled { Cow::Owned(text.replace("\"\"", "\"")) } else { text }
}

fn trimmed(row: &[u8]) -> &[u8] {
    let row = row.strip_suffix(b"\n").unwrap_or(row);
    row.strip_suffix(b"\r").unwrap_or(row)
}

/// Parts a row into cells.
fn split(row: &[u8], cells: &mut [Cell]) -> Split {
    Splitter::default().go_on(row, cells)
}

/// How far a row could be parted in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parted {
    /// It takes so many bytes and lines, its end included.
    Row { len: usize, lines: u64 },
    /// It has no end in these bytes.
    Unfinished,
}

/// Parts the first row of `bytes` into exactly these cells, as [`Splitter`] would; `None` if only that one can tell.
fn part(bytes: &[u8], cells: &mut [Cell]) -> Option<Parted> {
    let (mut at, mut lines) = (0, 1);
    let last = cells.len().checked_sub(1)?;
    for column in 0..=last {
        let Some(&first) = bytes.get(at) else { return Some(Parted::Unfinished) };
        let mut cell = Cell { start: at, end: at, doubled: false };
        if first == b'"' {
            cell.start = at + 1;
            let Some(end) = closing(bytes, &mut cell) else { return Some(Parted::Unfinished) };
            let within = memchr_iter(b'\n', &bytes[cell.start..cell.end]).count() as u64;
            // A name of a mark that is not escaped may end before that.
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

/// Where the quote is that closes a cell, and what comes behind it: a comma or the end of a line. `None` if that is not in
/// these bytes.
fn closing(bytes: &[u8], cell: &mut Cell) -> Option<usize> {
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
struct Splitter {
    at: usize,
    count: usize,
    /// The cell whose closing quote has not come yet.
    open: Option<Cell>,
}

impl Splitter {
    /// Goes on where it stopped; `row` is what it was, and more. Cells beyond those that there is room for are counted only.
    fn go_on(&mut self, row: &[u8], cells: &mut [Cell]) -> Split {
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

/// Where the name of a mark ends whose quotes are not escaped: at the first quote that time, process, thread, device
/// and pointer follow.
fn bare_mark(row: &[u8]) -> Option<usize> {
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
fn nth_comma(row: &[u8], n: usize) -> Option<usize> {
    row.iter().enumerate().filter(|&(_, &byte)| byte == b',').nth(n - 1).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)\n";

    fn read(text: &str) -> (Result<Vec<DumpRow>, String>, Notes) {
        let mut notes = Notes::default();
        let mut rows = Vec::new();
        let mut reader = match CsvReader::new(text.as_bytes(), Path::new("x.csv")) {
            Ok(reader) => reader,
            Err(error) => return (Err(error.to_string()), notes),
        };
        loop {
            match reader.next_row(0, &mut notes) {
                Ok(Some(row)) => rows.push(row),
                Ok(None) => return (Ok(rows), notes),
                Err(error) => return (Err(error.to_string()), notes),
            }
        }
    }

    fn names(text: &str) -> Vec<String> {
        let (rows, _) = read(&format!("{HEADER}{text}"));
        rows.expect("readable").into_iter().map(|row| row.texts().name.clone()).collect()
    }

    /// Quotes as RFC 4180 has them, as msMemScope has them, and as other programs leave them.
    #[test]
    fn names_of_marks_in_all_spellings() {
        let tail = "1746006014361575999,123,1234,0,N/A,,,\n";
        let cases = [
            (r#""step start""#, "step start"),
            ("step start", "step start"),
            (r#""a,b""#, "a,b"),
            (r#""say ""hi"" now""#, r#"say "hi" now"#),
            (r#""say "hi" now""#, r#"say "hi" now"#),
            (r#""say "hi"""#, r#"say "hi""#),
            (r#""a",b""#, r#"a",b"#),
            (r#""""#, ""),
            ("\"two\nlines\"", "two\nlines"),
            ("\"two\n\"lines\"", "two\n\"lines"),
        ];
        for (cell, name) in cases {
            assert_eq!(
                names(&format!("7,MSTX,Mark,{cell},{tail}8,MSTX,Mark,\"next\",{tail}")),
                [name, "next"],
                "{cell}"
            );
        }
    }

    /// Stacks over many lines, blank lines and carriage returns are passed over; a block keeps its figures.
    #[test]
    fn blocks_with_stacks() {
        let row = "3,MALLOC,PTA,N/A,12,5,6,1,0x0000000000003039,\"{allocation_id:4,addr:0x0000000000003039,size:10,\
                   used:20,total:30}\",\"a.py(1): f\nb.py(2): g\n\",\"lib.so(f+0x1) [0x2]\nlib.so(g, \"\"x\"\") [0x3]\n\"\r\n";
        let (rows, notes) = read(&format!("{HEADER}{row}\n\n{row}"));
        let rows = rows.expect("readable");
        assert_eq!((rows.len(), rows[1].line, notes.torn_rows), (2, 9, 0));
        assert_eq!(rows[0].kind, super::super::row::Kind::Malloc(crate::model::Pool::Pta));
        assert_eq!((rows[0].allocation_id, rows[0].size_bytes), (Some(4), Some(10)));
        assert_eq!((rows[0].used_bytes, rows[0].total_bytes, rows[0].ptr), (Some(20), Some(30), Some(0x3039)));
    }

    /// A row torn at the end of the file is left out and counted, wherever it was torn.
    #[test]
    fn torn_end_is_noted() {
        let row = "3,MALLOC,PTA,N/A,12,5,6,1,0x0000000000003039,\"{allocation_id:4,size:10}\",\"a\nb\n\",\n";
        for cut in 1..row.len() - 1 {
            let (rows, notes) = read(&format!("{HEADER}{row}{}", &row[..cut]));
            // Only the newline or empty cells can be missing without anybody noticing.
            let whole = rows.expect("readable").len() - 1;
            assert_eq!(whole as u64 + notes.torn_rows, 1, "{cut}");
            assert!(whole == 0 || cut >= row.len() - 2, "{cut}");
        }
    }

    /// A row that is no row is left out, and told with file, line and column; the rows around it are read.
    #[test]
    fn bad_rows_are_left_out_with_their_place() {
        let good = "3,MALLOC,PTA,N/A,12,5,6,1,0x0000000000003039,\"{allocation_id:4,size:10}\",,\n";
        let cases = [
            (good.replacen("3,", "x,", 1), "`x.csv` line 3, column ID: `x` is not a decimal number"),
            (good.replace("0x", "0z"), "`x.csv` line 3, column Ptr: `0z0000000000003039` is not an address"),
            (good.replace(",1,0x", ",npu,0x"), "`x.csv` line 3, column Device Id: `npu` is not a decimal number"),
            (good.replace("size:10", "size:-1"), "`x.csv` line 3, column Attr: size: `-1` is not a decimal number"),
            (good.replace(",size:10", ""), "`x.csv` line 3, column Attr: a MALLOC row needs a `size`"),
            (good.replace("12,", "12,,"), "`x.csv` line 3, column ID: the row has 13 cells, the header 12"),
            ("<<<<<<< HEAD\n".to_owned(), "`x.csv` line 3, column ID: the row has 1 cells, the header 12"),
            (good.replace("}\",", "},"), "`x.csv` line 3, column ID: a quote is not closed"),
            (HEADER.to_owned(), "`x.csv` line 3, column Attr: `Attr` is not of the form {key:value,…}"),
        ];
        for (row, message) in cases {
            let (rows, notes) = read(&format!("{HEADER}{good}{row}{good}"));
            let places: Vec<_> = rows.expect("readable").iter().map(|row| row.line).collect();
            assert_eq!(places, [2, 4], "{row}");
            assert_eq!(notes.bad_rows, 1, "{row}");
            assert_eq!(notes.bad_examples[0].to_string(), message);
        }
    }

    /// A file of another kind is refused with what its first line should be.
    #[test]
    fn foreign_headers_are_refused() {
        let foreign = [
            ("a,b,c\n", "`x.csv` is no dump: line 1 does not start with the column `ID`"),
            ("", "`x.csv` is no dump: line 1 does not start with the column `ID`"),
            ("ID,Event,Kind\n", "`x.csv` is no dump: in line 1, column 3 is `Kind` instead of `Event Type`"),
        ];
        for (text, message) in foreign {
            assert_eq!(read(text).0, Err(message.to_owned()));
        }
    }

    /// A quote that is never closed swallows no row after it, even where a later quote seems to close it.
    #[test]
    fn open_quotes_swallow_nothing() {
        let row =
            |id: u64| format!("{id},MALLOC,PTA,N/A,12,5,6,1,0x0000000000003039,\"{{allocation_id:4,size:10}}\",,\n");
        let open = row(3).replace("}\"", "}");
        let (rows, notes) = read(&[HEADER, &row(2), &open, &row(4), &open, &row(5)].concat());
        let ids: Vec<u64> = rows.expect("readable").iter().map(|row| row.id).collect();
        assert_eq!(ids, [2, 4, 5]);
        let lines: Vec<u64> = notes.bad_examples.iter().map(|row| row.line).collect();
        assert_eq!((notes.bad_rows, lines), (2, vec![3, 5]));
    }

    /// A quote that is never closed, and a line without an end, do not fill the memory; what follows is read.
    #[test]
    fn huge_cells_are_left_out() {
        let good = "4,MSTX,Mark,\"x\",12,5,6,1,N/A,,,\n";
        let text = format!("{HEADER}{good}3,MSTX,Mark,{}\n{good}", "x".repeat(2 * MAX_ROW_BYTES));
        let (rows, notes) = read(&text);
        assert_eq!(rows.expect("readable").iter().map(|row| row.line).collect::<Vec<_>>(), [2, 4]);
        let message = notes.bad_examples[0].to_string();
        assert!(message.starts_with("`x.csv` line 3, column ID: the row is longer than 4194304 bytes"), "{message}");
        assert_eq!(notes.bad_rows, 1);
    }

    /// A line without an end is refused, with its number, and not read for ever.
    #[test]
    fn endless_lines_are_refused() {
        let text = format!("{HEADER}4,MSTX,Mark,\"x\",12,5,6,1,N/A,,,\n");
        let endless = text.as_bytes().chain(std::io::repeat(b'x'));
        let mut reader = CsvReader::new(endless, Path::new("x.csv")).expect("a dump");
        let mut notes = Notes::default();
        assert_eq!(reader.next_row(0, &mut notes).expect("a row").map(|row| row.line), Some(2));
        let refused = reader.next_row(0, &mut notes).expect_err("no end").to_string();
        assert_eq!(refused, "`x.csv` is no dump: line 3 is longer than 64 MiB");
    }

    /// Quotes that are open in every line cost no more than the length of the file: what one swallows is looked at again a few times
    /// only. No row is made up from it.
    #[test]
    fn many_open_quotes_take_bounded_time() {
        let line = "3,MALLOC,\"x\n";
        let text = format!("{HEADER}{}", line.repeat(4 * MAX_ROW_BYTES / line.len()));
        let mut reader = CsvReader::new(text.as_bytes(), Path::new("x.csv")).expect("a dump");
        reader.again_bytes = MAX_ROW_BYTES + 100;
        let mut notes = Notes::default();
        assert_eq!(reader.next_row(0, &mut notes).expect("readable"), None);
        // One line that the rest of the first look is spared for, then as much as a row can be, each time.
        assert_eq!((notes.bad_rows, notes.bad_examples.len()), (5, 4));
        assert_eq!(reader.read_bytes(), text.len() as u64);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Any bytes are rows or an error, never a panic.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(prop::sample::select(b"\",\n\r013xMALLOCSTX{}:".to_vec()), 0..300)) {
            let text = format!("{HEADER}{}", String::from_utf8_lossy(&bytes));
            let _ = read(&text);
        }

        /// A row that is parted while its end is looked for has the cells that it has when it is parted line by line.
        #[test]
        fn whole_rows_are_those_of_lines(
            parts in prop::collection::vec(
                prop::sample::select(vec!["\"", "\"", ",", ",", "\n", "\r", "x", "MSTX,", "7,", ",1,2,3,4,N/A,", "\"\n"]),
                0..40,
            ),
            columns in 1..12_usize,
        ) {
            let bytes = parts.concat().into_bytes();
            let mut cells = [Cell::default(); 12];
            if let Some(Parted::Row { len, lines }) = part(&bytes, &mut cells[..columns]) {
                let (mut expected, mut splitter, mut end) = ([Cell::default(); 12], Splitter::default(), 0);
                for line in 1..=lines {
                    end += memchr(b'\n', &bytes[end..]).expect("a line") + 1;
                    let found = splitter.go_on(trimmed(&bytes[..end]), &mut expected);
                    let wanted = if line == lines { Split::Cells(columns) } else { Split::Open };
                    prop_assert_eq!(found, wanted);
                    // Nor does it end earlier as a mark does.
                    prop_assert!(line == lines || bare_mark(trimmed(&bytes[..end])).is_none());
                }
                prop_assert_eq!((len, &cells[..columns]), (end, &expected[..columns]));
            }
        }
    }
}
