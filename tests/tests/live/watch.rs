//! Block watch: which operator changed a block, and that the program takes no harm of being asked.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::harness::pythons::interpreters;
use memscope_tests::harness::tracer::{Folder, Run, Target, Tracer, in_vm, python_package, simulation, workload_path};
use nix::sys::signal::Signal;

/// Checksum of 4096 zeros, and of those with 64 times 0xee behind the first 64: worked out bit by bit.
pub(super) const CLEAN: &str = "aadc575c10276478";
const SPOILT: &str = "d885878cd1401d76";
/// Sides of operators from the end of `start` to that of `end`: 6 rounds of 8 operators, both sides of each.
pub(super) const SIDES: usize = 1 + 6 * 8 * 2 + 2;

pub(super) fn watch(program: &[&str], kernel_us: u32, options: &[&str]) -> Run {
    let tracer = Tracer::run("watch", program).env("ASCEND_SIM_DEVICE", kernel_us.to_string());
    tracer.options(options).succeed()
}

/// Files below `watch_dump` of the one device.
fn files(run: &Run) -> Vec<PathBuf> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.parent().is_some_and(|parent| parent.ends_with("device_0/watch_dump")) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&run.folder.output_path(), &mut found);
    found
}

/// The list of checksums, without its header.
pub(super) fn sums(run: &Run) -> Vec<(String, String)> {
    let files = files(run);
    assert_eq!(files.len(), 1, "{files:?}\n{}", run.said());
    let text = fs::read_to_string(&files[0]).expect("readable");
    let rows = text.strip_prefix("Tensor info,Check data sum\n").expect("the header");
    rows.lines()
        .map(|line| line.split_once(',').expect("two cells"))
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .collect()
}

/// What the program says at its end: that nothing happened to it.
pub(super) fn assert_unharmed(stdout: &str, said: &str) {
    let spoilt = "done: byte 0 is 0, byte 64 is 238; interrupted 0; urgent 0";
    assert!(stdout.contains(spoilt), "{said}");
}

/// The right operator, whether or not its kernels have run when it returns; each look under its name.
#[test]
fn operator_that_spoils_a_block() {
    for kernel_us in [0, 300] {
        let run = watch(&[], kernel_us, &["--watch=start,end"]);
        assert_unharmed(&run.stdout, &run.said());
        assert!(run.stdout.contains("first changed during `op5` (call 4, thread "), "{}", run.said());
        assert!(run.stdout.contains(&format!("; {SIDES} look(s), 1 change(s)\n")), "{}", run.said());
        let sums = sums(&run);
        assert_eq!(sums.len(), SIDES);
        let names: BTreeSet<&str> = sums.iter().map(|(name, _)| name.split_once('/').expect("a folder").1).collect();
        assert_eq!(names.len(), SIDES);
        assert!(names.contains("start_1-start_0_after.bin") && names.contains("end_1-start_0_after.bin"), "{names:?}");
        let changed = sums.iter().position(|(_, sum)| sum == SPOILT).expect("a change");
        assert!(sums[changed].0.ends_with("/op5_4-start_0_after.bin"), "{sums:?}");
        assert!(
            sums[..changed].iter().all(|(_, sum)| sum == CLEAN) && sums[changed..].iter().all(|(_, sum)| sum == SPOILT)
        );
    }
}

/// Kernels are operators, too, if they are wanted.
#[test]
fn kernel_that_spoils_a_block() {
    let run = watch(&["--abi", "1"], 100, &["--watch=start:0,end", "--level=op,kernel"]);
    assert_unharmed(&run.stdout, &run.said());
    assert!(run.stdout.contains("first changed during `spoil` (call 1, thread "), "{}", run.said());
}

/// The files hold the bytes, under the names of the contract.
#[test]
fn contents_of_a_block() {
    let size = 3 << 20;
    let run = watch(&["--size", &size.to_string(), "--rounds", "4"], 0, &["--watch=start,end,full-content"]);
    assert_unharmed(&run.stdout, &run.said());
    let files = files(&run);
    assert_eq!(files.len(), 1 + 4 * 8 * 2 + 2, "{}", run.said());
    let clean = vec![0; size];
    let mut spoilt = clean.clone();
    spoilt[64..128].fill(0xee);
    for path in files {
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
        let (thread, look) = name.split_once('.').expect("a folder's name");
        assert!(thread.strip_prefix("0_").is_some_and(|tid| tid.bytes().all(|byte| byte.is_ascii_digit())), "{name}");
        let is_spoilt = ["op5_4-start_0_after.bin", "end_1-start_0_before.bin", "end_1-start_0_after.bin"]
            .contains(&look)
            || look.starts_with("op6_4")
            || look.starts_with("op7_4");
        let bytes = fs::read(&path).expect("readable");
        assert_eq!(bytes.len(), size, "{name}");
        assert!(bytes == *if is_spoilt { &spoilt } else { &clean }, "{name}");
    }
}

/// All registers are what they were, at both sides of a launch; only general ones where the processor has no others.
#[test]
fn registers() {
    // Interpreted, a look takes some 20 ms.
    let checks = if in_vm() { 500 } else { 5000 };
    let program = ["--registers", &checks.to_string(), "--rounds", "4"];
    let run = watch(&program, 0, &["--watch=start,end", "--level=kernel,op"]);
    assert_unharmed(&run.stdout, &run.said());
    assert!(run.stdout.contains(&format!("registers: 0 damaged of {checks}\n")), "{}", run.said());
    let looks = 1 + 4 * 8 * 2 * 2 + 2 + 2 * checks + 2 + 2;
    assert!(run.stdout.contains(&format!("; {looks} look(s), 1 change(s)\n")), "{}", run.said());
}

/// Eight threads at once.
#[test]
fn threads() {
    let run = watch(&["--threads", "8"], 20, &["--watch=start,end"]);
    assert_unharmed(&run.stdout, &run.said());
    let changed =
        run.stdout.lines().find(|line| line.contains("first changed ")).unwrap_or_else(|| panic!("{}", run.said()));
    // Other threads look, too: the change is seen by whoever looks first, and op5 is named in either case.
    assert!(changed.contains("1 change(s)"), "{}", run.said());
    let reported =
        run.stderr.lines().find(|line| line.contains(" changed ")).unwrap_or_else(|| panic!("{}", run.said()));
    assert!(reported.contains("`op5`"), "{}", run.said());
    // Interpreted, a thread may have gone on before it is asked for its look.
    let unseen = if in_vm() { passed_unseen(&run) } else { 0 };
    assert_eq!(sums(&run).len() + unseen, 1 + 8 * 6 * 8 * 2 + 2, "{}", run.said());
}

/// Looks that were not made, by the report.
fn passed_unseen(run: &Run) -> usize {
    let lines = run.stdout.lines().filter_map(|line| line.split_once(" side(s) of operators passed unseen: "));
    let counts = lines.map(|(before, _)| before.rsplit(' ').next().and_then(|count| count.parse::<usize>().ok()));
    counts.map(|count| count.unwrap_or_else(|| panic!("{}", run.said()))).sum()
}

/// Operators of CANN's library have the names of the functions that are called, and are looked at where they launch.
#[test]
fn operators_of_cann() {
    const ACLNN: [&str; 8] =
        ["aclnnAdd", "aclnnSub", "aclnnMul", "aclnnDiv", "aclnnNeg", "aclnnExp", "aclnnAbs", "aclnnCos"];
    let run = watch(&["--aclnn", "1"], 100, &["--watch=start,end"]);
    assert_unharmed(&run.stdout, &run.said());
    assert!(run.stdout.contains("first changed during `aclnnExp` (call 4, thread "), "{}", run.said());
    assert!(run.stdout.contains(&format!("; {SIDES} look(s), 1 change(s)\n")), "{}", run.said());
    let rounds = (1..=6).flat_map(|round| ACLNN.map(|name| format!("{name}_{round}")));
    let sides = rounds.flat_map(|call| ["before", "after"].map(|side| format!("{call}-start_0_{side}.bin")));
    let ends = ["end_1-start_0_before.bin", "end_1-start_0_after.bin"].map(str::to_owned);
    let expected: Vec<_> = ["start_1-start_0_after.bin".to_owned()].into_iter().chain(sides).chain(ends).collect();
    let found: Vec<_> =
        sums(&run).into_iter().map(|(name, _)| name.split_once('/').expect("a folder").1.to_owned()).collect();
    assert_eq!(found, expected, "{}", run.said());
}

/// `START` comes again in a later step, and writes its output again: that is no change, what comes behind it is.
#[test]
fn start_that_comes_again() {
    let run = watch(&["--again", "1"], 20, &["--watch=start,end"]);
    let verdict = run.stdout.lines().find(|line| line.contains("block `start` output 0 ")).expect("a verdict");
    assert!(verdict.contains("first changed during `op5` (call 4"), "{verdict}");
    assert!(verdict.contains(", 1 change(s)"), "{verdict}");
    let starts = sums(&run).into_iter().filter(|(name, _)| name.contains("/start_") && name.ends_with("_after.bin"));
    assert_eq!(starts.count(), 2, "{}", run.said());
}

/// What an operator of CANN's library writes is not known: watching that would begin with it is explained, not begun.
#[test]
fn start_without_outputs() {
    for start in ["aclnnMul", "aclnnMul:0"] {
        let run = watch(&["--aclnn", "1"], 0, &[&format!("--watch={start},end")]);
        assert_unharmed(&run.stdout, &run.said());
        let reported = "watching does not begin with `aclnnMul`: no outputs of it are known";
        assert_eq!(run.stderr.matches(reported).count(), 1, "{}", run.said());
        assert!(run.stdout.contains("no operator began watching"), "{}", run.said());
        assert!(files(&run).is_empty(), "{}", run.said());
    }
}

/// Programs that must not be touched are not, and are reported.
#[test]
fn refused() {
    for (program, reason) in [
        (["--warm", "500", "--handler", "1"], "the program has a handler of its own for SIGURG"),
        (["--warm", "500", "--deny", "errno"], "the program may not make anonymous files (memfd_create)"),
        (["--warm", "500", "--deny", "kill"], "its seccomp filter does not allow memfd_create"),
    ] {
        let run = watch(&program, 0, &["--watch=start,end"]);
        assert_unharmed(&run.stdout, &run.said());
        assert!(run.stderr.contains(reason), "{}", run.said());
        assert!(run.stdout.contains("no block was watched"), "{}", run.said());
        assert!(files(&run).is_empty(), "{}", run.said());
    }
}

pub(super) fn target(program: &[&str], kernel_us: u32) -> Target {
    let mut command = Command::new(workload_path("watch"));
    command.args(program).env("LD_LIBRARY_PATH", simulation().join("lib"));
    command.env("ASCEND_SIM_DEVICE", kernel_us.to_string());
    Target::start(command, Folder::new(), "block ")
}

pub(super) fn finish(mut target: Target) {
    let status = target.wait();
    assert!(status.success(), "the target ended with {status}\n{}", target.stdout());
    assert_unharmed(&target.stdout(), &target.stdout());
}

/// A running program is watched, and let go of: its handler for the signal is gone when the tracer is.
#[test]
fn running_program() {
    let target = target(&["--warm", "100000", "--gap-us", "20000"], 50);
    let running = Tracer::attach(&[&target]).option("--watch=start,end").start();
    running.wait_for_message("block watch is on", 1);
    assert!(has_handler(target.pid()));
    target.signal(Signal::SIGUSR1);
    running.wait_for_message("changed during `op5` (call 4", 1);
    running.signal(Signal::SIGINT);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert!(!has_handler(target.pid()), "{}", run.said());
    finish(target);
}

pub(super) fn has_handler(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask").trim();
    u64::from_str_radix(caught, 16).expect("hexadecimal") & 1 << 22 != 0
}

/// Blocks that a script names, from that call to `remove`, or as often as it says.
#[test]
fn python_blocks_of_a_script() {
    for python in interpreters() {
        let place = tempfile::tempdir().expect("a folder");
        let script = place.path().join("watched.py");
        fs::write(&script, include_str!("../../workloads/watched.py")).expect("the workload");
        let tracer = Tracer::run_program(&python.path, &["-B", script.to_str().expect("a plain path")]);
        let tracer = tracer.env("PYTHONPATH", python_package()).env("ASCEND_SIM_DEVICE", "100");
        let run = tracer.options(&["--watch=,none", "--level=kernel"]).succeed();
        let looks = |name: &str| -> Vec<String> {
            let looks = sums(&run).into_iter().map(|(look, _)| look.split_once('/').expect("a folder").1.to_owned());
            looks.filter(|look| look.contains(&format!("-{name}_0_"))).collect()
        };
        let sides = ["first", "second", "culprit", "last"]
            .map(|name| ["before", "after"].map(|side| format!("{name}_1-weights_0_{side}.bin")));
        assert_eq!(looks("weights"), sides.concat(), "{python:?}\n{}", run.said());
        assert_eq!(looks("twice"), ["first_1-twice_0_before.bin", "first_1-twice_0_after.bin"], "{}", run.said());
        let verdict = run.stdout.lines().find(|line| line.contains("block `weights` ")).expect("a verdict");
        assert!(verdict.contains("first changed during `culprit` (call 1, thread "), "{verdict}");
    }
}

/// Without the option nothing is put into the program.
#[test]
fn off_by_default() {
    let target = target(&["--warm", "100000"], 0);
    let running = Tracer::attach(&[&target]).start();
    running.wait_for_rows();
    assert!(!has_handler(target.pid()));
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("a process");
    assert!(!maps.contains("memscope-watch"), "{maps}");
    running.signal(Signal::SIGINT);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    target.signal(Signal::SIGUSR1);
    finish(target);
}
