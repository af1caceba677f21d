//! Programs that no analysis was tried on, with books of their own (`scenes.c`): verdicts against these, and against the journal.

use memscope_tests::harness::expect::truth;
use memscope_tests::harness::pythons::interpreters;
use memscope_tests::harness::tracer::{Run, Tracer};
use serde_json::Value;

use super::shared::{assert_nothing_lost, finding};

/// ACL asks for this much more than its caller.
const MORE: u64 = 32;
const MIB: u64 = 1 << 20;

fn scene(name: &str) -> Tracer {
    let options = ["--call-stack=c", "--analysis=leaks,oom,peaks,decompose", "--json"];
    Tracer::run("scenes", &[name]).options(&options)
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key}: {value:#}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no {key}: {value:#}"))
}

fn pid(run: &Run) -> u32 {
    run.journal().processes().pop_first().expect("a process")
}

/// Whether the place is in a function of the program.
fn is_in(place: &Value, function: &str) -> bool {
    let frames = place["stacks"]["native"].to_string();
    frames.contains(&format!("({function}+"))
}

/// Verdict, blocks and bytes of the places of a device, each in `keep_here`.
fn places(leaks: &Value) -> Vec<(String, u64, u64)> {
    let place = |place: &Value| {
        assert!(is_in(place, "keep_here"), "{place:#}");
        let verdict = place["verdict"].as_str().expect("a verdict").to_owned();
        (verdict, number(place, "blocks"), number(place, "size_bytes"))
    };
    list(leaks, "places").iter().map(place).collect()
}

/// Blocks and bytes that the journal has live at the end, on a device.
fn held(run: &Run, device: &str) -> (u64, u64) {
    let journal = run.journal();
    let (_, entries) = journal.by_process().pop_first().expect("a process");
    let held = truth(&entries, false).held.into_iter().filter(|block| block.device == device);
    held.fold((0, 0), |sum, block| (sum.0 + 1, sum.1 + block.size))
}

/// The second device keeps a block of each of its steps; the first one, which has as many steps meanwhile, keeps a block of its first, and
/// is not accused. The last step of a device judges no block of its own.
#[test]
fn a_leak_on_one_of_two_devices() {
    let run = scene("two").succeed();
    assert_nothing_lost(&run);
    let (pid, steps, kept) = (pid(&run), run.counted("steps"), run.counted("kept1"));
    let [first, second] = [0, 1].map(|device| finding(&run, "step_leaks", pid, device));
    assert_eq!([number(&first, "steps_ended"), number(&second, "steps_ended")], [steps; 2]);
    assert_eq!(places(&first), []);
    let bytes = (kept - 1) * (MIB + MORE);
    assert_eq!(places(&second), [("leak".to_owned(), kept - 1, bytes)]);
    assert_eq!(list(&second, "unjudged").len(), 1);
    for device in [0, 1] {
        let found = finding(&run, "held", pid, device);
        assert_eq!((number(&found, "blocks"), number(&found, "size_bytes")), held(&run, &device.to_string()));
    }
}

/// Each step keeps a block. In the middle a request succeeds at its third attempt, which is no failure; at the end two threads fail on one
/// device at once, and the program frees all. Its failures are as they were, and its leak is one all the same.
#[test]
fn requests_that_succeed_and_fail_beside_a_leak() {
    let run = scene("retries").env("ASCEND_SIM_CAPACITY_MB", "256").succeed();
    assert_nothing_lost(&run);
    let (pid, kept) = (pid(&run), run.counted("kept"));
    let of_driver = finding(&run, "held", pid, 0);
    assert_eq!(["failed", "recovered", "blocks"].map(|key| number(&of_driver, key)), [2, 1, 0], "{of_driver:#}");
    // Behind the last allocation nothing is freed before both have failed.
    let journal = run.journal();
    let (_, entries) = journal.by_process().pop_first().expect("a process");
    let calls = truth(&entries, false).calls;
    let full = calls.iter().rposition(|call| call.is_alloc).expect("an allocation") + 1;
    let live = calls[..full].iter().fold((0, 0), |(blocks, bytes): (u64, u64), call| {
        let size = call.block.size;
        if call.is_alloc { (blocks + 1, bytes + size) } else { (blocks - 1, bytes - size) }
    });
    let json = run.json();
    let mut failures: Vec<&Value> = list(&json, "findings").iter().filter(|it| it["finding"] == "oom").collect();
    failures.sort_by_key(|oom| number(oom, "size_bytes"));
    assert_eq!(failures.iter().map(|oom| number(oom, "size_bytes")).collect::<Vec<_>>(), [180 * MIB, 190 * MIB]);
    for oom in failures {
        let [of_driver] = list(oom, "pools") else { panic!("{oom:#}") };
        assert_eq!((number(&of_driver["live"], "blocks"), number(&of_driver["live"], "size_bytes")), live, "{oom:#}");
        assert_eq!((number(oom, "attempts"), &oom["late"]), (1, &false.into()));
        let kept_here = list(&of_driver["groups"], "places").iter().filter(|place| is_in(place, "keep_here"));
        let kept_here: Vec<_> = kept_here.map(|place| (number(place, "blocks"), number(place, "size_bytes"))).collect();
        assert_eq!(kept_here, [(kept, kept * (256 * 1024 + MORE))], "{oom:#}");
        let last = list(oom, "last_events").last().expect("events").to_string();
        assert!(!last.contains("HAL free"), "of the tear-down: {last}");
    }
    // Of the first step nothing is looked at, and the last one judges none of its own.
    let leaks = finding(&run, "step_leaks", pid, 0);
    assert_eq!(places(&leaks), [("leak".to_owned(), kept - 2, (kept - 2) * (256 * 1024 + MORE))]);
    let span = list(&json, "findings").iter().find(|it| it["finding"] == "span").expect("an exit");
    assert_eq!((number(&span["exit"], "freed_blocks"), number(&span["exit"], "freed_bytes")), live);
}

/// Killed within a step: what the steps kept leaks, the temporary blocks of the last one are held and not judged, and there is no exit.
#[test]
fn a_program_that_is_killed_within_a_step() {
    let run = scene("killed").finish();
    let (pid, kept, temporary) = (pid(&run), run.counted("kept"), run.counted("temporary"));
    let leaks = finding(&run, "step_leaks", pid, 0);
    // The step that was killed has not ended; of the one before no later one has judged.
    assert_eq!(places(&leaks), [("leak".to_owned(), kept - 2, (kept - 2) * (MIB + MORE))]);
    assert_eq!(list(&leaks, "unjudged").len() as u64, 1 + temporary);
    let found = finding(&run, "held", pid, 0);
    assert_eq!((number(&found, "blocks"), number(&found, "size_bytes")), held(&run, "0"));
    assert!(list(&run.json(), "findings").iter().all(|it| it["finding"] != "span"));
}

/// The exit of a process.
fn span(run: &Run) -> Value {
    let json = run.json();
    let found = list(&json, "findings").iter().find(|it| it["finding"] == "span");
    found.unwrap_or_else(|| panic!("no exit: {json:#}")).clone()
}

/// `main` returns, and 3 s later a handler frees what the steps kept, a third of what is held. That is no mass of frees, and far from the last work:
/// the call of `exit` alone shows that all of it was held.
#[test]
fn a_handler_that_frees_late() {
    let run = scene("handlers").succeed();
    assert_nothing_lost(&run);
    let (pid, kept) = (pid(&run), run.counted("kept"));
    let leaks = finding(&run, "step_leaks", pid, 0);
    assert_eq!(places(&leaks), [("leak".to_owned(), kept - 2, (kept - 2) * (MIB + MORE))]);
    let span = span(&run);
    assert_eq!((&span["exit"]["called"], &span["exit"]["finalized"]), (&"exit".into(), &false.into()));
    assert_eq!(
        (number(&span["exit"], "freed_blocks"), number(&span["exit"], "freed_bytes")),
        (kept, kept * (MIB + MORE))
    );
    let exit_ns = number(&span, "until_ns");
    let frees = run
        .rows()
        .all()
        .filter(|row| row.event == "FREE" && !row.is_made_up() && row.number("size") == MIB + MORE)
        .count();
    assert_eq!(frees as u64, kept, "after {exit_ns}");
    let text = Tracer::replay(&run.folder.capture()).options(&["--analysis=leaks"]).succeed().stdout;
    assert!(text.contains("There the exit begins (exit and the end of the process, with no work before)"), "{text}");
}

/// A Python list keeps a loss of each step, and Python frees it at its end; most of the held memory is never freed.
/// Python's call shows the exit.
#[test]
fn python_that_frees_its_list() {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/keeps.py");
    for python in interpreters() {
        let arguments = ["-B", script.to_str().expect("a plain path"), "20", "100"];
        let run = Tracer::run_program(&python.path, &arguments).options(&["--analysis=leaks", "--json"]).succeed();
        let leaks = finding(&run, "step_leaks", pid(&run), 0);
        let of_places = list(&leaks, "places").iter();
        let of_places = of_places.map(|it| (it["verdict"].clone(), number(it, "each_bytes"), number(it, "blocks")));
        // The first step is skipped, the last one judges none of its own.
        assert_eq!(of_places.collect::<Vec<_>>(), [("leak".into(), 4096, 18)], "{python:?}");
        let span = span(&run);
        assert_eq!(
            (&span["exit"]["called"], number(&span["exit"], "freed_blocks")),
            (&"py_finalize".into(), 20),
            "{python:?}"
        );
    }
}

/// A server: one place keeps a block ten times a second, another one takes 512 at once right before the end, and all are freed then. The
/// first grows, with its owner; the second is listed, undecided. The printed times choose what was judged.
#[test]
fn a_server_that_ends_in_a_burst() {
    let run = scene("bursts").succeed();
    assert_nothing_lost(&run);
    let (pid, kept) = (pid(&run), run.counted("kept"));
    let growth = finding(&run, "growth", pid, 0);
    let [site] = list(&growth, "sites") else { panic!("{growth:#}") };
    assert!(is_in(&site["site"], "keep_here"), "{site:#}");
    assert_eq!((number(site, "blocks"), number(site, "size_bytes")), (kept, kept * (MIB + MORE)));
    let owners = serde_json::json!([{"owner": "CANN@APP", "blocks": kept, "size_bytes": kept * (MIB + MORE)}]);
    assert_eq!(site["owners"], owners);
    let of_burst = list(&growth, "increases").iter().filter(|increase| is_in(&increase["site"], "burst_here"));
    assert_eq!(of_burst.map(|increase| number(increase, "live_blocks")).sum::<u64>(), 512, "{growth:#}");

    let capture = run.folder.capture();
    let words = |options: &[&str]| -> Vec<String> {
        let text = Tracer::replay(&capture).options(options).succeed().stdout;
        let lines = text.lines().skip_while(|line| !line.starts_with("Keeps growing on device 0"));
        let section = lines.take_while(|line| line.starts_with("Keeps") || line.starts_with(' '));
        section.map(str::to_owned).collect()
    };
    let whole = words(&["--analysis=leaks"]);
    let heading = whole.first().expect("it grows");
    let (_, times) = heading.split_once(", from ").expect("times");
    let (from, rest) = times.split_once(" to ").expect("times");
    let until = rest.split(';').next().expect("a time");
    // Increases of as many bytes come in no order.
    let sites = |lines: &[String]| {
        lines.iter().take_while(|line| !line.starts_with("  Undecided")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(sites(&words(&["--analysis=leaks", "--until", until])), sites(&whole), "{until}");
    let late = words(&["--analysis=leaks", "--since", from, "--until", until]);
    let count = |lines: &[String]| lines.iter().filter(|line| line.contains(" blocks a second)")).count();
    assert_eq!((count(&late), count(&whole)), (1, 1), "{late:#?}");
}
