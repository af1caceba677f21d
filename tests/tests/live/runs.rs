//! `run` stands in for the program: its exit status, signals and streams are the program's.

use std::time::Duration;

use memscope_tests::harness::expect::assert_equal;
use memscope_tests::harness::tracer::{Tracer, assert_runs, in_vm, workload_path};
use nix::sys::signal::Signal;

use super::shared::{DEFAULT, assert_nothing_lost};

/// The program's exit status is the tracer's; a signal that ends it adds 128.
#[test]
fn exit_status_is_passed_on() {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
    {
        let run = Tracer::run_program("/bin/sh", &["-c", script]).finish();
        assert_eq!(run.code(), code, "{script}: {}", run.said());
    }
}

/// A program that cannot be run is said to be, with the codes of `env` and `nohup`.
#[test]
fn program_that_cannot_run() {
    let run = Tracer::run_program("no-such-program", &[]).finish();
    assert_eq!(run.code(), 127, "{}", run.said());
    assert!(run.stderr.contains("no-such-program"), "{}", run.said());
    let run = Tracer::run_program("/etc", &[]).finish();
    assert_eq!(run.code(), 126, "{}", run.said());
}

/// What the program reads and writes is untouched, bytes that are no text included.
#[test]
fn streams_are_the_programs() {
    let text = "first line\n\u{1b}[31m second %s\n\nno end";
    let run = Tracer::run_program("/bin/sh", &["-c", "cat; echo problem >&2"]).stdin(text.as_bytes()).succeed();
    assert!(run.stdout.starts_with(text), "{}", run.said());
    assert!(run.stderr.lines().any(|line| line == "problem"), "{}", run.said());
    let run = Tracer::run_program("/bin/sh", &["-c", "cat | cat"]).stdin(text.as_bytes()).option("--json").succeed();
    assert!(run.stdout.starts_with(&format!("{text}{{\"schema\"")), "{}", run.said());
}

/// Programs get their arguments as they are, and the folder and the variables of the tracer.
#[test]
fn arguments_are_the_programs() {
    let script = "printf '%s|' \"$@\" \"$MEMSCOPE_TEST\"; pwd";
    let arguments = ["-c", script, "sh", "--json", "-o", "", "a b", "--"];
    let run = Tracer::run_program("/bin/sh", &arguments).env("MEMSCOPE_TEST", "x=y").succeed();
    let folder = run.folder.path().canonicalize().expect("a folder");
    let expected = format!("--json|-o||a b|--|x=y|{}\n", folder.display());
    assert!(run.stdout.starts_with(&expected), "{}", run.said());
}

/// Signals sent to the tracer reach the program, which ends in its own way; everything is written.
#[test]
fn signals_are_passed_on() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let running = Tracer::run("serve", &["--rate", "2000", "--threads", "2"]).start();
        running.wait_for_output("ready ");
        running.wait_for_rows();
        running.signal(signal);
        let run = running.finish();
        assert_eq!(run.code(), 0, "{signal}: {}", run.said());
        assert_nothing_lost(&run);
        let totals = assert_equal(&run.journal(), &run.rows(), DEFAULT);
        assert_eq!(totals.allocs, run.counted("allocs") + 3, "{signal}");
        assert_eq!(totals.held, 0, "{signal}");
    }
}

/// SIGUSR1 reaches the program, too: here it makes children, which are followed.
#[test]
fn children_of_a_running_program() {
    let running = Tracer::run("serve", &["--children", "--rate", "500"]).start();
    for count in 1..=2 {
        running.wait_for_output("ready ");
        running.signal(Signal::SIGUSR1);
        while running.stdout().matches("ready ").count() <= count {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    running.signal(Signal::SIGTERM);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost(&run);
    let totals = assert_equal(&run.journal(), &run.rows(), DEFAULT);
    assert_eq!(run.rows().processes.len(), 3);
    assert_eq!(totals.allocs, run.counted("allocs") + 3 * 3);
}

/// The end of the given time ends the trace, and the program goes on to its own end.
#[test]
fn duration_ends_the_trace_only() {
    // In a VM, attaching alone can take seconds.
    let (lives_ms, duration) = if in_vm() { ("40000", "20s") } else { ("2500", "1s") };
    let running = Tracer::run("serve", &["--duration-ms", lives_ms]).options(&["--duration", duration]).start();
    running.wait_for_output("ready ");
    let pid = running.stdout().trim_start_matches("ready ").lines().next().and_then(|pid| pid.parse().ok());
    running.wait_for_message("capture ", 1);
    assert_runs(pid.expect("a process"));
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert!(run.counted("allocs") > run.rows().count("MALLOC") as u64, "{}", run.said());
}

/// Children that outlive the program are traced to their ends, if they are wanted.
#[test]
fn children_that_stay() {
    let script = format!("{} --delay-ms 500 & exit 3", workload_path("latedl").display());
    let run = Tracer::run_program("/bin/sh", &["-c", &script]).finish();
    assert_eq!(run.code(), 3, "{}", run.said());
    assert_equal(&run.journal(), &run.rows(), DEFAULT);
    assert_eq!(run.rows().count("MALLOC"), 13);
}

/// Without children, only the program itself is traced.
#[test]
fn no_children() {
    let run = Tracer::run("forktree", &[]).option("--no-children").succeed();
    let root = run.journal().entries.first().map(|entry| entry.pid).expect("a process");
    assert_eq!(run.rows().processes.keys().copied().collect::<Vec<_>>(), [root]);
    assert_eq!(run.journal().processes().len(), 7);
}
