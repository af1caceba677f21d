//! Scripts with the Python package, by all interpreters that are at hand: rows against what was worked out by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::harness::kernel;
use memscope_tests::harness::pythons::{Python, interpreters};
use memscope_tests::harness::rows::{Row, Rows, TraceRow, python_traces};
use memscope_tests::harness::tracer::{Folder, Run, Target, Tracer, python_package, simulation};
use nix::sys::signal::Signal;

const WORKLOAD: &str = include_str!("../../workloads/scripts.py");

fn workload(folder: &Path) -> PathBuf {
    let path = folder.join("scripts.py");
    fs::write(&path, WORKLOAD).expect("the workload");
    path
}

fn trace(python: &Python, scenario: &str, options: &[&str]) -> Run {
    let place = tempfile::tempdir().expect("a folder");
    let script = workload(place.path());
    let tracer = Tracer::run_program(&python.path, &["-B", script.to_str().expect("a plain path"), scenario]);
    let run = tracer.env("PYTHONPATH", python_package()).options(options).succeed();
    assert!(!run.stderr.contains("msmemscope]"), "{python:?}\n{}", run.said());
    run
}

/// A row in a few words: event, size or name, and whether it is made up.
fn brief(row: &Row) -> String {
    let made_up = if row.is_made_up() { " shadow" } else { "" };
    match row.event.as_str() {
        "MALLOC" | "FREE" => format!("{} {}{made_up}", row.event, row.number("size")),
        "SYSTEM" => format!("{} {}", row.event_type, row.name.as_deref().unwrap_or("-")),
        other => format!("{other} {}", row.name.as_deref().unwrap_or("-")),
    }
}

/// The rows of the one process, in the order of their numbers.
fn one(rows: &Rows) -> &[Row] {
    let [rows] = rows.processes.values().collect::<Vec<_>>()[..] else { panic!("not one process: {rows:?}") };
    rows
}

fn briefly(run: &Run) -> Vec<String> {
    one(&run.rows()).iter().map(brief).collect()
}

/// Owners by size, of all processes.
fn owners(run: &Run) -> Vec<(u64, String)> {
    let rows = run.rows();
    let allocations = rows.all().filter(|row| row.event == "MALLOC");
    let mut owners: Vec<_> =
        allocations.map(|row| (row.number("size"), row.attr.get("owner").cloned().unwrap_or_default())).collect();
    owners.sort();
    owners
}

/// Only windows are reported; blocks live at the start of one are reported then, those that end in between at the start
/// of the next one. A replay gives the same.
#[test]
fn python_scripts_collect_in_windows() {
    for python in interpreters() {
        assert_collected_in_windows(&python);
    }
}

fn assert_collected_in_windows(python: &Python) {
    const EXPECTED: [&str; 14] = [
        "MALLOC 2000 shadow",
        "START_TRACE -",
        "STEP 1",
        "MALLOC 3000",
        "FREE 3000",
        "STOP_TRACE -",
        "FREE 2000 shadow",
        "MALLOC 5000 shadow",
        "START_TRACE -",
        "FREE 5000",
        "STEP 2",
        "MALLOC 6000",
        "STOP_TRACE -",
        "FREE 6000 shadow",
    ];
    let run = trace(python, "windows", &["--collect-mode=deferred"]);
    assert_eq!(briefly(&run), EXPECTED, "{python:?}");
    let rows = run.rows();
    let rows = one(&rows);
    let time_of = |what: &str| rows.iter().filter(|row| brief(row) == what).map(|row| row.time_ns).collect::<Vec<_>>();
    let (starts, stops) = (time_of("START_TRACE -"), time_of("STOP_TRACE -"));
    assert_eq!((time_of("MALLOC 2000 shadow"), time_of("MALLOC 5000 shadow")), (vec![starts[0]], vec![starts[1]]));
    assert_eq!(time_of("FREE 2000 shadow"), [starts[1]]);
    assert_eq!(time_of("FREE 6000 shadow"), [stops[1] + 1]);
    let replayed = Tracer::replay(&run.folder.capture()).succeed();
    assert_eq!(replayed.rows().processes, run.rows().processes, "{python:?}");
}

/// Without the option all is reported from the first instruction on, until a script calls `config()`.
#[test]
fn python_scripts_configure_reports() {
    for python in interpreters() {
        let run = trace(&python, "configured", &[]);
        let expected = ["MALLOC 1000", "FREE 1000", "START_TRACE -", "FREE 3000", "MALLOC 4000"];
        assert_eq!(briefly(&run), expected, "{python:?}");
    }
}

/// What `config()` asks for is collected although no option does (here: owners); what cannot be is named once, on stderr and in the log, and
/// a replay says the same. A trace that has it says nothing.
#[test]
fn python_scripts_hear_what_cannot_be_collected() {
    const DEMAND: &str = "asks for call_stack=c:10,python:5, analysis=inefficient, events=access, output_path, which this trace does not have; \
                        start the tracer with --call-stack=c:10,python:5 --analysis=inefficient --events=alloc,free,launch,access --output-path";
    let reported = |text: &str| text.lines().filter(|line| line.contains(" asks for ")).count();
    let python = interpreters().pop().expect("an interpreter");
    let run = trace(&python, "wishes", &[]);
    assert_eq!((run.stderr.matches(DEMAND).count(), reported(&run.stderr)), (1, 1), "{}", run.said());
    assert_eq!(owners(&run), [(1000, "CANN@APP@train".to_owned())]);
    assert!(run.stdout.contains("  At the peak "), "{}", run.said());
    let mut find = Command::new("find");
    find.arg(run.folder.path()).args(["-name", "*.log", "-exec", "grep", "-hc", DEMAND, "{}", ";"]);
    let logs = find.output().expect("find");
    let counts = String::from_utf8_lossy(&logs.stdout);
    assert_eq!(counts.lines().filter(|count| *count == "1").count(), 1, "{counts}");
    let replayed = Tracer::replay(&run.folder.capture()).succeed();
    assert_eq!((replayed.stderr.matches(DEMAND).count(), reported(&replayed.stderr)), (1, 1), "{}", replayed.said());
    assert_eq!(replayed.rows().processes, run.rows().processes);

    let options = ["--events=alloc,access", "--call-stack=c:10,python:5", "--analysis=inefficient"];
    let run = trace(&python, "wishes", &options);
    let (_, rest) = run.stderr.split_once(" asks for ").expect("the output path is the tracer's");
    assert!(rest.starts_with("output_path, which") && reported(&run.stderr) == 1, "{}", run.said());
    assert_eq!(briefly(&run), ["START_TRACE -", "MALLOC 1000", "FREE 1000"]);
}

/// Blocks that outlive the step after their own: of four steps, each leaves one behind; the first is not judged, and nothing ends after the
/// last one's.
#[test]
fn python_scripts_mark_steps_for_leaks() {
    for python in interpreters() {
        let run = trace(&python, "leaks", &["--leak-blocks"]);
        let found: Vec<&str> = run.stdout.lines().filter(|line| line.starts_with("Direct Hal memory leak")).collect();
        let steps: Vec<&str> = found.iter().filter_map(|line| line.split(" at step ").nth(1)).collect();
        assert_eq!(steps, ["2.", "3."], "{python:?}\n{}", run.said());
        let marks: Vec<String> = briefly(&run).into_iter().filter(|row| row.starts_with("STEP")).collect();
        assert_eq!(marks, ["STEP 1", "STEP 2", "STEP 3", "STEP 4"], "{python:?}");
    }
}

/// What a thread allocates has the labels that are on it at that moment; children begin with those of the thread that forked them.
#[test]
fn python_scripts_label_what_threads_allocate() {
    let expected: Vec<(u64, String)> = [
        (1, ""),
        (2, "@train"),
        (3, "@train@inner"),
        (4, ""),
        (5, "@decorated"),
        (6, ""),
        // Words of rows have no blanks and commas.
        (7, "@fsdp2@optimizer_state@a_b_c"),
        (8, "@fsdp2"),
        (9, ""),
        (10, "@left_behind"),
        (11, ""),
        (11, ""),
        (11, ""),
        (12, "@parent"),
        (13, ""),
    ]
    .map(|(size, labels)| (size, format!("CANN@APP{labels}")))
    .to_vec();
    for python in interpreters() {
        let run = trace(&python, "labels", &["--analysis=decompose"]);
        assert_eq!(owners(&run), expected, "{python:?}\n{}", run.said());
    }
}

/// Not one call is missed, and no label mistaken for another.
#[test]
fn python_scripts_are_heard_to_the_last_call() {
    let steps: Vec<String> = (1..=1000).map(|step| format!("STEP {step}")).collect();
    let labels: Vec<(u64, String)> =
        (0..500).map(|number| (1 + number, format!("CANN@APP@label_{}", number % 70))).collect();
    for python in interpreters() {
        let run = trace(&python, "many", &["--analysis=decompose"]);
        let found: Vec<String> = briefly(&run).into_iter().filter(|row| row.starts_with("STEP")).collect();
        assert_eq!(found, steps, "{python:?}");
        assert_eq!(owners(&run), labels, "{python:?}");
    }
}

/// One row for each that the current device is meant by, whether or not something is collected.
#[test]
fn python_scripts_take_snapshots() {
    let names = [
        "Memory Snapshot",
        "one of these",
        "any",
        "both Start",
        "both End",
        "decorated Start",
        "decorated End",
        "raises Start",
        "raises End",
        "no mask",
    ];
    for python in interpreters() {
        let run = trace(&python, "snapshots", &["--collect-mode=deferred"]);
        let rows = run.rows();
        let rows = one(&rows);
        let expected: Vec<String> = names.iter().map(|name| format!("SNAPSHOT {name}")).collect();
        assert_eq!(rows.iter().map(brief).collect::<Vec<_>>(), expected, "{python:?}");
        for row in rows {
            let attr: Vec<String> = row.attr.iter().map(|(key, value)| format!("{key}:{value}")).collect();
            assert_eq!(
                (row.device.as_str(), attr.join(",").as_str()),
                (
                    "0",
                    "allocated:300,device_rate:33.333333,free:600,max_allocated:350,max_reserved:500,reserved:400,\
                     reserved_rate:75.000000,total:900"
                )
            );
        }
    }
}

/// A range has one row when it ends, around what happened inside of it, also if an exception leaves it.
#[test]
fn python_scripts_name_ranges() {
    for python in interpreters() {
        let run = trace(&python, "records", &["--collect-mode=deferred"]);
        let rows = run.rows();
        let ranges = python_traces(&run.folder.output_path());
        let names: Vec<&str> = ranges.iter().map(|range| range.name.as_str()).collect();
        assert_eq!(names, ["inner, \"quoted\"", "outer", "decorated"], "{python:?}");
        let start = |range: usize| ranges[range].start_ns.expect("a time");
        let end = |range: usize| ranges[range].end_ns.expect("a time");
        let process = one(&rows)[0].pid;
        assert!(ranges.iter().all(|range| (range.pid, range.tid) == (process, process)));
        let alloc = |size| {
            let row = one(&rows).iter().find(|row| row.event == "MALLOC" && row.number("size") == size);
            row.expect("an allocation").time_ns
        };
        let order = [start(1), alloc(1), start(0), alloc(2), end(0), end(1), start(2), alloc(3), end(2)];
        assert!(order.is_sorted(), "{python:?}: {order:?}");
    }
}

/// Texts of the rows of Python traces, by process and thread in the order in which they began, as far as they are of the script or of functions
/// that it alone calls; times have to be in order.
fn traced(run: &Run) -> Vec<Vec<String>> {
    // Numbers of threads say nothing of their order: they begin again when they are used up.
    let mut threads = BTreeMap::<(u32, u32), (Option<u64>, Vec<String>)>::new();
    for row in python_traces(&run.folder.output_path()) {
        let TraceRow { name, start_ns, end_ns, tid, pid } = &row;
        assert!(start_ns.is_some() || name.starts_with("start: "), "{row:?}");
        assert!(end_ns.is_some() || name.starts_with("stop: "), "{row:?}");
        assert!(start_ns.is_none() || end_ns.is_none() || start_ns <= end_ns, "{row:?}");
        // The package's own functions have none.
        assert!(!["trace_named", "function step>", "memscope_bpf/"].iter().any(|ours| name.contains(ours)), "{row:?}");
        let mine = ["scripts.py(", "quotes", "<built-in function abs>", "bit_length", "nn.Module: "];
        if mine.iter().any(|part| name.contains(part)) {
            let (begun_ns, names) = threads.entry((*pid, *tid)).or_insert((*start_ns, Vec::new()));
            *begun_ns = (*begun_ns).min(*start_ns);
            names.push(name.clone());
        }
    }
    let mut threads: Vec<_> = threads.into_values().collect();
    threads.sort_by_key(|(begun_ns, _)| *begun_ns);
    threads.into_iter().map(|(_, names)| names).collect()
}

/// Whether the kernel is one without calls: there is a message, and no call is reported.
fn no_calls_are_reported(run: &Run) -> bool {
    let reported = kernel::has_cookies();
    assert_eq!(
        run.stderr.contains("of Python traces only ranges are available, no calls"),
        !reported,
        "{}",
        run.said()
    );
    if !reported {
        assert_eq!(traced(run), Vec::<Vec<String>>::new());
    }
    !reported
}

/// As a row names a function of the script.
fn script_row(run: &Run, name: &str) -> String {
    let (prefix, name) =
        name.split_once(": ").map_or((String::new(), name), |(prefix, name)| (format!("{prefix}: "), name));
    let wanted = format!("def {name}(");
    let line = match name {
        "<module>" => 1,
        _ => 1 + WORKLOAD.lines().position(|line| line.starts_with(&wanted)).expect("a function of the script"),
    };
    let script = traced(run).concat().into_iter().find_map(|row| {
        let row = row.split_once(": /").map_or(row.clone(), |(_, path)| format!("/{path}"));
        row.split_once("scripts.py(").map(|(folder, _)| format!("{folder}scripts.py"))
    });
    format!("{prefix}{}({line}): {name}", script.expect("a row of the script"))
}

/// What a thread of the scenario `traced` calls, in the order in which it ends.
const TREE: [&str; 19] = [
    "start: begins",
    "fact",
    "fact",
    "fact",
    "count",
    "count",
    "count",
    "fails",
    "catches",
    "<built-in function abs>",
    "<built-in method bit_length of int object>",
    "with, \"quotes\".py(1): <module>",
    "with, \"quotes\".py(1): quoted",
    "<built-in function abs>",
    "nn.Module: Linear",
    "called",
    "run",
    "tree",
    "stop: ends",
];

/// What the scenario `traced` is to show: what its thread calls, and what the one that it starts does.
fn expected_calls(run: &Run) -> Vec<Vec<String>> {
    let full = |name: &&str| {
        if name.starts_with(['<', 'n']) || name.contains("quotes") { (*name).to_owned() } else { script_row(run, name) }
    };
    vec![TREE.iter().map(full).collect(), ["fact", "in_thread"].iter().map(full).collect()]
}

/// Calls of Python and of C, each when it ends: recursion, a generator, an exception, a thread; the same by both ways of hearing of them.
#[test]
fn python_scripts_have_their_calls_traced() {
    for python in interpreters() {
        let scenarios: &[&str] =
            if python.version >= (3, 12) { &["traced", "traced_by_profiler"] } else { &["traced"] };
        for scenario in scenarios {
            let place = tempfile::tempdir().expect("a folder");
            let script = workload(place.path());
            let tracer = Tracer::run_program(&python.path, &["-B", script.to_str().expect("a plain path"), scenario]);
            let run = tracer.env("PYTHONPATH", python_package()).succeed();
            if python.version < (3, 9) {
                assert!(run.stderr.contains("[msmemscope] Warn: the Python trace needs Python 3.9."), "{}", run.said());
                assert_eq!(traced(&run), Vec::<Vec<String>>::new());
                continue;
            }
            if no_calls_are_reported(&run) {
                continue;
            }
            let expected = expected_calls(&run);
            assert_eq!(traced(&run), expected, "{python:?} {scenario}\n{}", run.said());
            let replayed = Tracer::replay(&run.folder.capture()).succeed();
            assert_eq!(traced(&replayed), expected, "{python:?} {scenario}");
        }
    }
}

/// Makes sure that a thread may have a smaller number than the one that started it: numbers begin again when they are used up.
#[test]
fn python_scripts_are_traced_where_ids_begin_again() {
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    let python = interpreters().pop().expect("an interpreter");
    if python.version < (3, 9) || !Path::new(LAST).exists() {
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    let script = workload(place.path());
    let (mut tries, mut has_begun_again) = (0, false);
    while !has_begun_again {
        // The script's process gets one of the last numbers, its thread one of the first. Others may take some in between: how many
        // differs, so the place does too. The last number is the greatest one less one.
        let before_end = 2 + tries % 4;
        let line = format!(
            "echo $(($(cat /proc/sys/kernel/pid_max) - {before_end})) > {LAST}; '{}' -B '{}' traced & wait $!",
            python.path.display(),
            script.display()
        );
        let run = Tracer::run_program("bash", &["-c", &line]).env("PYTHONPATH", python_package()).succeed();
        if no_calls_are_reported(&run) {
            return;
        }
        assert_eq!(traced(&run), expected_calls(&run), "{}", run.said());
        let rows = python_traces(&run.folder.output_path());
        has_begun_again = rows.iter().any(|row| row.tid < row.pid);
        tries += 1;
        assert!(tries < 20, "no thread has a smaller number than its process");
    }
}

/// Only between its own start and stop; what a child calls is the child's.
#[test]
fn python_scripts_have_a_part_traced() {
    for python in interpreters().into_iter().filter(|python| python.version >= (3, 9)) {
        let run = trace(&python, "traced_in_part", &[]);
        if no_calls_are_reported(&run) {
            continue;
        }
        let [parent, child] =
            <[Vec<String>; 2]>::try_from(traced(&run)).unwrap_or_else(|rows| panic!("{python:?} {rows:?}"));
        let rows = |names: &[&str]| names.iter().map(|name| script_row(&run, name)).collect::<Vec<_>>();
        assert_eq!(
            parent,
            rows(&["fails", "catches", "fails_at_exit", "start: traced_in_part", "start: <module>"]),
            "{python:?}"
        );
        assert_eq!(child, rows(&["fact", "start: traced_in_part", "start: <module>"]), "{python:?}");
    }
}

/// What there is no room for is counted, by records of up to sixty rows.
#[test]
fn python_scripts_lose_rows_that_are_counted() {
    const CALLS: u64 = 60_000;
    let python = interpreters().pop().expect("an interpreter");
    let run = trace(&python, "flood", &["--ring-size=4K", "--json"]);
    if no_calls_are_reported(&run) {
        return;
    }
    let rows = traced(&run).concat().iter().filter(|row| row.ends_with(": in_flood")).count() as u64;
    let json = run.json();
    let losses = json["end"]["losses"].as_array().expect("losses");
    let of_trace =
        losses.iter().filter(|loss| loss["symbol"] == "memscope_mark_trace" && loss["reason"] == "ring full");
    let lost: u64 = of_trace.filter_map(|loss| loss["count"].as_u64()).sum();
    assert!(rows < CALLS && lost > 0, "nothing was lost, so nothing was tested: {rows} rows");
    assert!(rows + 60 * lost >= CALLS, "{rows} rows, {lost} records lost");
}

/// Traces a script that is there already until it has seen that, and ends the tracer.
fn come_and_go(python: &Python, ended_by: Signal) -> Run {
    let folder = Folder::new();
    let script = workload(folder.path());
    let mut command = Command::new(&python.path);
    command.arg("-B").arg(script).arg("waits").current_dir(folder.path());
    command.env("PYTHONPATH", python_package()).env("LD_LIBRARY_PATH", simulation().join("lib"));
    let mut target = Target::start(command, folder, "ready ");
    let running = Tracer::attach(&[&target]).option("--analysis=decompose").start();
    target.wait_for_output("listening");
    running.signal(ended_by);
    assert!(target.wait().success(), "{python:?}");
    assert!(target.stdout().ends_with("alone\n"), "{python:?}");
    running.finish()
}

/// A script sees the tracer come and go. Labels from before it came show with the thread's next.
#[test]
fn python_scripts_see_whether_a_tracer_is_there() {
    for python in interpreters() {
        let run = come_and_go(&python, Signal::SIGINT);
        let owners: Vec<String> = owners(&run).into_iter().map(|(_, owner)| owner).collect();
        let expected = ["CANN@APP", "CANN@APP@early@older@newer", "CANN@APP@early@older"];
        assert_eq!(owners, expected, "{python:?}\n{}", run.said());
    }
}

/// It notices the tracer's end, too, if the tracer could not announce it.
#[test]
fn python_scripts_see_that_a_tracer_was_killed() {
    come_and_go(&interpreters()[0], Signal::SIGKILL);
}

/// Several tracers come and go on one machine, each with a script of its own, as an agent and its users do. A tracer that
/// ends waits in the kernel for all held threads, those of others, too. No tracer waits for it in turn, so each script is
/// collected from its first call.
#[test]
fn tracers_do_not_wait_for_each_other() {
    let python = interpreters().pop().expect("an interpreter");
    let three_times = || (0..3).for_each(|_| assert_collected_in_windows(&python));
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(three_times)));
    });
}
