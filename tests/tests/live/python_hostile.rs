//! Texts of a script that mean harm, in every output: each is one cell of one row, and none does anything to a terminal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::harness::kernel;
use memscope_tests::harness::pythons::interpreters;
use memscope_tests::harness::rows::{Row, Rows, python_traces, unescape};
use memscope_tests::harness::tracer::{Run, Tracer, python_package, tracer_path};
use rusqlite::Connection;

/// What `TEXTS` of the script say: as names, and as words of owners. Longer ones are cut; what is no UTF-8 is replaced, byte by byte.
const TEXTS: [(&str, &str); 11] = [
    ("line\nbreak\r\tend", "line_break__end"),
    ("\"quoted\", comma", "_quoted___comma"),
    ("\u{1b}[2J\u{1b}]0;title\u{7}\u{7f}", "_[2J_]0;title__"),
    ("=1+1", "=1+1"),
    ("bad \u{fffd}\u{fffd} \u{fffd}", "bad___ _"),
    ("\u{202e} \u{2028} \u{9b}", "_____"),
    ("before", "before"),
    ("N/A", "N/A"),
    ("{a:1,b:2}", "{a_1_b_2}"),
    ("\u{4e2d}\u{6587}", "__"),
    ("back\\slash", "back_slash"),
];

fn trace(options: &[&str]) -> Run {
    let place = tempfile::tempdir().expect("a folder");
    let script = place.path().join("hostile.py");
    fs::write(&script, include_str!("../../workloads/hostile.py")).expect("the workload");
    let python = interpreters().pop().expect("an interpreter");
    let tracer = Tracer::run_program(&python.path, &["-B", script.to_str().expect("a plain path")]);
    tracer.env("PYTHONPATH", python_package()).option("--analysis=decompose").options(options).succeed()
}

/// Nothing in it controls a terminal, ends a line, or changes the direction of writing.
fn assert_harmless(what: &str, bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    let is_bad = |c: &char| {
        (c.is_control() && *c != '\n')
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let bad = text.lines().find(|line| line.chars().any(|c| is_bad(&c)));
    assert_eq!(bad, None, "{what}");
}

/// All files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

fn assert_rows(rows: &Rows, said: &str) {
    // Of names that are no marks' it is unknown which is none.
    let snapshots = rows.all().filter(|row| row.event == "SNAPSHOT");
    let names: Vec<String> = snapshots.map(|row| row.name.clone().unwrap_or_else(|| "N/A".to_owned())).collect();
    let wanted: Vec<&str> = TEXTS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names[..TEXTS.len()], wanted, "{said}");
    assert_long(&names[TEXTS.len()..]);
    let owner = |number: usize| {
        let is_it = |row: &&Row| row.event == "MALLOC" && row.number("size") == 1000 + number as u64;
        rows.all().find(is_it).expect("a block").attr["owner"].clone()
    };
    for (number, (_, word)) in TEXTS.iter().enumerate() {
        assert_eq!(owner(number), format!("CANN@APP@{}", word.replace(' ', "_")), "{said}");
    }
    let long = owner(TEXTS.len());
    assert!(long.starts_with("CANN@APP@xxx") && long.len() <= 256, "{long}");
}

/// The last text is a long one, of which eight pieces of 127 bytes are kept, and that it goes on.
fn assert_long(names: &[String]) {
    assert_eq!(names, [format!("{}\u{2026}", "x".repeat(8 * 127))]);
}

fn assert_trace(names: &[String]) {
    let wanted: Vec<&str> = TEXTS.iter().map(|(name, _)| *name).collect();
    let ranges: Vec<&str> = names.iter().map(String::as_str).filter(|name| wanted.contains(name)).collect();
    assert_eq!(ranges, wanted, "{names:?}");
    // The package has escaped this one itself.
    let called = |name: &String| name == "file\\x1b[2J\\n\",.py(1): called";
    assert_eq!(names.iter().any(called), kernel::has_cookies(), "{names:?}");
}

#[test]
fn python_texts_are_escaped_in_csv_and_reports() {
    let run = trace(&["--json"]);
    assert_harmless("stdout", run.stdout.as_bytes());
    assert_harmless("stderr", run.stderr.as_bytes());
    let mut files = files_below(&run.folder.output_path());
    files.retain(|path| path.extension().is_none_or(|kind| kind != "capture"));
    assert!(files.len() >= 4, "{files:?}");
    for file in &files {
        assert_harmless(&file.display().to_string(), &fs::read(file).expect("a file"));
    }
    assert_rows(&run.rows(), &run.said());
    assert_trace(&python_traces(&run.folder.output_path()).into_iter().map(|row| row.name).collect::<Vec<_>>());
    // Findings are JSON whatever the texts are.
    assert!(run.json().to_string().contains("CANN@APP@_[2J_]0;title__"), "{}", run.said());
    let replayed = Tracer::replay(&run.folder.capture()).option("--analysis=decompose").succeed();
    assert_eq!(replayed.rows().processes, run.rows().processes);
    // And are read again as they were written.
    let dump = &run.rows().files[0];
    for json in [true, false] {
        let mut command = Command::new(tracer_path());
        command.arg("decompose").arg(dump).args(json.then_some("--json"));
        let output = command.output().expect("a command");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_harmless("decompose", &output.stdout);
        assert_harmless("decompose", &output.stderr);
        assert!(String::from_utf8_lossy(&output.stdout).contains("_[2J_]0;title__"));
    }
}

#[test]
fn python_texts_are_escaped_in_databases() {
    let run = trace(&["--format=db"]);
    let rows = run.rows();
    assert_rows(&rows, &run.said());
    let table = format!("python_trace_{}", rows.processes.keys().next().expect("a process"));
    let files = files_below(&run.folder.output_path());
    let databases = files.iter().filter(|path| path.extension().is_some_and(|kind| kind == "db"));
    let mut databases = databases.map(|file| Connection::open(file).expect("a database"));
    let database = databases.find(|database| database.table_exists(None, table.as_str()).expect("an answer"));
    let database = database.unwrap_or_else(|| panic!("no table {table}: {files:?}"));
    let mut statement = database.prepare(&format!("SELECT * FROM {table}")).expect("a table");
    let names = statement.query_map([], |row| row.get::<_, String>(0)).expect("rows");
    let names: Vec<String> = names.map(|name| name.expect("a text")).collect();
    for name in &names {
        assert_harmless("python_trace", name.as_bytes());
        assert!(!name.contains('\n'), "{name}");
    }
    assert_trace(&names.iter().map(|name| unescape(name)).collect::<Vec<_>>());
}
