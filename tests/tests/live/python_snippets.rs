//! Scripts as people write them for msMemScope (`python/tests/snippets`), as they are, with a tracer: rows against what was worked out by hand.

use std::path::Path;

use memscope_tests::harness::kernel;
use memscope_tests::harness::pythons::{Python, interpreters};
use memscope_tests::harness::rows::{Row, python_traces};
use memscope_tests::harness::tracer::{Run, Tracer, python_package};

/// A block of `train`.
const TRAIN: [&str; 2] = ["MALLOC 4096 CANN@APP", "FREE 4096"];

/// The rows of a snippet, and the names in its Python trace.
struct Expected {
    snippet: &'static str,
    rows: Vec<String>,
    traced: &'static [&'static str],
}

fn table() -> Vec<Expected> {
    let rows = |parts: &[&[&str]]| parts.concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
    let (start, stop): (&[&str], &[&str]) = (&["START_TRACE"], &["STOP_TRACE"]);
    let expect = |snippet, parts: &[&[&str]]| Expected { snippet, rows: rows(parts), traced: &[] };
    let with_step = |number: usize| TRAIN.map(str::to_owned).into_iter().chain([format!("STEP {number}")]);
    let steps = rows(&[start]).into_iter().chain((1..=6).flat_map(with_step)).chain(rows(&[stop])).collect();
    let labelled = |label: &str| [format!("MALLOC 4096 CANN@APP@{label}"), "FREE 4096".to_owned()];
    let described = [
        rows(&[start]),
        labelled("test1").to_vec(),
        labelled("test2").to_vec(),
        // Labels of addresses are for blocks of PyTorch's pool, and this is none.
        rows(&[&["MALLOC 400 CANN@APP"], stop, &["FREE 400 shadow"]]),
    ];
    vec![
        expect("config", &[start, &TRAIN, stop]),
        expect("windows", &[start, stop, start, &TRAIN, stop]),
        Expected { snippet: "steps", rows: steps, traced: &[] },
        Expected {
            traced: &["forward_pass", "backward", "again"],
            ..expect("record_function", &[start, &TRAIN, &TRAIN, stop])
        },
        // The second time nothing but calls is wanted.
        Expected { traced: &["train", "train"], ..expect("tracer", &[start, &TRAIN, stop, start, stop]) },
        expect(
            "take_snapshot",
            &[
                &["SNAPSHOT one", "SNAPSHOT Memory Snapshot", "SNAPSHOT a list", "SNAPSHOT a tuple"],
                &["SNAPSHOT Memory Snapshot", "SNAPSHOT block Start"],
                &TRAIN,
                &["SNAPSHOT block End", "SNAPSHOT function Start"],
                &TRAIN,
                &["SNAPSHOT function End"],
            ],
        ),
        Expected { snippet: "describe", rows: described.concat(), traced: &[] },
        expect("watcher", &[&["MALLOC 400 CANN@APP"], start, &TRAIN, &TRAIN, stop, &["FREE 400 shadow"]]),
        expect("check_leaks", &[]),
        expect("check_inefficient", &[]),
        expect("framework_hooks", &[start, &TRAIN, stop]),
    ]
}

/// A row in a few words.
fn brief(row: &Row) -> String {
    let made_up = if row.is_made_up() { " shadow" } else { "" };
    let owner = row.attr.get("owner").map(|owner| format!(" {owner}")).unwrap_or_default();
    match row.event.as_str() {
        "MALLOC" => format!("MALLOC {}{owner}{made_up}", row.number("size")),
        "FREE" => format!("FREE {}{made_up}", row.number("size")),
        "SYSTEM" => {
            [Some(row.event_type.as_str()), row.name.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(" ")
        }
        other => format!("{other} {}", row.name.as_deref().unwrap_or("-")),
    }
}

/// Names in Python traces, of ranges and of the function `train`.
fn traced(run: &Run) -> Vec<String> {
    let train = |name: &str| name.contains("snippet.py(") && name.ends_with(": train");
    let names = python_traces(&run.folder.output_path()).into_iter().map(|row| row.name);
    let names = names.filter(|name| train(name) || !name.contains(['(', '<', ':']));
    names.map(|name| if train(&name) { "train".to_owned() } else { name }).collect()
}

fn trace(python: &Python, snippet: &str) -> Run {
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests/snippet.py");
    let tracer = Tracer::run_program(&python.path, &["-B", runner.to_str().expect("a plain path"), snippet]);
    tracer.env("PYTHONPATH", python_package()).option("--analysis=decompose").succeed()
}

#[test]
fn python_snippets_give_their_rows() {
    let all = interpreters();
    let (oldest, newest) = (all.first().expect("an interpreter"), all.last().expect("an interpreter"));
    for python in [oldest, newest] {
        for Expected { snippet, rows, traced: names } in table() {
            let run = trace(python, snippet);
            let reported: Vec<String> = run.rows().all().map(brief).collect();
            assert_eq!(reported, rows, "{snippet} {python:?}\n{}", run.said());
            let calls = python.version >= (3, 9) && kernel::has_cookies();
            let names = if !calls && snippet == "tracer" { &[] } else { names };
            assert_eq!(traced(&run), names, "{snippet} {python:?}\n{}", run.said());
            // What is said without a tracer is not.
            assert!(!run.stderr.contains("no tracer is there") && !run.stdout.contains("Error"), "{}", run.said());
        }
    }
}
