//! The sink for rows: one file per (process, device), in the tree of contract §2.1.
//!
//! Files are made at their first row. At most [`MAX_OPEN_CSV`] or [`MAX_OPEN_DB`] are open at a time; the one written
//! longest ago is closed for the next, and opened again when needed: alternating between more files than that costs a
//! system call or five for each row. The files of a process are closed when it ends.
//!
//! Rows without a device go to every file of their process. msMemScope appends them at the end; here they are in order:
//! a file begins with the earlier ones, and gets the later ones at once. None is lost: a process without any file gets
//! one in `device_cpu`, and where more than [`MAX_HELD`] came before a file, the earlier files have the rest.

mod file;
mod parts;

use std::fmt;
use std::path::{Path, PathBuf};

use jiff::Zoned;

use super::config_json::DumpConfig;
use super::csv::CsvFile;
use super::row::{COLUMNS, Row};
use super::stack_ids::{Room, StackCells, StackIds};
use super::trace_row::{TRACE_COLUMNS, TraceRow};
use super::tree::{FILE_MODE, OutputTree, Owner, Place, ProcessDir, ProcessDirs, stamp};
use super::{Sink, SinkError};
use crate::dump_format::stack_cell::{TABLE_COLUMNS, table_name};
use crate::hash::{HashMap, HashSet};
use crate::model::{Device, Event, EventKind, Stacks, System};
pub use file::Format;
use file::{CsvRows, Entry, Output, StackTable, Writer};
pub use parts::Rotation;
use parts::{LOOK_ROWS, Parts};

/// Files open at a time.
const MAX_OPEN_CSV: usize = 1024;
/// Databases open at a time. Each takes three descriptors, and memory for its pages.
const MAX_OPEN_DB: usize = 128;
/// Rows without a device that a process's later files begin with.
const MAX_HELD: usize = 10_000;

/// How and where to write rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpOptions {
    /// Output directory; made where missing.
    pub out_dir: PathBuf,
    /// Format of the rows.
    pub format: Format,
    /// How rows have their call stacks.
    pub stacks: StackCells,
    /// Whether files are split into parts, of which the newest stay.
    pub rotation: Option<Rotation>,
    /// User and group that everything made is handed to.
    pub owner: Option<Owner>,
    /// Written as `config.json` into every process's directory.
    pub config: Option<DumpConfig>,
}

/// A change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChange<'a> {
    /// It was made.
    Made(&'a Path),
    /// It was removed, as one of the oldest.
    Removed(&'a Path),
}

/// Hears of files.
type OnChange = Box<dyn FnMut(FileChange<'_>) + Send>;

/// Writes rows to one file per process and device.
pub struct DumpSink {
    tree: OutputTree,
    format: Format,
    stacks: StackCells,
    /// For the numbers of stacks.
    room: Room,
    config: Option<DumpConfig>,
    on_change: OnChange,
    parts: Option<Parts>,
    processes: HashMap<u32, Process>,
    dirs: ProcessDirs,
    outputs: HashMap<Key, Output>,
    /// Files that could not be made or opened: they are tried again after a flush, not for each row.
    broken: HashSet<Key>,
    open: Vec<Key>,
    max_open: usize,
    max_held: usize,
    /// Counts rows, to find the file written longest ago.
    clock: u64,
    lost_rows: u64,
}

type Key = (u32, Device, Table);

/// Contents of a file. A database holds both, and counts as a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Table {
    Dump,
    Trace,
}

#[derive(Default)]
struct Process {
    dir: Option<ProcessDir>,
    files: Vec<(Device, Table)>,
    /// Rows without a device so far, for files not made yet.
    held: Vec<Event>,
    /// Number of them that are in files of earlier parts.
    held_before: usize,
}

impl Process {
    /// Devices with a file of rows.
    fn dumps(&self) -> Vec<Device> {
        self.files.iter().filter(|(_, table)| *table == Table::Dump).map(|(device, _)| *device).collect()
    }
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
    /// Opens the output directory. `on_change` gets each file that is made or removed.
    pub fn new(
        options: &DumpOptions,
        on_change: impl FnMut(FileChange<'_>) + Send + 'static,
    ) -> Result<Self, SinkError> {
        let tree = OutputTree::open(&options.out_dir, options.owner)?;
        Ok(Self::below(tree, options, on_change))
    }

    /// Writes below an open output directory.
    pub fn below(
        tree: OutputTree,
        options: &DumpOptions,
        on_change: impl FnMut(FileChange<'_>) + Send + 'static,
    ) -> Self {
        Self {
            tree,
            format: options.format,
            stacks: options.stacks,
            room: Room::default(),
            config: options.config.clone(),
            on_change: Box::new(on_change),
            parts: options.rotation.map(Parts::new),
            processes: HashMap::default(),
            dirs: ProcessDirs::default(),
            outputs: HashMap::default(),
            broken: HashSet::default(),
            open: Vec::new(),
            max_open: match options.format {
                Format::Csv => MAX_OPEN_CSV,
                Format::Db => MAX_OPEN_DB,
            },
            max_held: MAX_HELD,
            clock: 0,
            lost_rows: 0,
        }
    }

    /// Others write into the processes' directories, too.
    #[must_use]
    pub fn sharing(self, dirs: ProcessDirs) -> Self {
        Self { dirs, ..self }
    }

    fn put(&mut self, key: Key, entry: Entry<'_>) -> Result<(), SinkError> {
        self.clock += 1;
        let ready = self.outputs.get(&key).is_some_and(|output| output.writer.is_some());
        if !ready && self.broken.contains(&key) {
            self.lost_rows += 1;
            return Ok(());
        }
        if !ready && let Err(error) = self.make_ready(key) {
            self.lost_rows += 1;
            self.broken.insert(key);
            return Err(error);
        }
        let stacks = if entry.has_stacks() { self.make_stack_table(key) } else { Ok(()) };
        let Some(output) = self.outputs.get_mut(&key) else {
            return Ok(());
        };
        output.last_used = self.clock;
        stacks.and(output.put(entry, &mut self.lost_rows))
    }

    /// Creates the file of `key`, or opens it again.
    fn make_ready(&mut self, key: Key) -> Result<(), SinkError> {
        let made_room = if self.open.len() >= self.max_open { self.close_oldest() } else { Ok(()) };
        if !self.outputs.contains_key(&key) {
            self.create(key)?;
        }
        let mut begins = false;
        if let Some(output) = self.outputs.get_mut(&key) {
            if output.writer.is_none() {
                output.open_again(&self.tree, self.format)?;
            }
            self.open.push(key);
            begins = !std::mem::replace(&mut output.begun, true) && key.2 == Table::Dump;
        }
        if begins { made_room.and(self.put_held(key)) } else { made_room }
    }

    /// Begins a new file with the rows without a device that came before it.
    fn put_held(&mut self, key: Key) -> Result<(), SinkError> {
        let Some(process) = self.processes.get_mut(&key.0) else { return Ok(()) };
        let held = std::mem::take(&mut process.held);
        let (mut first, stacks) = (Ok(()), self.stacks);
        for row in held.iter().filter_map(|event| row_of(event, stacks)) {
            first = first.and(self.put(key, Entry::Dump(&row)));
        }
        if let Some(process) = self.processes.get_mut(&key.0) {
            process.held = held;
        }
        first
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
        let part = self.parts.as_ref().map(Parts::suffix).unwrap_or_default();
        let name = match self.format {
            Format::Csv => format!("{name}_{}{part}.csv", stamp(&Zoned::now())),
            // All databases of a process share one time (contract §2.1).
            Format::Db => format!("{name}_{}{part}.db", dir.stamp()),
        };
        let (file, place) = self.tree.create(dir, &[&directory, "dump"], &name, FILE_MODE)?;
        let writer = match self.format {
            Format::Csv => {
                Some(Writer::Csv(CsvRows { rows: CsvFile::create(file, place.path(), columns), stacks: None }))
            }
            Format::Db => None,
        };
        process.files.push((device, table));
        note_made(&mut self.on_change, self.parts.as_mut(), &place);
        let (last_used, begun, size_bytes) = (self.clock, false, 0);
        self.outputs.insert(key, Output { place, writer, stacks: None, last_used, begun, size_bytes });
        Ok(())
    }

    /// Makes the table of stacks that rows of `key` refer to, with the first of them. If that fails, rows have their
    /// full stacks.
    fn make_stack_table(&mut self, key: Key) -> Result<(), SinkError> {
        if self.stacks != StackCells::Table || key.2 != Table::Dump {
            return Ok(());
        }
        let Some(output) = self.outputs.get_mut(&key).filter(|output| output.stacks.is_none()) else { return Ok(()) };
        let place = match &mut output.writer {
            Some(Writer::Csv(file)) => {
                let made = self.tree.create_beside(&output.place, &table_name(output.place.name()), FILE_MODE);
                let (made, place) = made.inspect_err(|_| self.stacks = StackCells::Inline)?;
                file.stacks = Some(CsvFile::create(made, place.path(), &TABLE_COLUMNS));
                note_made(&mut self.on_change, self.parts.as_mut(), &place);
                Some(place)
            }
            Some(Writer::Db(_)) | None => None,
        };
        output.stacks = Some(StackTable { ids: StackIds::new(self.room.clone()), place });
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
        // To know its size. A write error is reported at its close.
        drop(self.flush_one(key));
        if let (Some(_), Some(output)) = (&self.parts, self.outputs.get_mut(&key)) {
            output.measure();
        }
        let Some(writer) = self.outputs.get_mut(&key).and_then(|output| output.writer.take()) else {
            return Ok(());
        };
        let (result, lost) = match writer {
            Writer::Db(file) => file.close(),
            Writer::Csv(file) => file.close(),
        };
        self.lost_rows += lost;
        if let (true, Some(table)) = (result.is_err(), self.outputs.get_mut(&key).and_then(|it| it.stacks.as_mut())) {
            table.ids.forget();
        }
        result
    }

    /// Writes a row without a device to every file of its process, and keeps it for later ones.
    fn share(&mut self, event: &Event, row: &Row<'_>) -> Result<(), SinkError> {
        let max_held = self.max_held;
        let process = self.processes.entry(event.pid).or_default();
        let mut devices = process.dumps();
        let mut first = Ok(());
        if process.held.len() < max_held {
            process.held.push(event.clone());
        } else if devices.is_empty() {
            first = self.release(event.pid);
            devices = self.processes.get(&event.pid).map(Process::dumps).unwrap_or_default();
            self.lost_rows += u64::from(devices.is_empty());
        }
        for device in devices {
            first = first.and(self.put((event.pid, device, Table::Dump), Entry::Dump(row)));
        }
        first
    }

    /// Makes the host's file of a process without a file, if it has rows without a device.
    fn release(&mut self, pid: u32) -> Result<(), SinkError> {
        let without_file =
            self.processes.get(&pid).is_some_and(|it| it.held.len() > it.held_before && it.dumps().is_empty());
        let key = (pid, Device::Cpu, Table::Dump);
        if without_file && !self.broken.contains(&key) { self.make_ready(key) } else { Ok(()) }
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
        self.broken.retain(|key| key.0 != pid);
        let Some(process) = self.processes.remove(&pid) else {
            return first;
        };
        if process.dumps().is_empty() {
            self.lost_rows += (process.held.len() - process.held_before) as u64;
        }
        for (device, table) in process.files {
            first = first.and(self.close((pid, device, table)));
            let output = self.outputs.remove(&(pid, device, table));
            if let (Some(parts), Some(output)) = (&mut self.parts, output) {
                parts.ended(output.size_bytes);
            }
        }
        first
    }

    /// Begins new files if those of this part are full, and removes the oldest.
    fn rotate_if_full(&mut self) -> Result<(), SinkError> {
        let Some(parts) = &self.parts else { return Ok(()) };
        self.outputs.values_mut().for_each(Output::measure);
        if !parts.are_full(self.outputs.values().map(|output| output.size_bytes).sum()) {
            return Ok(());
        }
        let mut first = Ok(());
        for key in self.outputs.keys().copied().collect::<Vec<_>>() {
            first = first.and(self.close(key));
        }
        self.outputs.clear();
        self.broken.clear();
        for process in self.processes.values_mut() {
            if !process.dumps().is_empty() {
                process.held_before = process.held.len();
            }
            process.files.clear();
        }
        for place in self.parts.as_mut().map(Parts::next).unwrap_or_default() {
            first = first.and(self.tree.remove(&place));
            (self.on_change)(FileChange::Removed(place.path()));
        }
        first
    }
}

/// The row of an event, with the stacks that rows have.
fn row_of(event: &Event, stacks: StackCells) -> Option<Row<'_>> {
    let row = Row::of(event)?;
    Some(if stacks == StackCells::Absent { Row { stacks: Stacks::default(), ..row } } else { row })
}

fn note_made(on_change: &mut OnChange, parts: Option<&mut Parts>, place: &Place) {
    on_change(FileChange::Made(place.path()));
    if let Some(parts) = parts {
        parts.made(place.clone());
    }
}

impl Sink for DumpSink {
    fn write(&mut self, event: &Event) -> Result<(), SinkError> {
        let looked = self.clock / LOOK_ROWS;
        let written = self.write_event(event);
        if self.clock / LOOK_ROWS == looked { written } else { written.and(self.rotate_if_full()) }
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.broken.clear();
        let mut first = Ok(());
        for output in self.outputs.values_mut() {
            first = first.and(output.flush(&mut self.lost_rows));
        }
        first.and(self.rotate_if_full())
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

impl DumpSink {
    fn write_event(&mut self, event: &Event) -> Result<(), SinkError> {
        match row_of(event, self.stacks) {
            // A user who stops collecting wants to read the rows.
            Some(row) if event.kind == EventKind::System(System::TraceStop) => {
                self.share(event, &row).and(self.release(event.pid)).and(self.flush())
            }
            Some(row) if row.device == Device::None => self.share(event, &row),
            Some(row) => {
                let key = (row.pid, row.device, Table::Dump);
                let put = self.put(key, Entry::Dump(&row));
                // A process that is out of memory may take the machine with it.
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
}

#[cfg(test)]
mod tests;
