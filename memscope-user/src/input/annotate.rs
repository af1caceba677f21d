//! Results of analyses in the rows of a dump: in a copy, or in the dump itself if requested.
//!
//! `inefficient_type` or `owner` of a block goes to the end of the Attr of its MALLOC row; an earlier one is replaced.
//! All other bytes are unchanged (msMemScope rewrites the whole file, with other line ends and without the quotes
//! around names).

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::OpenFlags;

use super::csv::{CsvReader, Raw, without_key};
use super::{Format, InputError, Notes};
use crate::analyses::inefficient::{Inefficient, InefficientKind};
use crate::dump_format::stack_cell::table_name;
use crate::hash::HashMap;
use crate::model::Name;
use crate::regular;
use crate::sinks::folder::{FilePlace, Owner};
use crate::sinks::sqlite_vfs;

const COLUMN_EVENT: usize = 1;
const COLUMN_PID: usize = 5;
const COLUMN_ATTR: usize = 9;

/// A key of Attr, and its value for each block: by process and number.
#[derive(Debug)]
pub struct Annotations {
    key: &'static str,
    values: HashMap<(u32, u64), Cow<'static, str>>,
    owner: Option<Owner>,
}

impl Destination {
    /// A copy of `dump` at this path, which replaces an older file only if that is `forced`.
    ///
    /// # Errors
    ///
    /// When a file exists that must not be replaced.
    pub fn copy(dump: &Path, path: PathBuf, forced: bool) -> Result<Self, AnnotateError> {
        let Ok(there) = path.symlink_metadata() else { return Ok(Self::New(path)) };
        if path.canonicalize().ok() == dump.canonicalize().ok() {
            return Err(AnnotateError::Same(path));
        }
        match forced {
            false => Err(AnnotateError::Exists(path)),
            true if there.is_file() => Ok(Self::Replace(path)),
            true => Err(io_error(&path)(regular::refusal(there.file_type()))),
        }
    }
}

impl Annotations {
    /// The marks of all blocks of these findings.
    #[must_use]
    pub fn of<'a>(findings: impl IntoIterator<Item = &'a Inefficient>) -> Self {
        let mut marks = HashMap::default();
        for found in findings {
            for block in &found.blocks {
                let kinds: Vec<&str> = block.marks().map(InefficientKind::as_str).collect();
                marks.insert((found.pid, block.allocation_id), Cow::Owned(kinds.join(",")));
            }
        }
        Self { key: "inefficient_type", values: marks, owner: None }
    }

    /// Owners of blocks.
    #[must_use]
    pub fn owners(owners: HashMap<(u32, u64), Name>) -> Self {
        let values = owners.into_iter().map(|(block, owner)| (block, Cow::Borrowed(owner.as_str()))).collect();
        Self { key: "owner", values, owner: None }
    }

    /// User and group that new files are handed to.
    #[must_use]
    pub fn handed_to(self, owner: Option<Owner>) -> Self {
        Self { owner, ..self }
    }
}

/// Where the marked rows go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A new file, which must not exist.
    New(PathBuf),
    /// A file that replaces an older one.
    Replace(PathBuf),
    /// The file itself.
    InPlace,
}

/// Rows could not be marked.
#[derive(Debug, thiserror::Error)]
pub enum AnnotateError {
    /// The dump cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The output cannot be written.
    #[error("cannot write `{}`", path.display())]
    Io {
        /// The output.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("cannot write `{}`", path.display())]
    Database {
        /// The output.
        path: PathBuf,
        /// Why not.
        #[source]
        source: rusqlite::Error,
    },
    /// An earlier run has written it, or another program.
    #[error("`{}` exists already: overwrite it with --force, or name another file with --output-path", .0.display())]
    Exists(PathBuf),
    /// The copy is the dump.
    #[error("`{}` is the dump itself: name another file with --output-path", .0.display())]
    Same(PathBuf),
    /// There are no rows in it.
    #[error("a capture has no rows to mark; mark its dump")]
    Capture,
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> AnnotateError {
    let path = path.to_owned();
    move |source| AnnotateError::Io { path, source }
}

/// Takes the bytes done, and all bytes to do.
type Watch<'a> = &'a mut dyn FnMut(u64, u64);

/// Marks the rows of a dump; gives their number.
pub fn annotate(
    dump: &Path,
    marks: &Annotations,
    to: &Destination,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<u64, AnnotateError> {
    match super::format(dump)? {
        Format::Csv => annotate_csv(dump, marks, to, watch),
        Format::Db => annotate_db(dump, marks, to, watch),
        Format::Capture => Err(AnnotateError::Capture),
    }
}

fn annotate_csv(dump: &Path, marks: &Annotations, to: &Destination, watch: Watch<'_>) -> Result<u64, AnnotateError> {
    match to {
        Destination::New(path) | Destination::Replace(path) => {
            let (place, file) = create(path, marks, to).map_err(io_error(path))?;
            let written = copy_csv(dump, marks, file, watch).map_err(|error| error.at(path));
            let written = written.and_then(|count| {
                copy_stacks(dump, &place, to).map_err(io_error(path))?;
                Ok(count)
            });
            if written.is_err() {
                place.remove();
            }
            written
        }
        Destination::InPlace => {
            // Links are followed: the file behind them is replaced, at once and as a whole.
            let place = FilePlace::reach(dump, marks.owner).map_err(io_error(dump))?;
            let temporary = place.beside(&format!(".{}.tmp", std::process::id())).map_err(io_error(dump))?;
            let file = temporary.create_new().map_err(io_error(dump))?;
            let replaced = replace_csv(dump, marks, (&place, &temporary), file, watch);
            if replaced.is_err() {
                temporary.remove();
            }
            replaced
        }
    }
}

/// Copies the table of stacks that rows refer to, if there is one: the copy's rows look for it beside the copy.
fn copy_stacks(dump: &Path, place: &FilePlace, to: &Destination) -> io::Result<()> {
    let name = |path: &Path| table_name(&path.file_name().unwrap_or_default().to_string_lossy());
    let mut table = match regular::open(&dump.with_file_name(name(dump))) {
        Ok(table) => table,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let copy = place.sibling(&name(&place.path()))?;
    if let Ok(there) = copy.path().symlink_metadata() {
        let own = table.metadata()?;
        if (there.dev(), there.ino()) == (own.dev(), own.ino()) {
            return Ok(());
        }
        if matches!(to, Destination::Replace(_)) {
            copy.remove_old()?;
        }
    }
    let copied = io::copy(&mut table, &mut copy.create_new()?);
    copied.map(drop).inspect_err(|_| copy.remove())
}

/// Makes a new file; an old one to replace is removed first.
fn create(path: &Path, marks: &Annotations, to: &Destination) -> io::Result<(FilePlace, File)> {
    let place = FilePlace::reach(path, marks.owner)?;
    if matches!(to, Destination::Replace(_)) {
        // A log that SQLite left beside the old database would be taken for one of the new.
        for suffix in ["", "-wal", "-shm"] {
            place.beside(suffix)?.remove_old()?;
        }
    }
    let file = place.create_new()?;
    Ok((place, file))
}

fn replace_csv(
    dump: &Path,
    marks: &Annotations,
    (place, temporary): (&FilePlace, &FilePlace),
    file: File,
    watch: Watch<'_>,
) -> Result<u64, AnnotateError> {
    let permissions = fs::metadata(place.path()).map_err(io_error(dump))?.permissions();
    file.set_permissions(permissions).map_err(io_error(dump))?;
    let count = copy_csv(&place.path(), marks, file, watch).map_err(|error| error.at(dump))?;
    temporary.replace(place).map_err(io_error(dump))?;
    Ok(count)
}

enum CopyError {
    Input(InputError),
    Write(io::Error),
}

impl CopyError {
    fn at(self, path: &Path) -> AnnotateError {
        match self {
            Self::Input(error) => AnnotateError::Input(error),
            Self::Write(source) => AnnotateError::Io { path: path.to_owned(), source },
        }
    }
}

fn copy_csv(dump: &Path, marks: &Annotations, file: File, watch: Watch<'_>) -> Result<u64, CopyError> {
    let total = fs::metadata(dump).map_or(0, |file| file.len());
    let mut out = BufWriter::with_capacity(1 << 18, file);
    let mut notes = Notes::default();
    let mut reader = CsvReader::open(dump).map_err(CopyError::Input)?;
    out.write_all(reader.raw()).map_err(CopyError::Write)?;
    let mut count = 0;
    loop {
        let mark = match reader.next_raw(&mut notes).map_err(CopyError::Input)? {
            Raw::Row => mark_of(&reader, marks),
            Raw::Bad => None,
            Raw::End => break,
        };
        let row = reader.raw();
        let written = match mark {
            Some((attr, mark)) => {
                count += 1;
                let cell = reader.cell(COLUMN_ATTR);
                let key = marks.key;
                let attr = format!("{},{key}:{mark}}}", without_key(attr.trim_end_matches('}'), key));
                [&row[..cell.start], attr.as_bytes(), &row[cell.end..]].iter().try_for_each(|part| out.write_all(part))
            }
            None => out.write_all(row),
        };
        written.map_err(CopyError::Write)?;
        watch(reader.read_bytes(), total);
    }
    out.flush().map_err(CopyError::Write)?;
    Ok(count)
}

/// The Attr of a MALLOC row of a marked block, and the mark.
fn mark_of<'a, R: io::Read>(reader: &'a CsvReader<R>, marks: &'a Annotations) -> Option<(&'a str, &'a str)> {
    let text = |column| {
        let cell = reader.cell(column);
        std::str::from_utf8(&reader.raw()[cell.start..cell.end]).ok()
    };
    if text(COLUMN_EVENT)? != "MALLOC" {
        return None;
    }
    let attr = text(COLUMN_ATTR)?;
    let number = attr.split(['{', ',']).find_map(|pair| pair.strip_prefix("allocation_id:"))?;
    let key = (text(COLUMN_PID)?.parse().ok()?, number.trim_end_matches('}').parse().ok()?);
    Some((attr, marks.values.get(&key)?))
}

fn annotate_db(dump: &Path, marks: &Annotations, to: &Destination, watch: Watch<'_>) -> Result<u64, AnnotateError> {
    let (path, place) = match to {
        Destination::InPlace => (dump, FilePlace::reach(dump, marks.owner).map_err(io_error(dump))?),
        Destination::New(path) | Destination::Replace(path) => {
            let (place, file) = create(path, marks, to).map_err(io_error(path))?;
            copy_db(dump, file, &place).map_err(io_error(path))?;
            (path.as_path(), place)
        }
    };
    update_db(&place.path(), marks, watch).map_err(|source| AnnotateError::Database { path: path.to_owned(), source })
}

/// Copies a database into a new file, with the rows still in its log.
fn copy_db(dump: &Path, mut copy: File, place: &FilePlace) -> io::Result<()> {
    const LOG: &str = "-wal";
    io::copy(&mut File::open(dump)?, &mut copy)?;
    match File::open(super::with_suffix(dump, LOG)) {
        Ok(mut log) => io::copy(&mut log, &mut place.beside(LOG)?.create_new()?).map(drop),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn update_db(path: &Path, marks: &Annotations, watch: Watch<'_>) -> rusqlite::Result<u64> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = sqlite_vfs::open(path, flags)?;
    // Triggers of a foreign file must not run.
    connection.execute_batch("PRAGMA trusted_schema = OFF")?;
    connection.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    let table: String = connection.query_row(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('memscope_dump', 'leaks_dump') ORDER BY name DESC",
        [],
        |row| row.get(0),
    )?;
    let transaction = connection.transaction()?;
    let mut count = 0;
    {
        // Rows are read, then those with a mark are written: each is half of the work.
        let last: i64 =
            transaction.query_row(&format!("SELECT coalesce(max(rowid), 0) FROM {table}"), [], |row| row.get(0))?;
        let half = last.max(1).unsigned_abs();
        let sql = format!("SELECT rowid, \"Process Id\", \"Attr\" FROM {table} WHERE \"Event\" = 'MALLOC'");
        let mut select = transaction.prepare(&sql)?;
        let mut rows = select.query([])?;
        let mut changes = Vec::new();
        while let Some(row) = rows.next()? {
            let (rowid, pid, attr): (i64, u32, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let number = serde_json::from_str::<serde_json::Value>(&attr).ok().and_then(|attr| {
                let number = &attr["allocation_id"];
                number.as_str().and_then(|number| number.parse().ok()).or_else(|| number.as_u64())
            });
            if let Some(mark) = number.and_then(|number| marks.values.get(&(pid, number))) {
                changes.push((rowid, marked_json(&attr, marks.key, mark)));
            }
            watch(rowid.clamp(0, last).unsigned_abs(), 2 * half);
        }
        let mut update = transaction.prepare(&format!("UPDATE {table} SET \"Attr\" = ?1 WHERE rowid = ?2"))?;
        let all = changes.len() as u64;
        for (rowid, attr) in changes {
            update.execute((attr, rowid))?;
            count += 1;
            let written = u128::from(half) * u128::from(count) / u128::from(all);
            watch(half.saturating_add(written as u64), 2 * half);
        }
    }
    transaction.commit()?;
    // Everything goes into the one file, so that it can be copied by itself.
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(count)
}

/// The object with a mark at its end. The order of the other keys stays: readers search for their text.
fn marked_json(attr: &str, key: &str, mark: &str) -> String {
    let mut text = attr.trim_end().trim_end_matches('}').to_owned();
    let earlier = format!(",\"{key}\":\"");
    if let Some(start) = text.find(&earlier) {
        let end = text[start + earlier.len()..].find('"').map_or(text.len(), |end| start + earlier.len() + end + 1);
        text.replace_range(start..end, "");
    }
    format!("{text},\"{key}\":\"{mark}\"}}")
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::dump_format::COLUMNS;

    fn marks() -> Annotations {
        let values = HashMap::from_iter([((5, 7), Cow::Borrowed("early_allocation,late_deallocation"))]);
        Annotations { key: "inefficient_type", values, owner: None }
    }

    fn row(id: u64, number: u64, more: &str) -> String {
        format!("{id},MALLOC,PTA,N/A,1,5,5,0,0x10,\"{{allocation_id:{number},size:64{more}}}\",,\r\n")
    }

    /// Only the row of the block changes, in a new file; the dump is unchanged, unless requested.
    #[test]
    fn csv_rows_are_marked() {
        let folder = tempfile::tempdir().expect("folder");
        let dump = folder.path().join("memscope_dump_1.csv");
        let mark = "1,MSTX,Mark,\"a \"\"b\"\"\",1,5,5,0,N/A,,,\n";
        let header = COLUMNS.join(",") + "\r\n";
        let text = |more: &str| format!("{header}{mark}{}{}{}", row(2, 6, ""), row(3, 7, more), mark);
        let earlier = ",inefficient_type:temporary_idleness,early_allocation,owner:PTA";
        fs::write(&dump, text(earlier)).expect("written");
        let new = folder.path().join("marked/memscope_dump_1.csv");
        assert_eq!(annotate(&dump, &marks(), &Destination::New(new.clone()), &mut |_, _| {}).expect("marked"), 1);
        let expected = text(",owner:PTA,inefficient_type:early_allocation,late_deallocation");
        assert_eq!(fs::read_to_string(&new).expect("readable"), expected);
        assert_eq!(fs::read_to_string(&dump).expect("readable"), text(earlier));
        let again = annotate(&dump, &marks(), &Destination::New(new), &mut |_, _| {}).expect_err("is there");
        assert!(crate::error_chain(&again).contains("File exists"));
        let other = Destination::copy(&dump, folder.path().join("other.csv"), false).expect("free");
        assert_eq!(other, Destination::New(folder.path().join("other.csv")));
        let mut reported = Vec::new();
        annotate(&dump, &marks(), &Destination::InPlace, &mut |done, total| reported.push((done, total)))
            .expect("marked");
        assert!(reported.is_sorted() && reported.last().is_some_and(|(done, total)| done == total), "{reported:?}");
        assert_eq!(fs::read_to_string(&dump).expect("readable"), expected);
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 2);
    }

    /// The table of stacks that rows refer to is copied, too, under the name that its rows refer to; a marked dump
    /// keeps its own.
    #[test]
    fn stacks_go_with_a_copy() {
        let folder = tempfile::tempdir().expect("folder");
        let path = |name: &str| folder.path().join(name);
        let dump = path("memscope_dump_1.csv");
        let referring = row(2, 6, "").replace(",,\r\n", ",,#1\n");
        assert!(referring.ends_with(",#1\n"), "{referring}");
        fs::write(&dump, COLUMNS.join(",") + "\n" + &referring).expect("written");
        let table = "Stack,Call Stack\n#1,\"f\n\"\n";
        fs::write(path("memscope_stacks_1.csv"), table).expect("written");
        let annotate = |to: Destination| annotate(&dump, &marks(), &to, &mut |_, _| {}).expect("marked");
        for (copy, of_copy) in
            [("m/memscope_dump_1.csv", "m/memscope_stacks_1.csv"), ("x.csv", "memscope_stacks_x.csv")]
        {
            annotate(Destination::New(path(copy)));
            assert_eq!(fs::read_to_string(path(of_copy)).expect("readable"), table);
            fs::write(path(of_copy), "old").expect("written");
            annotate(Destination::Replace(path(copy)));
            assert_eq!(fs::read_to_string(path(of_copy)).expect("readable"), table);
        }
        // Its table would have the name of the dump's own: they are the same.
        annotate(Destination::New(path("1.csv")));
        annotate(Destination::Replace(path("1.csv")));
        annotate(Destination::InPlace);
        assert_eq!(fs::read_to_string(path("memscope_stacks_1.csv")).expect("readable"), table);
    }

    /// The owner that a row has is replaced; others stay.
    #[test]
    fn rows_get_owners() {
        let folder = tempfile::tempdir().expect("folder");
        let dump = folder.path().join("memscope_dump_1.csv");
        let text = |owner: &str| format!("{}\n{}{}", COLUMNS.join(","), row(2, 6, ",owner:PTA"), row(3, 7, owner));
        fs::write(&dump, text(",owner:PTA@backward,requested:3")).expect("written");
        let new = folder.path().join("new.csv");
        let owners = Annotations::owners(HashMap::from_iter([((5, 7), Name::keep("PTA@gradient"))]));
        assert_eq!(annotate(&dump, &owners, &Destination::New(new.clone()), &mut |_, _| {}).expect("marked"), 1);
        assert_eq!(fs::read_to_string(&new).expect("readable"), text(",requested:3,owner:PTA@gradient"));
    }

    #[test]
    fn db_rows_are_marked() {
        let folder = tempfile::tempdir().expect("folder");
        let dump = folder.path().join("memscope_dump_1.db");
        let connection = Connection::open(&dump).expect("database");
        let columns: Vec<String> = COLUMNS.iter().map(|name| format!("\"{name}\"")).collect();
        connection.execute_batch(&format!("CREATE TABLE memscope_dump ({})", columns.join(","))).expect("made");
        let attr = "{\"allocation_id\":\"7\",\"inefficient_type\":\"temporary_idleness\",\"size\":\"64\"}";
        let row = format!("INSERT INTO memscope_dump VALUES (1,'MALLOC','PTA','N/A',5,5,7,'0','0x10','{attr}','','')");
        connection.execute_batch(&row).expect("written");
        drop(connection);
        let before = fs::read(&dump).expect("readable");
        let new = folder.path().join("new.db");
        assert_eq!(annotate(&dump, &marks(), &Destination::New(new.clone()), &mut |_, _| {}).expect("marked"), 1);
        assert_eq!(fs::read(&dump).expect("readable"), before);
        let read = |path: &Path| -> String {
            let connection = Connection::open(path).expect("database");
            connection.query_row("SELECT Attr FROM memscope_dump", [], |row| row.get(0)).expect("a row")
        };
        let expected =
            "{\"allocation_id\":\"7\",\"size\":\"64\",\"inefficient_type\":\"early_allocation,late_deallocation\"}";
        assert_eq!(read(&new), expected);
        let mut reported = Vec::new();
        annotate(&dump, &marks(), &Destination::InPlace, &mut |done, total| reported.push((done, total)))
            .expect("marked");
        assert!(reported.is_sorted() && reported.last().is_some_and(|(done, total)| done == total), "{reported:?}");
        assert_eq!(read(&dump), expected);
    }
}
