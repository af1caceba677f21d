//! Where memory is: physical memory at every point, and ledgers that agree with the journal.

use std::collections::BTreeMap;

use memscope_tests::harness::document::npu;
use memscope_tests::harness::expect::{Memory, truth};
use memscope_tests::harness::journal::{Call, Entry, Library};
use memscope_tests::harness::tracer::{Run, Target, Tracer};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::attach::attach;
use super::shared::{DEFAULT, assert_nothing_lost, compare, pool_blocks};

/// The one ledger of a process and device at a moment; `None` if there is none. Its sums agree.
pub(crate) fn ledger(run: &Run, pid: u32, device: u32, moment: &str) -> Option<Value> {
    let json = run.json();
    let is_meant = |found: &&Value| {
        let place = (&found["pid"], npu(found), &found["moment"]);
        found["finding"] == "ledger" && place == (&pid.into(), Some(device.into()), &moment.into())
    };
    let mut meant = json["findings"].as_array().expect("findings").iter().filter(is_meant).cloned();
    let (first, second) = (meant.next(), meant.next());
    assert_eq!(second, None);
    if let Some(ledger) = &first {
        assert_agrees(&ledger["hal"]);
        if !ledger["used"].is_null() {
            assert_agrees(&ledger["used"]);
        }
        for pool in ledger["pools"].as_array().expect("pools") {
            assert_agrees(&pool["allocated"]);
            assert_agrees(&pool["reserved"]);
        }
    }
    first
}

fn assert_agrees(sheet: &Value) {
    let signed = |entry: &Value| {
        assert!(entry["source"].as_str().is_some_and(|source| !source.is_empty()), "{entry}");
        let bytes = entry["size_bytes"].as_i64().expect("bytes");
        if entry["sign"] == "plus" { bytes } else { -bytes }
    };
    let parts: i64 = sheet["parts"].as_array().expect("parts").iter().map(signed).sum();
    assert_eq!(signed(&sheet["total"]), parts, "{sheet:#}");
}

pub(crate) fn part(sheet: &Value, item: &str) -> u64 {
    let parts = sheet["parts"].as_array().expect("parts").iter();
    parts.filter(|part| part["item"] == item).map(|part| part["size_bytes"].as_u64().expect("bytes")).sum()
}

/// Bytes after each call, worked out from the journal.
fn live_bytes(calls: &[Memory]) -> Vec<u64> {
    let mut live = 0;
    let after = |call: &Memory| {
        live = if call.is_alloc { live + call.block.size } else { live - call.block.size };
        live
    };
    calls.iter().map(after).collect()
}

/// Physical memory, awake and asleep, through ACL and straight from the driver, where a mapping outlives its handle: at
/// every point the tracer knows the bytes that are really there.
#[test]
fn physical_bytes_at_every_point() {
    let variants: [&[&str]; 4] = [&[], &["--hal"], &["--leak"], &["--hal", "--leak", "--blocks", "3"]];
    for variant in variants {
        let (run, _) = compare(Tracer::run("physical", variant).option("--json"), DEFAULT);
        let journal = run.journal();
        let (pid, entries) = journal.by_process().pop_first().expect("a process");
        let truth = truth(&entries, false);
        let wanted = live_bytes(&truth.calls);
        let rows = run.rows();
        let calls = rows.processes[&pid].iter().filter(|row| row.is_memory() && !row.is_made_up());
        let found: Vec<u64> = calls.map(|row| row.number("used")).collect();
        assert_eq!(found, wanted, "{variant:?}");
        let peak = wanted.iter().copied().max().expect("a peak");
        assert_eq!(wanted.iter().filter(|bytes| **bytes == peak).count(), 2, "it sleeps and wakes: {wanted:?}");
        let end = ledger(&run, pid, 0, "end").expect("a ledger");
        assert_eq!(end["hal"]["total"]["size_bytes"], *wanted.last().expect("an end"), "{variant:?}");
        let at_peak = ledger(&run, pid, 0, "peak");
        // What ends at its peak has no other ledger of that.
        assert_eq!(at_peak.is_none(), wanted.last() == Some(&peak), "{variant:?}");
        let at_peak = at_peak.unwrap_or(end);
        assert_eq!(at_peak["hal"]["total"]["size_bytes"], peak, "{variant:?}");
    }
}

/// Bytes that a library's functions of these names gave out.
fn given(entries: &[&Entry], library: Library, symbol: &str) -> (usize, u64) {
    let calls =
        entries.iter().filter(|entry| entry.library == library && entry.symbol == symbol && entry.ret == Some(0));
    let sizes: Vec<u64> = calls.map(|entry| entry.args[0]).collect();
    (sizes.len(), sizes.iter().sum())
}

/// Four threads through ACL, the runtime and the driver: each layer's journal is complete, and only the driver's counts.
#[test]
fn layers_count_once() {
    let arguments = ["--pairs", "500", "--threads", "4", "--size", "3000000"];
    let (run, totals) = compare(Tracer::run("pairs", &arguments).option("--json"), DEFAULT);
    let journal = run.journal();
    let (pid, entries) = journal.by_process().pop_first().expect("a process");
    let layers = [(Library::AscendCl, "aclrtMalloc"), (Library::AclRt, "aclrtMalloc"), (Library::Runtime, "rtMalloc")];
    let [umbrella, acl, runtime] = layers.map(|(library, symbol)| given(&entries, library, symbol));
    let driver: Vec<u64> = entries
        .iter()
        .filter_map(|entry| match entry.call() {
            Call::Alloc { size, flag, .. } if flag >> 56 == 33 => Some(size),
            _ => None,
        })
        .collect();
    // ACL adds 32 bytes and rounds up to 32 (the simulation's README); below that nothing is added.
    assert_eq!((umbrella, acl), ((2000, 6_000_000_000), (2000, 6_000_000_000)));
    assert_eq!(runtime, (2000, 2000 * 3_000_032));
    assert_eq!((driver.len(), driver.iter().sum::<u64>()), runtime);
    assert_eq!(totals.allocs, 2000 + 3);
    let rows = run.rows();
    let sizes = rows.all().filter(|row| row.event == "MALLOC").map(|row| row.number("size"));
    let own: u64 = entries
        .iter()
        .filter_map(|entry| match entry.call() {
            Call::Alloc { size, flag, .. } if flag >> 56 == 7 => Some(size),
            _ => None,
        })
        .sum();
    assert_eq!(sizes.sum::<u64>(), runtime.1 + own);
    let peak = ledger(&run, pid, 0, "peak").expect("a ledger of the peak");
    let at_peak = peak["hal"]["total"]["size_bytes"].as_u64().expect("bytes");
    assert_eq!(part(&peak["hal"], "runtime"), own);
    assert_eq!(part(&peak["hal"], "rest"), at_peak - own);
    assert!((1..=4).any(|blocks| at_peak == own + blocks * 3_000_032), "{at_peak}");
}

fn is_pool(entry: &Value, pool: &str) -> bool {
    entry["pool"] == pool
}

fn part_of(sheet: &Value, item: &str, pool: &str) -> u64 {
    let parts = sheet["parts"].as_array().expect("parts").iter();
    let meant = parts.filter(|part| part["item"] == item && is_pool(part, pool));
    meant.map(|part| part["size_bytes"].as_u64().expect("bytes")).sum()
}

/// Pool, ACL, runtime and driver on four threads: what the pool said is live, in the driver's blocks that it lies in.
#[test]
fn pool_layers_count_once() {
    let arguments = ["--threads", "4", "--rounds", "6", "--leaks", "3", "--leak-size", "3000000"];
    let run = Tracer::run("pool", &arguments).option("--json").succeed();
    assert_nothing_lost(&run);
    let journal = run.journal();
    let (pid, entries) = journal.by_process().pop_first().expect("a process");
    let blocks = pool_blocks(&entries);
    let held = truth(&entries, false).held;
    let is_segment = |addr: u64, size: u64| blocks.range(addr..addr + size).next().is_some();
    let segments: u64 = held.iter().filter(|block| is_segment(block.addr, block.size)).map(|block| block.size).sum();
    let (bytes, allocated) = (held.iter().map(|block| block.size).sum::<u64>(), blocks.values().sum::<u64>());
    assert_eq!((blocks.len(), allocated), (4 * 6 * 3, run.counted("allocated")));
    let end = ledger(&run, pid, 0, "end").expect("a ledger");
    let hal = &end["hal"];
    assert_eq!(hal["total"]["size_bytes"], bytes);
    let pool = ["pool_allocated", "pool_cached"].map(|item| part_of(hal, item, "PTA"));
    assert_eq!(pool, [allocated, segments - allocated]);
    // What is not the pool's is the runtime's own.
    assert_eq!((part(hal, "runtime"), part(hal, "rest"), part(hal, "hccl")), (bytes - segments, 0, 0));
    let own = end["pools"].as_array().expect("pools").iter().find(|own| is_pool(own, "PTA")).expect("the pool");
    assert_eq!(own["allocated"]["total"]["size_bytes"], allocated);
    assert_eq!(own["allocated"]["parts"].as_array().expect("parts").len(), 1, "{own:#}");
    // Each layer above the driver has asked for what the one below was asked for.
    let runtime: Vec<u64> = entries
        .iter()
        .filter(|entry| entry.library == Library::Runtime && entry.symbol == "rtMalloc" && entry.ret == Some(0))
        .map(|entry| entry.args[0])
        .collect();
    let acl = given(&entries, Library::AclRt, "aclrtMallocAlign32");
    assert_eq!(acl.0, runtime.len());
    assert!(acl.1 <= runtime.iter().sum() && runtime.iter().sum::<u64>() < acl.1 + 32 * acl.0 as u64 + 1);
    let of_app = |entry: &&&Entry| matches!(entry.call(), Call::Alloc { flag, .. } if flag >> 56 == 33);
    assert_eq!(entries.iter().filter(of_app).count(), runtime.len());
}

/// Attached late, a pool holds more than was seen: the ledger says so under a name, and its sums agree.
#[test]
fn pool_older_than_the_trace() {
    let mut target = Target::workload("pool", &["--serve", "--hold", "500", "--size", "4096", "--leaks", "0"]);
    // Both reports of a free have rows: the trace may end between them.
    let (running, _) = attach(&[&target], &["--json", "--events=alloc,free,block_free"]);
    running.wait_for_rows_of(",PTA,", 500);
    running.signal(Signal::SIGINT);
    let run = running.finish();
    let end = ledger(&run, target.pid(), 0, "end").expect("a ledger");
    target.stop();
    let own = end["pools"].as_array().expect("pools").iter().find(|own| is_pool(own, "PTA")).expect("the pool");
    let rows = run.rows();
    let last = rows.processes[&target.pid()].iter().rfind(|row| row.event_type == "PTA" && !row.is_made_up());
    assert_eq!(own["allocated"]["total"]["size_bytes"], last.expect("a row").number("used"));
    // 500 blocks of 4096 bytes are older than the trace, in segments that are older, too.
    assert_eq!(part_of(&own["allocated"], "pool_older", "PTA"), 500 * 4096, "{own:#}");
    assert!(part_of(&own["reserved"], "segments_older", "PTA") >= 500 * 4096, "{own:#}");
    assert_eq!(end["attached"], true);
}

/// What processes end with, by module, on two devices.
#[test]
fn ledgers_at_the_end() {
    let (run, _) = compare(Tracer::run("devices", &["--leak"]).option("--json"), DEFAULT);
    let journal = run.journal();
    let (pid, entries) = journal.by_process().pop_first().expect("a process");
    let truth = truth(&entries, false);
    assert_eq!(truth.held.len(), 200);
    for device in [0, 1] {
        let held = truth.held.iter().filter(|block| block.device == device.to_string());
        let bytes: u64 = held.map(|block| block.size).sum();
        let end = ledger(&run, pid, device, "end").expect("a ledger");
        assert_eq!(end["hal"]["total"]["size_bytes"], bytes);
        assert_eq!((part(&end["hal"], "rest"), part(&end["hal"], "runtime")), (bytes, 0));
    }
    let (run, _) = compare(Tracer::run("exits", &["--how", "kill9"]).option("--json"), DEFAULT);
    let journal = run.journal();
    let (pid, entries) = journal.by_process().pop_first().expect("a process");
    let mut modules: BTreeMap<u64, u64> = BTreeMap::new();
    for entry in &entries {
        if let Call::Alloc { size, flag, .. } = entry.call() {
            *modules.entry(flag >> 56).or_default() += size;
        }
    }
    let end = ledger(&run, pid, 0, "end").expect("a ledger");
    assert_eq!((part(&end["hal"], "runtime"), part(&end["hal"], "rest")), (modules[&7], modules[&33]));
}

/// The report has the ledger in words, one line for each figure.
#[test]
fn ledger_in_words() {
    let (run, _) = compare(Tracer::run("exits", &["--how", "return"]), DEFAULT);
    let heading = run.stdout.lines().position(|line| line.starts_with("Ledger of process "));
    let lines: Vec<&str> = run.stdout.lines().skip(heading.expect("a ledger")).collect();
    assert!(lines[0].contains(" on device 0 at the end; the driver's figures of the device (DCMI) are not known"));
    let names: Vec<&str> =
        lines.iter().skip(1).take(4).map(|line| line.split_whitespace().nth(1).expect("a name")).collect();
    assert_eq!(names, ["HAL", "Runtime", "HCCL", "Rest"], "{}", run.said());
}

/// SIGUSR1 asks a tracer for its ledgers, and harms neither it nor what it traces.
#[test]
fn ledger_on_demand() {
    let mut target = Target::serve(&["--threads", "2", "--hold", "20"]);
    let tracer = Tracer::attach(&[&target]).start();
    tracer.wait_for_rows();
    let heading = format!("Ledger of process {} on device 0 now", target.pid());
    for times in 1..=2 {
        tracer.signal(Signal::SIGUSR1);
        tracer.wait_for_message(&heading, times);
    }
    target.assert_unharmed();
    tracer.signal(Signal::SIGINT);
    let run = tracer.finish();
    assert_eq!(run.stderr.matches(&heading).count(), 2, "{}", run.said());
    assert!(run.status.success(), "{}", run.said());
    target.stop();
}

/// A program that has not asked for SIGUSR1 would die of it, so it does not get it; one that has, does.
#[test]
fn ledger_on_demand_from_run() {
    let script = "echo ready; sleep 1; exit 3";
    let running = Tracer::run_program("/bin/sh", &["-c", script]).start();
    running.wait_for_output("ready");
    running.signal(Signal::SIGUSR1);
    running.wait_for_message("No device memory was seen so far, so there is no ledger.", 1);
    assert_eq!(running.finish().code(), 3);
    let script = "trap 'exit 4' USR1; echo ready; while :; do sleep 0.05; done";
    let running = Tracer::run_program("/bin/sh", &["-c", script]).start();
    running.wait_for_output("ready");
    running.signal(Signal::SIGUSR1);
    assert_eq!(running.finish().code(), 4);
}
