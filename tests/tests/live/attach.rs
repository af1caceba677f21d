//! Attaching to processes that run already.

use std::time::Duration;

use memscope_tests::harness::expect::{Window, assert_unbroken};
use memscope_tests::harness::rows::Rows;
use memscope_tests::harness::tracer::{Run, Running, Target, Tracer, in_vm, monotonic_ns, unix_offset_ns};
use nix::sys::signal::Signal;

use super::shared::{assert_nothing_lost_since_attach, assert_sound};

/// Attaches, and waits until the tracer says that its probes are placed; gives a moment from which on every call is seen.
pub(crate) fn attach(targets: &[&Target], options: &[&str]) -> (Running, u64) {
    let running = Tracer::attach(targets).option("--verbose").options(options).start();
    running.wait_for_message("libascend_hal.so: ", 1);
    // A thread that was inside of a call, and had lost its processor there, may come to the journal only now.
    pause();
    (running, monotonic_ns())
}

fn sum(run: &Run, pid: u32, key: &str) -> u64 {
    let json = run.json();
    let findings = json["findings"].as_array().expect("findings").iter();
    findings.filter(|finding| finding["pid"] == pid).filter_map(|finding| finding[key].as_u64()).sum()
}

fn pause() {
    std::thread::sleep(Duration::from_millis(400));
}

/// From the moment of attaching on nothing is missed, until the target ends; blocks that are older are neither rows nor
/// leaks, and their frees are counted.
#[test]
fn target_ends() {
    let mut target = Target::serve(&["--threads", "3", "--rate", "3000", "--hold", "50"]);
    let (running, from_ns) = attach(&[&target], &["--json"]);
    pause();
    target.stop();
    let to_ns = monotonic_ns();
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost_since_attach(&run);
    assert_sound(&run);
    let (pid, rows) = (target.pid(), run.rows());
    let window = Window { from_ns, to_ns };
    let compared = assert_unbroken(&target.folder.journal(), &rows, pid, window, unix_offset_ns());
    assert!(compared > 100, "only {compared} rows");
    assert_eq!(rows.made_up(), 0);
    assert_eq!((sum(&run, pid, "blocks"), sum(&run, pid, "unknown_frees")), (0, 0), "{}", run.said());
    // The held blocks and the runtime's three, and for each thread maybe the block that it had at that moment.
    let older = sum(&run, pid, "older_frees");
    assert!((53..=56).contains(&older), "{older} frees of older blocks: {}", run.said());
}

/// The trace ends when its time is over, or at Ctrl-C; its outputs are complete, and the target goes on.
#[test]
fn trace_ends_first() {
    let target = Target::serve(&["--threads", "2", "--rate", "2000"]);
    for by_signal in [None, Some(Signal::SIGINT), Some(Signal::SIGTERM)] {
        // Long enough to hold the window that is compared.
        let options: &[&str] = if by_signal.is_none() { &["--json", "--duration=5s"] } else { &["--json"] };
        let (running, from_ns) = attach(&[&target], options);
        pause();
        // A thread may lose its processor between its journal entry and its return, in a guest for long.
        let to_ns = monotonic_ns() - if in_vm() { 100_000_000 } else { 0 };
        if let Some(signal) = by_signal {
            running.signal(signal);
        }
        let run = running.finish();
        assert_eq!(run.code(), 0, "{by_signal:?}: {}", run.said());
        assert_nothing_lost_since_attach(&run);
        assert_sound(&run);
        target.assert_unharmed();
        let window = Window { from_ns, to_ns };
        let compared = assert_unbroken(&target.folder.journal(), &run.rows(), target.pid(), window, unix_offset_ns());
        assert!(compared > 100, "{by_signal:?}: only {compared} rows");
        assert_eq!(sum(&run, target.pid(), "unknown_frees"), 0, "{by_signal:?}");
        // Blocks live at the end of the trace are reported, and have an end in the file.
        assert_eq!(sum(&run, target.pid(), "blocks"), run.rows().made_up() as u64, "{by_signal:?}");
    }
}

/// Several processes at once, each with its own files.
#[test]
fn several_targets() {
    let mut targets = [Target::serve(&["--rate", "1000"]), Target::serve(&["--rate", "1500", "--hold", "7"])];
    let (running, from_ns) = attach(&[&targets[0], &targets[1]], &[]);
    pause();
    targets[0].stop();
    pause();
    targets[1].stop();
    let to_ns = monotonic_ns();
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost_since_attach(&run);
    let rows: Rows = run.rows();
    assert_eq!(rows.processes.len(), 2);
    for target in &targets {
        let window = Window { from_ns, to_ns };
        assert_unbroken(&target.folder.journal(), &rows, target.pid(), window, unix_offset_ns());
    }
}

/// Children that are forked after the attaching are followed from their first call on.
#[test]
fn children_are_followed() {
    let mut target = Target::serve(&["--rate", "1000", "--children"]);
    let (running, from_ns) = attach(&[&target], &["--json"]);
    target.signal(Signal::SIGUSR1);
    let _ = target.ready(2);
    target.signal(Signal::SIGUSR1);
    let processes = target.ready(3);
    pause();
    target.stop();
    let to_ns = monotonic_ns();
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost_since_attach(&run);
    let (rows, journal) = (run.rows(), target.folder.journal());
    assert_eq!(rows.processes.len(), 3, "{:?}", rows.files);
    for pid in processes {
        let is_child = pid != target.pid();
        // Of a child, everything is there.
        let from_ns = if is_child { 0 } else { from_ns };
        assert_unbroken(&journal, &rows, pid, Window { from_ns, to_ns }, unix_offset_ns());
        assert_eq!(sum(&run, pid, "older_frees") > 0, !is_child, "{pid}: {}", run.said());
        assert_eq!((sum(&run, pid, "unknown_frees"), sum(&run, pid, "blocks")), (0, 0), "{pid}: {}", run.said());
    }
}

/// Every way of linking and every transport can attach. One that the kernel lacks is refused in words.
#[test]
fn other_links_attach() {
    let target = Target::serve(&["--threads", "2", "--rate", "1000"]);
    for options in [["--link", "cookie"], ["--link", "slots"], ["--transport", "perf"]] {
        let running = Tracer::attach(&[&target]).options(&options).start();
        running.wait_for_rows();
        let from_ns = monotonic_ns();
        pause();
        let to_ns = monotonic_ns();
        // However long attaching takes. A tracer that was refused has ended already.
        running.signal(Signal::SIGINT);
        let run = running.finish();
        if run.code() == 1 && options[1] == "cookie" {
            assert!(run.stderr.contains("kernel"), "{}", run.said());
            continue;
        }
        assert_eq!(run.code(), 0, "{options:?}: {}", run.said());
        assert_nothing_lost_since_attach(&run);
        let window = Window { from_ns, to_ns };
        let compared = assert_unbroken(&target.folder.journal(), &run.rows(), target.pid(), window, unix_offset_ns());
        assert!(compared > 100, "{options:?}: only {compared} rows");
        target.assert_unharmed();
    }
}

/// A process that is not there is said not to be.
#[test]
fn no_such_target() {
    let mut target = Target::serve(&[]);
    target.stop();
    let run = Tracer::attach(&[&target]).finish();
    assert_eq!(run.code(), 1, "{}", run.said());
    assert!(run.stderr.contains("does not exist"), "{}", run.said());
}
