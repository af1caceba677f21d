//! Python stacks, by interpreters of all versions that are at hand, against what those interpreters say themselves.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope::capture::Reader;
use memscope::decode::{Body, Code, Phase, Records};
use memscope::python::{line, text};
use memscope_common::StackEnd;
use memscope_tests::harness::kernel;
use memscope_tests::harness::pythons::{Python, interpreters};
use memscope_tests::harness::tracer::{Folder, Run, Target, Tracer, simulation, tracer_path};
use serde::Deserialize;

const WORKLOAD: &str = include_str!("../../workloads/stacks.py");

/// Stands for a file and a name without a record.
pub(crate) const LOST_FRAME: &str = "<lost>";

/// One frame: file, line, name.
pub(crate) type FrameText = (String, Option<u32>, String);

/// What the workload says of one call.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Truth {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    end: String,
    pub(crate) frames: Vec<FrameText>,
}

/// The stack of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) end: StackEnd,
    pub(crate) frames: Vec<FrameText>,
}

pub(crate) fn truths(stdout: &str) -> Vec<Truth> {
    let lines = stdout.lines().filter_map(|line| line.strip_prefix("TRUTH "));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn frame_text(code: Option<&Code<'_>>, last: u32) -> FrameText {
    let Some(code) = code else { return (LOST_FRAME.to_owned(), None, LOST_FRAME.to_owned()) };
    let shown =
        |part: memscope::decode::CodeText<'_>| text(part.bytes, part.kind) + if part.cut { "<cut>" } else { "" };
    let line = code.lines.and_then(|lines| line(code.version, lines, code.first_line, last));
    (shown(code.file), line, shown(code.name))
}

/// Stacks of all calls of a function, in the order of the capture.
pub(crate) fn stacks(capture: &Path, symbol: &str) -> Vec<Found> {
    let mut reader = Reader::open(capture).expect("a capture");
    let mut rows: HashMap<u16, String> = HashMap::new();
    rows.extend((1..).zip(reader.header().rows.iter().map(|row| row.symbol.clone())));
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next_chunk().expect("a readable capture") {
        bytes.extend_from_slice(chunk);
    }
    let mut codes: HashMap<(u32, u64, u32), Code<'_>> = HashMap::new();
    let mut known: HashMap<u64, (StackEnd, Vec<FrameText>)> = HashMap::new();
    let mut found = Vec::new();
    for record in Records::new(&bytes).map(|record| record.expect("a valid record")) {
        match record.body {
            Body::Code(code) => {
                codes.insert((record.pid, code.address, code.fingerprint), code);
            }
            Body::Stack(stack) => {
                let frames = stack.frames.python().map(|frame| {
                    let code = codes.get(&(record.pid, frame.address(), frame.fingerprint));
                    frame_text(code, frame.last_instruction)
                });
                known.insert(stack.id.get(), (stack.end, frames.collect()));
            }
            Body::Call(call) if rows.get(&record.row).is_some_and(|name| name == symbol) => {
                let ours = call.phase == Phase::Return || symbol.ends_with("Free");
                if let Some(id) = call.python_stack.filter(|_| ours) {
                    let (end, frames) =
                        known.get(&id.get()).cloned().unwrap_or_else(|| (StackEnd::Root, vec![frame_text(None, 0)]));
                    found.push(Found { pid: record.pid, tid: record.tid, end, frames });
                }
            }
            _ => {}
        }
    }
    found
}

/// Holds every call's stack against what the program said of it.
fn compare(python: &Python, run: &Run, depth: usize) -> usize {
    let found = stacks(&run.folder.capture(), "halMemAlloc");
    let truths = truths(&run.stdout);
    let mut by_thread: BTreeMap<(u32, u32), (Vec<Truth>, Vec<Found>)> = BTreeMap::new();
    let count = truths.len();
    for truth in truths {
        by_thread.entry((truth.pid, truth.tid)).or_default().0.push(truth);
    }
    for stack in found {
        by_thread.entry((stack.pid, stack.tid)).or_default().1.push(stack);
    }
    for (thread, (truths, found)) in by_thread {
        assert_eq!(found.len(), truths.len(), "{python:?}: calls of {thread:?}\n{}", run.said());
        for (truth, found) in truths.into_iter().zip(found) {
            let whole = truth.frames.len() <= depth;
            let end = match truth.end.as_str() {
                _ if !whole => StackEnd::Depth,
                "several" => StackEnd::OneOfSeveral,
                "bad" => StackEnd::BadState,
                "fault" => StackEnd::Fault,
                _ => StackEnd::Root,
            };
            let frames: Vec<_> = truth.frames.into_iter().take(depth).collect();
            assert_eq!((found.end, found.frames), (end, frames), "{python:?}: a call of {thread:?}");
        }
    }
    count
}

/// Puts the workload into a folder; a path that is the same in all runs is not needed.
pub(crate) fn workload(folder: &Path) -> PathBuf {
    let path = folder.join("stacks.py");
    fs::write(&path, WORKLOAD).expect("the workload");
    path
}

fn trace(python: &Python, depth: usize, scenarios: &[&str]) -> Run {
    let place = tempfile::tempdir().expect("a folder");
    let script = workload(place.path());
    let mut arguments = vec!["-I", script.to_str().expect("a plain path")];
    arguments.extend(scenarios);
    let tracer = Tracer::run_program(python.path.as_os_str(), &arguments);
    tracer.option(format!("--call-stack=python:{depth}")).succeed()
}

fn hold(scenarios: &[&str], depth: usize, at_least: usize) {
    for python in interpreters() {
        let run = trace(&python, depth, scenarios);
        let count = compare(&python, &run, depth);
        assert!(count >= at_least, "{python:?}: only {count} calls");
    }
}

/// Functions, methods, lambdas, generators, coroutines, decorators, handlers, callbacks out of C; the GIL held and released.
#[test]
fn python_stacks_of_all_kinds_of_code() {
    hold(&["plain", "generators", "callbacks", "exceptions", "asynchronously"], 100, 30);
}

#[test]
fn python_stacks_of_threads() {
    hold(&["threads"], 100, 80);
}

#[test]
fn python_stacks_a_thousand_deep_and_cut() {
    hold(&["deep"], 1000, 2);
    hold(&["deep", "plain"], 5, 8);
}

/// Texts of one, two and four bytes per character; some do not fit into a record.
#[test]
fn python_stacks_of_any_names() {
    hold(&["names", "long_names"], 100, 6);
}

/// An address of code never stands for what was there before.
#[test]
fn python_stacks_of_code_that_comes_and_goes() {
    hold(&["churn"], 100, 900);
}

#[test]
fn python_stacks_of_children_and_other_programs() {
    hold(&["plain", "forks", "executes"], 100, 18);
}

/// A thread that runs no Python has an empty stack, and in a process with several interpreters all are marked.
#[test]
fn python_stacks_say_why_they_are_not_whole() {
    for python in interpreters() {
        let run = trace(&python, 50, &["foreign", "several"]);
        compare(&python, &run, 50);
        let frees = stacks(&run.folder.capture(), "halMemFree");
        let foreign: Vec<_> = frees.iter().filter(|found| found.tid != found.pid).collect();
        assert_eq!(foreign.len(), 1, "{python:?}: {frees:?}");
        assert_eq!((foreign[0].end, foreign[0].frames.len()), (StackEnd::NotPython, 0), "{python:?}");
    }
}

/// A state that is not the thread's is not walked, and a frame that cannot be read ends the stack.
#[test]
fn python_stacks_of_damaged_interpreters_are_short() {
    hold(&["damaged"], 50, 3);
}

/// The interpreter comes later than the program, as in one that embeds it.
#[test]
fn python_stacks_of_a_library_that_is_mapped_late() {
    for python in interpreters() {
        let Some(library) = &python.library else { continue };
        let place = tempfile::tempdir().expect("a folder");
        let script = workload(place.path());
        let arguments = [library.to_str().expect("a plain path"), script.to_str().expect("a plain path"), "plain"];
        let tracer = Tracer::run("embed", &arguments).env("PYTHONHOME", &python.home);
        let run = tracer.option("--call-stack=python:100").succeed();
        assert!(compare(&python, &run, 100) >= 6, "{python:?}: {}", run.said());
    }
}

/// A process that runs already, and in which others keep what the interpreter keeps, as torch does.
#[test]
fn python_stacks_after_attaching() {
    for python in interpreters() {
        let folder = Folder::new();
        let script = workload(folder.path());
        let mut command = Command::new(&python.path);
        command.arg("-I").arg(script).args(["kept_twice", "wait", "plain", "threads"]).current_dir(folder.path());
        command.env("LD_LIBRARY_PATH", simulation().join("lib"));
        let go = folder.path().join("go");
        let stdout = folder.path().join("target.stdout");
        let mut target = Target::start(command, folder, "ready ");
        let running = Tracer::attach(&[&target]).options(&["--verbose", "--call-stack=python:100"]).start();
        running.wait_for_message("libascend_hal.so: ", 1);
        fs::write(go, "").expect("a file");
        assert!(target.wait().success());
        let mut run = running.finish();
        assert_eq!(run.code(), 0, "{}", run.said());
        run.stdout = fs::read_to_string(stdout).expect("what the target said");
        assert!(compare(&python, &run, 100) >= 86, "{python:?}");
    }
}

/// Frames of one line of folded stacks, outermost first.
fn folded(line: &str) -> (Vec<&str>, u64) {
    let (frames, count) = line.rsplit_once(' ').expect("a weight");
    (frames.split(';').collect(), count.parse().expect("a number"))
}

/// Frames of the workload in all lines, and how often they are there.
fn python_frames(text: &str) -> BTreeMap<Vec<String>, u64> {
    let mut found: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for (frames, count) in text.lines().map(folded) {
        let frames = frames.into_iter().filter(|frame| frame.ends_with(" (stacks.py)")).map(str::to_owned);
        *found.entry(frames.collect()).or_default() += count;
    }
    found
}

/// Python frames stand where the interpreter ran them: between the native frames of what called them, and what they called.
#[test]
fn python_stacks_between_native_frames() {
    for python in interpreters() {
        let place = tempfile::tempdir().expect("a folder");
        let script = workload(place.path());
        let arguments = ["-I", script.to_str().expect("a plain path"), "callbacks"];
        let tracer = Tracer::run_program(python.path.as_os_str(), &arguments);
        let run = tracer.option("--call-stack=mixed:200").succeed();
        let export = |stack: &str| {
            let export = ["export", stack, "--what=allocated", "--weight=count"];
            let output = Command::new(tracer_path()).args(export).arg(run.folder.capture()).output().expect("run");
            String::from_utf8(output.stdout).expect("text")
        };
        let text = export("--stack=mixed");
        let lines: Vec<(Vec<&str>, u64)> = text.lines().map(folded).collect();

        // The same Python frames as the program says, as often, and none of them in a native guise.
        let mut expected: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for truth in truths(&run.stdout) {
            let frames = truth.frames.iter().rev().map(|(_, _, name)| format!("{name} (stacks.py)"));
            *expected.entry(frames.collect()).or_default() += 1;
        }
        assert!(!text.contains("EvalFrameDefault"), "{python:?}\n{text}");
        if python_frames(&text).keys().all(Vec::is_empty) {
            // Most of the interpreter's function is a part without a name in Debian's program: they stay apart.
            assert_eq!((python.version, &python.library), ((3, 14), &None), "{python:?}\n{text}");
            assert_eq!(python_frames(&export("--stack=python")), expected, "{python:?}");
            continue;
        }
        assert_eq!(python_frames(&text), expected, "{python:?}\n{text}");

        // `callbacks` calls `qsort`, which calls the lambda, which calls `allocate`, which calls the driver.
        let sorting: Vec<_> =
            lines.iter().filter(|(frames, _)| frames.iter().any(|f| f.starts_with("qsort"))).collect();
        let [(frames, 1)] = sorting[..] else { panic!("{python:?}: {sorting:?}") };
        let at = |text: &str| frames.iter().position(|frame| frame.contains(text)).expect("such a frame");
        let (qsort, lambda, allocate) = (at("qsort"), at("<lambda>"), at("allocate ("));
        assert!(at("callbacks (") < qsort && qsort < lambda && lambda < allocate, "{python:?}: {frames:?}");
        assert_eq!((frames.last(), allocate < frames.len() - 1), (Some(&"halMemAlloc"), true), "{python:?}");
        // From 3.11 on one native frame runs both.
        assert_eq!(allocate == lambda + 1, python.version >= (3, 11), "{python:?}: {frames:?}");
    }
}

/// Processes that run no Python have no stacks, and say nothing.
#[test]
fn python_stacks_of_other_programs_are_none() {
    let run = Tracer::run("pairs", &["--pairs", "1000"]).option("--call-stack=python").succeed();
    assert_eq!(stacks(&run.folder.capture(), "halMemAlloc"), []);
    assert!(!run.stderr.contains("Python"), "{}", run.said());
}

/// Without loops in BPF programs, and with a program for each probe, no Python stacks are taken: that is said once, and all else is as
/// ever.
#[test]
fn lesser_kernels_go_without() {
    let why = if kernel::takes_python_stacks() {
        "probes without attach cookies cannot take them"
    } else {
        "this kernel has no loops in BPF programs (bpf_loop)"
    };
    // None is walked, so the oldest and the newest stand for all.
    let all = interpreters();
    for python in all.first().into_iter().chain(all.last()) {
        let place = tempfile::tempdir().expect("a folder");
        let script = workload(place.path());
        let arguments = ["-I", script.to_str().expect("a plain path"), "plain", "generators"];
        let tracer = Tracer::run_program(python.path.as_os_str(), &arguments).option("--link=slots");
        let run = tracer.option("--call-stack=python:100").succeed();
        let reported = format!("no Python stacks are taken: {why}");
        assert_eq!(run.stderr.matches(&reported).count(), 1, "{python:?}: {}", run.said());
        let calls = truths(&run.stdout).len();
        assert!(calls > 5 && run.rows().count("MALLOC") == calls, "{python:?}: {calls} calls, {}", run.said());
        assert_eq!(stacks(&run.folder.capture(), "halMemAlloc"), [], "{python:?}");
    }
}
