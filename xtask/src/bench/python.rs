//! `bench python`: what calls of the Python package cost a script, and what the Python trace costs it.

use std::{collections::BTreeMap, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{lab::Lab, stats::Spread, table::Table};
use crate::{
    arch::Arch,
    interpreters,
    project::{root, run_quietly, silent_output},
    python,
};

/// A call of a Python function with two arguments that does nothing, and one of a C function.
const PLAIN: [&str; 2] = ["of Python", "of C"];
/// Calls that are markers, and for comparison a marker as a script could call it without the package's native half.
const MARKERS: [&str; 5] =
    ["step()", "with describer(owner=…)", "the same object again", "with RecordFunction(…)", "a marker by ctypes"];
/// Ways to report calls while they are made (`python_cost.py`), whether a tracer is needed, and from which version on they differ.
const WAYS: [Way; 4] = [
    Way { name: "trace", title: "the Python trace", traced: true, from: 9 },
    Way { name: "trace-by-profile", title: "the same without sys.monitoring", traced: true, from: 12 },
    Way { name: "callback", title: "a Python callback that does nothing", traced: false, from: 8 },
    Way { name: "text", title: "one that writes a row of text", traced: false, from: 8 },
];
const IMPORT: &str = "import";

struct Way {
    name: &'static str,
    title: &'static str,
    traced: bool,
    from: u32,
}

/// Nanoseconds of one call by kind, a figure for each repetition.
type Costs = BTreeMap<String, Vec<f64>>;

/// What one interpreter was measured with.
#[derive(Default)]
struct Found {
    alone: Costs,
    traced: Costs,
    /// By the name of the way.
    reported: BTreeMap<&'static str, Costs>,
}

pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    python::build(Arch::host())?;
    let interpreters = interpreters::all();
    ensure!(!interpreters.is_empty(), "no CPython from 3.8 on in PATH or pyenv's versions");
    for python in interpreters.values() {
        // As an installer does.
        run_quietly(lab.command(python).args(["-m", "compileall", "-q"]).arg(python::folder(Arch::host())))?;
    }
    let mut found: BTreeMap<u32, Found> = BTreeMap::new();
    for _ in 0..lab.repetitions {
        for (minor, python) in &interpreters {
            let found = found.entry(*minor).or_default();
            add(&mut found.alone, &measure(&mut script(lab, python, &[]), false)?);
            add(&mut found.traced, &measure(&mut below_tracer(lab, python, &[])?, true)?);
            for Way { name, traced, .. } in WAYS.iter().filter(|way| way.from <= *minor) {
                let mut command =
                    if *traced { below_tracer(lab, python, &[name])? } else { script(lab, python, &[name]) };
                add(found.reported.entry(name).or_default(), &measure(&mut command, *traced)?);
            }
        }
    }
    Ok(vec![markers(&found), trace(&found), import(&found)])
}

fn words(lab: &Lab, python: &Path, more: &[&str]) -> Vec<String> {
    let script = root().join("tests/workloads/python_cost.py").display().to_string();
    let count = lab.pick(5_000, 50_000).to_string();
    let words = [python.display().to_string(), "-B".to_owned(), script, count, "3".to_owned()];
    words.into_iter().chain(more.iter().map(|&word| word.to_owned())).collect()
}

fn script(lab: &Lab, python: &Path, more: &[&str]) -> Command {
    let words = words(lab, python, more);
    let mut command = lab.command(&words[0]);
    command.args(&words[1..]).env("PYTHONPATH", python::folder(Arch::host()));
    command
}

fn below_tracer(lab: &Lab, python: &Path, more: &[&str]) -> Result<Command> {
    let mut command = lab.tracer("run", &[])?;
    command.arg("--").args(words(lab, python, more)).env("PYTHONPATH", python::folder(Arch::host()));
    Ok(command)
}

fn measure(command: &mut Command, listening: bool) -> Result<Value> {
    let said = silent_output(command)?;
    let line =
        said.lines().find(|line| line.starts_with("{\"listening\"")).context("the script did not say what it did")?;
    let value: Value = serde_json::from_str(line)?;
    ensure!(value["listening"] == listening, "whether a tracer listens is not what was wanted: {line}");
    Ok(value)
}

/// Adds the medians of one run.
fn add(costs: &mut Costs, said: &Value) {
    for (kind, rounds) in said.as_object().into_iter().flatten() {
        if let Some(rounds) = rounds.as_array() {
            let median = Spread::of(rounds.iter().filter_map(Value::as_f64)).median;
            costs.entry(kind.clone()).or_default().push(median);
        }
    }
}

fn median(costs: &Costs, kind: &str) -> Option<f64> {
    Some(Spread::of(costs.get(kind)?.iter().copied()).median)
}

fn markers(found: &BTreeMap<u32, Found>) -> Table {
    let note = "A call of a Python function that does nothing in µs; the others as multiples of it: without a tracer / with one, \
                which also writes a row for `step()` and each range.";
    let rows = [PLAIN[0]].into_iter().chain(MARKERS).map(|kind| (kind.to_owned(), kind));
    per_version("Calls of the Python package", note, found, rows, |found, kind| {
        let plain = median(&found.alone, PLAIN[0])?;
        if kind == PLAIN[0] {
            return Some(format!("{:.3} µs", plain / 1000.0));
        }
        let [alone, traced] = [median(&found.alone, kind)?, median(&found.traced, kind)?];
        Some(format!("{:.1} × / {:.1} ×", alone / plain, traced / plain))
    })
}

fn trace(found: &BTreeMap<u32, Found>) -> Table {
    let note = "A call and its return: as it is in µs; and what is added while calls are reported, in µs and as a multiple of the call, by the \
                Python trace and by what a tool could do in Python.";
    let reported = PLAIN.into_iter().flat_map(|kind| WAYS.iter().map(move |way| (kind, Some(way))));
    let mut rows: Vec<(&str, Option<&Way>)> = PLAIN.into_iter().map(|kind| (kind, None)).chain(reported).collect();
    rows.sort_by_key(|(kind, _)| *kind != PLAIN[0]);
    let rows = rows.into_iter().map(|(kind, way)| {
        let title = way.map_or_else(|| kind.to_owned(), |way| format!("{kind}: {}", way.title));
        (title, (kind, way))
    });
    per_version("Calls in the Python trace", note, found, rows, |found, (kind, way)| {
        let alone = median(&found.alone, kind)?;
        let Some(way) = way else { return Some(format!("{:.3} µs", alone / 1000.0)) };
        let added = median(found.reported.get(way.name)?, kind)? - alone;
        Some(format!("{:.2} µs, {:.1} ×", added / 1000.0, added / alone))
    })
}

fn import(found: &BTreeMap<u32, Found>) -> Table {
    let rows = [(IMPORT.to_owned(), IMPORT)].into_iter();
    per_version("Import of the Python package", "ms, without a tracer.", found, rows, |found, kind| {
        Some(format!("{:.1}", median(&found.alone, kind)? / 1e6))
    })
}

/// A row for each title, a column for each version; `cell` may have nothing to say of what stands for a row.
fn per_version<K: Copy>(
    title: &str,
    note: &str,
    found: &BTreeMap<u32, Found>,
    rows: impl Iterator<Item = (String, K)>,
    cell: impl Fn(&Found, K) -> Option<String>,
) -> Table {
    let versions: Vec<String> = found.keys().map(|minor| format!("3.{minor}")).collect();
    let columns: Vec<&str> = std::iter::once("call").chain(versions.iter().map(String::as_str)).collect();
    let mut table = Table::new(title, note, &columns);
    for (name, kind) in rows {
        let cells = found.values().map(|found| cell(found, kind).unwrap_or_else(|| "–".to_owned()));
        table.row(std::iter::once(name).chain(cells));
    }
    table
}
