//! SQLite dumps, by us and by msMemScope.
//!
//! A database is opened as an immutable file, so that it cannot change. Rows that are still in its log (the tracer was
//! killed) would be invisible then, so in that case a copy of both is read instead.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};
use tempfile::TempDir;

use super::attr::Attr;
use super::cell::{Digits, Fault, plain_number};
use super::error::Tally;
use super::row::{Cells, Known, Understood, understand};
use super::runs::{Place, Run, Runs};
use super::stack_table::{StackTable, Stacks};
use super::{BadRow, InputError, Notes};
use crate::dump_format::row::DumpRow;
use crate::dump_format::{
    COLUMNS,
    stack_cell::{TABLE_COLUMNS as STACK_COLUMNS, TABLE_NAME as STACK_TABLE},
};
use crate::model::Kept;

/// Bytes of one value.
const MAX_CELL_BYTES: i32 = 4 << 20;
/// Our table's name, and that of msMemScope before 2026.
const TABLES: [&str; 2] = ["memscope_dump", "leaks_dump"];
const MIN_COLUMNS: usize = 10;
/// Columns of numbers: ID, time, process, thread, device.
const NUMBERS: [usize; 5] = [0, 4, 5, 6, 7];

/// An open database.
#[derive(Debug)]
pub(super) struct Database {
    connection: Connection,
    path: PathBuf,
    table: &'static str,
    /// Columns read: early versions had none of stacks.
    columns: usize,
    /// There are no others, so that rows have their numbers by the usual names.
    no_others: bool,
    /// What its rows have had.
    known: Known,
    tally: Tally,
    /// Folder of the copy that is read.
    _copy: Option<TempDir>,
}

impl Database {
    pub(super) fn open(path: &Path, kept: &Kept) -> Result<Self, InputError> {
        let log = with_suffix(path, "-wal");
        let (connection, copy) = if fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
            let folder = tempfile::tempdir().map_err(InputError::Sort)?;
            let copy = folder.path().join("copy.db");
            fs::copy(path, &copy)
                .and_then(|_| fs::copy(&log, with_suffix(&copy, "-wal")))
                .map_err(InputError::io(path))?;
            (Connection::open(&copy), Some(folder))
        } else {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            (Connection::open_with_flags(immutable(path)?, flags), None)
        };
        let connection = connection.map_err(InputError::database(path))?;
        let (table, columns, no_others, known) = (TABLES[0], 0, false, Known::default());
        let path_of = path.to_owned();
        let tally = Tally::default();
        let mut database = Self { connection, path: path_of, table, columns, no_others, known, tally, _copy: copy };
        database.harden().map_err(InputError::database(path))?;
        database.find_table()?;
        let stacks = database.stacks(kept).map_err(InputError::database(path))?;
        database.known = Known::with(Arc::new(StackTable::of(stacks)));
        database.known.kept = kept.clone();
        Ok(database)
    }

    /// The file may contain more than rows.
    fn harden(&self) -> rusqlite::Result<()> {
        self.connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_CELL_BYTES)?;
        self.connection.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON")
    }

    /// Whether there is such a table, and no view that computes its rows.
    fn is_table(&self, name: &str) -> rusqlite::Result<bool> {
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1 AND sql LIKE 'CREATE TABLE%'";
        self.connection.query_row(sql, [name], |row| row.get::<_, i64>(0)).map(|count| count > 0)
    }

    fn find_table(&mut self) -> Result<(), InputError> {
        let foreign = |what: String| InputError::Foreign { path: self.path.clone(), what };
        let mut found = None;
        for name in TABLES {
            if self.is_table(name).map_err(InputError::database(&self.path))? {
                found = Some(name);
                break;
            }
        }
        let table = found.ok_or_else(|| foreign(format!("no dump: it has no table `{}`", TABLES[0])))?;
        let names = self.column_names(table).map_err(InputError::database(&self.path))?;
        let right = COLUMNS.iter().zip(&names).take_while(|(wanted, name)| wanted == name).count();
        if right < MIN_COLUMNS {
            let (name, wanted) = (names.get(right).map(String::as_str).unwrap_or_default(), COLUMNS[right]);
            let name: String = name.chars().take(40).flat_map(char::escape_debug).collect();
            return Err(foreign(format!(
                "no dump: column {} of `{table}` is `{name}` instead of `{wanted}`",
                right + 1
            )));
        }
        (self.table, self.columns, self.no_others) = (table, right, right == names.len());
        Ok(())
    }

    /// The stacks that rows refer to, if there is a table of them.
    fn stacks(&self, kept: &Kept) -> rusqlite::Result<Stacks> {
        let mut stacks = Stacks::default();
        if !self.is_table(STACK_TABLE)? {
            return Ok(stacks);
        }
        let names = self.column_names(STACK_TABLE)?;
        if names.iter().take(STACK_COLUMNS.len()).ne(STACK_COLUMNS.iter()) {
            return Ok(stacks);
        }
        let [key, cell] = STACK_COLUMNS;
        let mut statement = self.connection.prepare(&format!("SELECT \"{key}\", \"{cell}\" FROM {STACK_TABLE}"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            stacks.add(&text_of(row.get_ref(0)?), &text_of(row.get_ref(1)?), kept);
        }
        Ok(stacks)
    }

    /// Names of the columns of `SELECT *`, which may be any bytes: rusqlite's own list of them panics if they are not
    /// UTF-8.
    fn column_names(&self, table: &str) -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT name FROM pragma_table_xinfo(?1) WHERE hidden <> 1 ORDER BY cid";
        let mut statement = self.connection.prepare(sql)?;
        let names = statement.query_map([table], |row| Ok(text_of(row.get_ref(0)?).into_owned()))?;
        names.collect()
    }

    /// Approximate number of rows; 0 if that takes a walk through all.
    pub(super) fn count(&self) -> u64 {
        let sql = format!("SELECT max(rowid) FROM {}", self.table);
        self.connection
            .query_row(&sql, [], |row| row.get::<_, i64>(0))
            .ok()
            .and_then(|count| u64::try_from(count).ok())
            .unwrap_or(0)
    }

    /// The runs of rows; `None` beyond the limit, or with bad rows. `progress` gets an estimate of the read bytes,
    /// `census` all rows; without one, reading stops once there are no runs.
    pub(super) fn runs(
        &self,
        size_bytes: u64,
        progress: &mut dyn FnMut(u64),
        mut census: Option<&mut dyn FnMut(Place)>,
    ) -> Option<Runs> {
        let mut in_order = self.no_others;
        if !in_order && census.is_none() {
            return None;
        }
        let count = self.count().max(1);
        // With other columns, one of them may have the name of row numbers.
        let (rowid, order) = if self.no_others { ("rowid", "ORDER BY rowid") } else { ("0", "") };
        let sql = format!(r#"SELECT {rowid}, "ID", "Timestamp(ns)", "Process Id" FROM {} {order}"#, self.table);
        let mut statement = self.connection.prepare(&sql).ok()?;
        let mut rows = statement.query([]).ok()?;
        let (mut runs, mut seen) = (Runs::default(), 0);
        while let Some(row) = rows.next().ok()? {
            let number = |index| match row.get_ref(index).ok()? {
                ValueRef::Integer(number) => u64::try_from(number).ok(),
                other => plain_number(text_of(other).as_bytes()),
            };
            let place = || {
                let pid = number(3).and_then(|pid| u32::try_from(pid).ok())?;
                Some(Place { pid, id: number(1)?, time_ns: number(2)? })
            };
            let place = place();
            if let (Some(place), Some(census)) = (place, &mut census) {
                census(place);
            }
            seen += 1;
            in_order = in_order && {
                let taken = place.zip(number(0)).map(|(place, rowid)| runs.take(place, (rowid, rowid), seen));
                taken == Some(true)
            };
            if !in_order && census.is_none() {
                return None;
            }
            progress(size_bytes / count * seen);
        }
        in_order.then_some(runs)
    }

    /// Number of understood rows.
    pub(super) const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The next rows of a run, a page of them; and the rest of the run.
    pub(super) fn page(
        &mut self,
        file: u32,
        run: &mut Run,
        count: u32,
        notes: &mut Notes,
    ) -> Result<Vec<DumpRow>, InputError> {
        let failed = || InputError::database(&self.path);
        let sql = format!(
            "SELECT {}, rowid FROM {} WHERE rowid BETWEEN ?1 AND ?2 ORDER BY rowid LIMIT {count}",
            self.column_list(),
            self.table
        );
        let mut statement = self.connection.prepare(&sql).map_err(failed())?;
        let mut rows = statement.query([run.start as i64, run.end as i64]).map_err(failed())?;
        let mut page = Vec::new();
        let mut seen = 0;
        while let Some(row) = rows.next().map_err(failed())? {
            run.start = row.get::<_, i64>(self.columns).map_err(failed())? as u64 + 1;
            let place = (file, run.line);
            match understood(row, self.columns, place, &mut self.known).map_err(failed())? {
                Ok(row) => {
                    self.tally.understood();
                    match row {
                        Understood::Row(row) => page.push(row),
                        Understood::Unused(kind) => notes.unused(kind),
                    }
                }
                Err(fault) => self.tally.bad(BadRow::new(&self.path, "row", run.line, fault), notes),
            }
            (run.line, seen) = (run.line + 1, seen + 1);
        }
        self.known.note(notes);
        if seen < count {
            run.start = run.end + 1;
        }
        Ok(page)
    }

    /// Gives all rows to `take`.
    pub(super) fn rows(
        &self,
        file: u32,
        notes: &mut Notes,
        mut take: impl FnMut(DumpRow) -> Result<(), InputError>,
    ) -> Result<(), InputError> {
        let failed = || InputError::database(&self.path);
        let sql = format!("SELECT {} FROM {}", self.column_list(), self.table);
        let mut statement = self.connection.prepare(&sql).map_err(failed())?;
        let mut rows = statement.query([]).map_err(failed())?;
        let (mut line, mut known, mut tally) = (0, self.known.for_others(), Tally::default());
        while let Some(row) = rows.next().map_err(failed())? {
            line += 1;
            match understood(row, self.columns, (file, line), &mut known).map_err(failed())? {
                Ok(row) => {
                    tally.understood();
                    match row {
                        Understood::Row(row) => take(row)?,
                        Understood::Unused(kind) => notes.unused(kind),
                    }
                }
                Err(fault) => tally.bad(BadRow::new(&self.path, "row", line, fault), notes),
            }
        }
        known.note(notes);
        tally.check()
    }

    fn column_list(&self) -> String {
        let columns: Vec<String> = COLUMNS[..self.columns].iter().map(|name| format!("\"{name}\"")).collect();
        columns.join(",")
    }
}

/// A row that begins with the columns of a dump.
fn understood(
    row: &Row<'_>,
    columns: usize,
    place: (u32, u64),
    known: &mut Known,
) -> rusqlite::Result<Result<Understood, Fault>> {
    let (mut text, mut numbers) = (<[Cow<'_, str>; COLUMNS.len()]>::default(), [None; COLUMNS.len()]);
    for (index, (cell, number)) in text.iter_mut().zip(&mut numbers).take(columns).enumerate() {
        match row.get_ref(index)? {
            ValueRef::Integer(integer) if NUMBERS.contains(&index) && integer >= 0 => *number = Some(integer as u64),
            value => *cell = text_of(value),
        }
    }
    let [_, event, event_type, name, .., ptr, attr, python, native] = &text;
    let name = unquoted(event, name);
    let [id, time, pid, tid, device] = NUMBERS.map(|index| match numbers[index] {
        Some(number) => Digits::Number(number),
        None => Digits::Text(&text[index]),
    });
    let mut unescaped = Vec::new();
    let cells = Cells { id, event, event_type, name, time, pid, tid, device, ptr, python, native };
    Ok(Attr::of_json(attr, &mut unescaped).and_then(|attr| understand(&cells, &attr, place, known)))
}

fn text_of(value: ValueRef<'_>) -> Cow<'_, str> {
    match value {
        ValueRef::Null => Cow::Borrowed(""),
        ValueRef::Integer(number) => Cow::Owned(number.to_string()),
        ValueRef::Real(number) => Cow::Owned(number.to_string()),
        // Nearly all is text, which is faster to find out like this.
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
        }
    }
}

/// Names of marks have quotes around them.
fn unquoted<'a>(event: &str, name: &'a str) -> &'a str {
    let inner = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
    inner.filter(|_| event == "MSTX").unwrap_or(name)
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A file as SQLite wants to have it named, so that nothing is ever written beside it.
fn immutable(path: &Path) -> Result<String, InputError> {
    use std::fmt::Write as _;
    use std::os::unix::ffi::OsStrExt as _;

    let absolute = std::path::absolute(path).map_err(InputError::io(path))?;
    let mut uri = "file:".to_owned();
    for &byte in absolute.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            let _ = write!(uri, "%{byte:02x}");
        }
    }
    uri.push_str("?immutable=1");
    Ok(uri)
}
