//! The analyses of files, as the program's commands have them. What arguments may be is checked in Python.

mod arrow;
mod job;

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use memscope::{
    analyses::{
        self, Analysis, Asked, Finding, InefficientAnalysis, InefficientRules, Kind as _, Observer, Question,
        compare::{self, Names, Recorded, Which},
        decompose::RuleSet,
        diff::{self, At, Diff, DiffSide, Snapshot, write_diff},
        inefficient::Inefficient,
        select::{Selection, When, Window},
        table::{Cell, Table},
    },
    document::{self, Comparison},
    error_chain,
    input::{
        self, InputError, Options, Outcome, Progress, Stage,
        annotate::{AnnotateError, Annotations, Destination, annotate},
    },
    model::Kept,
    pipeline::{PipelineConfig, ReplayReport},
    sinks::report::{Report, in_order, write_json},
};
use pyo3::{
    exceptions::{PyFileNotFoundError, PyOSError, PyPermissionError, PyValueError},
    prelude::*,
    types::{PyCapsule, PyDict, PyList},
};

use self::{
    arrow::{Column, Stream},
    job::Watch,
};

/// A dump's times, in nanoseconds; smaller numbers are seconds after the first event.
const LEAST_TIME_NS: f64 = 1e15;

/// What an analysis found: rows, the findings behind them, and the report.
#[pyclass(frozen, module = "memscope_bpf._memscope_bpf")]
pub(crate) struct Found {
    columns: Arc<Vec<Column>>,
    /// What the command prints with `--json`.
    json: String,
    /// What it prints without.
    report: String,
    /// What had to be repaired, or is missing.
    notes: Vec<String>,
}

#[pymethods]
impl Found {
    #[getter]
    fn json(&self) -> &str {
        &self.json
    }

    #[getter]
    fn report(&self) -> &str {
        &self.report
    }

    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    #[getter]
    fn column_names(&self) -> Vec<&'static str> {
        self.columns.iter().map(|column| column.name).collect()
    }

    fn __len__(&self) -> usize {
        self.columns.first().map_or(0, Column::len)
    }

    /// Columns as lists, by name.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        for column in self.columns.iter() {
            let cells = PyList::empty(py);
            for index in 0..column.len() {
                match column.get(index) {
                    Cell::Missing => cells.append(py.None()),
                    Cell::Unsigned(value) => cells.append(value),
                    Cell::Signed(value) => cells.append(value),
                    Cell::Float(value) => cells.append(value),
                    Cell::Flag(value) => cells.append(value),
                    Cell::Text(value) => cells.append(value),
                }?;
            }
            columns.set_item(column.name, cells)?;
        }
        Ok(columns)
    }

    /// All rows, shared and not copied. Another schema than they have is not made of them, as the interface allows.
    #[pyo3(signature = (_requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        _requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        PyCapsule::new_with_value(py, Stream::new(Arc::clone(&self.columns)), c"arrow_array_stream")
    }
}

/// Why there is no answer.
enum Failure {
    Input(InputError),
    Annotate(AnnotateError),
    Other(String),
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        Self::Input(error)
    }
}

impl From<AnnotateError> for Failure {
    fn from(error: AnnotateError) -> Self {
        Self::Annotate(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let (text, kind) = match &failure {
            Failure::Other(text) => (text.clone(), None),
            Failure::Input(error) | Failure::Annotate(AnnotateError::Input(error)) => {
                let kind = if let InputError::Io { source, .. } = error { Some(source.kind()) } else { None };
                (error_chain(error), kind)
            }
            Failure::Annotate(error) => {
                let kind = if let AnnotateError::Io { source, .. } = error { Some(source.kind()) } else { None };
                (error_chain(error), kind)
            }
        };
        match kind {
            None => PyValueError::new_err(text),
            Some(ErrorKind::NotFound) => PyFileNotFoundError::new_err(text),
            Some(ErrorKind::PermissionDenied) => PyPermissionError::new_err(text),
            Some(_) => PyOSError::new_err(text),
        }
    }
}

/// Which part of a run, as two numbers.
type Part = (Option<f64>, Option<f64>);

fn selection((since, until): Part) -> Selection {
    let when = |time: f64| {
        if time >= LEAST_TIME_NS { When::At(time as u64) } else { When::After(Duration::from_secs_f64(time.max(0.0))) }
    };
    Selection { window: Window { since: since.map(when), until: until.map(when) }, ..Selection::default() }
}

fn read(
    files: &[PathBuf],
    selection: Selection,
    analyses: Vec<Box<dyn Analysis>>,
    watch: &Watch,
) -> Result<Outcome, Failure> {
    read_with(files, Options { selection, ..Options::default() }, analyses, watch)
}

fn observe(
    files: &[PathBuf],
    selection: Selection,
    observers: Vec<Box<dyn Observer>>,
    watch: &Watch,
) -> Result<Outcome, Failure> {
    read_with(files, Options { selection, observers, ..Options::default() }, Vec::new(), watch)
}

fn read_with(
    files: &[PathBuf],
    options: Options,
    analyses: Vec<Box<dyn Analysis>>,
    watch: &Watch,
) -> Result<Outcome, Failure> {
    let watch = watch.clone();
    let watcher: input::Watcher = Box::new(move |progress| watch.often(progress));
    Ok(input::run_with(files, Options { watcher: Some(watcher), ..options }, analyses)?)
}

fn notes(outcome: &Outcome) -> Vec<String> {
    let mut notes = outcome.notes.lines();
    notes.extend(outcome.replay.as_ref().and_then(ReplayReport::ending_text));
    if outcome.end.nothing_selected {
        notes.push("there is no block in what since and until leave".to_owned());
    }
    notes
}

/// Columns without rows.
fn columns<S>(table: &dyn Table<S>) -> Vec<Column> {
    table.columns().into_iter().map(|(name, holds)| Column::new(name, holds)).collect()
}

/// Adds the rows of a source.
fn fill<S>(table: &dyn Table<S>, source: &S, columns: &mut [Column]) {
    table.fill(source, &mut |number, cell| columns[number].push(&cell));
}

/// Rows, findings and report of a reading.
fn found(outcome: &Outcome, table: &dyn Table<Finding>, report: Report) -> Found {
    let mut columns = columns(table);
    for finding in in_order(&outcome.findings) {
        fill(table, finding, &mut columns);
    }
    let (mut json, mut text) = (Vec::new(), Vec::new());
    // Memory takes everything.
    let _ = write_json(&outcome.findings, &outcome.end, &mut json);
    let report = Report { losses: outcome.replay.is_some(), ..report };
    let _ = report.write_text(&outcome.findings, &outcome.end, &mut text);
    let of = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Found { columns: Arc::new(columns), json: of(json), report: of(text), notes: notes(outcome) }
}

const WITHOUT_HINT: Report = Report { step_hint: false, ..Report::DEFAULT };

/// The table of a question.
fn table_of(word: &str) -> Result<&'static dyn Table<Finding>, Failure> {
    let question = Question::of(word).ok_or_else(|| Failure::Other(format!("there is no question `{word}`")))?;
    Ok(question.table)
}

/// The command `leaks`.
#[pyfunction]
#[pyo3(signature = (files, mark, start_index, part, progress))]
pub(crate) fn leaks(
    py: Python<'_>,
    files: Vec<PathBuf>,
    mark: Option<String>,
    start_index: u64,
    part: Part,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Found> {
    let found = job::run(py, progress, move |watch| -> Result<Found, Failure> {
        let step_hint = mark.is_none();
        let analyses = analyses::of_leaks(mark, start_index);
        let outcome = read(&files, selection(part), analyses, watch)?;
        Ok(found(&outcome, table_of("leaks")?, Report { step_hint, ..Report::default() }))
    })?;
    Ok(found?)
}

/// The command `inefficient`, for kinds in their order; the dump's own rows are marked if that is asked for.
#[pyfunction]
#[pyo3(signature = (file, mem_size, kinds, idle_threshold, in_place, part, progress))]
#[expect(clippy::too_many_arguments, reason = "the command has as many")]
pub(crate) fn inefficient(
    py: Python<'_>,
    file: PathBuf,
    mem_size: u64,
    kinds: [bool; 3],
    idle_threshold: u64,
    in_place: bool,
    part: Part,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Found> {
    let rules = InefficientRules { min_size_bytes: mem_size, idle_threshold, kinds };
    let found = job::run(py, progress, move |watch| -> Result<Found, Failure> {
        let analyses: Vec<Box<dyn Analysis>> = vec![InefficientAnalysis::new(rules).judging()];
        let outcome = read(std::slice::from_ref(&file), selection(part), analyses, watch)?;
        if in_place {
            let inefficient = outcome.findings.iter().filter_map(Inefficient::of);
            let mut mark = |done, total| watch.at(Progress { stage: Stage::Marking, done, total });
            annotate(&file, &Annotations::of(inefficient), &Destination::InPlace, &mut mark)?;
        }
        Ok(found(&outcome, table_of("inefficient")?, WITHOUT_HINT))
    })?;
    Ok(found?)
}

/// The user's rules, or the built-in ones alone.
fn rules(file: Option<&Path>) -> Result<Arc<RuleSet>, Failure> {
    file.map_or_else(|| Ok(RuleSet::builtin()), RuleSet::read).map(Arc::new).map_err(Failure::Other)
}

/// The commands of the questions that are asked by a word.
#[pyfunction]
#[pyo3(signature = (question, files, rules_file, part, progress))]
pub(crate) fn ask(
    py: Python<'_>,
    question: &str,
    files: Vec<PathBuf>,
    rules_file: Option<PathBuf>,
    part: Part,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Found> {
    let question = Question::of(question).ok_or_else(|| {
        let words: Vec<&str> = Question::all_for_users().into_iter().map(|question| question.word).collect();
        PyValueError::new_err(format!("question: one of {}", words.join(", ")))
    })?;
    if rules_file.is_some() && !question.names_owners {
        return Err(PyValueError::new_err(format!("rules: {} names no owners", question.word)));
    }
    let found = job::run(py, progress, move |watch| -> Result<Found, Failure> {
        let rules = rules(rules_file.as_deref())?;
        let analyses = question.alone(Asked { rules: Some(rules), ..Asked::default() });
        let outcome = read(&files, selection(part), analyses, watch)?;
        Ok(found(&outcome, question.table, WITHOUT_HINT))
    })?;
    Ok(found?)
}

/// A moment: `end`, `peak`, or seconds after the first event.
fn moment(text: &str) -> Result<At, Failure> {
    match text {
        "end" => Ok(At::End),
        "peak" => Ok(At::Peak),
        seconds => {
            let after = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let after = after.filter(|after| u64::try_from(after.as_nanos()).is_ok());
            after
                .map(|after| At::When(When::After(after)))
                .ok_or_else(|| Failure::Other(format!("`{text}` is not end, peak, or seconds after the first event")))
        }
    }
}

/// What is live at moments of one run, which is read once.
fn snapshots(
    file: &Path,
    moments: &[At],
    (rules, kept): (&Arc<RuleSet>, &Kept),
    watch: &Watch,
) -> Result<Vec<Snapshot>, Failure> {
    let recorder = |at: &At| -> (Box<dyn Observer>, Receiver<Snapshot>) {
        let (recorder, snapshot) = diff::Recorder::new(*at, Arc::clone(rules));
        (recorder.judging(), snapshot)
    };
    let (recorders, taken): (Vec<_>, Vec<_>) = moments.iter().map(recorder).unzip();
    let pipeline = PipelineConfig { kept: Some(kept.clone()), ..PipelineConfig::default() };
    let options = Options { pipeline, observers: recorders, ..Options::default() };
    read_with(&[file.to_owned()], options, Vec::new(), watch)?;
    let snapshots: Option<Vec<Snapshot>> = taken.iter().map(|snapshot| snapshot.try_recv().ok()).collect();
    snapshots.ok_or_else(|| Failure::Other(format!("`{}` has no such moment", file.display())))
}

fn side(file: &Path, text: &str, at: At, snapshot: &Snapshot) -> Result<DiffSide, Failure> {
    let Snapshot { length_ns, attached, confidence, .. } = *snapshot;
    if let Some(why) = snapshot.refuses(at) {
        return Err(Failure::Other(format!("`{}` {why}: there is no moment {text} in it", file.display())));
    }
    Ok(DiffSide { input: file.display().to_string(), at: text.to_owned(), length_ns, attached, confidence })
}

/// The command `diff`.
#[pyfunction]
#[pyo3(signature = (base, other, from_moment, to_moment, rules_file, progress))]
pub(crate) fn difference(
    py: Python<'_>,
    base: PathBuf,
    other: Option<PathBuf>,
    from_moment: String,
    to_moment: String,
    rules_file: Option<PathBuf>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Found> {
    let found = job::run(py, progress, move |watch| -> Result<Found, Failure> {
        let rules = rules(rules_file.as_deref())?;
        let (from, to) = (moment(&from_moment)?, moment(&to_moment)?);
        // Places of both are compared by their stacks.
        let kept = Kept::of_run();
        let mut taken = match &other {
            Some(other) => {
                let mut taken = snapshots(&base, &[from], (&rules, &kept), watch)?;
                taken.extend(snapshots(other, &[to], (&rules, &kept), watch)?);
                taken
            }
            None => snapshots(&base, &[from, to], (&rules, &kept), watch)?,
        };
        let (Some(second), Some(first)) = (taken.pop(), taken.pop()) else {
            return Err(Failure::Other("there are no two moments".to_owned()));
        };
        let found = Diff {
            pools: diff::diff(&first, &second),
            from: side(&base, &from_moment, from, &first)?,
            to: side(other.as_ref().unwrap_or(&base), &to_moment, to, &second)?,
        };
        let mut columns = columns(diff::TABLE);
        fill(diff::TABLE, &found, &mut columns);
        let mut report = Vec::new();
        let _ = write_diff(&found, &mut report);
        Ok(Found {
            columns: Arc::new(columns),
            json: document::to_string(&found),
            report: String::from_utf8_lossy(&report).into_owned(),
            notes: Vec::new(),
        })
    })?;
    Ok(found?)
}

/// The command `compare`: a row for each operator or kernel, in the order of the runs.
#[pyfunction]
#[pyo3(signature = (base, other, op, kernel, part, progress))]
pub(crate) fn comparison(
    py: Python<'_>,
    base: PathBuf,
    other: PathBuf,
    op: bool,
    kernel: bool,
    part: Part,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Found> {
    let found = job::run(py, progress, move |watch| -> Result<Found, Failure> {
        let which = Which { op, kernel };
        let mut all_notes = Vec::new();
        let mut record = |path: &PathBuf, names: Names| -> Result<Recorded, Failure> {
            let (recorder, taken) = compare::Recorder::new(which, names);
            let outcome = observe(std::slice::from_ref(path), selection(part), vec![Box::new(recorder)], watch)?;
            all_notes.extend(notes(&outcome));
            Ok(taken.try_recv().unwrap_or_default())
        };
        let Recorded { sequences: base, names } = record(&base, Names::default())?;
        let Recorded { sequences: other, names } = record(&other, names)?;
        compare::check(&base, &other, which).map_err(|error| Failure::Other(error.to_string()))?;
        if base.is_empty() && other.is_empty() {
            return Err(Failure::Other("the inputs have no operators or kernels of the level asked for".to_owned()));
        }
        let mut columns = columns(compare::TABLE);
        let write = |row: &compare::ComparedRow| fill(compare::TABLE, row, &mut columns);
        let progress = |done, total| watch.often(Progress { stage: Stage::Comparing, done, total });
        let devices = compare::compare(&base, &other, &names, write, progress);
        let json = document::to_string(Comparison { devices: &devices, steps_from: None, files: None });
        Ok(Found { columns: Arc::new(columns), json, report: String::new(), notes: all_notes })
    })?;
    Ok(found?)
}
