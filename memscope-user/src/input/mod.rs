//! Offline input: dumps of ours and of msMemScope, CSV or SQLite, and captures, as the events of a live trace.
//!
//! ```text
//! csv, db ─▶ row ─▶ runs or sort ─▶ repair ─▶ pipeline ─▶ analyses
//! capture ──────────────────────────────────▶ pipeline ─▶ analyses
//! ```
//!
//! Inputs are opened for reading only and never changed. Rows may be in any order (msMemScope writes those of a block
//! together at its end): they are sorted by process and ID, in temporary files if memory is too small. Files with rows
//! in order but for some stretches, as ours, are scanned first and then merged in place. Repairs are counted in
//! [`Notes`]; a row that cannot be understood is an error with file, line and column.

pub mod annotate;
mod attr;
mod cell;
pub(crate) mod csv;
mod db;
mod error;
mod identity;
mod notes;
mod pack;
mod progress;
mod repair;
mod row;
mod runs;
mod sort;
mod stack_table;
#[cfg(test)]
mod tests;
mod window;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use self::csv::CsvReader;
use self::db::Database;
use self::identity::Identities;
use self::progress::Teller;
use self::repair::Repair;
use self::runs::Merged;
use self::sort::{Sorted, Sorter};
use crate::analyses::select::{Selected, Selection};
use crate::analyses::{Analysis, Finding, Observer};
use crate::capture::format::MAGIC;
use crate::dump_format::row::DumpRow;
use crate::dump_format::stack_cell::TABLE_PREFIX;
use crate::model::{Kept, RunEnd};
use crate::pipeline::{self, Audience, Dumped, DumpedOutcome, PipelineConfig, ReplayReport};
use crate::regular;

pub(crate) use db::with_suffix;
pub use error::{BadRow, InputError};
pub use identity::Renamed;
pub use notes::Notes;
pub use progress::{Progress, Stage, Watcher};

/// How deep folders are searched for dumps.
const MAX_DEPTH: usize = 6;
const SQLITE: &[u8] = b"SQLite format 3\0";
/// Rows per batch of the reader, and the number of batches that it may be ahead.
const BATCH_ROWS: usize = 1024;
const BATCHES: usize = 8;

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Rows as text.
    Csv,
    /// Rows in SQLite.
    Db,
    /// Records of a trace.
    Capture,
}

/// The results of a finished reading.
#[derive(Debug)]
pub struct Outcome {
    /// Conclusions of the analyses, in their order.
    pub findings: Vec<Finding>,
    /// Where the events end. Dumps have no losses.
    pub end: RunEnd,
    /// Repairs.
    pub notes: Notes,
    /// How the replay went, if the input was a capture.
    pub replay: Option<ReplayReport>,
    /// Owns the call stacks that the findings refer to.
    pub kept: Kept,
}

/// How inputs are read.
#[derive(Default)]
pub struct Options {
    /// How a capture is replayed.
    pub pipeline: PipelineConfig,
    /// The events that the analyses and observers see.
    pub selection: Selection,
    /// See it, too.
    pub observers: Vec<Box<dyn Observer>>,
    /// Gets the progress of the reading.
    pub watcher: Option<Watcher>,
}

/// What kind of file this is, by its first bytes.
pub fn format(path: &Path) -> Result<Format, InputError> {
    let mut head = Vec::new();
    let file = regular::open(path).map_err(InputError::io(path))?;
    file.take(SQLITE.len() as u64).read_to_end(&mut head).map_err(InputError::io(path))?;
    Ok(match head.as_slice() {
        SQLITE => Format::Db,
        head if head.starts_with(&MAGIC) => Format::Capture,
        _ => Format::Csv,
    })
}

/// Files as given; for folders the dumps below them.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, InputError> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            // As `dump/*.csv` gives them: it is read with the rows that refer to it.
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if paths.len() == 1 || !name.starts_with(TABLE_PREFIX) {
                found.push(path.clone());
            }
            continue;
        }
        let before = found.len();
        collect(path, 0, &mut found)?;
        if found.len() == before {
            let what = "a folder without dumps (memscope_dump_*.csv or .db)".to_owned();
            return Err(InputError::Foreign { path: path.clone(), what });
        }
    }
    Ok(found)
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), InputError> {
    let mut entries =
        fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(InputError::io(folder))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().map_err(InputError::io(folder))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_dump = (name.starts_with("memscope_dump_") || name.starts_with("leaks_dump_"))
            && (name.ends_with(".csv") || name.ends_with(".db"));
        if kind.is_dir() && depth < MAX_DEPTH {
            collect(&entry.path(), depth + 1, found)?;
        } else if kind.is_file() && is_dump {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// Reads inputs of one run and asks the analyses: any number of dumps, or one capture.
pub fn run(paths: &[PathBuf], analyses: Vec<Box<dyn Analysis>>) -> Result<Outcome, InputError> {
    run_with(paths, Options::default(), analyses)
}

/// As [`run`], in another way.
pub fn run_with(paths: &[PathBuf], options: Options, analyses: Vec<Box<dyn Analysis>>) -> Result<Outcome, InputError> {
    let Options { pipeline, selection, observers, watcher } = options;
    let mut watcher = watcher.unwrap_or_else(|| Box::new(|_| {}));
    if selection.is_all() {
        return run_all(paths, pipeline, Audience { observers, ..Audience::of(analyses) }, &mut watcher);
    }
    let (selected, any_block) = Selected::new(&selection, analyses, observers);
    let mut outcome = run_all(paths, pipeline, Audience::of(vec![Box::new(selected)]), &mut watcher)?;
    outcome.end.nothing_selected = !any_block.was_seen();
    Ok(outcome)
}

fn run_all(
    paths: &[PathBuf],
    config: PipelineConfig,
    audience: Audience,
    watcher: &mut Watcher,
) -> Result<Outcome, InputError> {
    let files = files(paths)?;
    let formats: Vec<Format> = files.iter().map(|path| format(path)).collect::<Result<_, _>>()?;
    let kept = config.kept.clone().unwrap_or_else(Kept::of_run);
    match (files.as_slice(), formats.contains(&Format::Capture)) {
        ([capture], true) => {
            let total = fs::metadata(capture).map_err(InputError::io(capture))?.len();
            let mut teller = Teller::new(watcher, Stage::Reading, total);
            let mut replay = pipeline::replay(
                capture,
                PipelineConfig { kept: Some(kept.clone()), ..config },
                audience,
                &mut |done| teller.at(done),
            )?;
            let findings = std::mem::take(&mut replay.outcome.findings);
            let end = replay.outcome.end.clone();
            Ok(Outcome { findings, end, notes: Notes::default(), replay: Some(replay), kept })
        }
        (_, true) => Err(InputError::Together("a capture holds a whole run: give it alone")),
        (dumps, false) => run_dumps((dumps, &formats), kept, audience, watcher),
    }
}

fn run_dumps(
    (dumps, formats): (&[PathBuf], &[Format]),
    kept: Kept,
    audience: Audience,
    watcher: &mut Watcher,
) -> Result<Outcome, InputError> {
    let mut dumped = Dumped::new(audience);
    let mut take = |row| dumped.row(row);
    let (merged, identities) = Merged::find(dumps, formats, &kept, watcher)?;
    let mut notes = match merged {
        Some(merged) => each_row_as_it_lies(merged, watcher, &mut take)?,
        None => each_row_in_order((dumps, formats), &kept, (&identities, Sorter::default), watcher, &mut take)?,
    };
    let DumpedOutcome { findings, end, doubts } = dumped.finish();
    notes.renamed = identities.renamed;
    notes.contradictions += doubts.contradictions;
    notes.unmatched_frees += doubts.unmatched_frees;
    Ok(Outcome { findings, end, notes, replay: None, kept })
}

/// Gives the rows of dumps that are in order to `take`. A separate thread reads them, as that takes as long as their
/// processing.
fn each_row_as_it_lies(
    merged: Merged,
    watcher: &mut Watcher,
    take: &mut dyn FnMut(DumpRow),
) -> Result<Notes, InputError> {
    let mut teller = Teller::new(watcher, Stage::Analysing, merged.rows);
    let (send, receive) = mpsc::sync_channel::<Vec<DumpRow>>(BATCHES);
    thread::scope(|scope| {
        let read = move || -> Result<Notes, InputError> {
            let mut batch = Vec::with_capacity(BATCH_ROWS);
            let notes = merged.each(|row| {
                batch.push(row);
                if batch.len() < BATCH_ROWS {
                    return true;
                }
                // The receiver has gone if the analyses have panicked.
                send.send(std::mem::replace(&mut batch, Vec::with_capacity(BATCH_ROWS))).is_ok()
            })?;
            drop(send.send(batch));
            Ok(notes)
        };
        let reader = thread::Builder::new().name("memscope-read".to_owned());
        let reader = reader.spawn_scoped(scope, read).map_err(InputError::Thread)?;
        for (done, row) in (1..).zip(receive.into_iter().flatten()) {
            teller.at(done);
            take(row);
        }
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Gives the rows of dumps in any order to `take`, in order.
fn each_row_in_order(
    (dumps, formats): (&[PathBuf], &[Format]),
    kept: &Kept,
    (identities, sorter): (&Identities, impl Fn() -> Sorter),
    watcher: &mut Watcher,
    take: &mut dyn FnMut(DumpRow),
) -> Result<Notes, InputError> {
    let mut notes = Notes::default();
    let mut pids = BTreeSet::new();
    let mut rows = sorter();
    let mut sequence = 0;
    let mut sort = |row: DumpRow| {
        let row = DumpRow { pid: identities.of(row.file, row.pid), ..row };
        if pids.len() < 2 {
            pids.insert(row.pid);
        }
        sequence += 1;
        rows.push([row.pid.into(), row.id, row.time_ns, sequence], |bytes| pack::pack(&row, bytes))
            .map_err(InputError::Sort)
    };
    each_row((dumps, formats), kept, &mut notes, watcher, &mut sort)?;
    let mut in_order = InOrder::new(rows.finish().map_err(InputError::Sort)?);
    if pids.len() < 2 {
        let mut teller = Teller::new(watcher, Stage::Analysing, sequence);
        while let Some(row) = in_order.next(&mut notes)? {
            teller.at(notes.rows);
            take(row);
        }
    } else {
        // Time runs forward within each process now, so sorting by it mixes processes and nothing else.
        let mut by_time = sorter();
        let mut teller = Teller::new(watcher, Stage::Sorting, sequence);
        while let Some(row) = in_order.next(&mut notes)? {
            teller.at(notes.rows);
            let key = [row.time_ns, row.pid.into(), row.id, notes.rows];
            by_time.push(key, |bytes| pack::pack(&row, bytes)).map_err(InputError::Sort)?;
        }
        let (mut in_time, mut bytes) = (by_time.finish().map_err(InputError::Sort)?, Vec::new());
        let mut teller = Teller::new(watcher, Stage::Analysing, notes.rows);
        for done in 1.. {
            if !in_time.next(&mut bytes).map_err(InputError::Sort)? {
                break;
            }
            teller.at(done);
            take(pack::unpack(&bytes));
        }
    }
    Ok(notes)
}

/// Gives the rows of dumps as they lie in their files.
fn each_row(
    (dumps, formats): (&[PathBuf], &[Format]),
    kept: &Kept,
    notes: &mut Notes,
    watcher: &mut Watcher,
    take: &mut dyn FnMut(DumpRow) -> Result<(), InputError>,
) -> Result<(), InputError> {
    let sizes = dumps.iter().map(|path| Ok(fs::metadata(path).map_err(InputError::io(path))?.len()));
    let sizes: Vec<u64> = sizes.collect::<Result<_, InputError>>()?;
    let mut teller = Teller::new(watcher, Stage::Reading, sizes.iter().sum());
    let mut before = 0;
    for ((file, size_bytes), (path, format)) in (0..).zip(sizes).zip(dumps.iter().zip(formats)) {
        if *format == Format::Db {
            let database = Database::open(path, kept)?;
            let count = database.count().max(1);
            database.rows(file, notes, |row| {
                teller.at(before + size_bytes / count * row.line);
                take(row)
            })?;
        } else {
            let mut reader = CsvReader::open(path)?.keeping_in(kept);
            while let Some(row) = reader.next_row(file, notes)? {
                teller.at(before + reader.read_bytes());
                take(row)?;
            }
            reader.tally().clone().check()?;
        }
        before += size_bytes;
    }
    Ok(())
}

/// Rows by process and ID, each once, with times that never run back.
struct InOrder {
    sorted: Sorted,
    bytes: Vec<u8>,
    /// The process under way, and its rows.
    process: Option<(u32, Repair)>,
    /// The first row of the next process.
    ahead: Option<DumpRow>,
}

impl InOrder {
    const fn new(sorted: Sorted) -> Self {
        Self { sorted, bytes: Vec::new(), process: None, ahead: None }
    }

    fn next(&mut self, notes: &mut Notes) -> Result<Option<DumpRow>, InputError> {
        loop {
            let Some(row) = self.read()? else { return Ok(self.process.take().and_then(|(_, mut last)| last.end())) };
            match &mut self.process {
                Some((pid, repair)) if *pid == row.pid => {
                    if let Some(row) = repair.take(row, notes) {
                        return Ok(Some(row));
                    }
                }
                Some((_, repair)) => {
                    let last = repair.end();
                    (self.process, self.ahead) = (None, Some(row));
                    if last.is_some() {
                        return Ok(last);
                    }
                }
                None => {
                    let mut repair = Repair::default();
                    let pid = row.pid;
                    repair.take(row, notes);
                    self.process = Some((pid, repair));
                }
            }
        }
    }

    fn read(&mut self) -> Result<Option<DumpRow>, InputError> {
        if let Some(row) = self.ahead.take() {
            return Ok(Some(row));
        }
        let is_row = self.sorted.next(&mut self.bytes).map_err(InputError::Sort)?;
        Ok(is_row.then(|| pack::unpack(&self.bytes)))
    }
}
