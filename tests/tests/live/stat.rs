//! Samples of running programs, against the journal, what the kernel says, and a DCMI that follows a script.

use std::fs;
use std::process::Command;

use memscope_tests::harness::document::document;
use memscope_tests::harness::expect::truth;
use memscope_tests::harness::kernel;
use memscope_tests::harness::tracer::{Folder, Run, Running, Target, Tracer, simulation, tracer_path, workload_path};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;

use super::shared::pool_blocks;
use super::usage::Dcmi;

const MIB: u64 = 1 << 20;

/// All samples of a run that ended well.
pub(super) fn samples(run: &Run) -> Vec<Value> {
    assert_eq!(run.code(), 0, "{}", run.said());
    let samples = run.stdout.lines().map(|line| document(line.as_bytes()));
    samples.collect()
}

fn process(sample: &Value, pid: u32) -> &Value {
    let found = sample["processes"].as_array().expect("processes").iter().find(|process| process["pid"] == pid);
    found.unwrap_or_else(|| panic!("no process {pid}: {sample:#}"))
}

/// A pool of a process in a sample.
fn pool<'a>(sample: &'a Value, pid: u32, pool: &str) -> &'a Value {
    let pools = process(sample, pid)["pools"].as_array().expect("pools");
    pools.iter().find(|it| it["pool"] == pool).unwrap_or_else(|| panic!("no pool {pool}: {sample:#}"))
}

pub(super) fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no number `{key}`: {value:#}"))
}

/// Waits until this many samples were printed.
pub(super) fn wait_for_samples(running: &Running, count: usize) {
    running.wait_for_output_times("\"time_ns\"", count);
}

/// A workload that waits for a signal to begin. Its libraries are mapped from the start, so that probes are placed,
/// too.
pub(super) fn waiting(workload: &str, arguments: &[&str]) -> Target {
    const SCRIPT: &str = "echo ready $$; read go < go; exec \"$@\"";
    let folder = Folder::new();
    mkfifo(&folder.path().join("go"), Mode::S_IRWXU).expect("a pipe");
    let libraries = ["libascend_hal.so", "libruntime.so", "libascendcl.so", "libms_tools_ext.so", "libtorch_npu.so"];
    let library_path = format!("LD_LIBRARY_PATH={}", simulation().join("lib").display());
    let mut command = Command::new("env");
    // No `sh`, which may be a static program, and has no libraries then.
    command.args([&library_path, &format!("LD_PRELOAD={}", libraries.join(" "))]).args(["bash", "-c", SCRIPT, "bash"]);
    command.arg(workload_path(workload)).args(arguments).current_dir(folder.path());
    Target::start(command, folder, "ready ")
}

pub(super) fn go(target: &Target) {
    fs::write(target.folder.path().join("go"), "\n").expect("it reads");
}

/// The last sample counts each call of the driver and of the pool that the journal has, and what is live and free then.
#[test]
fn counts_agree_with_the_journal() {
    let arguments = [
        "--rounds",
        "4",
        "--blocks",
        "3",
        "--size",
        "30000000",
        "--leaks",
        "2",
        "--leak-size",
        "200000",
        "--workspaces",
        "0",
    ];
    let mut target = waiting("pool", &arguments);
    let pid = target.pid();
    let running = Tracer::stat(pid).options(&["--json", "--interval", "200ms"]).start();
    wait_for_samples(&running, 1);
    go(&target);
    assert!(target.wait().success());
    let run = running.finish();
    let last = samples(&run).pop().expect("samples");
    assert_eq!((&last["last"], &last["lost"], &last["devices"]), (&true.into(), &0.into(), &Value::Null));
    let journal = target.folder.journal();
    let entries = &journal.by_process()[&pid];
    let truth = truth(entries, false);
    let driver = pool(&last, pid, "HAL");
    let (allocations, frees): (Vec<_>, Vec<_>) = truth.calls.iter().partition(|call| call.is_alloc);
    assert!(allocations.len() > 2 && !frees.is_empty(), "{allocations:?}");
    assert_eq!(
        ["allocations", "frees"].map(|key| number(driver, key)),
        [allocations.len(), frees.len()].map(|n| n as u64)
    );
    let held = truth.held.iter().map(|block| block.size).sum::<u64>();
    assert_eq!(["live_blocks", "live_bytes"].map(|key| number(driver, key)), [truth.held.len() as u64, held]);
    let of_pool = pool(&last, pid, "PTA");
    let reports = || entries.iter().filter_map(|entry| entry.pta_report()).filter(|report| report.component == 0);
    let of_kind = |kind| reports().filter(|report| report.kind == kind).count() as u64;
    assert_eq!(["allocations", "frees"].map(|key| number(of_pool, key)), [of_kind(0), of_kind(1)]);
    let live = pool_blocks(entries);
    let live_bytes = live.values().sum::<u64>();
    assert_eq!(["live_blocks", "live_bytes"].map(|key| number(of_pool, key)), [live.len() as u64, live_bytes]);
    let peak = reports().map(|report| report.allocated).max().expect("reports");
    assert_eq!(number(of_pool, "peak_bytes"), peak);
    // The segments that are left: driver blocks with a block of the pool in them.
    let is_segment = |addr: u64, size: u64| live.range(addr..addr + size).next().is_some();
    let total: u64 = truth.held.iter().filter(|it| is_segment(it.addr, it.size)).map(|it| it.size).sum();
    let space = &of_pool["space"];
    assert_eq!(["total_bytes", "free_bytes"].map(|key| number(space, key)), [total, total - live_bytes]);
    assert!(process(&last, pid)["host"].is_null(), "{last:#}");
}

/// Rates are the counts of an interval over its length; samples come until there are enough, and the target goes on.
#[test]
fn rates_and_counts_of_samples() {
    let target = Target::serve(&["--rate", "200", "--hold", "0"]);
    let pid = target.pid();
    let run = Tracer::stat(pid).options(&["--json", "--interval", "500ms", "--count", "4"]).finish();
    let samples = samples(&run);
    let lasts: Vec<bool> = samples.iter().map(|sample| sample["last"] == true).collect();
    assert_eq!(lasts, [false, false, false, true]);
    for pair in samples.windows(2) {
        let [before, after] = [&pair[0], &pair[1]].map(|sample| number(pool(sample, pid, "HAL"), "allocations"));
        assert!(before < after, "{pair:#?}");
        let seconds = number(&pair[1], "interval_ns") as f64 / 1e9;
        let rate = pool(&pair[1], pid, "HAL")["allocations_per_second"].as_f64().expect("a rate");
        assert!((rate * seconds - (after - before) as f64).abs() < 1e-3, "{pair:#?}");
    }
    // All that it has allocated since is freed, but for the block that it may have at the moment.
    let last = pool(&samples[3], pid, "HAL");
    assert!(number(last, "allocations") - number(last, "frees") <= 1, "{last:#}");
    target.assert_unharmed();
}

/// Before Linux 6.2 a thread keeps up to 64 pages of what it has changed to itself.
const UNSEEN: u64 = 64 * 4096;

/// What this process itself allocates on the host is seen from outside.
#[test]
fn host_memory_is_seen() {
    let own = std::process::id();
    let running = Tracer::stat(own).options(&["--json", "--interval", "100ms", "--quiet"]).start();
    wait_for_samples(&running, 2);
    let before = running.stdout().lines().count();
    let heap = vec![1_u8; 64 << 20];
    let length = std::num::NonZero::new(32 << 20).expect("a length");
    // SAFETY: new memory at an address that the kernel chooses.
    let shared =
        unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED) };
    let shared = shared.expect("shared memory");
    // SAFETY: it is that long, and used here alone.
    unsafe { shared.write_bytes(1, length.get()) };
    wait_for_samples(&running, before + 3);
    running.signal(Signal::SIGINT);
    let run = running.finish();
    std::hint::black_box(&heap);
    let samples = samples(&run);
    let host = |sample: &Value, key: &str| number(&process(sample, own)["host"], key);
    let (first, last) = (&samples[0], &samples[samples.len() - 1]);
    let unseen = if kernel::version() < (6, 2) { UNSEEN } else { 0 };
    for (key, grown) in [("heap_bytes", 64 * MIB), ("shared_bytes", 32 * MIB), ("resident_bytes", 96 * MIB)] {
        let change = host(last, key) - host(first, key);
        assert!((grown - unseen..grown + 8 * MIB).contains(&change), "{key} has grown by {change}: {first:#} {last:#}");
    }
    let parts = ["heap_bytes", "file_bytes", "shared_bytes"].map(|key| host(last, key));
    assert_eq!(parts.iter().sum::<u64>(), host(last, "resident_bytes"));
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let stack = status.lines().find_map(|line| line.strip_prefix("VmStk:")).expect("a stack").trim();
    assert_eq!(format!("{} kB", host(last, "stack_bytes") / 1024), stack);
}

/// The driver's figures of all devices, and of the process on each.
#[test]
fn devices_by_the_driver() {
    let target = Target::serve(&["--rate", "100"]);
    let pid = target.pid();
    let script = format!("device 0 4 0 65536 1000\nprocess 0 {pid} 5000000\ndevice 1 5 0 32768 8\n");
    let dcmi = Dcmi::new(&script);
    let run = dcmi.trace(Tracer::stat(pid)).options(&["--json", "--interval", "1s", "--count", "3"]).finish();
    let last = samples(&run).pop().expect("samples");
    let devices = last["devices"].as_array().unwrap_or_else(|| panic!("no devices: {}", run.said()));
    let figures: Vec<_> = devices.iter().map(|it| (number(it, "used_bytes"), number(it, "total_bytes"))).collect();
    assert_eq!(figures, [(1000 * MIB, 65536 * MIB), (8 * MIB, 32768 * MIB)]);
    assert_eq!(devices[0]["processes"], serde_json::json!([{ "pid": pid, "used_bytes": 5_000_000 }]));
    let csv = dcmi.trace(Tracer::stat(pid)).options(&["--csv", "--interval", "1s", "--count", "2"]).finish();
    assert_eq!(csv.code(), 0, "{}", csv.said());
    let lines: Vec<&str> = csv.stdout.lines().collect();
    assert_eq!(lines[0], "time_ns,pid,device,layer,figure,value");
    assert!(lines.iter().all(|line| line.split(',').count() == 6), "{}", csv.stdout);
    let has = |end: &str| lines.iter().any(|line| line.ends_with(end));
    assert!(has(&format!(",{pid},0,device,process_used_bytes,5000000")), "{}", csv.stdout);
    assert!(has(",,1,device,total_bytes,34359738368"), "{}", csv.stdout);
}

/// A reader that has seen enough ends it; nothing is written but what is printed.
#[test]
fn reader_that_goes_ends_it() {
    let target = Target::serve(&["--rate", "100"]);
    let folder = Folder::new();
    let script = "\"$0\" stat --pid \"$1\" --interval 100ms; echo status $? >&2";
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{{ {script}; }} | head -n 1")]).arg(tracer_path()).arg(target.pid().to_string());
    let output = shell.current_dir(folder.path()).output().expect("a shell");
    let (reported, messages) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(reported.lines().count(), 1, "{reported}");
    assert!(messages.ends_with("status 0\n"), "{messages}");
    let files: Vec<_> = fs::read_dir(folder.path()).expect("a folder").flatten().map(|file| file.file_name()).collect();
    assert_eq!(files, ["journal"]);
    target.assert_unharmed();
}

/// What cannot be done is said.
#[test]
fn wrong_use_is_reported() {
    for (options, code, message) in [
        (["--interval", "5ms"], 2, "`5ms` is shorter than 100ms"),
        (["--count", "0"], 2, "0 is not in"),
        (["--csv", "--json"], 2, "cannot be used with"),
    ] {
        let run = Tracer::stat(std::process::id()).options(&options).finish();
        assert_eq!(run.code(), code, "{}", run.said());
        assert!(run.stderr.contains(message), "{}", run.said());
    }
    let run = Tracer::stat(i32::MAX.cast_unsigned()).finish();
    assert_eq!(run.code(), 1, "{}", run.said());
    assert!(run.stderr.contains("it does not exist, or has ended"), "{}", run.said());
}

/// An idle server makes no call, so what its pool holds is not known, and the samples say so. From its first call on it is a row: 200 blocks
/// of 4096 bytes.
#[test]
fn idle_pool_is_known_from_its_first_call() {
    let idle = ["--serve", "--idle", "--hold", "200", "--size", "4096", "--leaks", "0", "--workspaces", "0"];
    let mut target = Target::workload("pool", &idle);
    let running = Tracer::stat(target.pid()).options(&["--interval", "200ms"]).start();
    running.wait_for_output("No allocation or free was seen yet: what is held from before the attach is not known");
    assert!(!running.stdout().contains("before attach "), "{}", running.stdout());
    target.signal(Signal::SIGUSR1);
    running.wait_for_output("before attach");
    running.signal(Signal::SIGINT);
    let run = running.finish();
    let rows: Vec<&str> = run.stdout.lines().filter(|line| line.trim_start().starts_with("before attach")).collect();
    assert!(!rows.is_empty() && rows.iter().all(|row| row.ends_with(" 800.00 KiB")), "{}", run.said());
    target.stop();
}
