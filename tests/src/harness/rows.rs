//! Reads dumps as a foreign program would: by RFC 4180 and SQLite, without any of the tracer's own code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of the event in its process.
    pub id: u64,
    /// Event column.
    pub event: String,
    /// Event Type column.
    pub event_type: String,
    /// Text of the Name column as the traced program gave it; `None` for `N/A`.
    pub name: Option<String>,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Device Id column.
    pub device: String,
    /// Ptr column.
    pub ptr: Option<u64>,
    /// The Attr column's pairs.
    pub attr: BTreeMap<String, String>,
}

impl Row {
    /// A number of the Attr column.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        let text = self.attr.get(key).unwrap_or_else(|| panic!("no `{key}` in {self:?}"));
        text.parse().unwrap_or_else(|error| panic!("`{key}` in {self:?}: {error}"))
    }

    /// No call of the program stands behind it.
    #[must_use]
    pub fn is_made_up(&self) -> bool {
        self.attr.get("shadow").is_some_and(|value| value == "true")
    }

    /// `MALLOC` or `FREE`.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        self.event == "MALLOC" || self.event == "FREE"
    }
}

/// All rows below an output directory.
#[derive(Debug)]
pub struct Rows {
    /// By process, in the order of their numbers. A row without a device stands in several files, and here once.
    pub processes: BTreeMap<u32, Vec<Row>>,
    /// The files.
    pub files: Vec<PathBuf>,
}

impl Rows {
    /// Reads all dumps below a directory.
    #[must_use]
    pub fn read(output: &Path) -> Self {
        let files = dump_files(output);
        let mut processes: BTreeMap<u32, Vec<Row>> = BTreeMap::new();
        for file in &files {
            let is_db = file.extension().is_some_and(|extension| extension == "db");
            let rows = if is_db { read_db(file) } else { read_csv(file) };
            let owner = owner_of(file);
            let device = device_of(file);
            for row in rows {
                assert_eq!(row.pid, owner, "row of another process in `{}`: {row:?}", file.display());
                let placed = row.device == device || row.device == "N/A";
                assert!(placed, "row of another device in `{}`: {row:?}", file.display());
                processes.entry(row.pid).or_default().push(row);
            }
        }
        for rows in processes.values_mut() {
            rows.sort_by_key(|row| row.id);
            rows.dedup();
            let ids: BTreeSet<u64> = rows.iter().map(|row| row.id).collect();
            assert_eq!(ids.len(), rows.len(), "two rows of process {} have one number", rows[0].pid);
        }
        Self { processes, files }
    }

    /// Rows of all processes.
    pub fn all(&self) -> impl Iterator<Item = &Row> {
        self.processes.values().flatten()
    }

    /// Rows with this event.
    #[must_use]
    pub fn count(&self, event: &str) -> usize {
        self.all().filter(|row| row.event == event).count()
    }

    /// Frees that no call of the program stands behind.
    #[must_use]
    pub fn made_up(&self) -> usize {
        self.all().filter(|row| row.is_made_up()).count()
    }
}

/// Every `memscope_dump_*` below a directory.
#[must_use]
pub fn dump_files(output: &Path) -> Vec<PathBuf> {
    files_named(output, "memscope_dump_")
}

/// Files of rows below a directory with names that begin so.
fn files_named(output: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![output.to_owned()];
    while let Some(directory) = left.pop() {
        let entries =
            std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("`{}`: {error}", directory.display()));
        for entry in entries {
            let path = entry.expect("readable directory").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                left.push(path);
            } else if name.starts_with(prefix) && path.extension().is_some_and(|kind| kind == "csv" || kind == "db") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A row of a Python trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// The function or range, as the script has it.
    pub name: String,
    /// Its start, if reported.
    pub start_ns: Option<u64>,
    /// Its end, if reported.
    pub end_ns: Option<u64>,
    /// Thread.
    pub tid: u32,
    /// Process.
    pub pid: u32,
}

/// The rows of every Python trace below an output directory, in the files' order.
#[must_use]
pub fn python_traces(output: &Path) -> Vec<TraceRow> {
    files_named(output, "python_trace_").iter().flat_map(|path| read_trace(path)).collect()
}

fn read_trace(path: &Path) -> Vec<TraceRow> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    let mut records = split_csv(&text).into_iter().map(|cells| cells.into_iter().map(|cell| cell.text).collect());
    let header: Option<Vec<String>> = records.next();
    let columns = ["FuncInfo", "StartTime(ns)", "EndTime(ns)", "Thread Id", "Process Id"];
    assert_eq!(header.as_deref(), Some(columns.map(str::to_owned).as_slice()), "`{}`", path.display());
    let time = |cell: &str| (cell != "N/A").then(|| number(cell));
    let row = |cells: Vec<String>| {
        let [name, start, end, tid, pid] = <[String; 5]>::try_from(cells).expect("five cells");
        let (tid, pid) = (number(&tid) as u32, number(&pid) as u32);
        TraceRow { name: unescape(&name), start_ns: time(&start), end_ns: time(&end), tid, pid }
    };
    records.map(row).collect()
}

/// The process in `msmemscope_<pid>_<time>_ascend`, three levels above a file.
fn owner_of(file: &Path) -> u32 {
    let name = file.ancestors().nth(3).and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    let pid = name.strip_prefix("msmemscope_").and_then(|rest| rest.split('_').next()).unwrap_or_default();
    pid.parse().unwrap_or_else(|_| panic!("`{}` is in no directory of a process", file.display()))
}

/// The device in `device_<n>`, as rows spell it.
fn device_of(file: &Path) -> String {
    let name = file.ancestors().nth(2).and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    name.strip_prefix("device_").unwrap_or_else(|| panic!("`{}` is of no device", file.display())).to_owned()
}

/// Reads one dump.
#[must_use]
pub fn read_csv(path: &Path) -> Vec<Row> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    let mut records = split_csv(&text).into_iter();
    let header: Vec<String> = records.next().unwrap_or_default().into_iter().map(|cell| cell.text).collect();
    assert_eq!(header, crate::checkers::COLUMNS, "header of `{}`", path.display());
    records.map(|cells| csv_row(&cells)).collect()
}

fn csv_row(cells: &[Cell]) -> Row {
    let [id, event, event_type, name, time, pid, tid, device, ptr, attr, ..] = cells else {
        panic!("row of {} cells: {cells:?}", cells.len())
    };
    Row {
        id: number(&id.text),
        event: event.text.clone(),
        event_type: event_type.text.clone(),
        name: (name.text != "N/A" || name.quoted).then(|| unescape(&name.text)),
        time_ns: number(&time.text),
        pid: number(&pid.text) as u32,
        tid: number(&tid.text) as u32,
        device: device.text.clone(),
        ptr: address(&ptr.text),
        attr: attr_of(attr.text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default()),
    }
}

/// A value may hold commas (`shape:torch.Size([2, 3])`): what has no colon goes on with the value before it.
fn attr_of(inner: &str) -> BTreeMap<String, String> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for part in inner.split(',').filter(|part| !part.is_empty()) {
        match (part.split_once(':'), pairs.last_mut()) {
            (Some((key, value)), _) => pairs.push((key.to_owned(), value.to_owned())),
            (None, Some((_, value))) => *value = format!("{value},{part}"),
            (None, None) => panic!("part of Attr: `{part}`"),
        }
    }
    pairs.into_iter().collect()
}

fn read_db(path: &Path) -> Vec<Row> {
    // As the one file that gets copied to a viewer, and without leaving a journal beside it.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(format!("file:{}?immutable=1", path.display()), flags)
        .unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    let mut statement = connection.prepare("SELECT * FROM memscope_dump ORDER BY rowid").expect("table of rows");
    let rows = statement.query_map([], |row| {
        let name: String = row.get(3)?;
        let bare = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let attr: String = row.get(9)?;
        let pairs: BTreeMap<String, String> =
            serde_json::from_str(&attr).unwrap_or_else(|error| panic!("Attr `{attr}`: {error}"));
        let is_mark = row.get::<_, String>(1)? == "MSTX";
        Ok(Row {
            id: row.get::<_, i64>(0)?.cast_unsigned(),
            event: row.get(1)?,
            event_type: row.get(2)?,
            name: (name != "N/A").then(|| unescape(bare.filter(|_| is_mark).unwrap_or(&name))),
            time_ns: row.get::<_, i64>(4)?.cast_unsigned(),
            pid: row.get::<_, i64>(5)? as u32,
            tid: row.get::<_, i64>(6)? as u32,
            device: row.get(7)?,
            ptr: address(&row.get::<_, String>(8)?),
            attr: pairs,
        })
    });
    rows.expect("rows").map(|row| row.expect("a row")).collect()
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|error| panic!("number `{text}`: {error}"))
}

fn address(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    Some(u64::from_str_radix(digits, 16).unwrap_or_else(|error| panic!("address `{text}`: {error}")))
}

/// A cell of a CSV file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Without its quotes.
    pub text: String,
    /// It stood in quotes.
    pub quoted: bool,
}

/// Takes a CSV text apart (RFC 4180).
#[must_use]
pub fn split_csv(text: &str) -> Vec<Vec<Cell>> {
    let mut records = Vec::new();
    let mut record = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (cell, tail) = split_cell(rest);
        record.push(cell);
        rest = match tail.as_bytes().first() {
            Some(b',') => &tail[1..],
            Some(b'\n') => {
                records.push(std::mem::take(&mut record));
                &tail[1..]
            }
            None => tail,
            Some(_) => panic!("text after a closing quote: `{}`", tail.chars().take(80).collect::<String>()),
        };
    }
    assert!(record.is_empty(), "the last line has no end: {record:?}");
    records
}

fn split_cell(text: &str) -> (Cell, &str) {
    let Some(mut rest) = text.strip_prefix('"') else {
        let (cell, tail) = text.split_at(text.find([',', '\n']).unwrap_or(text.len()));
        return (Cell { text: cell.to_owned(), quoted: false }, tail);
    };
    let mut cell = Cell { text: String::new(), quoted: true };
    loop {
        let (part, tail) = rest.split_once('"').expect("every quote is closed");
        cell.text.push_str(part);
        match tail.strip_prefix('"') {
            Some(more) => {
                cell.text.push('"');
                rest = more;
            }
            None => return (cell, tail),
        }
    }
}

/// The text of the traced program again, by the rules of `sinks/row.rs`.
#[must_use]
pub fn unescape(text: &str) -> String {
    let guarded = text.starts_with('\'') && text.trim_start_matches('\'').starts_with(['=', '+', '-', '@']);
    let text = if guarded { &text[1..] } else { text };
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        out.push(match characters.next() {
            Some('\\') => '\\',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                let code: String = characters.by_ref().skip(1).take_while(|character| *character != '}').collect();
                let code = u32::from_str_radix(&code, 16).unwrap_or_else(|error| panic!("escape in `{text}`: {error}"));
                char::from_u32(code).unwrap_or_else(|| panic!("no character {code:#x} in `{text}`"))
            }
            other => panic!("escape {other:?} in `{text}`"),
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quotes, commas and line ends belong to a quoted cell.
    #[test]
    fn cells_are_taken_apart() {
        let records = split_csv("a,\"b,\"\"c\"\"\nd\",\n\"\",,e\n");
        let texts: Vec<Vec<&str>> =
            records.iter().map(|record| record.iter().map(|cell| cell.text.as_str()).collect()).collect();
        assert_eq!(texts, [vec!["a", "b,\"c\"\nd", ""], vec!["", "", "e"]]);
        assert!(records[1][0].quoted && !records[1][1].quoted);
    }

    /// Escapes and the guard against formulas are undone.
    #[test]
    fn texts_are_restored() {
        assert_eq!(unescape(r"a\\b\n\u{1b}[0m"), "a\\b\n\u{1b}[0m");
        assert_eq!(unescape("'=1"), "=1");
        assert_eq!(unescape("''=1"), "'=1");
        assert_eq!(unescape("'quoted'"), "'quoted'");
    }
}
