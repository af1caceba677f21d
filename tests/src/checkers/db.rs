//! Checks a `memscope_dump_*.db` by what the `MindStudio` Insight viewer needs (contract §4.2).

use std::fmt;
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::{COLUMNS, Cells, RowChecker, Violation};

/// What may differ between files that are right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DbRules {
    /// Rows with a device are in time order. Ours are; the reference's are not.
    pub time_ordered: bool,
}

/// Types of the columns, in order.
const TYPES: [&str; 12] =
    ["INTEGER", "TEXT", "TEXT", "TEXT", "INTEGER", "INTEGER", "INTEGER", "TEXT", "TEXT", "TEXT", "TEXT", "TEXT"];

/// Checks the one file, without any journal beside it: that is what gets copied to the viewer.
#[must_use]
pub fn check(path: &Path, rules: DbRules) -> Vec<Violation> {
    let mut checker = RowChecker { time_ordered: rules.time_ordered, ..RowChecker::default() };
    file_name(&mut checker, path);
    if let Err(error) = open(path).and_then(|connection| database(&mut checker, &connection)) {
        checker.complain(0, format!("database: `{error}`"));
    }
    checker.violations
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let escaped = path.display().to_string().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags)
}

fn file_name(checker: &mut RowChecker, path: &Path) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let digits = ["memscope_dump_", "leaks_dump_"].iter().find_map(|prefix| name.strip_prefix(prefix));
    let digits = digits.and_then(|rest| rest.strip_suffix(".db")).unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        checker.complain(0, format!("file name: `{name}`"));
    }
}

fn database(checker: &mut RowChecker, connection: &Connection) -> rusqlite::Result<()> {
    let integrity: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if integrity != "ok" {
        checker.complain(0, format!("integrity: `{integrity}`"));
    }
    columns(checker, connection)?;
    time_span(checker, connection)?;
    usable_rows(checker, connection)?;
    python_traces(checker, connection)?;
    let mut statement = connection.prepare("SELECT rowid, * FROM memscope_dump ORDER BY rowid")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        check_row(checker, row)?;
    }
    Ok(())
}

fn columns(checker: &mut RowChecker, connection: &Connection) -> rusqlite::Result<()> {
    let mut statement = connection.prepare("SELECT name, type FROM pragma_table_info('memscope_dump') ORDER BY cid")?;
    let found: Vec<(String, String)> =
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    let wanted = COLUMNS.iter().zip(TYPES);
    if found.len() != COLUMNS.len()
        || !found.iter().zip(wanted).all(|(found, want)| found.0 == *want.0 && found.1 == want.1)
    {
        checker.complain(0, format!("columns: `{found:?}`"));
    }
    Ok(())
}

fn time_span(checker: &mut RowChecker, connection: &Connection) -> rusqlite::Result<()> {
    let sql = r#"SELECT min("Timestamp(ns)"), max("Timestamp(ns)") FROM memscope_dump"#;
    let (min, max): (Option<i64>, Option<i64>) = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    match (min, max) {
        (Some(min), Some(max)) if min > 0 && max > min && max < i64::MAX => {}
        _ => checker.complain(0, format!("time span: `{min:?}` to `{max:?}`")),
    }
    Ok(())
}

fn usable_rows(checker: &mut RowChecker, connection: &Connection) -> rusqlite::Result<()> {
    let sql = r#"SELECT count(*) FROM memscope_dump WHERE "Device Id" NOT IN ('N/A', '', 'host')"#;
    let count: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    if count == 0 {
        checker.complain(0, "usable rows: none has a device");
    }
    Ok(())
}

/// The viewer refuses a file with an empty trace table.
fn python_traces(checker: &mut RowChecker, connection: &Connection) -> rusqlite::Result<()> {
    let sql = r"SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'python\_trace\_%' ESCAPE '\'";
    let mut statement = connection.prepare(sql)?;
    let tables: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for table in tables {
        let sql = format!(
            r#"SELECT count(*) FROM "{}" WHERE "StartTime(ns)" <> 'N/A' AND "EndTime(ns)" <> 'N/A'"#,
            table.replace('"', "\"\"")
        );
        let count: i64 = connection.query_row(&sql, [], |row| row.get(0))?;
        if count == 0 {
            checker.complain(0, format!("python trace table is empty: `{table}`"));
        }
    }
    Ok(())
}

fn check_row(checker: &mut RowChecker, row: &Row<'_>) -> rusqlite::Result<()> {
    let place = row.get::<_, i64>(0)?.unsigned_abs();
    let mut cells: Vec<String> = Vec::new();
    for (index, (column, kind)) in COLUMNS.iter().zip(TYPES).enumerate() {
        let (stored, text) = match row.get_ref(index + 1)? {
            ValueRef::Integer(number) => ("INTEGER", number.to_string()),
            ValueRef::Text(bytes) => ("TEXT", String::from_utf8_lossy(bytes).into_owned()),
            other => ("neither", format!("{other:?}")),
        };
        if stored != kind {
            checker.complain(place, format!("type of `{column}`: `{text}` is {stored}"));
        }
        cells.push(text);
    }
    let mut cells = cells.into_iter();
    let mut next = || cells.next().unwrap_or_default();
    let (id, event, event_type, name, time) = (next(), next(), next(), next(), next());
    let (pid, tid, device, ptr, attr) = (next(), next(), next(), next(), next());
    let bare = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).map(str::to_owned);
    let attr = json_pairs(checker, place, &attr);
    checker.row(&Cells {
        place,
        id,
        event,
        event_type,
        name_quoted: bare.is_some(),
        name: bare.unwrap_or(name),
        time,
        pid,
        tid,
        device,
        ptr,
        attr,
        stacks: [next(), next()],
    });
    Ok(())
}

/// The viewer reads only strings, and finds blocks by a piece of text.
fn json_pairs(checker: &mut RowChecker, place: u64, text: &str) -> Vec<(String, String)> {
    let pairs = match serde_json::from_str::<Pairs>(text) {
        Ok(Pairs(pairs)) => pairs,
        Err(error) => {
            checker.complain(place, format!("Attr is no JSON object: `{text}`: {error}"));
            return Vec::new();
        }
    };
    let mut strings = Vec::new();
    for (key, value) in pairs {
        match value {
            serde_json::Value::String(value) => strings.push((key, value)),
            other => checker.complain(place, format!("Attr value is no string: `{key}` is `{other}`")),
        }
    }
    if let Some((_, id)) = strings.iter().find(|(key, _)| key == "allocation_id")
        && !text.contains(&format!("\"allocation_id\":\"{id}\""))
    {
        checker.complain(place, format!("Attr has blanks: `{text}`"));
    }
    strings
}

/// A JSON object with its keys in order, double ones included.
struct Pairs(Vec<(String, serde_json::Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
CREATE TABLE memscope_dump ("ID" INTEGER, "Event" TEXT, "Event Type" TEXT, "Name" TEXT, "Timestamp(ns)" INTEGER,
    "Process Id" INTEGER, "Thread Id" INTEGER, "Device Id" TEXT, "Ptr" TEXT, "Attr" TEXT, "Call Stack(Python)" TEXT,
    "Call Stack(C)" TEXT);
INSERT INTO memscope_dump VALUES (1, 'MSTX', 'Mark', '"a"', 10, 7, 8, '0', 'N/A', '{}', '', '');
INSERT INTO memscope_dump VALUES (2, 'FREE', 'HAL', 'N/A', 11, 7, 8, '0', '0x0000000000000001',
    '{"allocation_id":"1","addr":"0x0000000000000001","size":"5","used":"0"}', '', '');
CREATE TABLE python_trace_7 ("FuncInfo" TEXT, "StartTime(ns)" TEXT, "EndTime(ns)" TEXT, "Thread Id" INTEGER,
    "Process Id" INTEGER);
INSERT INTO python_trace_7 VALUES ('f', '10', '11', 8, 7);
"#;

    const ORDERED: DbRules = DbRules { time_ordered: true };

    fn check_sql(name: &str, sql: &str) -> Vec<Violation> {
        let folder = tempfile::tempdir().expect("temporary directory");
        let path = folder.path().join(name);
        Connection::open(&path).expect("database").execute_batch(sql).expect("valid SQL");
        check(&path, ORDERED)
    }

    /// A database that is right passes.
    #[test]
    fn right_database_passes() {
        assert_eq!(check_sql("memscope_dump_20260101000000.db", GOOD), []);
    }

    /// Every rule rejects a database that breaks it.
    #[test]
    fn every_rule_can_fail() {
        let cases = [
            ("memscope_dump (", "memscope_damp (", "INTO memscope_dump", "INTO memscope_damp", "columns"),
            (
                "\"Thread Id\" INTEGER, \"Device Id\" TEXT",
                "\"Device Id\" INTEGER, \"Thread Id\" TEXT",
                "",
                "",
                "columns",
            ),
            ("\"Ptr\" TEXT", "\"Ptr\" BLOB", "", "", "columns"),
            ("'\"a\"', 10,", "'\"a\"', 11,", "", "", "time span"),
            ("'\"a\"', 10,", "'\"a\"', 0,", "", "", "time span"),
            ("'N/A', 11,", "'N/A', 9223372036854775807,", "", "", "time span"),
            ("8, '0'", "8, 'N/A'", "", "", "usable rows"),
            ("'f', '10', '11'", "'f', '10', 'N/A'", "", "", "python trace table is empty"),
            ("VALUES (1,", "VALUES ('x',", "", "", "type of `ID`"),
            ("'{}', ''", "'{}', NULL", "", "", "type of `Call Stack(Python)`"),
            ("'{}'", "''", "", "", "Attr is no JSON object"),
            ("'{}'", "'[]'", "", "", "Attr is no JSON object"),
            ("\"size\":\"5\"", "\"size\":5", "", "", "Attr value is no string"),
            ("\"allocation_id\":\"1\"", "\"allocation_id\": \"1\"", "", "", "Attr has blanks"),
            ("\"used\":\"0\"}", "\"used\":\"0\",\"used\":\"0\"}", "", "", "Attr has a key too many"),
            ("'\"a\"'", "'a'", "", "", "Name of a mark is not quoted"),
            ("'\"a\"', 10,", "'\"a\"', 12,", "", "", "Timestamp runs backwards"),
        ];
        for (from, to, also_from, also_to, rule) in cases {
            assert!(GOOD.contains(from), "`{from}`");
            let sql = GOOD.replace(from, to);
            let sql = if also_from.is_empty() { sql } else { sql.replace(also_from, also_to) };
            let found = check_sql("memscope_dump_1.db", &sql);
            assert!(found.iter().any(|violation| violation.text.starts_with(rule)), "{rule}: {found:?}");
        }
    }

    /// The viewer goes by the file name.
    #[test]
    fn file_names() {
        for name in
            ["dump.db", "memscope_dump_.db", "memscope_dump_1.db.db", "x_memscope_dump_1.db", "memscope_dump_1x.db"]
        {
            let found = check_sql(name, GOOD);
            assert!(found.len() == 1 && found[0].text.starts_with("file name"), "{name}: {found:?}");
        }
        assert_eq!(check_sql("leaks_dump_1.db", GOOD), []);
    }

    /// Files that are no databases, or damaged ones, are said to be.
    #[test]
    fn damaged_files() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let path = folder.path().join("memscope_dump_1.db");
        std::fs::write(&path, "no database at all, but long enough to have a header of its own").expect("written");
        assert!(check(&path, ORDERED)[0].text.starts_with("database"));

        std::fs::remove_file(&path).expect("removed");
        let many = (10..200).map(|id| GOOD.lines().nth(4).expect("row").replace("(1,", &format!("({id},")));
        let sql = GOOD.to_owned() + &many.collect::<Vec<_>>().join("\n");
        Connection::open(&path).expect("database").execute_batch(&sql).expect("valid SQL");
        let mut bytes = std::fs::read(&path).expect("read");
        let end = bytes.len();
        bytes[end - 3000..end - 1000].fill(0xff);
        std::fs::write(&path, bytes).expect("written");
        assert!(!check(&path, ORDERED).is_empty());
    }

    /// Rows that are still in the journal do not count: only the one file is handed on.
    #[test]
    fn journal_does_not_count() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let path = folder.path().join("memscope_dump_1.db");
        let connection = Connection::open(&path).expect("database");
        connection.execute_batch("PRAGMA journal_mode = WAL").expect("journal");
        connection.execute_batch(GOOD).expect("valid SQL");
        assert!(!check(&path, ORDERED).is_empty());
        drop(connection);
        assert_eq!(check(&path, ORDERED), []);
    }
}
