//! The checkers against msMemScope's own outputs: what it writes must pass, but for faults listed here.
//!
//! A group of its own: `./x test --shared DIR`, where DIR holds `golden-msmemscope`.

mod offline;
mod whatif;

use std::fs;
use std::path::{Path, PathBuf};

use memscope_tests::checkers::csv::CsvRules;
use memscope_tests::checkers::db::DbRules;
use memscope_tests::checkers::{Violation, csv, db};
use rusqlite::Connection;

fn shared(name: &str) -> PathBuf {
    let shared = std::env::var_os("MEMSCOPE_SHARED").expect("MEMSCOPE_SHARED names the folder with the references");
    PathBuf::from(shared).join(name)
}

fn golden(name: &str) -> PathBuf {
    shared("golden-msmemscope").join(name)
}

fn assert_only(name: &str, violations: &[Violation], faults: &[(&str, usize)]) {
    let mut rest: Vec<&Violation> = violations.iter().collect();
    for (fault, count) in faults {
        let before = rest.len();
        rest.retain(|violation| !violation.text.starts_with(fault));
        assert_eq!(before - rest.len(), *count, "{name}: `{fault}`");
    }
    let text: Vec<String> = rest.iter().take(10).map(ToString::to_string).collect();
    assert!(rest.is_empty(), "{name}: {} more:\n{}", rest.len(), text.join("\n"));
}

/// Every CSV dump of the reference passes, in any order of time.
#[test]
fn csv_dumps_pass() {
    for name in ["clean_csv.csv", "leaky_csv.csv", "leaky_cstack.csv", "marks.csv", "kernel_csv.csv", "ops_access.csv"]
    {
        let bytes = fs::read(golden(name)).expect("golden file");
        assert_only(name, &csv::check(&bytes, CsvRules::default()), &[]);
    }
}

/// The offline analysis rewrites the file with a CSV library: CR LF, and names of marks without quotes. The strict
/// reader stops at the first of them.
#[test]
fn rewritten_csv_passes_as_such() {
    let bytes = fs::read(golden("check_inefficient.after.csv")).expect("golden file");
    let rewritten = CsvRules { rewritten: true, ..CsvRules::default() };
    assert_only("check_inefficient.after.csv", &csv::check(&bytes, rewritten), &[]);
    assert_only("check_inefficient.after.csv", &csv::check(&bytes, CsvRules::default()), &[("header", 1)]);
}

/// The reference writes the rows of a block when it dies, so its files are not in time order, and that is noticed.
#[test]
fn reference_is_not_in_time_order() {
    let bytes = fs::read(golden("leaky_csv.csv")).expect("golden file");
    let found = csv::check(&bytes, CsvRules { time_ordered: true, ..CsvRules::default() });
    assert!(!found.is_empty() && found.iter().all(|violation| violation.text.starts_with("Timestamp runs backwards")));
}

/// The database, put together again from its schema and rows, passes.
#[test]
fn database_passes() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let path = leaky_db(folder.path());
    assert_only("leaky_db", &db::check(&path, DbRules::default()), &[]);
}

/// The golden database in `folder`.
fn leaky_db(folder: &Path) -> PathBuf {
    let path = folder.join("memscope_dump_20261121000442.db");
    let connection = Connection::open(&path).expect("database");
    connection.execute_batch(&fs::read_to_string(golden("leaky_db.schema.sql")).expect("golden file")).expect("schema");
    let rows = fs::read_to_string(golden("leaky_db.rows.csv")).expect("golden file");
    let mut insert =
        connection.prepare("INSERT INTO memscope_dump VALUES (?,?,?,?,?,?,?,?,?,?,?,?)").expect("statement");
    connection.execute_batch("BEGIN").expect("transaction");
    for line in rows.lines().skip(1) {
        insert.execute(rusqlite::params_from_iter(cells(line))).expect("row");
    }
    connection.execute_batch("COMMIT").expect("transaction");
    path
}

/// Cells of one line; no cell of that file holds a newline.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        let cell = cells.last_mut().expect("never empty");
        match character {
            '"' if quoted && characters.next_if_eq(&'"').is_some() => cell.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            _ => cell.push(character),
        }
    }
    cells
}
