//! Files made to do harm: none makes a command panic, and sums stay right.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use rusqlite::{Connection, params_from_iter};

use super::{HEADER, events_of};
use crate::analyses::decompose::RuleSet;
use crate::analyses::{
    Analysis, ByStackAnalysis, DecomposeAnalysis, DeviceUseAnalysis, Finding, FluctuationAnalysis,
    FragmentationAnalysis, GrowthAnalysis, HeldAnalysis, InefficientAnalysis, LedgerAnalysis, MarkLeaksAnalysis,
    OomAnalysis, PeaksAnalysis, StepLeaksAnalysis,
};
use crate::input::run;
use crate::sinks::report::{Report, write_json};
use crate::sinks::row::COLUMNS;

/// Where sums, differences and signs go wrong.
const EXTREMES: [u64; 14] = [
    0,
    1,
    63,
    4096,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 53,
    i64::MAX as u64,
    1 << 63,
    (1 << 63) + 1,
    3 << 62,
    u64::MAX - 1,
    u64::MAX,
];
const KINDS: [(&str, &str); 20] = [
    ("MALLOC", "HAL"),
    ("MALLOC", "PTA"),
    ("MALLOC", "PTA_WORKSPACE"),
    ("MALLOC", "ATB"),
    ("MALLOC", "HOST"),
    ("FREE", "HAL"),
    ("FREE", "PTA"),
    ("FREE", "PTA_WORKSPACE"),
    ("FREE", "ATB"),
    ("BLOCK_FREE", "PTA"),
    ("ACCESS", "READ"),
    ("ACCESS", "WRITE"),
    ("OP_LAUNCH", "ATEN_START"),
    ("OP_LAUNCH", "ATEN_END"),
    ("KERNEL_LAUNCH", "KERNEL_LAUNCH"),
    ("MSTX", "Mark"),
    ("MSTX", "Range_start"),
    ("MSTX", "Range_end"),
    ("SYSTEM", "STEP"),
    ("OOM_DETAIL", "OOM_TRIGGER"),
];

fn all_analyses() -> Vec<Box<dyn Analysis>> {
    let rules = Arc::new(RuleSet::builtin());
    vec![
        Box::new(StepLeaksAnalysis::default()),
        Box::new(FluctuationAnalysis::default()),
        Box::new(GrowthAnalysis::default()),
        Box::new(PeaksAnalysis::new(Arc::clone(&rules))),
        Box::new(HeldAnalysis::default()),
        Box::new(ByStackAnalysis::default()),
        Box::new(OomAnalysis::default()),
        Box::new(InefficientAnalysis::default()),
        Box::new(DecomposeAnalysis::new(Arc::clone(&rules))),
        Box::new(FragmentationAnalysis::new(rules)),
        Box::new(LedgerAnalysis::default()),
        Box::new(DeviceUseAnalysis::default()),
        Box::new(MarkLeaksAnalysis::new("step start".to_owned(), 0)),
    ]
}

/// Reads a file with all analyses and prints their findings, as commands do. An error is an answer.
fn read(path: &Path) -> Result<Vec<Finding>, String> {
    let outcome = match run(&[path.to_owned()], all_analyses()) {
        Ok(outcome) => outcome,
        Err(error) => {
            let text = crate::error_chain(&error);
            assert!(!text.is_empty());
            return Err(text);
        }
    };
    let mut text = Vec::new();
    Report::default().write_text(&outcome.findings, &outcome.end, &mut text).expect("a report");
    write_json(&outcome.findings, &outcome.end, &mut text).expect("a report");
    Ok(outcome.findings)
}

/// The cells of a row, quotes left out.
fn cells(id: u64, kind: usize, numbers: &[usize; 7], quoted_keys: bool) -> [String; 12] {
    let [time, device, addr, size, used, total, active] = numbers.map(|number| EXTREMES[number]);
    let (event, event_type) = KINDS[kind];
    let name = if event == "MSTX" { "step start" } else { "N/A" };
    let device = match device {
        63 => "cpu".to_owned(),
        4096 => "N/A".to_owned(),
        other => (other % 3).to_string(),
    };
    let pairs = [
        ("allocation_id", addr.to_string()),
        ("addr", format!("0x{addr:x}")),
        ("size", size.to_string()),
        ("used", used.to_string()),
        ("total", total.to_string()),
        ("active", active.to_string()),
        ("req_size", size.to_string()),
        ("type", "PTA".to_owned()),
    ];
    let pair = |(key, value): &(&str, String)| {
        if quoted_keys { format!("\"{key}\":\"{value}\"") } else { format!("{key}:{value}") }
    };
    let attr = format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(","));
    let (pid, tid) = (1 + active % 2, 1 + used % 2);
    let text = |text: &str| text.to_owned();
    [
        id.to_string(),
        text(event),
        text(event_type),
        text(name),
        time.to_string(),
        pid.to_string(),
        tid.to_string(),
        device,
        format!("0x{addr:x}"),
        attr,
        String::new(),
        String::new(),
    ]
}

fn write_csv(path: &Path, rows: &[Row]) {
    let mut text = HEADER.to_owned();
    for (id, (kind, numbers)) in rows.iter().enumerate() {
        let mut cells = cells(id as u64, *kind, numbers, false);
        cells[9] = format!("\"{}\"", cells[9]);
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    fs::write(path, text).expect("written");
}

fn write_db(path: &Path, rows: &[Row]) {
    let mut connection = Connection::open(path).expect("a database");
    let names: Vec<String> = COLUMNS.iter().map(|name| format!("\"{name}\"")).collect();
    connection.execute_batch(&format!("CREATE TABLE memscope_dump ({})", names.join(","))).expect("a table");
    let transaction = connection.transaction().expect("begun");
    for (id, (kind, numbers)) in rows.iter().enumerate() {
        let cells = cells(id as u64, *kind, numbers, true);
        let insert = "INSERT INTO memscope_dump VALUES (?,?,?,?,?,?,?,?,?,?,?,?)";
        transaction.execute(insert, params_from_iter(cells)).expect("a row");
    }
    transaction.commit().expect("written");
}

/// Places of a row's kind in [`KINDS`], and of its numbers in [`EXTREMES`].
type Row = (usize, [usize; 7]);

/// Rows of any kind and numbers, or blocks only, of few numbers: then addresses, numbers and sizes of blocks collide.
fn rows() -> impl Strategy<Value = Vec<Row>> {
    let any = (0..KINDS.len(), prop::array::uniform7(0..EXTREMES.len()));
    let number = prop::sample::select(vec![0_usize, 1, 2, 3, 9, 9, 10, 10, 10, 13]);
    let block = (prop::sample::select(vec![0_usize, 0, 1, 2, 3, 5, 6, 7]), prop::array::uniform7(number));
    prop_oneof![prop::collection::vec(any, 1..80), prop::collection::vec(block, 1..80)]
}

/// Rows once made an analysis panic:
/// sums of overlapping blocks, a number given to a second block, an empty block in the place of another.
#[test]
fn rows_of_earlier_faults_are_only_numbers() {
    let cases: [&[Row]; 5] = [
        &[
            (1, [0, 1, 10, 1, 0, 0, 3]),
            (0, [0, 0, 1, 10, 0, 0, 3]),
            (1, [0, 2, 10, 0, 0, 0, 11]),
            (0, [0, 0, 2, 1, 0, 0, 3]),
        ],
        &[
            (0, [0, 0, 0, 7, 0, 0, 3]),
            (2, [0, 3, 4, 1, 0, 0, 3]),
            (2, [0, 0, 4, 0, 0, 0, 3]),
            (0, [0, 0, 5, 1, 0, 0, 3]),
        ],
        &[
            (0, [0, 0, 10, 1, 0, 0, 3]),
            (1, [0, 0, 12, 1, 0, 0, 3]),
            (0, [0, 0, 12, 1, 0, 0, 3]),
            (2, [0, 0, 1, 12, 0, 0, 11]),
        ],
        &[
            (0, [0, 1, 10, 0, 0, 0, 3]),
            (0, [0, 0, 0, 1, 0, 0, 0]),
            (0, [0, 2, 10, 0, 0, 0, 3]),
            (0, [0, 3, 10, 1, 0, 0, 3]),
            (1, [0, 0, 9, 2, 0, 0, 0]),
            (2, [0, 0, 0, 1, 0, 0, 3]),
            (0, [0, 0, 9, 2, 0, 0, 3]),
        ],
        &[
            (1, [0, 1, 9, 1, 0, 0, 1]),
            (0, [0, 9, 9, 1, 0, 0, 1]),
            (1, [0, 2, 9, 0, 0, 0, 1]),
            (0, [0, 0, 0, 0, 0, 0, 0]),
            (0, [0, 0, 0, 0, 0, 0, 0]),
            (5, [0, 3, 9, 0, 0, 0, 10]),
            (0, [0, 9, 0, 1, 0, 0, 10]),
            (1, [0, 0, 0, 1, 0, 0, 1]),
        ],
    ];
    for rows in cases {
        read_rows(rows);
    }
}

/// Reads the rows as CSV and as DB.
fn read_rows(rows: &[Row]) {
    let folder = tempfile::tempdir().expect("a folder");
    let (csv, db) = (folder.path().join("memscope_dump_1.csv"), folder.path().join("memscope_dump_1.db"));
    write_csv(&csv, rows);
    write_db(&db, rows);
    for path in [csv, db] {
        read(&path).expect("rows are read");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// No sum, difference or product of any analysis overflows, whatever sizes, addresses, totals and times a file has.
    #[test]
    fn extreme_numbers_are_only_numbers(rows in rows()) {
        read_rows(&rows);
    }

    /// Makes sure that a database with any bytes anywhere is an error or an answer.
    #[test]
    fn damaged_databases_are_errors(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        cut in any::<prop::sample::Index>(),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("memscope_dump_1.db");
        write_db(&path, &[(0, [1, 1, 3, 3, 3, 3, 3]), (5, [2, 1, 3, 3, 3, 3, 3])]);
        let mut bytes = fs::read(&path).expect("readable");
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut.index(4) == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, bytes).expect("written");
        let _ = read(&path);
    }
}

/// Confusing tables are answered: names that are no UTF-8, other columns, views, numbers of all types.
#[test]
fn strange_tables_are_errors_or_answers() {
    let columns = |names: &[&str]| names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(",");
    let right = columns(&COLUMNS);
    let values = "1,'MALLOC','PTA','N/A',1,5,5,'0','0x1000','{\"allocation_id\":\"1\",\"size\":\"64\"}','',''";
    let cases: [(String, &str, Option<usize>); 8] = [
        // Two bytes that are no text replace a marker.
        (format!("CREATE TABLE memscope_dump ({})", right.replace("Event Type", "Event@@")), "", None),
        (format!("CREATE TABLE memscope_dump ({right}, \"@@\")"), ",1", Some(1)),
        (format!("CREATE TABLE memscope_dump ({right}, extra AS (1/0) VIRTUAL)"), "", Some(1)),
        (format!("CREATE TABLE leaks_dump ({right})"), "", Some(1)),
        (format!("CREATE TABLE t ({right}); CREATE VIEW memscope_dump AS SELECT * FROM t"), "", None),
        ("CREATE TABLE memscope_dump (x)".to_owned(), "", None),
        (
            format!("CREATE TABLE memscope_dump ({right}) STRICT").replace("\",", "\" ANY,").replace("\")", "\" ANY)"),
            "",
            Some(1),
        ),
        (format!("CREATE TABLE memscope_dump ({right}, PRIMARY KEY (\"ID\")) WITHOUT ROWID"), "", Some(1)),
    ];
    for (create, more, rows) in cases {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("memscope_dump_1.db");
        let connection = Connection::open(&path).expect("a database");
        connection.execute_batch(&create).unwrap_or_else(|error| panic!("{create}: {error}"));
        let table =
            ["leaks_dump", "memscope_dump"].into_iter().find(|table| create.contains(&format!("TABLE {table} (")));
        if let Some(table) = table.filter(|_| rows.is_some()) {
            connection.execute_batch(&format!("INSERT INTO {table} VALUES ({values}{more})")).expect("a row");
        }
        drop(connection);
        let mut bytes = fs::read(&path).expect("readable");
        let marker = bytes.windows(2).position(|pair| pair == b"@@");
        if let Some(at) = marker {
            bytes[at..at + 2].fill(0xff);
        }
        fs::write(&path, bytes).expect("written");
        let found = read(&path);
        assert_eq!(found.is_ok(), rows.is_some(), "{create}: {found:?}");
    }
}

/// Blocks of 2^63 bytes are counted: two of them exceed a number, one of them is exact.
#[test]
fn sizes_of_half_the_numbers() {
    let row = |id: u64, event: &str, number: u64| {
        let attr = format!("{{allocation_id:{number},addr:0x{number}000,size:{}}}", 1_u64 << 63);
        format!("{id},{event},PTA,N/A,{id},5,5,0,0x{number}000,\"{attr}\",,\n")
    };
    let held = |rows: &[String]| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("dump.csv");
        fs::write(&path, format!("{HEADER}{}", rows.concat())).expect("written");
        let findings = read(&path).expect("readable");
        let held =
            findings.iter().find_map(|finding| if let Finding::Held(held) = finding { Some(held) } else { None });
        held.map(|held| (held.blocks, held.size_bytes))
    };
    let rows = [row(1, "MALLOC", 1), row(2, "MALLOC", 2), row(3, "FREE", 1)];
    assert_eq!(events_of(&rows.concat()).1.rows, 3);
    assert_eq!(held(&rows[..2]), Some((2, u64::MAX)));
    assert_eq!(held(&rows), Some((1, 1 << 63)));
}
