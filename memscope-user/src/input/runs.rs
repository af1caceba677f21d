//! Rows that lie in order in their files are merged as they lie, and sorted nowhere.
//!
//! Our tracer writes a process's rows in their order, except those without a device, which follow at the end. So a file
//! is a few runs, each of which can be read from its start. Other files (msMemScope writes the rows of a block at its
//! end) have too many runs, and are sorted instead.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::csv::CsvReader;
use super::db::Database;
use super::error::Tally;
use super::identity::{Census, Identities};
use super::progress::Teller;
use super::repair::Repair;
use crate::dump_format::row::DumpRow;
use crate::model::Kept;

use super::{Format, InputError, Notes, Stage, Watcher};

/// Most runs read at the same time; each has an open file and a buffer.
pub(super) const MAX_RUNS: usize = 256;
/// Rows of a database read at once.
const PAGE_ROWS: u32 = 1024;

/// The order of rows: process, number, time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) pid: u32,
    pub(super) id: u64,
    pub(super) time_ns: u64,
}

/// Consecutive rows of one process, by number and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) pid: u32,
    /// Where it begins and ends: bytes of a file (behind the last row), row numbers of a table (the last row's).
    pub(super) start: u64,
    pub(super) end: u64,
    /// Line or row that it begins with, from 1.
    pub(super) line: u64,
}

/// Parts the rows of one file into runs.
#[derive(Debug, Default)]
pub(super) struct Runs {
    found: Vec<Run>,
    last: Option<Place>,
    pub(super) rows: u64,
}

impl Runs {
    /// Takes the next row, which lies from `start` to `end`; false if there are too many runs.
    pub(super) fn take(&mut self, place: Place, (start, end): (u64, u64), line: u64) -> bool {
        let goes_on =
            self.last.is_some_and(|last| last.pid == place.pid && (last.id, last.time_ns) <= (place.id, place.time_ns));
        self.last = Some(place);
        self.rows += 1;
        match self.found.last_mut() {
            Some(run) if goes_on => run.end = end,
            _ => self.found.push(Run { pid: place.pid, start, end, line }),
        }
        self.found.len() <= MAX_RUNS
    }
}

/// A run: its file, its process, and its reader.
type OfFile = (u32, u32, Source);
/// All runs, the notes, and the number of rows.
type Looked = (Vec<OfFile>, Notes, u64);

/// All rows of some dumps, in order.
pub(super) struct Merged {
    processes: BTreeMap<u32, OneProcess>,
    /// The next row of each process but the last one used, by time, process and number.
    heads: BinaryHeap<Reverse<(u64, u32, u64)>>,
    /// Torn rows seen in the scan.
    pub(super) notes: Notes,
    pub(super) rows: u64,
}

impl Merged {
    /// Scans the files. Without rows if they are not in order, or unreadable, which reading them will report.
    pub(super) fn find(
        dumps: &[PathBuf],
        formats: &[Format],
        kept: &Kept,
        watcher: &mut Watcher,
    ) -> Result<(Option<Self>, Identities), InputError> {
        // The rows of one file are of one process each.
        let mut census = (dumps.len() > 1).then(Census::default);
        let sources = Self::look((dumps, formats), kept, &mut census, watcher)?;
        let identities = census.map(|census| census.identities(dumps)).unwrap_or_default();
        let merged = sources.map(|(sources, notes, rows)| {
            let mut processes: BTreeMap<u32, OneProcess> = BTreeMap::new();
            for (file, pid, source) in sources {
                let shown = identities.of(file, pid);
                processes.entry(shown).or_default().sources.push((source, None));
            }
            Self { processes, heads: BinaryHeap::new(), notes, rows }
        });
        Ok((merged, identities))
    }

    /// The runs of all files, the notes, and the number of rows; `None` beyond the limit of runs.
    fn look(
        (dumps, formats): (&[PathBuf], &[Format]),
        kept: &Kept,
        census: &mut Option<Census>,
        watcher: &mut Watcher,
    ) -> Result<Option<Looked>, InputError> {
        let (mut all, mut notes, mut rows_seen) = (Some(Vec::new()), Notes::default(), 0);
        let sizes = dumps.iter().map(|path| Ok(fs::metadata(path).map_err(InputError::io(path))?.len()));
        let sizes: Vec<u64> = sizes.collect::<Result<_, InputError>>()?;
        let mut teller = Teller::new(watcher, Stage::Looking, sizes.iter().sum());
        let mut before = 0;
        for ((file, size_bytes), (path, format)) in (0..).zip(sizes).zip(dumps.iter().zip(formats)) {
            let mut progress = |done: u64| teller.at(before + done.min(size_bytes));
            let mut take = census.as_mut().map(|census| move |place: Place| census.take(file, place));
            let take = take.as_mut().map(|take| take as &mut dyn FnMut(Place));
            let sources = if *format == Format::Db {
                let database = Database::open(path, kept)?;
                let runs = database.runs(size_bytes, &mut progress, take);
                runs.map(|runs| (runs.rows, of_database(database, file, runs)))
            } else {
                let mut reader = CsvReader::open(path)?.keeping_in(kept);
                let runs = reader.runs(&mut notes, &mut progress, take);
                runs.and_then(|runs| Some((runs.rows, of_csv(&reader, file, runs)?)))
            };
            match (sources, &mut all) {
                (Some((rows, sources)), Some(all)) if all.len() + sources.len() <= MAX_RUNS => {
                    rows_seen += rows;
                    all.extend(sources);
                }
                // The others are read for the processes of their rows.
                _ if census.is_some() => all = None,
                _ => return Ok(None),
            }
            before += size_bytes;
        }
        Ok(all.map(|all| (all, notes, rows_seen)))
    }

    /// Calls `out` with all rows, each once and with times that do not run backwards, until it returns false.
    pub(super) fn each(mut self, mut out: impl FnMut(DumpRow) -> bool) -> Result<Notes, InputError> {
        let mut notes = std::mem::take(&mut self.notes);
        for (pid, process) in &mut self.processes {
            process.shown = *pid;
            self.heads.extend(process.advance(&mut notes)?.map(|(time_ns, id)| Reverse((time_ns, *pid, id))));
        }
        while let Some(Reverse((_, pid, _))) = self.heads.pop() {
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            // While the process is the next, the others need not be asked.
            while let Some(row) = process.next.take() {
                if !out(row) {
                    return Ok(notes);
                }
                let Some((time_ns, id)) = process.advance(&mut notes)? else { break };
                let head = (time_ns, pid, id);
                if self.heads.peek().is_some_and(|Reverse(other)| *other < head) {
                    self.heads.push(Reverse(head));
                    break;
                }
            }
        }
        self.check()?;
        Ok(notes)
    }

    /// An error if no row of a file could be understood.
    fn check(&self) -> Result<(), InputError> {
        let mut tallies: BTreeMap<u32, Tally> = BTreeMap::new();
        for (source, _) in self.processes.values().flat_map(|process| &process.sources) {
            source.tally(&mut |file, tally| tallies.entry(file).or_default().add(tally));
        }
        tallies.into_values().try_for_each(Tally::check)
    }
}

fn of_database(database: Database, file: u32, runs: Runs) -> Vec<OfFile> {
    let database = Arc::new(Mutex::new(database));
    let source = |run: Run| {
        let (database, page) = (Arc::clone(&database), Vec::new().into_iter());
        (file, run.pid, Source::Db(DbRun { database, file, run, page }))
    };
    runs.found.into_iter().map(source).collect()
}

/// `None` beyond the limit of open files.
fn of_csv(reader: &CsvReader<File>, file: u32, runs: Runs) -> Option<Vec<OfFile>> {
    let source = |run: Run| Some((file, run.pid, Source::Csv(file, Box::new(reader.of_run(run).ok()?))));
    runs.found.into_iter().map(source).collect()
}

/// The rows of one process.
#[derive(Default)]
struct OneProcess {
    /// Each with its next row.
    sources: Vec<(Source, Option<DumpRow>)>,
    /// The next row of each source but the last one asked: number, time, source.
    heads: BinaryHeap<Reverse<(u64, u64, usize)>>,
    begun: bool,
    /// The number that it is shown by.
    shown: u32,
    /// The source that gave the last row.
    asked: Option<usize>,
    repair: Repair,
    /// The next row.
    next: Option<DumpRow>,
}

impl OneProcess {
    /// Makes the next row ready; gives its time and number.
    fn advance(&mut self, notes: &mut Notes) -> Result<Option<(u64, u64)>, InputError> {
        while self.next.is_none() {
            let Some(row) = self.merge(notes)? else {
                self.next = self.repair.end();
                break;
            };
            let row = DumpRow { pid: self.shown, ..row };
            self.next = self.repair.take(row, notes);
        }
        Ok(self.next.as_ref().map(|row| (row.time_ns, row.id)))
    }

    /// The next row as it lies in its file.
    fn merge(&mut self, notes: &mut Notes) -> Result<Option<DumpRow>, InputError> {
        if !std::mem::replace(&mut self.begun, true) {
            for number in 0..self.sources.len() {
                self.read(number, notes)?;
            }
        }
        // Rows of one source follow one another nearly always.
        if let Some(number) = self.asked {
            let (source, _) = &mut self.sources[number];
            let row = source.next(notes)?;
            let Some(place) = row.as_ref().map(|row| Reverse((row.id, row.time_ns, number))) else {
                self.asked = None;
                return self.merge(notes);
            };
            if self.heads.peek().is_none_or(|other| *other < place) {
                return Ok(row);
            }
            (self.sources[number].1, self.asked) = (row, None);
            self.heads.push(place);
        }
        let Some(Reverse((_, _, number))) = self.heads.pop() else { return Ok(None) };
        self.asked = Some(number);
        Ok(self.sources[number].1.take())
    }

    fn read(&mut self, number: usize, notes: &mut Notes) -> Result<(), InputError> {
        let (source, head) = &mut self.sources[number];
        *head = source.next(notes)?;
        self.heads.extend(head.as_ref().map(|row| Reverse((row.id, row.time_ns, number))));
        Ok(())
    }
}

/// Reads a run.
enum Source {
    Csv(u32, Box<CsvReader<File>>),
    Db(DbRun),
}

impl Source {
    /// Adds the number of understood rows. A database counts for all of its runs.
    fn tally(&self, out: &mut dyn FnMut(u32, &Tally)) {
        match self {
            Self::Csv(file, reader) => out(*file, reader.tally()),
            Self::Db(run) => out(run.file, run.database.lock().unwrap_or_else(PoisonError::into_inner).tally()),
        }
    }

    fn next(&mut self, notes: &mut Notes) -> Result<Option<DumpRow>, InputError> {
        match self {
            Self::Csv(file, reader) => reader.next_row(*file, notes),
            Self::Db(run) => run.next(notes),
        }
    }
}

/// Reads a run of a table, page by page.
struct DbRun {
    database: Arc<Mutex<Database>>,
    file: u32,
    /// The rest of it.
    run: Run,
    page: std::vec::IntoIter<DumpRow>,
}

impl DbRun {
    fn next(&mut self, notes: &mut Notes) -> Result<Option<DumpRow>, InputError> {
        loop {
            if let Some(row) = self.page.next() {
                return Ok(Some(row));
            }
            if self.run.start > self.run.end {
                return Ok(None);
            }
            let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
            self.page = database.page(self.file, &mut self.run, PAGE_ROWS, notes)?.into_iter();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_the_order_does() {
        let mut runs = Runs::default();
        let places = [(5, 1, 10), (5, 2, 10), (5, 2, 11), (5, 2, 10), (5, 3, 9), (6, 4, 9), (5, 5, 9)];
        for (at, (pid, id, time_ns)) in (0..).zip(places) {
            assert!(runs.take(Place { pid, id, time_ns }, (at * 10, at * 10 + 10), at + 2));
        }
        // The third row has the number of the second and an earlier time behind it; times of other numbers do not matter.
        let found: Vec<_> = runs.found.iter().map(|run| (run.pid, run.start, run.end, run.line)).collect();
        assert_eq!(found, [(5, 0, 30, 2), (5, 30, 50, 5), (6, 50, 60, 7), (5, 60, 70, 8)]);
        assert_eq!(runs.rows, 7);
    }

    #[test]
    fn too_many_runs_are_none() {
        let mut runs = Runs::default();
        let place = |id| Place { pid: 5, id, time_ns: 0 };
        let taken = (0..10_000).rev().take_while(|&id| runs.take(place(id), (0, 1), 1)).count();
        assert_eq!(taken, MAX_RUNS);
    }
}
