//! `bench python`: what calls of the Python package cost a script, and what the Python trace costs it.

use std::{collections::BTreeMap, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{lab::Lab, stats::Spread, table::Table};
use crate::{
    arch::Arch,
    interpreters,
    project::{root, silent_output},
    python,
};

/// Calls that are markers.
const MARKERS: [&str; 4] = ["step()", "with describer(owner=…)", "the same object again", "with RecordFunction(…)"];
/// Calls that have rows in the Python trace.
const TRACED: [&str; 2] = ["of Python", "of C"];
const IMPORT: &str = "import";

/// Nanoseconds of one call by kind, a figure for each repetition.
type Costs = BTreeMap<String, Vec<f64>>;

/// What one interpreter was measured with.
#[derive(Default)]
struct Ways {
    alone: Costs,
    traced: Costs,
    in_trace: Costs,
}

pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    python::build(Arch::host())?;
    let interpreters = interpreters::all();
    ensure!(!interpreters.is_empty(), "no CPython from 3.8 on in PATH or pyenv's versions");
    let mut found: BTreeMap<u32, Ways> = BTreeMap::new();
    for _ in 0..lab.repetitions {
        for (minor, python) in &interpreters {
            let ways = found.entry(*minor).or_default();
            add(&mut ways.alone, &measure(&mut script(lab, python, &[]), false)?);
            add(&mut ways.traced, &measure(&mut below_tracer(lab, python, &[])?, true)?);
            // Before 3.9 there is no Python trace.
            if *minor >= 9 {
                add(&mut ways.in_trace, &measure(&mut below_tracer(lab, python, &["trace"])?, true)?);
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

fn markers(found: &BTreeMap<u32, Ways>) -> Table {
    let note = "µs of one call: without a tracer / with one, which also writes a row for `step()` and each range.";
    per_version("Calls of the Python package", note, found, &MARKERS, |ways, kind| {
        let [alone, traced] = [median(&ways.alone, kind)?, median(&ways.traced, kind)?];
        Some(format!("{:.2} / {:.2}", alone / 1000.0, traced / 1000.0))
    })
}

fn trace(found: &BTreeMap<u32, Ways>) -> Table {
    let note = "µs that a call and its return cost more with the Python trace, and how many times as long they take.";
    per_version("Calls in the Python trace", note, found, &TRACED, |ways, kind| {
        let [alone, traced] = [median(&ways.alone, kind)?, median(&ways.in_trace, kind)?];
        Some(format!("{:.2}, {:.1} ×", (traced - alone) / 1000.0, traced / alone))
    })
}

fn import(found: &BTreeMap<u32, Ways>) -> Table {
    per_version("Import of the Python package", "ms, without a tracer.", found, &[IMPORT], |ways, kind| {
        Some(format!("{:.1}", median(&ways.alone, kind)? / 1e6))
    })
}

/// A row for each kind of call, a column for each version; `cell` may have nothing to say.
fn per_version(
    title: &str,
    note: &str,
    found: &BTreeMap<u32, Ways>,
    kinds: &[&str],
    cell: impl Fn(&Ways, &str) -> Option<String>,
) -> Table {
    let versions: Vec<String> = found.keys().map(|minor| format!("3.{minor}")).collect();
    let columns: Vec<&str> = std::iter::once("call").chain(versions.iter().map(String::as_str)).collect();
    let mut table = Table::new(title, note, &columns);
    for kind in kinds {
        let cells = found.values().map(|ways| cell(ways, kind).unwrap_or_else(|| "–".to_owned()));
        table.row(std::iter::once((*kind).to_owned()).chain(cells));
    }
    table
}
