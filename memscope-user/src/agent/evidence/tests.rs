//! From events to files.
#![cfg(feature = "parquet")]

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::Field,
};

use super::*;
use crate::{
    agent::{books::Books, fold::Where, metrics::Number},
    analyses::script::Script,
    backend::ascend::pools,
    model::{Device, Event, EventKind, ProcessStart},
};

const PID: u32 = 7;
const MINUTE_NS: u64 = 60_000_000_000;
/// The begin of an hour.
const FIRST: u32 = 28_400_040;

type Cells = BTreeMap<String, Field>;

/// All rows of a table.
fn read(directory: &Path, table: &str) -> Vec<Cells> {
    let mut files = Vec::new();
    let mut folders = vec![directory.join("v1").join(table)];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let rows = |path: PathBuf| {
        let file = SerializedFileReader::new(File::open(&path).expect("a file")).expect("a Parquet file");
        file.get_row_iter(None)
            .expect("rows")
            .map(|row| row.expect("a row").into_columns().into_iter().collect())
            .collect()
    };
    files.into_iter().flat_map(|path: PathBuf| -> Vec<Cells> { rows(path) }).collect()
}

fn number(cells: &Cells, name: &str) -> i64 {
    match &cells[name] {
        Field::Int(number) => i64::from(*number),
        Field::Long(number) => *number,
        other => panic!("{name} is no number: {other:?}"),
    }
}

fn text<'a>(cells: &'a Cells, name: &str) -> &'a str {
    match &cells[name] {
        Field::Str(text) => text,
        other => panic!("{name} is no text: {other:?}"),
    }
}

fn settings(directory: &Path) -> EvidenceSettings {
    EvidenceSettings { directory: directory.to_owned(), ..EvidenceSettings::default() }
}

fn evidence(directory: &Path) -> Evidence {
    Evidence::new(&settings(directory)).expect("a thread").expect("asked for")
}

fn target() -> Target {
    let place = Where { namespace: "ns".into(), pod_name: "pod-0".into(), container_name: "main".into() };
    Target { place, rank: "3".into(), job: "train".into(), ..Target::default() }
}

fn targets() -> BTreeMap<u32, Target> {
    [(PID, target())].into()
}

/// Books of a process that has started, and of its events in these minutes.
fn books(script: &Script, minutes: &[u32]) -> Books {
    let mut books = Books::by_minute();
    books.minute(FIRST);
    let start = ProcessStart { parent: 0, attached: true, command: "server".into(), pid_within: None };
    let time_ns = u64::from(FIRST) * MINUTE_NS;
    books.observe(&Event { time_ns, kind: EventKind::ProcessStart(start), ..script.events()[0].clone() });
    for (event, minute) in script.events().iter().zip(minutes) {
        books.observe(&Event { time_ns: u64::from(FIRST + minute) * MINUTE_NS, ..event.clone() });
    }
    books
}

fn count(evidence: &Evidence, family: &str, result: &str) -> Option<u64> {
    let has = |sample: &&Sample| sample.family == family && sample.labels.iter().all(|(_, value)| value == result);
    match evidence.samples().iter().find(has)?.number {
        Number::Whole(number) => Some(number),
        _ => None,
    }
}

/// Two minutes of a process with blocks of two stacks that differ in addresses alone, and of one size: places are one row a minute, each is
/// described once, and sums of the last minute are what is live.
#[test]
fn files_have_what_the_books_have() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut script = Script::new(PID, Device::Npu(2));
    script.stacks(&[], &["halMemAlloc", "serve(keep+0x1) [0x100]"]).alloc(pools::HAL, 0x1000, 100);
    script.stacks(&[], &["halMemAlloc", "serve(keep+0x1) [0x200]"]).alloc(pools::HAL, 0x2000, 50);
    script.stacks(&[], &[]).alloc(pools::HAL, 0x3000, 7).free(pools::HAL, 0x3000);
    script.alloc_failed(pools::HAL, 1 << 40, (4, 1));
    let mut books = books(&script, &[0, 0, 0, 1, 1]);
    let mut evidence = evidence(directory.path());
    evidence.take(books.take().minutes, &targets(), 5, 0);
    evidence.bundle(PID, 4, "bundle_9_7.json".into());
    books.end_minute();
    evidence.take(books.take().minutes, &targets(), 7, 2);
    assert_eq!(evidence.finish(), [""; 0]);

    let rows = read(directory.path(), "place_minute");
    let mut sums: Vec<_> = rows
        .iter()
        .map(|row| {
            let columns =
                ["live_bytes", "live_blocks", "allocations", "allocated_bytes", "frees", "freed_bytes", "level"];
            (number(row, "epoch_minute") - i64::from(FIRST), columns.map(|name| number(row, name)))
        })
        .collect();
    sums.sort_unstable();
    let expected = [
        (0, [7, 1, 1, 7, 0, 0, 0]),
        (0, [150, 2, 2, 150, 0, 0, 0]),
        (1, [0, 0, 0, 0, 1, 7, 2]),
        (1, [150, 2, 0, 0, 0, 0, 2]),
    ];
    assert_eq!(sums, expected);
    let head =
        |row: &Cells| ["job", "namespace", "pod", "container", "layer", "pool"].map(|name| text(row, name).to_owned());
    assert_eq!(head(&rows[0]), ["train", "ns", "pod-0", "main", "hal", "hal"]);
    assert_eq!(["rank", "pid", "device_id"].map(|name| number(&rows[0], name)), [3, 7, 2]);

    let devices = read(directory.path(), "device_minute");
    let columns = ["live_bytes", "allocations", "frees", "failures", "lost", "untracked_bytes"];
    let of: Vec<_> = devices.iter().map(|row| columns.map(|name| number(row, name))).collect();
    assert_eq!(of, [[157, 3, 0, 0, 5, 0], [150, 0, 1, 1, 2, 0]]);

    let places = read(directory.path(), "places");
    let mut described: Vec<_> =
        places.iter().map(|row| (text(row, "kind"), text(row, "place"), text(row, "frames"))).collect();
    described.sort_unstable();
    let expected = [
        ("native", "serve keep", "halMemAlloc\nserve(keep+0x1)"),
        ("size", "1099511627776 B", ""),
        ("size", "7 B", ""),
    ];
    assert_eq!(described, expected);
    let keys: Vec<i64> = places.iter().map(|row| number(row, "place_key")).collect();
    assert!(rows.iter().all(|row| keys.contains(&number(row, "place_key"))));

    let failures = read(directory.path(), "failures");
    assert_eq!(
        (failures.len(), text(&failures[0], "bundle"), number(&failures[0], "requested_bytes")),
        (1, "bundle_9_7.json", 1 << 40)
    );
    let written = (rows.len() + devices.len() + places.len() + failures.len()) as u64;
    assert_eq!(count(&evidence, "memscope_agent_evidence_rows", ""), Some(written));
    assert_eq!(count(&evidence, "memscope_agent_evidence_files", "ok"), Some(4));
    assert_eq!(count(&evidence, "memscope_agent_evidence_dropped_rows", ""), Some(0));
}

/// A place is described once a day. A process without a target, which rules exclude, has no row.
#[test]
fn places_are_described_each_day() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut script = Script::new(PID, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 100);
    let mut books = books(&script, &[0]);
    let mut evidence = evidence(directory.path());
    for minute in [1, 2, MINUTES_OF_A_DAY + 1, MINUTES_OF_A_DAY + 2] {
        books.minute(FIRST + minute);
        evidence.take(books.take().minutes, &targets(), 0, 0);
    }
    books.end_minute();
    evidence.take(books.take().minutes, &BTreeMap::new(), 0, 0);
    assert_eq!(evidence.finish(), [""; 0]);
    assert_eq!(read(directory.path(), "places").len(), 2);
    assert_eq!(read(directory.path(), "place_minute").len(), 4);
}

/// An hour's file is there when the hour is over, not before.
#[test]
fn files_come_with_their_hour() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut script = Script::new(PID, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 100);
    let mut books = books(&script, &[0]);
    let mut evidence = evidence(directory.path());
    books.minute(FIRST + 1);
    evidence.take(books.take().minutes, &targets(), 0, 0);
    let now = Instant::now();
    assert_eq!(evidence.work(FIRST + 61, now), [""; 0]);
    assert!(read(directory.path(), "device_minute").is_empty());
    let end = now + Duration::from_secs(30);
    while count(&evidence, "memscope_agent_evidence_files", "ok") < Some(3) && Instant::now() < end {
        assert_eq!(evidence.work(FIRST + 62, now), [""; 0]);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(read(directory.path(), "device_minute").len(), 1);
    assert_eq!(evidence.finish(), [""; 0]);
}

/// A directory that is missing is one message and a count; the rows come when it is there.
#[test]
fn missing_directory_is_not_fatal() {
    let place = tempfile::tempdir().expect("a folder");
    let directory = place.path().join("mount");
    let mut script = Script::new(PID, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 100);
    let mut books = books(&script, &[0]);
    let mut evidence = evidence(&directory);
    books.minute(FIRST + 1);
    evidence.take(books.take().minutes, &targets(), 0, 0);
    let (now, end) = (Instant::now(), Instant::now() + Duration::from_secs(30));
    let mut messages = Vec::new();
    while messages.is_empty() && Instant::now() < end {
        messages.extend(evidence.work(FIRST + 62, now));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(messages[0].starts_with("evidence cannot be written (No such file"), "{messages:?}");
    assert_eq!(count(&evidence, "memscope_agent_evidence_files", "error"), Some(1));
    fs::create_dir(&directory).expect("a folder");
    assert_eq!(evidence.finish(), [""; 0]);
    assert_eq!(read(&directory, "place_minute").len(), 1);
    assert_eq!(count(&evidence, "memscope_agent_evidence_dropped_rows", ""), Some(0));
}

/// Without a job of its own a process has the name of its pod; without a rank -1.
#[test]
fn jobs_and_ranks_have_defaults() {
    let own = Who::of(&target());
    assert_eq!((own.job.as_str(), own.rank), ("train", 3));
    let other = Who::of(&Target { job: String::new(), rank: String::new(), ..target() });
    assert_eq!((other.job.as_str(), other.rank), ("pod-0", -1));
    assert_eq!(Who::of(&Target::default()), Who { rank: -1, ..Who::default() });
}

/// Off unless a directory is named.
#[test]
fn nothing_without_a_directory() {
    assert!(Evidence::new(&EvidenceSettings::default()).expect("nothing to start").is_none());
}
