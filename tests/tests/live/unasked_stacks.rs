//! Stacks by default: places in the report have their lines, rows are as ever, and each call has the stack of one kind.

use std::collections::HashMap;
use std::path::Path;

use memscope::capture::Reader;
use memscope::decode::{Body, Phase, Records};
use memscope_tests::harness::kernel;
use memscope_tests::harness::pythons::interpreters;
use memscope_tests::harness::rows::dump_files;
use memscope_tests::harness::tracer::{Run, Tracer};

use super::python_stacks::{truths, workload};

/// The tests' runner turns them off.
const NO_STACKS: &str = "MEMSCOPE_NO_STACKS";

/// Frames of a call: of Python, and of C.
#[derive(Debug)]
struct Frames {
    tid: u32,
    python: Option<usize>,
    native: Option<usize>,
}

/// Stacks of the calls of a function, in the order of the capture.
fn frames(capture: &Path, symbol: &str) -> Vec<Frames> {
    let mut reader = Reader::open(capture).expect("a capture");
    let row = reader.header().rows.iter().position(|row| row.symbol == symbol).expect("the row") + 1;
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next_chunk().expect("a readable capture") {
        bytes.extend_from_slice(chunk);
    }
    let (mut counts, mut found) = (HashMap::new(), Vec::new());
    for record in Records::new(&bytes).map(|record| record.expect("a valid record")) {
        match record.body {
            Body::Stack(stack) => {
                let count = stack.frames.addresses().count().max(stack.frames.python().count());
                counts.insert(stack.id.get(), count);
            }
            Body::Call(call)
                if usize::from(record.row) == row && (call.phase == Phase::Return || symbol.ends_with("Free")) =>
            {
                let of = |id: Option<_>| id.map(|id: std::num::NonZeroU64| counts[&id.get()]);
                found.push(Frames { tid: record.tid, python: of(call.python_stack), native: of(call.native_stack) });
            }
            _ => {}
        }
    }
    found
}

fn rows(run: &Run) -> String {
    let read = |path| std::fs::read_to_string(path).expect("readable");
    dump_files(&run.folder.output_path()).into_iter().map(read).collect()
}

/// The report names the function that keeps blocks; rows end with two empty cells, those of the replay too, unless it is asked for them.
#[test]
fn places_have_lines_and_rows_have_none() {
    let run = Tracer::run("scenes", &["killed"]).env(NO_STACKS, "false").finish();
    if kernel::takes_python_stacks() {
        assert!(run.stdout.contains("keep_here"), "{}", run.said());
    }
    let live = rows(&run);
    let lines: Vec<&str> = live.lines().filter(|line| line.contains("MALLOC")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.ends_with(",,")), "{live}");
    let replay = Tracer::replay(&run.folder.capture()).succeed();
    assert!(rows(&replay) == live, "the rows of the replay are those of the run");
    let asked = Tracer::replay(&run.folder.capture()).option("--stacks=inline").succeed();
    assert_eq!(rows(&asked).contains("keep_here"), kernel::takes_python_stacks());
    // What was turned off is not there.
    let none = Tracer::run("scenes", &["killed"]).env(NO_STACKS, "false").option("--no-stacks").finish();
    assert!(!none.stdout.contains("keep_here"), "{}", none.said());
    assert!(frames(&none.folder.capture(), "halMemAlloc").iter().all(|it| (it.python, it.native) == (None, None)));
}

/// A thread that runs Python has its frames alone; one that never did has those of C.
#[test]
fn each_call_has_one_kind() {
    let takes = kernel::takes_python_stacks();
    for python in interpreters() {
        let place = tempfile::tempdir().expect("a folder");
        let script = workload(place.path());
        let arguments = ["-I", script.to_str().expect("a plain path"), "plain", "foreign"];
        let tracer = Tracer::run_program(python.path.as_os_str(), &arguments).env(NO_STACKS, "false");
        let run = tracer.succeed();
        let made = frames(&run.folder.capture(), "halMemAlloc");
        let truths = truths(&run.stdout);
        assert_eq!(made.len(), truths.len(), "{python:?}: {}", run.said());
        for (made, truth) in made.iter().zip(&truths) {
            let expected = if takes { (Some(truth.frames.len()), None) } else { (None, None) };
            assert_eq!((made.python, made.native), expected, "{python:?}: {made:?}");
        }
        let freed = frames(&run.folder.capture(), "halMemFree");
        let foreign: Vec<_> = freed.iter().filter(|it| it.tid != truths[0].pid).collect();
        let [foreign] = foreign[..] else { panic!("{python:?}: {freed:?}") };
        assert_eq!(foreign.python, takes.then_some(0), "{python:?}");
        // What the thread runs is the function itself: then the C library's start of threads.
        assert_eq!(foreign.native.is_some_and(|frames| frames >= 2), takes, "{python:?}: {foreign:?}");
    }
}
