//! The sink for rows: one file per (process, device), in the tree of contract §2.1.
//!
//! Files are made at their first row. At most [`MAX_OPEN`] are open at a time; the one written longest ago is
//! closed for the next, and opened again when it is needed. The files of a process are closed when it ends.
//!
//! Rows without a device are held back, like msMemScope does, and appended to every file of the process when it
//! ends or the trace does. Two things differ, so that none is ever lost: a process without any file gets one
//! in `device_cpu`, and when [`MAX_HELD`] rows are held they are written out early, to the files there are.

use std::fmt;
use std::path::{Path, PathBuf};

use jiff::Zoned;

use super::config_json::DumpConfig;
use super::csv::CsvFile;
use super::row::{COLUMNS, Row};
use super::sqlite::DbFile;
use super::trace_row::{TRACE_COLUMNS, TraceRow};
use super::tree::{FILE_MODE, OutputTree, Owner, Place, ProcessDir, ProcessDirs, stamp};
use super::{Sink, SinkError};
use crate::hash::HashMap;
use crate::model::{Device, Event, EventKind, System};

/// Files open at a time. A database takes three descriptors.
const MAX_OPEN: usize = 64;
/// Rows without a device held back per process.
const MAX_HELD: usize = 10_000;

/// What the rows are written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text.
    #[default]
    Csv,
    /// SQLite.
    Db,
}

/// How and where to write rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpOptions {
    /// Output directory; made where missing.
    pub out_dir: PathBuf,
    /// What the rows are written as.
    pub format: Format,
    /// User and group that everything made is handed to.
    pub owner: Option<Owner>,
    /// Written as `config.json` into every process's directory.
    pub config: Option<DumpConfig>,
}

/// Called with the path of each file made.
type OnCreated = Box<dyn FnMut(&Path) + Send>;

/// Writes rows to one file per process and device.
pub struct DumpSink {
    tree: OutputTree,
    format: Format,
    config: Option<DumpConfig>,
    on_created: OnCreated,
    processes: HashMap<u32, Process>,
    dirs: ProcessDirs,
    outputs: HashMap<Key, Output>,
    open: Vec<Key>,
    max_open: usize,
    max_held: usize,
    /// Counts rows, to find the file written longest ago.
    clock: u64,
    lost_rows: u64,
}

type Key = (u32, Device, Table);

/// What the rows of a file are. A database holds both, and counts as a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Table {
    Dump,
    Trace,
}

/// A row of either.
#[derive(Clone, Copy)]
enum Entry<'a> {
    Dump(&'a Row<'a>),
    Trace(&'a TraceRow<'a>),
}

impl Entry<'_> {
    fn write_csv(self, out: &mut Vec<u8>) {
        match self {
            Self::Dump(row) => row.write_csv(out),
            Self::Trace(row) => row.write_csv(out),
        }
    }

    fn write_db(self, file: &mut DbFile) -> Result<(), SinkError> {
        match self {
            Self::Dump(row) => file.write(row),
            Self::Trace(row) => file.write_trace(row),
        }
    }
}

#[derive(Default)]
struct Process {
    dir: Option<ProcessDir>,
    files: Vec<(Device, Table)>,
    held: Vec<Event>,
}

struct Output {
    place: Place,
    writer: Option<Writer>,
    last_used: u64,
}

enum Writer {
    Csv(CsvFile),
    Db(Box<DbFile>),
}

impl fmt::Debug for DumpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tree, format, processes, outputs, open, lost_rows, .. } = self;
        f.debug_struct("DumpSink")
            .field("tree", tree)
            .field("format", format)
            .field("processes", &processes.len())
            .field("outputs", &outputs.len())
            .field("open", open)
            .field("lost_rows", lost_rows)
            .finish_non_exhaustive()
    }
}

impl DumpSink {
    /// Opens the output directory. `on_created` is called with the path of each file, once it is there.
    pub fn new(options: &DumpOptions, on_created: impl FnMut(&Path) + Send + 'static) -> Result<Self, SinkError> {
        Ok(Self {
            tree: OutputTree::open(&options.out_dir, options.owner)?,
            format: options.format,
            config: options.config.clone(),
            on_created: Box::new(on_created),
            processes: HashMap::default(),
            dirs: ProcessDirs::default(),
            outputs: HashMap::default(),
            open: Vec::new(),
            max_open: MAX_OPEN,
            max_held: MAX_HELD,
            clock: 0,
            lost_rows: 0,
        })
    }

    /// Others write into the processes' directories, too.
    #[must_use]
    pub fn sharing(self, dirs: ProcessDirs) -> Self {
        Self { dirs, ..self }
    }

    fn put(&mut self, key: Key, entry: Entry<'_>) -> Result<(), SinkError> {
        self.clock += 1;
        let ready = self.outputs.get(&key).is_some_and(|output| output.writer.is_some());
        if !ready && let Err(error) = self.make_ready(key) {
            self.lost_rows += 1;
            return Err(error);
        }
        let Some(output) = self.outputs.get_mut(&key) else {
            return Ok(());
        };
        output.last_used = self.clock;
        match &mut output.writer {
            Some(Writer::Csv(file)) if file.is_full() => {
                let flushed = file.flush();
                if flushed.is_err() {
                    self.lost_rows += 1;
                    return flushed;
                }
                file.write(|out| entry.write_csv(out))
            }
            Some(Writer::Csv(file)) => file.write(|out| entry.write_csv(out)),
            Some(Writer::Db(file)) => {
                let result = entry.write_db(file);
                self.lost_rows += file.take_lost_rows();
                result
            }
            None => Ok(()),
        }
    }

    /// Creates the file of `key`, or opens it again.
    fn make_ready(&mut self, key: Key) -> Result<(), SinkError> {
        let made_room = if self.open.len() >= self.max_open { self.close_oldest() } else { Ok(()) };
        if !self.outputs.contains_key(&key) {
            self.create(key)?;
        }
        if let Some(output) = self.outputs.get_mut(&key) {
            if output.writer.is_none() {
                output.writer = Some(open_again(&self.tree, self.format, &output.place)?);
            }
            self.open.push(key);
        }
        made_room
    }

    /// Makes the file; a database is not open yet.
    fn create(&mut self, key: Key) -> Result<(), SinkError> {
        let (pid, device, table) = key;
        let process = self.processes.entry(pid).or_default();
        let dir = match &mut process.dir {
            Some(dir) => dir,
            none => {
                let dir = none.insert(self.dirs.of(&self.tree, pid)?);
                if let Some(config) = &self.config {
                    config.write(&self.tree, dir)?;
                }
                dir
            }
        };
        let directory = match device {
            Device::Npu(number) => format!("device_{number}"),
            Device::Cpu | Device::None => "device_cpu".to_owned(),
        };
        let (name, columns): (_, &[&str]) = match table {
            Table::Dump => ("memscope_dump", &COLUMNS),
            Table::Trace => ("python_trace", &TRACE_COLUMNS),
        };
        let name = match self.format {
            Format::Csv => format!("{name}_{}.csv", stamp(&Zoned::now())),
            // All databases of a process share one time (contract §2.1).
            Format::Db => format!("{name}_{}.db", dir.stamp()),
        };
        let (file, place) = self.tree.create(dir, &[&directory, "dump"], &name, FILE_MODE)?;
        let writer = match self.format {
            Format::Csv => Some(Writer::Csv(CsvFile::create(file, place.path(), columns))),
            Format::Db => None,
        };
        process.files.push((device, table));
        (self.on_created)(place.path());
        self.outputs.insert(key, Output { place, writer, last_used: self.clock });
        Ok(())
    }

    fn flush_one(&mut self, key: Key) -> Result<(), SinkError> {
        self.outputs.get_mut(&key).map_or(Ok(()), |output| output.flush(&mut self.lost_rows))
    }

    fn close_oldest(&mut self) -> Result<(), SinkError> {
        let last_used = |key: &Key| self.outputs.get(key).map_or(0, |output| output.last_used);
        match self.open.iter().copied().min_by_key(last_used) {
            Some(key) => self.close(key),
            None => Ok(()),
        }
    }

    fn close(&mut self, key: Key) -> Result<(), SinkError> {
        self.open.retain(|&open| open != key);
        let Some(writer) = self.outputs.get_mut(&key).and_then(|output| output.writer.take()) else {
            return Ok(());
        };
        let (result, lost) = match writer {
            Writer::Db(file) => file.close(),
            Writer::Csv(file) => file.close(),
        };
        self.lost_rows += lost;
        result
    }

    fn hold(&mut self, event: &Event) -> Result<(), SinkError> {
        let held = &mut self.processes.entry(event.pid).or_default().held;
        held.push(event.clone());
        if held.len() < self.max_held { Ok(()) } else { self.release(event.pid) }
    }

    /// Appends the held-back rows of a process to each of its files.
    fn release(&mut self, pid: u32) -> Result<(), SinkError> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let held = std::mem::take(&mut process.held);
        let is_dump = |file: &&(Device, Table)| file.1 == Table::Dump;
        let mut devices: Vec<Device> = process.files.iter().filter(is_dump).map(|(device, _)| *device).collect();
        if devices.is_empty() {
            devices.push(Device::Cpu);
        }
        let mut first = Ok(());
        for device in devices {
            for row in held.iter().filter_map(Row::of) {
                first = first.and(self.put((pid, device, Table::Dump), Entry::Dump(&row)));
            }
        }
        first
    }

    /// A thread without a device has its rows with the host's.
    fn trace(&mut self, row: &TraceRow<'_>) -> Result<(), SinkError> {
        let device = if row.device == Device::None { Device::Cpu } else { row.device };
        let table = match self.format {
            Format::Csv => Table::Trace,
            Format::Db => Table::Dump,
        };
        self.put((row.pid, device, table), Entry::Trace(row))
    }

    fn end_process(&mut self, pid: u32) -> Result<(), SinkError> {
        let mut first = self.release(pid);
        self.dirs.forget(pid);
        let Some(process) = self.processes.remove(&pid) else {
            return first;
        };
        for (device, table) in process.files {
            first = first.and(self.close((pid, device, table)));
            self.outputs.remove(&(pid, device, table));
        }
        first
    }
}

impl Sink for DumpSink {
    fn write(&mut self, event: &Event) -> Result<(), SinkError> {
        match Row::of(event) {
            // Who stops collecting wants to look at what there is.
            Some(_) if event.kind == EventKind::System(System::TraceStop) => {
                self.hold(event).and(self.release(event.pid)).and(self.flush())
            }
            Some(row) if row.device == Device::None => self.hold(event),
            Some(row) => {
                let key = (row.pid, row.device, Table::Dump);
                let put = self.put(key, Entry::Dump(&row));
                // Whoever is out of memory may take the machine with it.
                let urgent = matches!(event.kind, EventKind::OutOfMemory(_));
                if urgent { put.and(self.flush_one(key)) } else { put }
            }
            None if event.kind == EventKind::ProcessEnd => self.end_process(event.pid),
            None => match TraceRow::of(event) {
                Some(row) => self.trace(&row),
                None => Ok(()),
            },
        }
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let mut first = Ok(());
        for output in self.outputs.values_mut() {
            first = first.and(output.flush(&mut self.lost_rows));
        }
        first
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        let mut pids: Vec<u32> = self.processes.keys().copied().collect();
        pids.sort_unstable();
        let mut first = Ok(());
        for pid in pids {
            first = first.and(self.end_process(pid));
        }
        first
    }

    fn lost_rows(&self) -> u64 {
        self.lost_rows
    }
}

impl Output {
    fn flush(&mut self, lost_rows: &mut u64) -> Result<(), SinkError> {
        match &mut self.writer {
            Some(Writer::Csv(file)) => file.flush(),
            Some(Writer::Db(file)) => {
                let result = file.flush();
                *lost_rows += file.take_lost_rows();
                result
            }
            None => Ok(()),
        }
    }
}

fn open_again(tree: &OutputTree, format: Format, place: &Place) -> Result<Writer, SinkError> {
    let file = tree.reopen(place)?;
    match format {
        Format::Csv => Ok(Writer::Csv(CsvFile::append(file, place.path()))),
        Format::Db => {
            // Closing it later would drop the locks that SQLite takes on the same file (POSIX locks).
            drop(file);
            open_db(place)
        }
    }
}

/// SQLite opens by path, and only a file that is there. It follows no link at the last step; should a step before
/// have been replaced, the file it found is not the one we made.
fn open_db(place: &Place) -> Result<Writer, SinkError> {
    place.verify()?;
    let file = DbFile::open(place.path())?;
    place.verify()?;
    Ok(Writer::Db(Box::new(file)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::{Arc, Mutex};

    use rusqlite::Connection;

    use super::*;
    use crate::model::{FreeCause, Mark, Pool};
    use crate::sinks::fixtures::{alloc, at, event, free};
    use crate::sinks::row::COLUMNS;

    struct Run {
        root: tempfile::TempDir,
        sink: DumpSink,
        created: Arc<Mutex<Vec<PathBuf>>>,
    }

    impl Run {
        fn new(format: Format) -> Self {
            let root = tempfile::tempdir().expect("temporary directory");
            let created = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&created);
            let out_dir = root.path().join("a/out");
            let options = DumpOptions { out_dir, format, ..DumpOptions::default() };
            let sink = DumpSink::new(&options, move |path| log.lock().expect("lock").push(path.to_owned()));
            Self { root, sink: sink.expect("output directory"), created }
        }

        fn write(&mut self, event: &Event) {
            self.sink.write(event).expect("writable");
        }

        fn created(&self) -> Vec<PathBuf> {
            self.created.lock().expect("lock").clone()
        }

        /// The created file whose path has `part`.
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
        run.write(&at(2, Device::Npu(3), alloc(Pool::Hal, 0x10, 1)));
        run.write(&at(3, Device::Cpu, alloc(Pool::Host, 0x10, 2)));
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

    /// Nothing is made for a process without rows, nor for kinds of events without one.
    #[test]
    fn nothing_is_made_without_rows() {
        let mut run = Run::new(Format::Csv);
        run.write(&event(EventKind::StepStart { step: 1 }));
        run.write(&end(7));
        run.sink.finish().expect("writable");
        assert_eq!(run.entries(), 0);
    }

    /// What is flushed can be read by others, before the end.
    #[test]
    fn flush_makes_rows_visible() {
        for format in [Format::Csv, Format::Db] {
            let mut run = Run::new(format);
            run.write(&at(2, Device::Npu(0), alloc(Pool::Hal, 0x10, 1)));
            run.sink.flush().expect("writable");
            assert_eq!(rows(&run.created()[0]), 1, "{format:?}");
        }
    }

    /// Rows without a device go to every file of the process, after everything else.
    #[test]
    fn held_rows_go_to_every_file() {
        let mut run = Run::new(Format::Csv);
        run.write(&acl_init(12));
        run.write(&at(2, Device::Npu(0), alloc(Pool::Pta, 0x10, 1)));
        run.write(&at(3, Device::Npu(1), alloc(Pool::Pta, 0x10, 2)));
        run.write(&end(12));
        for device in ["device_0/", "device_1/"] {
            let text = run.text(device);
            assert!(text.starts_with(&header()), "{text}");
            assert!(text.ends_with("\n5,SYSTEM,ACL_INIT,N/A,1000,12,34,N/A,N/A,,,\n"), "{text}");
            assert_eq!(text.lines().count(), 3);
        }
    }

    /// Where a process has nothing but such rows, they go to the host's file instead of being lost.
    #[test]
    fn held_rows_alone_make_a_host_file() {
        let mut run = Run::new(Format::Csv);
        run.write(&acl_init(12));
        run.sink.finish().expect("writable");
        assert_eq!(run.text("device_cpu/"), header() + "5,SYSTEM,ACL_INIT,N/A,1000,12,34,N/A,N/A,,,\n");
    }

    /// Held rows are bounded: when there are too many they are written to the files there are, once.
    #[test]
    fn too_many_held_rows_are_written_early() {
        let mut run = Run::new(Format::Csv);
        run.sink.max_held = 3;
        run.write(&at(2, Device::Npu(0), alloc(Pool::Pta, 0x10, 1)));
        for _ in 0..7 {
            run.write(&acl_init(12));
        }
        assert_eq!(run.sink.processes[&12].held.len(), 1);
        run.sink.finish().expect("writable");
        assert_eq!(run.text("device_0/").lines().count(), 1 + 1 + 7);
        assert_eq!(run.created().len(), 1);
    }

    /// The end of a process closes its files; a later process of the same number gets its own.
    #[test]
    fn reused_process_number_gets_its_own_directory() {
        for format in [Format::Csv, Format::Db] {
            let mut run = Run::new(format);
            for _ in 0..3 {
                run.write(&at(2, Device::Npu(0), alloc(Pool::Hal, 0x10, 1)));
                run.write(&end(12));
                assert!(run.sink.open.is_empty() && run.sink.outputs.is_empty() && run.sink.processes.is_empty());
            }
            assert_eq!(run.entries(), 3, "{format:?}");
            assert!(run.created().iter().all(|path| rows(path) == 1), "{format:?}");
        }
    }

    /// With more files than may be open, the file written longest ago is closed, and goes on later where it ended.
    #[test]
    fn files_are_closed_and_opened_again() {
        for format in [Format::Csv, Format::Db] {
            let mut run = Run::new(format);
            run.sink.max_open = 2;
            for round in 0..3 {
                for device in 0..5 {
                    run.write(&at(10 + round, Device::Npu(device), alloc(Pool::Hal, 0x10, 1)));
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
        run.write(&at(2, Device::Npu(3), alloc(Pool::Hal, 0x10, 1)));
        run.write(&range(Device::None));
        run.sink.finish().expect("writable");
        let expected = TRACE_COLUMNS.join(",") + "\n\"forward, 1\",900,1000,34,12\n";
        for part in ["device_3/dump/python_trace_", "device_cpu/dump/python_trace_"] {
            assert_eq!(run.text(part), expected, "{part}");
        }
        assert_eq!((run.created().len(), run.text("device_3/dump/memscope_dump_").lines().count()), (3, 2));

        let mut run = Run::new(Format::Db);
        run.write(&at(2, Device::Npu(3), alloc(Pool::Hal, 0x10, 1)));
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
        run.write(&at(2, Device::Npu(0), alloc(Pool::Hal, 0x10, 1)));
        run.write(&at(3, Device::Npu(0), free(Pool::Hal, 0x10, 1, FreeCause::Program)));
        run.sink.finish().expect("writable");
        let created = run.created();
        let directory = created[0].parent().expect("file");
        assert_eq!(fs::read_dir(directory).expect("directory").count(), 1);
        assert_eq!(mode(&created[0]), 0o600);
        assert_eq!(rows(&created[0]), 2);
    }

    /// A directory that somebody swaps for a link while the file is closed is not followed.
    #[test]
    fn planted_link_is_not_followed() {
        for format in [Format::Csv, Format::Db] {
            let mut run = Run::new(format);
            run.sink.max_open = 1;
            run.write(&at(2, Device::Npu(0), alloc(Pool::Hal, 0x10, 1)));
            run.write(&at(2, Device::Npu(1), alloc(Pool::Hal, 0x10, 1)));
            let file = run.created()[0].clone();
            let dump = file.parent().expect("file").to_owned();
            let victim = run.root.path().join("victim");
            fs::rename(&dump, &victim).expect("rename");
            symlink(&victim, &dump).expect("link");

            let result = run.sink.write(&at(3, Device::Npu(0), alloc(Pool::Hal, 0x10, 2)));
            let message = crate::error_chain(&result.expect_err("must not follow"));
            assert!(message.starts_with(&format!("cannot write `{}", dump.display())), "{message}");
            assert_eq!(run.sink.lost_rows(), 1);
        }
    }

    /// A file that somebody replaces while it is closed is not written to.
    #[test]
    fn replaced_file_is_not_written() {
        for format in [Format::Csv, Format::Db] {
            let mut run = Run::new(format);
            run.sink.max_open = 1;
            run.write(&at(2, Device::Npu(0), alloc(Pool::Hal, 0x10, 1)));
            run.write(&at(2, Device::Npu(1), alloc(Pool::Hal, 0x10, 1)));
            let file = run.created()[0].clone();
            fs::rename(&file, file.with_extension("old")).expect("rename");
            fs::write(&file, "").expect("write");
            let result = run.sink.write(&at(3, Device::Npu(0), alloc(Pool::Hal, 0x10, 2)));
            assert!(crate::error_chain(&result.expect_err("replaced")).contains("replaced by somebody"));
            assert_eq!(fs::read(&file).expect("read"), b"");
        }
    }

    /// An output directory that cannot be made is said with its path.
    #[test]
    fn unusable_output_directory_is_an_error() {
        let options = DumpOptions { out_dir: "/proc/no/such".into(), ..DumpOptions::default() };
        let error = crate::error_chain(&DumpSink::new(&options, |_| {}).expect_err("not writable"));
        assert!(error.starts_with("cannot write `/proc/no`: "), "{error}");
    }

    /// Database rows hold what CSV rows hold, with types as the viewer wants them.
    #[test]
    fn database_rows_have_the_reference_types() {
        let mut run = Run::new(Format::Db);
        run.write(&at(2, Device::Npu(0), alloc(Pool::Hal, 0x3039, 1)));
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
}
