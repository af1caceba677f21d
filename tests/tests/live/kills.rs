//! Whichever process is killed, no other is harmed, and recorded data are kept.

use std::fs;
use std::time::Duration;

use memscope_tests::harness::expect::{Expect, Window, assert_beginning, assert_equal, assert_unbroken};
use memscope_tests::harness::tracer::{
    Target, Tracer, assert_nobody_is_left, assert_runs, monotonic_ns, signal_of, unix_offset_ns, workload_path,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::attach::attach;
use super::shared::{assert_nothing_lost, assert_nothing_lost_since_attach, assert_sound, finding};

const SECOND_NS: u64 = 1_000_000_000;

fn sleep_ms(time: u64) {
    std::thread::sleep(Duration::from_millis(time));
}

fn kill_9(pid: u32) {
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).expect("a process to kill");
}

/// Numbers that are the same every time and look like chance.
fn spread(index: u64, below: u64) -> u64 {
    ((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % below
}

/// A target that is killed from outside: all it did is in the files, and what it held is in the report.
#[test]
fn killed_target() {
    let running = Tracer::run("serve", &["--threads", "3", "--rate", "0", "--hold", "40"]).option("--json").start();
    running.wait_for_output("ready ");
    sleep_ms(100);
    let pid = running.stdout().trim_start_matches("ready ").lines().next().and_then(|pid| pid.parse().ok());
    kill_9(pid.expect("a process"));
    let run = running.finish();
    assert_eq!(run.code(), 137, "{}", run.said());
    assert_nothing_lost(&run);
    assert_sound(&run);
    let totals = assert_equal(&run.journal(), &run.rows(), Expect { killed: true, ..Expect::default() });
    // The held ones, the runtime's three, and what the threads had at that moment.
    assert!((43..=46).contains(&totals.held), "{totals:?}");
    let held = finding(&run, "held", pid.expect("a process"), 0);
    assert_eq!(held["blocks"], totals.held, "{}", run.said());
    assert_eq!(held["allocations"], totals.allocs, "{}", run.said());
}

/// The same for one that was attached to: the trace ends with it.
#[test]
fn killed_target_of_attach() {
    let mut target = Target::serve(&["--threads", "2", "--rate", "2000"]);
    let (running, from_ns) = attach(&[&target], &[]);
    sleep_ms(300);
    let to_ns = monotonic_ns();
    target.signal(Signal::SIGKILL);
    assert_eq!(signal_of(target.wait()), Some(9));
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost_since_attach(&run);
    let window = Window { from_ns, to_ns };
    assert_unbroken(&target.folder.journal(), &run.rows(), target.pid(), window, unix_offset_ns());
}

/// A tracer that is killed leaves its target unharmed, and all but the last second can be recovered.
#[test]
fn killed_tracer() {
    let mut target = Target::serve(&["--threads", "2", "--rate", "3000"]);
    let (running, from_ns) = attach(&[&target], &[]);
    sleep_ms(2500);
    let killed_ns = monotonic_ns();
    running.signal(Signal::SIGKILL);
    let run = running.finish();
    assert_eq!(signal_of(run.status), Some(9));
    target.assert_unharmed();
    let recovered = Tracer::recover(&run.folder.output_path()).succeed();
    assert_sound(&recovered);
    let window = Window { from_ns, to_ns: killed_ns - SECOND_NS };
    // A journal that is still written would not be of one moment.
    target.stop();
    let journal = target.folder.journal();
    let compared = assert_unbroken(&journal, &recovered.rows(), target.pid(), window, unix_offset_ns());
    assert!(compared > 1000, "only {compared} rows");
}

/// Tracers that are killed at any moment, while they attach too, never stop or end their target.
#[test]
fn killed_tracers_of_one_target() {
    let mut target = Target::serve(&["--threads", "2", "--rate", "1000"]);
    for round in 0..8 {
        let running = Tracer::attach(&[&target]).options(&["--late-libraries", "stop"]).start();
        sleep_ms(spread(round, 700));
        running.signal(Signal::SIGKILL);
        let run = running.finish();
        assert_eq!(signal_of(run.status), Some(9), "{}", run.said());
        target.assert_unharmed();
    }
    target.stop();
}

/// A program that was started by a tracer that is killed goes on by itself.
#[test]
fn killed_tracer_of_run() {
    let running = Tracer::run("serve", &["--threads", "2"]).start();
    running.wait_for_rows();
    running.wait_for_output("ready ");
    let pid = running.stdout().trim_start_matches("ready ").lines().next().and_then(|pid| pid.parse().ok());
    let pid: u32 = pid.expect("a process");
    running.signal(Signal::SIGKILL);
    let run = running.finish();
    assert_runs(pid);
    let before = run.journal().entries.len();
    sleep_ms(300);
    assert_runs(pid);
    assert!(run.journal().entries.len() > before, "process {pid} does nothing any more");
    kill_9(pid);
    assert_nobody_is_left(run.folder.path(), "killed tracer of run");
}

/// Whenever the tracer of a whole tree of processes is killed, its start included, no process stays stopped, and its
/// files can be recovered.
#[test]
fn killed_tracers_of_a_tree() {
    for round in 0..20 {
        let time = spread(round, 900);
        let running = Tracer::run_program(workload_path("forktree.sh"), &[]).start();
        sleep_ms(time);
        running.signal(Signal::SIGKILL);
        let run = running.finish();
        assert_nobody_is_left(run.folder.path(), &format!("round {round}, killed after {time} ms"));
        let has_capture = run.folder.output_path().exists()
            && fs::read_dir(run.folder.output_path()).expect("output directory").any(|entry| {
                entry.expect("readable").path().extension().is_some_and(|extension| extension == "capture")
            });
        if !has_capture {
            continue;
        }
        let recovered = Tracer::recover(&run.folder.output_path()).finish();
        let is_empty = fs::metadata(run.folder.capture()).expect("a capture").len() < 64;
        assert!(recovered.status.success() || is_empty, "round {round}: {}", recovered.said());
        if recovered.status.success() && recovered.folder.output_path().exists() {
            assert_beginning(&run.journal(), &recovered.rows());
        }
    }
}
