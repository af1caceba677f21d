//! Files and folders that are made, and rows that cannot be written.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;

use super::*;
use crate::backend::ascend::pools;
use crate::model::{FreeCause, Mark, Stack, StackEnd, Stacks};
use crate::sinks::fixtures::{alloc, at, event, free};
use crate::sinks::row::COLUMNS;

struct Run {
    root: tempfile::TempDir,
    sink: DumpSink,
    created: Arc<Mutex<Vec<PathBuf>>>,
}

impl Run {
    fn new(format: Format) -> Self {
        Self::with(format, StackCells::Inline)
    }

    fn with(format: Format, stacks: StackCells) -> Self {
        Self::rotating(format, stacks, None)
    }

    fn rotating(format: Format, stacks: StackCells, rotation: Option<Rotation>) -> Self {
        let root = tempfile::tempdir().expect("temporary directory");
        let created = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&created);
        let out_dir = root.path().join("a/out");
        let options = DumpOptions { out_dir, format, stacks, rotation, ..DumpOptions::default() };
        let sink = DumpSink::new(&options, move |change| {
            let mut files = log.lock().expect("lock");
            match change {
                FileChange::Made(path) => files.push(path.to_owned()),
                FileChange::Removed(path) => files.retain(|file| file != path),
            }
        });
        Self { root, sink: sink.expect("output directory"), created }
    }

    fn write(&mut self, event: &Event) {
        self.sink.write(event).expect("writable");
    }

    fn created(&self) -> Vec<PathBuf> {
        self.created.lock().expect("lock").clone()
    }

    /// The created file with `part` in its path.
    fn text(&self, part: &str) -> String {
        let created = self.created();
        let path = created.iter().find(|path| path.to_string_lossy().contains(part));
        fs::read_to_string(path.expect("created")).expect("readable")
    }

    fn entries(&self) -> usize {
        fs::read_dir(self.root.path().join("a/out")).expect("output directory").count()
    }
}

fn header() -> String {
    COLUMNS.join(",") + "\n"
}

fn acl_init(pid: u32) -> Event {
    Event { pid, device: Device::None, ..event(EventKind::System(System::AclInit)) }
}

fn end(pid: u32) -> Event {
    Event { pid, device: Device::None, ..event(EventKind::ProcessEnd) }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("exists").mode() & 0o7777
}

fn rows(path: &Path) -> u32 {
    if path.extension().is_some_and(|extension| extension == "csv") {
        return fs::read_to_string(path).expect("readable").lines().count() as u32 - 1;
    }
    let connection = Connection::open(path).expect("database");
    connection.query_row("SELECT count(*) FROM memscope_dump", [], |row| row.get(0)).expect("table")
}

/// Directory and file names, and their modes, are those of the contract.
#[test]
fn tree_has_the_names_and_modes_of_the_reference() {
    let mut run = Run::new(Format::Csv);
    run.write(&at(2, Device::Npu(3), alloc(pools::HAL, 0x10, 1)));
    run.write(&at(3, Device::Cpu, alloc(pools::HOST, 0x10, 2)));
    run.sink.finish().expect("writable");

    let out = run.root.path().join("a/out");
    let created = run.created();
    let shape = |path: &Path| -> String {
        let relative = path.strip_prefix(&out).expect("below").to_string_lossy();
        relative.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect()
    };
    assert_eq!(
        created.iter().map(|path| shape(path)).collect::<Vec<_>>(),
        [
            "msmemscope_99_99999999999999_ascend/device_9/dump/memscope_dump_99999999999999.csv",
            "msmemscope_99_99999999999999_ascend/device_cpu/dump/memscope_dump_99999999999999.csv",
        ]
    );
    for path in &created {
        assert_eq!(mode(path), 0o600, "{}", path.display());
        for directory in path.ancestors().skip(1).take_while(|path| *path != run.root.path()) {
            assert_eq!(mode(directory), 0o750, "{}", directory.display());
        }
    }
    assert!(created[0].to_string_lossy().contains("device_3/"));
}

/// A process without rows has no files, nor have kinds of events without a row.
#[test]
fn nothing_is_made_without_rows() {
    let mut run = Run::new(Format::Csv);
    run.write(&event(EventKind::StepStart { step: 1 }));
    run.write(&end(7));
    run.sink.finish().expect("writable");
    assert_eq!(run.entries(), 0);
}

/// Flushed rows can be read by others, before the end.
#[test]
fn flush_makes_rows_visible() {
    for format in [Format::Csv, Format::Db] {
        let mut run = Run::new(format);
        run.write(&at(2, Device::Npu(0), alloc(pools::HAL, 0x10, 1)));
        run.sink.flush().expect("writable");
        assert_eq!(rows(&run.created()[0]), 1, "{format:?}");
    }
}

/// Rows without a device are in every file of the process, each where it happened.
#[test]
fn rows_without_a_device_stand_where_they_happened() {
    for format in [Format::Csv, Format::Db] {
        let mut run = Run::new(format);
        let system = |id, kind| Event { id, device: Device::None, ..event(EventKind::System(kind)) };
        run.write(&system(0, System::AclInit));
        run.write(&Event { id: 1, ..at(2, Device::Npu(0), alloc(pools::PTA, 0x10, 1)) });
        run.write(&system(2, System::TraceStop));
        run.write(&Event { id: 3, ..at(3, Device::Npu(1), alloc(pools::PTA, 0x10, 2)) });
        run.write(&system(4, System::AclFinalize));
        run.write(&Event { id: 5, ..at(4, Device::Npu(0), alloc(pools::PTA, 0x20, 3)) });
        run.write(&end(12));
        let ids = |device: &str| -> Vec<i64> {
            if format == Format::Csv {
                let text = run.text(device);
                assert!(text.starts_with(&header()), "{text}");
                return text
                    .lines()
                    .skip(1)
                    .map(|row| row.split(',').next().and_then(|id| id.parse().ok()).expect("an ID"))
                    .collect();
            }
            let path = run.created().into_iter().find(|path| path.to_string_lossy().contains(device)).expect("created");
            let connection = Connection::open(path).expect("database");
            let mut rows = connection.prepare("SELECT ID FROM memscope_dump ORDER BY rowid").expect("table");
            let ids = rows.query_map([], |row| row.get(0)).expect("rows").map(|id| id.expect("a number"));
            ids.collect()
        };
        assert_eq!(ids("device_0/"), [0, 1, 2, 4, 5], "{format:?}");
        assert_eq!(ids("device_1/"), [0, 2, 3, 4], "{format:?}");
    }
}

/// If a process has only such rows, they go to the host's file instead of being lost.
#[test]
fn held_rows_alone_make_a_host_file() {
    let mut run = Run::new(Format::Csv);
    run.write(&acl_init(12));
    run.sink.finish().expect("writable");
    assert_eq!(run.text("device_cpu/"), header() + "5,SYSTEM,ACL_INIT,N/A,1000,12,34,N/A,N/A,,,\n");
}

/// Held rows are bounded: further ones are in the existing files, or in the host's, and nowhere twice.
#[test]
fn too_many_held_rows_are_written_early() {
    let mut run = Run::new(Format::Csv);
    run.sink.max_held = 3;
    run.write(&at(2, Device::Npu(0), alloc(pools::PTA, 0x10, 1)));
    for _ in 0..7 {
        run.write(&acl_init(12));
    }
    assert_eq!(run.sink.processes[&12].held.len(), 3);
    run.sink.finish().expect("writable");
    assert_eq!(run.text("device_0/").lines().count(), 1 + 1 + 7);
    assert_eq!(run.created().len(), 1);

    let mut run = Run::new(Format::Csv);
    run.sink.max_held = 3;
    for _ in 0..7 {
        run.write(&acl_init(12));
    }
    run.write(&at(2, Device::Npu(0), alloc(pools::PTA, 0x10, 1)));
    run.sink.finish().expect("writable");
    assert_eq!(run.text("device_cpu/").lines().count(), 1 + 7);
    assert_eq!(run.text("device_0/").lines().count(), 1 + 3 + 1);
    assert_eq!(run.sink.lost_rows(), 0);
}

/// The end of a process closes its files; a later process of the same number gets its own.
#[test]
fn reused_process_number_gets_its_own_directory() {
    for format in [Format::Csv, Format::Db] {
        let mut run = Run::new(format);
        for _ in 0..3 {
            run.write(&at(2, Device::Npu(0), alloc(pools::HAL, 0x10, 1)));
            run.write(&end(12));
            assert!(run.sink.open.is_empty() && run.sink.outputs.is_empty() && run.sink.processes.is_empty());
        }
        assert_eq!(run.entries(), 3, "{format:?}");
        assert!(run.created().iter().all(|path| rows(path) == 1), "{format:?}");
    }
}

/// With more files than may be open, the file written longest ago is closed, and continues later where it ended.
#[test]
fn files_are_closed_and_opened_again() {
    for format in [Format::Csv, Format::Db] {
        let mut run = Run::new(format);
        run.sink.max_open = 2;
        for round in 0..3 {
            for device in 0..5 {
                run.write(&at(10 + round, Device::Npu(device), alloc(pools::HAL, 0x10, 1)));
                assert!(run.sink.open.len() <= 2);
            }
        }
        run.sink.finish().expect("writable");
        assert_eq!(run.created().len(), 5, "{format:?}");
        assert!(run.created().iter().all(|path| rows(path) == 3), "{format:?}");
        assert_eq!(run.sink.lost_rows(), 0);
    }
}

/// Ranges that a script has named are in a file of their own, or a table of the same database.
#[test]
fn trace_is_beside_the_dump() {
    let range = |device| {
        let kind = EventKind::NamedRange { name: "forward, 1".into(), start_ns: Some(900), end_ns: Some(1000) };
        Event { device, ..event(kind) }
    };
    let mut run = Run::new(Format::Csv);
    run.write(&range(Device::Npu(3)));
    run.write(&at(2, Device::Npu(3), alloc(pools::HAL, 0x10, 1)));
    run.write(&range(Device::None));
    run.sink.finish().expect("writable");
    let expected = TRACE_COLUMNS.join(",") + "\n\"forward, 1\",900,1000,34,12\n";
    for part in ["device_3/dump/python_trace_", "device_cpu/dump/python_trace_"] {
        assert_eq!(run.text(part), expected, "{part}");
    }
    assert_eq!((run.created().len(), run.text("device_3/dump/memscope_dump_").lines().count()), (3, 2));

    let mut run = Run::new(Format::Db);
    run.write(&at(2, Device::Npu(3), alloc(pools::HAL, 0x10, 1)));
    run.write(&range(Device::Npu(3)));
    run.write(&range(Device::Npu(3)));
    run.sink.finish().expect("writable");
    assert_eq!((run.created().len(), rows(&run.created()[0])), (1, 1));
    let connection = Connection::open(&run.created()[0]).expect("database");
    let one = |sql| -> String { connection.query_row(sql, [], |row| row.get(0)).expect("one row") };
    assert_eq!(
        one(r#"SELECT group_concat(quote("FuncInfo") || quote("StartTime(ns)") || quote("EndTime(ns)") ||
                   quote("Thread Id") || quote("Process Id"), '|') FROM python_trace_12"#),
        "'forward, 1''900''1000'3412|'forward, 1''900''1000'3412"
    );
}

/// A finished database is one file: no journal beside it, everything in it.
#[test]
fn finished_database_stands_alone() {
    let mut run = Run::new(Format::Db);
    run.write(&at(2, Device::Npu(0), alloc(pools::HAL, 0x10, 1)));
    run.write(&at(3, Device::Npu(0), free(pools::HAL, 0x10, 1, FreeCause::Program)));
    run.sink.finish().expect("writable");
    let created = run.created();
    let directory = created[0].parent().expect("file");
    assert_eq!(fs::read_dir(directory).expect("directory").count(), 1);
    assert_eq!(mode(&created[0]), 0o600);
    assert_eq!(rows(&created[0]), 2);
}

/// A directory that is swapped for a link while the file is closed is not followed.
#[test]
fn planted_link_is_not_followed() {
    for format in [Format::Csv, Format::Db] {
        let mut run = Run::new(format);
        run.sink.max_open = 1;
        run.write(&at(2, Device::Npu(0), alloc(pools::HAL, 0x10, 1)));
        run.write(&at(2, Device::Npu(1), alloc(pools::HAL, 0x10, 1)));
        let file = run.created()[0].clone();
        let dump = file.parent().expect("file").to_owned();
        let victim = run.root.path().join("victim");
        fs::rename(&dump, &victim).expect("rename");
        symlink(&victim, &dump).expect("link");

        let result = run.sink.write(&at(3, Device::Npu(0), alloc(pools::HAL, 0x10, 2)));
        let message = crate::error_chain(&result.expect_err("must not follow"));
        assert!(message.starts_with(&format!("cannot write `{}", dump.display())), "{message}");
        assert_eq!(run.sink.lost_rows(), 1);
    }
}

/// A file that is replaced while it is closed is not written to.
#[test]
fn replaced_file_is_not_written() {
    for format in [Format::Csv, Format::Db] {
        let mut run = Run::new(format);
        run.sink.max_open = 1;
        run.write(&at(2, Device::Npu(0), alloc(pools::HAL, 0x10, 1)));
        run.write(&at(2, Device::Npu(1), alloc(pools::HAL, 0x10, 1)));
        let file = run.created()[0].clone();
        fs::rename(&file, file.with_extension("old")).expect("rename");
        fs::write(&file, "").expect("write");
        let result = run.sink.write(&at(3, Device::Npu(0), alloc(pools::HAL, 0x10, 2)));
        assert!(crate::error_chain(&result.expect_err("replaced")).contains("replaced by another program"));
        assert_eq!(fs::read(&file).expect("read"), b"");
    }
}

/// A file that cannot be opened is tried again after a flush, not for each row; rows are counted all the same.
#[test]
fn broken_file_is_not_tried_for_each_row() {
    for format in [Format::Csv, Format::Db] {
        let mut run = Run::new(format);
        run.sink.max_open = 1;
        let row = |device| at(2, Device::Npu(device), alloc(pools::HAL, 0x10, 1));
        run.write(&row(0));
        run.write(&row(1));
        let file = run.created()[0].clone();
        let away = file.with_extension("away");
        fs::rename(&file, &away).expect("rename");
        run.sink.write(&row(0)).expect_err("missing");
        run.sink.write(&row(0)).expect("not tried");
        fs::rename(&away, &file).expect("rename");
        run.sink.write(&row(0)).expect("not tried");
        assert_eq!(run.sink.lost_rows(), 3, "{format:?}");
        run.sink.flush().expect("writable");
        run.write(&row(0));
        run.sink.finish().expect("writable");
        assert_eq!((run.sink.lost_rows(), rows(&file)), (3, 2), "{format:?}");
    }
}

/// Blocks of two devices with stacks: equal ones, ones of no Python, and texts that a program may choose to confuse readers.
fn stacked() -> Vec<Event> {
    let native = [vec!["f\"\n#1,x", "main"], vec!["#1"], vec!["=1+1, \"", "\\"], vec!["f", "main"]];
    let native = native.map(|frames| Stack::keep(frames, StackEnd::Depth));
    let python = [Stack::keep(["a.py(1): f"], StackEnd::Root), Stack::keep([], StackEnd::NotPython)];
    (0..40_usize)
        .map(|n| Event {
            stacks: Stacks {
                native: (n % 7 != 6).then(|| native[n % 4]),
                python: (n % 5 != 4).then(|| python[n % 2]),
                mixed: (n == 11).then_some(python[0]),
            },
            ..at(n as u64, Device::Npu(n as u32 % 2), alloc(pools::HAL, 0x10 + n as u64, n as u64))
        })
        .collect()
}

/// Cells of a CSV text as they stand in it, by its rules alone.
fn raw_cells(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut cell, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    for letter in text.chars() {
        quoted ^= letter == '"';
        match letter {
            ',' if !quoted => row.push(std::mem::take(&mut cell)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            other => cell.push(other),
        }
    }
    rows
}

/// The rows of a file; with the stacks of its table instead of their numbers, if it has one.
fn joined(path: &Path) -> Vec<Vec<String>> {
    let text = |path: &Path| fs::read_to_string(path).expect("readable");
    let mut rows = raw_cells(&text(path));
    let table =
        path.with_file_name(path.file_name().expect("a name").to_str().expect("text").replace("dump", "stacks"));
    if !table.exists() {
        return rows;
    }
    let table = raw_cells(&text(&table));
    assert_eq!(table[0], ["Stack", "Call Stack"]);
    for cell in rows.iter_mut().flat_map(|row| &mut row[10..]).filter(|cell| cell.starts_with('#')) {
        let found: Vec<&String> = table.iter().filter(|row| row[0] == *cell).map(|row| &row[1]).collect();
        assert_eq!(found.len(), 1, "{cell} is there once");
        cell.clone_from(found[0]);
    }
    rows
}

/// The same of a database.
fn joined_db(path: &Path) -> Vec<Vec<String>> {
    let connection = Connection::open(path).expect("database");
    let has_table = "SELECT count(*) FROM sqlite_master WHERE name = 'memscope_stack'";
    let has_table: u32 = connection.query_row(has_table, [], |row| row.get(0)).expect("a count");
    let sql = if has_table > 0 {
        r#"SELECT "ID", coalesce(p."Call Stack", "Call Stack(Python)"), coalesce(c."Call Stack", "Call Stack(C)")
           FROM memscope_dump LEFT JOIN memscope_stack p ON p."Stack" = "Call Stack(Python)"
           LEFT JOIN memscope_stack c ON c."Stack" = "Call Stack(C)" ORDER BY "ID""#
    } else {
        r#"SELECT "ID", "Call Stack(Python)", "Call Stack(C)" FROM memscope_dump ORDER BY "ID""#
    };
    let mut statement = connection.prepare(sql).expect("columns");
    let text = |row: &rusqlite::Row<'_>| Ok(vec![row.get::<_, u32>(0)?.to_string(), row.get(1)?, row.get(2)?]);
    let rows = statement.query_map([], text).expect("rows");
    rows.collect::<Result<_, _>>().expect("rows")
}

/// Rows that refer to stacks are, joined with their table, equal to the rows that have them in full, to the byte; also
/// where files are closed and opened again between rows. Each stack is in the table once.
#[test]
fn joined_rows_are_the_rows_in_full() {
    for (format, joined) in [(Format::Csv, joined as fn(&Path) -> _), (Format::Db, joined_db)] {
        for max_open in [1, 10] {
            let rows = |stacks| {
                let mut run = Run::with(format, stacks);
                run.sink.max_open = max_open;
                for event in &stacked() {
                    run.write(event);
                }
                run.sink.finish().expect("writable");
                assert_eq!(run.sink.lost_rows(), 0);
                let created = run.created();
                let dumps = created.iter().filter(|path| path.to_string_lossy().contains("memscope_dump_"));
                let dumps: Vec<&PathBuf> = dumps.collect();
                assert_eq!(dumps.len(), 2, "{created:?}");
                let text = if format == Format::Csv { run.text("memscope_dump_") } else { String::new() };
                (dumps.into_iter().map(|path| joined(path)).collect::<Vec<_>>(), text)
            };
            let ((inline, _), (table, text)) = (rows(StackCells::Inline), rows(StackCells::Table));
            assert_eq!(inline, table, "{format:?}");
            assert_eq!(inline.iter().flatten().flatten().filter(|cell| cell.contains("main")).count(), 17);
            assert!(!text.contains("main"), "{text}");
        }
    }
}

/// Parts rotate: the newest stay. Each of their files can be read by itself, with the rows without a device and all
/// stacks that its rows refer to, and no row between the oldest one left and the last one is missing. No other file is
/// on the disk.
#[test]
fn the_newest_parts_stay() {
    for (format, joined, part_bytes) in
        [(Format::Csv, joined as fn(&Path) -> Vec<Vec<String>>, 4000), (Format::Db, joined_db, 40_000)]
    {
        let rotation = Some(Rotation { part_bytes, parts: 3 });
        let mut run = Run::rotating(format, StackCells::Table, rotation);
        run.write(&Event { id: 7777, ..acl_init(12) });
        let mut rounds = 0;
        for round in 0..20_u64 {
            for event in &stacked() {
                run.write(&Event { id: 40 * round + event.id, ..event.clone() });
            }
            run.sink.flush().expect("writable");
            rounds += 1;
        }
        let part = |path: &Path| {
            let name = path.file_stem().expect("a name").to_str().expect("text").to_owned();
            name.rsplit_once("_part").expect("a part").1.parse::<u64>().expect("a number")
        };
        let mut parts: Vec<u64> = run.created().iter().map(|path| part(path)).collect();
        parts.sort_unstable();
        parts.dedup();
        // Each round fills a part, whatever it begins with.
        assert!(parts.len() <= 3 && parts.last() >= Some(&(rounds / 2)), "{parts:?}");
        assert!(parts.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{parts:?}");
        run.write(&end(12));
        run.sink.finish().expect("writable");
        assert_eq!(run.sink.lost_rows(), 0);

        let mut ids: Vec<u64> = Vec::new();
        for path in run.created().iter().filter(|path| path.to_string_lossy().contains("memscope_dump_")) {
            assert!(!path.to_string_lossy().contains("device_cpu"), "{}", path.display());
            let mut own: Vec<u64> = joined(path).iter().filter_map(|row| row[0].parse().ok()).collect();
            let shared = own.iter().position(|id| *id == 7777).expect("begins with the row of the process");
            own.remove(shared);
            ids.extend(own);
        }
        ids.sort_unstable();
        assert!(ids.len() >= 40 && ids.len() < 800, "{}", ids.len());
        assert_eq!(ids, (800 - ids.len() as u64..800).collect::<Vec<_>>());
        let folder = run.root.path().join("a/out");
        let mut there = Vec::new();
        let mut left = vec![folder];
        while let Some(folder) = left.pop() {
            for path in fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path()) {
                if path.is_dir() { left.push(path) } else { there.push(path) }
            }
        }
        let mut known = run.created();
        known.sort();
        there.sort();
        assert_eq!(there, known);
    }
}

/// The size of parts is checked between flushes, too: a burst of rows makes none much larger than allowed. A row has
/// less than 200 bytes.
#[test]
fn a_burst_is_in_parts() {
    let part_bytes = 50_000;
    let mut run = Run::rotating(Format::Csv, StackCells::Inline, Some(Rotation { part_bytes, parts: 1000 }));
    for n in 0..3000 {
        run.write(&at(n, Device::Npu(0), alloc(pools::HAL, 0x10, n)));
    }
    run.sink.finish().expect("writable");
    let sizes: Vec<u64> = run.created().iter().map(|path| path.metadata().expect("a file").len()).collect();
    assert!((3..=7).contains(&sizes.len()), "{sizes:?}");
    // Rows gathered for one write are seen with it.
    let most = part_bytes + (64 << 10) + 512 * 200;
    assert!(sizes.iter().all(|size| *size < most), "{sizes:?}");
    assert_eq!(run.created().iter().map(|path| rows(path)).sum::<u32>(), 3000);
}

/// Whatever is on the disk when the tracer is killed, no row refers to a missing stack.
#[test]
fn no_row_is_written_before_its_stack() {
    let mut run = Run::with(Format::Csv, StackCells::Table);
    let mut seen = 0;
    for n in 0..3000_u64 {
        // Half of the stacks are long, so that now the rows have a block first, now the stacks.
        let frame = format!("{}{n}", "f".repeat(if n < 1500 { 1 } else { 300 }));
        let native = Some(Stack::keep([frame.as_str()], StackEnd::Root));
        run.write(&Event {
            stacks: Stacks { native, ..Stacks::default() },
            ..at(n, Device::Npu(0), alloc(pools::HAL, 1, n))
        });
        let rows = run.text("memscope_dump_");
        let refers =
            rows.rsplit('\n').nth(1).and_then(|row| row.rsplit_once(",#")).map(|(_, number)| number.to_owned());
        if let Some(number) = refers {
            assert!(run.text("memscope_stacks_").contains(&format!("\n#{number},\"")), "#{number}");
            seen += 1;
        }
    }
    assert!(seen > 1000, "{seen}");
}

/// The error for an output directory that cannot be made has its path.
#[test]
fn unusable_output_directory_is_an_error() {
    let options = DumpOptions { out_dir: "/proc/no/such".into(), ..DumpOptions::default() };
    let error = crate::error_chain(&DumpSink::new(&options, |_| {}).expect_err("not writable"));
    assert!(error.starts_with("cannot write `/proc/no/such`: "), "{error}");
}

/// Database rows hold what CSV rows hold, with types as the viewer wants them.
#[test]
fn database_rows_have_the_reference_types() {
    let mut run = Run::new(Format::Db);
    run.write(&at(2, Device::Npu(0), alloc(pools::HAL, 0x3039, 1)));
    run.write(&event(EventKind::Mark(Mark::Point { text: Some("step \"1\"".into()) })));
    run.sink.finish().expect("writable");
    let connection = Connection::open(&run.created()[0]).expect("database");
    let one = |sql| -> String { connection.query_row(sql, [], |row| row.get(0)).expect("one row") };
    assert_eq!(
        one("SELECT sql || ';' FROM sqlite_master"),
        r#"CREATE TABLE memscope_dump ("ID" INTEGER, "Event" TEXT, "Event Type" TEXT, "Name" TEXT, "Timestamp(ns)" INTEGER, "Process Id" INTEGER, "Thread Id" INTEGER, "Device Id" TEXT, "Ptr" TEXT, "Attr" TEXT, "Call Stack(Python)" TEXT, "Call Stack(C)" TEXT);"#
    );
    assert_eq!(
        one(r#"SELECT group_concat(quote("ID") || '|' || quote("Name") || '|' || quote("Timestamp(ns)") || '|' ||
                   quote("Process Id") || '|' || quote("Device Id") || '|' || quote("Ptr") || '|' || quote("Attr") ||
                   '|' || quote("Call Stack(C)"), char(10)) FROM memscope_dump"#),
        r#"2|'N/A'|2000|12|'0'|'0x0000000000003039'|'{"allocation_id":"1","addr":"0x0000000000003039","size":"10","used":"10","page_type":"normal","alloc_type":"alloc"}'|''
5|'"step "1""'|1000|12|'0'|'N/A'|'{}'|''"#
    );
    assert_eq!(one("PRAGMA journal_mode"), "wal");
}
