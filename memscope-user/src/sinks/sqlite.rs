//! One SQLite database (contract §4.1), written in batches.
//!
//! Rows gather in memory and are inserted by one prepared statement; a transaction opens with the first of them and is
//! committed at every flush. Rows that cannot be inserted now, since another program writes or the disk is full, stay
//! in memory up to a limit. The Insight viewer reads columns by position, so their order is fixed.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, Statement, ToSql};

use super::folder::Folder;
use super::row::{Row, push_device};
use super::stack_ids::StackIds;
use super::trace_row::TraceRow;
use super::{SinkError, sqlite_vfs};
use crate::dump_format::stack_cell::{self, Reference, TABLE_COLUMNS, TABLE_NAME};
use crate::model::Stack;

/// Exactly the reference's table; `IF NOT EXISTS` does not end up in the stored schema.
const CREATE: &str = r#"CREATE TABLE IF NOT EXISTS memscope_dump ("ID" INTEGER, "Event" TEXT, "Event Type" TEXT, "Name" TEXT, "Timestamp(ns)" INTEGER, "Process Id" INTEGER, "Thread Id" INTEGER, "Device Id" TEXT, "Ptr" TEXT, "Attr" TEXT, "Call Stack(Python)" TEXT, "Call Stack(C)" TEXT)"#;
const COLUMN_COUNT: usize = 12;
/// Rows per statement: SQLite's cost of a statement is a good part of its cost of a row.
const ROWS: usize = 8;

const BUSY_TIMEOUT: Duration = Duration::from_millis(5000);
/// Rows gathered before they go in.
const BATCH_ROWS: usize = 2048;
/// Rows kept while they cannot go in.
const MAX_KEPT_ROWS: usize = 32 * BATCH_ROWS;

/// An open database.
#[derive(Debug)]
pub(super) struct DbFile {
    connection: Connection,
    /// Path for messages.
    path: PathBuf,
    /// SQLite reaches the file and its neighbours by this: closed after the connection.
    _folder: Folder,
    batch: Batch,
    /// Stacks not in the table yet, those of the open transaction included: it may be rolled back, and waiting rows
    /// need them.
    stacks: Vec<(Reference, Stack)>,
    /// Number of them in the open transaction.
    inserted_stacks: usize,
    /// Rows of the open transaction.
    uncommitted: u64,
    lost_rows: u64,
}

/// Rows to be inserted: their numbers, and where in `text` their texts are.
#[derive(Debug, Default)]
struct Batch {
    rows: Vec<BatchRow>,
    text: Vec<u8>,
}

#[derive(Debug)]
struct BatchRow {
    id: u64,
    event: &'static str,
    event_type: &'static str,
    time_ns: u64,
    pid: u32,
    tid: u32,
    name: Range<usize>,
    device: Range<usize>,
    ptr: Range<usize>,
    attr: Range<usize>,
    python: Range<usize>,
    native: Range<usize>,
}

impl DbFile {
    /// Opens a database file that exists (an empty file is one) and makes sure of its table.
    pub(super) fn open(folder: Folder, name: &str) -> Result<Self, SinkError> {
        let path = folder.path.join(name);
        let connection = connect(&folder.child(name)).map_err(SinkError::database(&path))?;
        let (batch, stacks) = (Batch::default(), Vec::new());
        Ok(Self { connection, path, _folder: folder, batch, stacks, inserted_stacks: 0, uncommitted: 0, lost_rows: 0 })
    }

    /// Takes a row; with `ids` it refers to its stacks.
    pub(super) fn write(&mut self, row: &Row<'_>, ids: Option<&mut StackIds>) -> Result<(), SinkError> {
        match ids {
            Some(ids) => {
                let added = &mut self.stacks;
                self.batch.push(row, |out, stack| ids.write(out, stack, false, |id, stack| added.push((id, stack))));
            }
            None => self.batch.push(row, |out, stack| stack_cell::write(out, stack, false)),
        }
        if self.batch.rows.len().is_multiple_of(BATCH_ROWS) { self.insert() } else { Ok(()) }
    }

    /// Writes a row of the trace; the first of a process makes the table. They are few, so they are inserted at once.
    pub(super) fn write_trace(&mut self, row: &TraceRow<'_>) -> Result<(), SinkError> {
        let result = self.insert_trace(row);
        self.uncommitted += u64::from(result.is_ok());
        self.lost_rows += u64::from(result.is_err());
        self.settle(result)
    }

    fn insert_trace(&self, row: &TraceRow<'_>) -> rusqlite::Result<()> {
        if self.connection.is_autocommit() {
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
        }
        let TraceRow { function, tid, pid, .. } = *row;
        let table = format!("python_trace_{pid}");
        let columns =
            r#""FuncInfo" TEXT, "StartTime(ns)" TEXT, "EndTime(ns)" TEXT, "Thread Id" INTEGER, "Process Id" INTEGER"#;
        self.connection.execute(&format!("CREATE TABLE IF NOT EXISTS {table} ({columns})"), [])?;
        let mut text = Vec::new();
        function.write_db(&mut text);
        let mut statement = self.connection.prepare(&format!("INSERT INTO {table} VALUES (?1, ?2, ?3, ?4, ?5)"))?;
        statement.execute((Text(&text), row.start(), row.end(), tid, pid)).map(drop)
    }

    /// Puts everything taken so far where other connections see it.
    pub(super) fn flush(&mut self) -> Result<(), SinkError> {
        self.insert()?;
        if self.uncommitted == 0 {
            return Ok(());
        }
        let result = self.connection.execute_batch("COMMIT");
        self.settle(result)
    }

    /// Moves everything into the one file, so that it can be copied by itself.
    pub(super) fn close(mut self) -> (Result<(), SinkError>, u64) {
        let result = self.flush().and_then(|()| {
            let checkpoint = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            checkpoint.map_err(SinkError::database(&self.path))
        });
        if result.is_err() {
            self.lost_rows += self.uncommitted + self.batch.rows.len() as u64;
        }
        (result, self.lost_rows)
    }

    /// Bytes of all its pages; 0 if unknown.
    pub(super) fn size_bytes(&self) -> u64 {
        let pragma = |sql| self.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap_or(0);
        (pragma("PRAGMA page_count") * pragma("PRAGMA page_size")).unsigned_abs()
    }

    /// Rows that an error took away.
    pub(super) fn take_lost_rows(&mut self) -> u64 {
        std::mem::take(&mut self.lost_rows)
    }

    fn insert(&mut self) -> Result<(), SinkError> {
        if self.batch.rows.is_empty() {
            return Ok(());
        }
        let rows = self.batch.rows.len();
        let result = self.insert_stacks().and_then(|()| self.batch.insert(&self.connection));
        let given_up = result.is_err() && rows >= MAX_KEPT_ROWS;
        self.uncommitted += if result.is_ok() { rows as u64 } else { 0 };
        self.lost_rows += if given_up { rows as u64 } else { 0 };
        if result.is_ok() || given_up {
            self.batch.rows.clear();
            self.batch.text.clear();
        }
        self.settle(result)
    }

    /// Puts stacks into their table, before the rows that refer to them.
    fn insert_stacks(&mut self) -> rusqlite::Result<()> {
        let new = &self.stacks[self.inserted_stacks..];
        if new.is_empty() {
            return Ok(());
        }
        if self.connection.is_autocommit() {
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
        }
        let [key, value] = TABLE_COLUMNS;
        let columns = format!("\"{key}\" TEXT PRIMARY KEY, \"{value}\" TEXT");
        self.connection.execute(&format!("CREATE TABLE IF NOT EXISTS {TABLE_NAME} ({columns})"), [])?;
        let mut statement = self.connection.prepare(&format!("INSERT INTO {TABLE_NAME} VALUES (?1, ?2)"))?;
        let mut text = Vec::new();
        for (id, stack) in new {
            text.clear();
            let id = part(&mut text, |out| id.write(out));
            let cell = part(&mut text, |out| stack_cell::write(out, Some(*stack), false));
            statement.execute((Text(&text[id]), Text(&text[cell])))?;
        }
        self.inserted_stacks = self.stacks.len();
        Ok(())
    }

    /// Ends a step of the open transaction. Half a batch would look like a whole one, so an error rolls the transaction
    /// back, unless SQLite already did (a full disk), and its rows are counted.
    fn settle(&mut self, result: rusqlite::Result<()>) -> Result<(), SinkError> {
        if self.connection.is_autocommit() {
            let rows = std::mem::take(&mut self.uncommitted);
            self.lost_rows += if result.is_err() { rows } else { 0 };
            let stacks = std::mem::take(&mut self.inserted_stacks);
            self.stacks.drain(..if result.is_ok() { stacks } else { 0 });
        } else if result.is_err() && self.connection.execute_batch("ROLLBACK").is_ok() {
            self.lost_rows += std::mem::take(&mut self.uncommitted);
            self.inserted_stacks = 0;
        }
        result.map_err(SinkError::database(&self.path))
    }
}

impl Batch {
    fn push(&mut self, row: &Row<'_>, mut write_stack: impl FnMut(&mut Vec<u8>, Option<Stack>)) {
        let text = &mut self.text;
        let name = part(text, |out| row.name.write_db(out));
        let device = part(text, |out| push_device(out, row.device));
        let ptr = part(text, |out| row.write_ptr(out));
        let attr = part(text, |out| row.attr.write_json(out));
        let python = part(text, |out| write_stack(out, row.stacks.python));
        let native = part(text, |out| write_stack(out, row.stacks.native_or_mixed()));
        let (id, time_ns, pid, tid) = (row.id, row.time_ns, row.pid, row.tid);
        let (event, event_type) = (row.event, row.event_type);
        self.rows.push(BatchRow { id, event, event_type, time_ns, pid, tid, name, device, ptr, attr, python, native });
    }

    fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        if connection.is_autocommit() {
            connection.execute_batch("BEGIN IMMEDIATE")?;
        }
        let (chunks, rest) = self.rows.as_chunks::<ROWS>();
        self.insert_chunks(connection, chunks)?;
        self.insert_chunks(connection, rest.as_chunks::<1>().0)
    }

    /// Parameters equal to those of the row before stay bound: a statement keeps its parameters.
    fn insert_chunks<const N: usize>(&self, connection: &Connection, chunks: &[[BatchRow; N]]) -> rusqlite::Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        let mut statement = connection.prepare(&insert_of(N))?;
        let mut before: Option<&[BatchRow; N]> = None;
        for chunk in chunks {
            for (slot, row) in chunk.iter().enumerate() {
                self.bind(&mut statement, slot * COLUMN_COUNT, row, before.and_then(|before| before.get(slot)))?;
            }
            statement.raw_execute()?;
            before = Some(chunk);
        }
        Ok(())
    }

    /// Binds a row's parameters behind those of the rows before; `before` is bound already.
    fn bind(
        &self,
        statement: &mut Statement<'_>,
        parameters: usize,
        row: &BatchRow,
        before: Option<&BatchRow>,
    ) -> rusqlite::Result<()> {
        let text = |range: &Range<usize>| &self.text[range.clone()];
        statement.raw_bind_parameter(parameters + 1, integer(row.id))?;
        statement.raw_bind_parameter(parameters + 5, integer(row.time_ns))?;
        statement.raw_bind_parameter(parameters + 9, Text(text(&row.ptr)))?;
        statement.raw_bind_parameter(parameters + 10, Text(text(&row.attr)))?;
        if before.is_none_or(|before| before.pid != row.pid) {
            statement.raw_bind_parameter(parameters + 6, row.pid)?;
        }
        if before.is_none_or(|before| before.tid != row.tid) {
            statement.raw_bind_parameter(parameters + 7, row.tid)?;
        }
        if before.is_none_or(|before| before.event != row.event) {
            statement.raw_bind_parameter(parameters + 2, row.event)?;
        }
        if before.is_none_or(|before| before.event_type != row.event_type) {
            statement.raw_bind_parameter(parameters + 3, row.event_type)?;
        }
        let texts = [
            (4, &row.name, before.map(|before| &before.name)),
            (8, &row.device, before.map(|before| &before.device)),
            (11, &row.python, before.map(|before| &before.python)),
            (12, &row.native, before.map(|before| &before.native)),
        ];
        for (column, range, known) in texts {
            if known.is_none_or(|known| text(known) != text(range)) {
                statement.raw_bind_parameter(parameters + column, Text(text(range)))?;
            }
        }
        Ok(())
    }
}

/// The statement that inserts this number of rows.
fn insert_of(rows: usize) -> String {
    let row = format!("({})", ["?"; COLUMN_COUNT].join(", "));
    format!("INSERT INTO memscope_dump VALUES {}", vec![row; rows].join(", "))
}

/// Binds bytes as text: they come from `str`s, and checking them again would cost.
struct Text<'a>(&'a [u8]);

impl ToSql for Text<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}

fn part(text: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
    let start = text.len();
    write(text);
    start..text.len()
}

/// Readers take 64-bit signed integers.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = sqlite_vfs::open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Of a new file. Rows do not go over the end of a page, and in large ones less is left unused: 172 instead of 178 bytes a row.
    connection.execute_batch("PRAGMA page_size = 16384")?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    // The rows survive a crash of the tracer either way; a power cut may cost the last half second.
    connection.execute_batch("PRAGMA synchronous = NORMAL")?;
    connection.execute_batch(CREATE)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::Event;
    use crate::sinks::fixtures::{alloc, event};
    use crate::sinks::folder::Made;

    fn database() -> (tempfile::TempDir, DbFile) {
        let folder = tempfile::tempdir().expect("temporary directory");
        let path = folder.path().join("memscope_dump_1.db");
        File::create(&path).expect("file");
        let opened = Folder::open(folder.path(), None, &Made::default()).expect("a folder");
        let file = DbFile::open(opened, "memscope_dump_1.db").expect("database");
        file.connection.busy_timeout(Duration::ZERO).expect("set");
        (folder, file)
    }

    fn write(file: &mut DbFile, event: &Event) -> Result<(), SinkError> {
        file.write(&Row::of(event).expect("a row"), None)
    }

    fn count(connection: &Connection) -> u32 {
        connection.query_row("SELECT count(*) FROM memscope_dump", [], |row| row.get(0)).expect("table")
    }

    /// A database and the files beside it stay in the folder that was opened, when a link to another one takes its
    /// path.
    #[test]
    fn databases_stay_in_their_folder() {
        let place = tempfile::tempdir().expect("temporary directory");
        let (path, moved, elsewhere) =
            (place.path().join("out"), place.path().join("moved"), place.path().join("elsewhere"));
        std::fs::create_dir(&elsewhere).expect("a folder");
        let folder = Folder::open(&path, None, &Made::default()).expect("a folder");
        File::create(path.join("x.db")).expect("a file");
        std::fs::rename(&path, &moved).expect("moved");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
        // An existing file, so that SQLite could open it.
        File::create(elsewhere.join("x.db")).expect("a file");
        let mut file = DbFile::open(folder, "x.db").expect("database");
        write(&mut file, &event(alloc(pools::HAL, 0x10, 1))).expect("in memory");
        file.flush().expect("written");
        assert!(moved.join("x.db-wal").metadata().is_ok_and(|log| log.len() > 0));
        let (result, lost) = file.close();
        result.expect("closed");
        assert_eq!(lost, 0);
        assert_eq!(count(&Connection::open(moved.join("x.db")).expect("database")), 1);
        assert_eq!(std::fs::read_dir(&elsewhere).expect("a folder").count(), 1);
        assert_eq!(elsewhere.join("x.db").metadata().expect("a file").len(), 0);
        let names: Vec<_> =
            std::fs::read_dir(&moved).expect("a folder").map(|entry| entry.expect("one").file_name()).collect();
        assert_eq!(names, ["x.db"], "a closed database is one file");
    }

    /// While another writer is at work, rows wait; then each goes in once.
    #[test]
    fn rows_wait_for_another_writer() {
        let (_folder, mut file) = database();
        let event = event(alloc(pools::HAL, 0x10, 1));
        let other = Connection::open(&file.path).expect("database");
        other.execute_batch("BEGIN IMMEDIATE").expect("lock");
        write(&mut file, &event).expect("in memory");
        let message = crate::error_chain(&file.flush().expect_err("locked"));
        assert!(message.contains("locked"), "{message}");
        assert_eq!(file.take_lost_rows(), 0);

        other.execute_batch("COMMIT").expect("unlock");
        write(&mut file, &event).expect("in memory");
        file.flush().expect("unlocked");
        assert_eq!(count(&other), 2);
    }

    /// Stacks of a transaction that is rolled back are inserted again: waiting rows find theirs, and each is there
    /// once.
    #[test]
    fn stacks_survive_a_transaction() {
        let (_folder, mut file) = database();
        let mut ids = StackIds::new(crate::sinks::stack_ids::Room::default());
        let mut write = |file: &mut DbFile, frame: &str| {
            let stack = Some(Stack::keep([frame], crate::model::StackEnd::Root));
            let stacks = crate::model::Stacks { native: stack, ..crate::model::Stacks::default() };
            let event = Event { stacks, ..event(alloc(pools::HAL, 0x10, 1)) };
            file.write(&Row::of(&event).expect("a row"), Some(&mut ids))
        };
        let other = Connection::open(&file.path).expect("database");
        write(&mut file, "f").expect("in memory");
        file.insert().expect("in a transaction");
        write(&mut file, "f").expect("in memory");
        // The first row is gone; the second one refers to what went in with it.
        file.settle(Err(rusqlite::Error::InvalidQuery)).expect_err("taken back");
        assert_eq!(file.take_lost_rows(), 1);
        write(&mut file, "g").expect("in memory");
        file.flush().expect("written");
        write(&mut file, "f").expect("in memory");
        file.flush().expect("written");
        let sql = r#"SELECT group_concat("Call Stack(C)" || s."Call Stack") FROM memscope_dump
                     JOIN memscope_stack s ON s."Stack" = "Call Stack(C)""#;
        let joined: String = other.query_row(sql, [], |row| row.get(0)).expect("rows");
        assert_eq!(joined, "#1\"f\n\",#2\"g\n\",#1\"f\n\"");
        assert_eq!((count(&other), file.stacks.len()), (3, 0));
    }

    /// Waiting rows are bounded; dropped ones are counted.
    #[test]
    fn rows_do_not_wait_for_ever() {
        let (_folder, mut file) = database();
        let event = event(alloc(pools::HAL, 0x10, 1));
        let other = Connection::open(&file.path).expect("database");
        other.execute_batch("BEGIN IMMEDIATE").expect("lock");
        let failures = (0..=MAX_KEPT_ROWS).filter(|_| write(&mut file, &event).is_err()).count();
        assert_eq!(failures, MAX_KEPT_ROWS / BATCH_ROWS);
        assert_eq!(file.take_lost_rows(), MAX_KEPT_ROWS as u64);
        other.execute_batch("COMMIT").expect("unlock");
        file.flush().expect("unlocked");
        assert_eq!(count(&other), 1);
    }

    /// Numbers beyond what readers take are the largest that they take.
    #[test]
    fn numbers_are_signed() {
        assert_eq!(integer(u64::MAX), i64::MAX);
        assert_eq!(integer(5), 5);
    }
}
