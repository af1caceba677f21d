//! Peaks and free pieces in a process that was attached to late: older memory is shown separately, later memory is
//! exact.

use std::collections::BTreeMap;
use std::time::Duration;

use memscope_tests::harness::expect::truth;
use memscope_tests::harness::journal::Entry;
use memscope_tests::harness::tracer::{Target, Tracer, monotonic_ns};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::attach::attach;
use super::shared::{assert_nothing_lost_since_attach, pool_blocks};

/// Stops the target between two of its rounds; gives that moment.
fn stop(target: &Target) -> u64 {
    for _ in 0..200 {
        target.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(50));
        let journal = target.folder.journal();
        if journal.entries.last().is_some_and(|entry| entry.symbol == "mstxRangeEnd") {
            return monotonic_ns();
        }
        target.signal(Signal::SIGCONT);
        std::thread::sleep(Duration::from_millis(3));
    }
    panic!("it is never between two rounds");
}

/// The finding of a kind that is of `torch_npu`'s pool.
fn of_pool<'a>(document: &'a Value, kind: &str) -> &'a Value {
    let is_meant = |found: &&Value| found["finding"] == kind && found["pool"] == "PTA";
    let found = document["findings"].as_array().expect("findings").iter().find(is_meant);
    found.unwrap_or_else(|| panic!("no {kind}: {document:#}"))
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key}: {value:#}"))
}

/// The pool's blocks after these calls: sizes by address.
fn blocks_until(entries: &[&Entry], time_ns: u64) -> BTreeMap<u64, u64> {
    let before: Vec<&Entry> = entries.iter().copied().filter(|entry| entry.time_ns < time_ns).collect();
    pool_blocks(&before)
}

/// Each round leaves a block behind, so the peak is in the last one.
#[test]
fn older_blocks_are_separate() {
    let leak = ["--leaks", "1", "--leak-size", "3000000"];
    let mut target = Target::workload("pool", &[&["--serve", "--hold", "5", "--workspaces", "0"][..], &leak].concat());
    let pid = target.pid();
    let from_ns = stop(&target);
    let (running, _) = attach(&[&target], &["--json", "--analysis=peaks,fragmentation"]);
    target.signal(Signal::SIGCONT);
    running.wait_for_rows_of(",PTA,", 1000);
    let to_ns = stop(&target);
    running.signal(Signal::SIGINT);
    let run = running.finish();
    target.signal(Signal::SIGCONT);
    target.stop();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost_since_attach(&run);
    let journal = target.folder.journal();
    let entries = &journal.by_process()[&pid];
    let (older, at_end) = (blocks_until(entries, from_ns), blocks_until(entries, to_ns));
    let within = |entry: &&&Entry| (from_ns..to_ns).contains(&entry.time_ns);
    let reports: Vec<_> = entries.iter().filter(within).filter_map(|entry| entry.pta_report()).collect();
    assert!(older.len() > 5 && at_end.len() > older.len() + 3 && reports.len() > 100, "{} reports", reports.len());

    // The height is the pool's own figure; its older part is the bytes of those blocks, none of which was freed.
    let document = run.json();
    let peak = of_pool(&document, "peak");
    let most = reports.iter().map(|report| report.allocated).max().expect("reports");
    let older_bytes = older.values().sum::<u64>();
    assert_eq!([number(peak, "peak_bytes"), number(peak, "unseen_bytes")], [most, older_bytes], "{peak:#}");
    assert_eq!((number(&peak["seen"], "size_bytes"), &peak["attached"]), (most - older_bytes, &true.into()));

    // The account has the same, as a figure of its own.
    let (held, end_bytes) = (of_pool(&document, "held"), at_end.values().sum::<u64>());
    let figures = [number(held, "size_bytes"), number(held, "unseen_bytes")];
    assert_eq!(figures, [end_bytes - older_bytes, older_bytes], "{held:#}");
    let text = Tracer::replay(&run.folder.capture()).succeed().stdout;
    let line = text.lines().find(|line| line.starts_with("Pytorch Caching memory pool held")).expect("a line");
    assert!(line.contains(&format!("({end_bytes} bytes): ")), "{line}");
    assert!(line.contains(&format!("({older_bytes} bytes) from before the attach; ")), "{line}");

    // Driver blocks that came later and hold blocks of the pool are its known segments.
    let calls: Vec<&Entry> = entries.iter().copied().filter(|entry| entry.time_ns < to_ns).collect();
    let truth = truth(&calls, false);
    let born = truth.calls.iter().filter(|call| call.is_alloc).map(|call| (call.block.addr, call.time_ns));
    // An address may have been given out before: the last time counts.
    let born: BTreeMap<u64, u64> = born.collect();
    let holds_blocks = |addr: u64, size: u64| at_end.range(addr..addr + size).next().is_some();
    let newer = truth.held.iter().filter(|block| born[&block.addr] >= from_ns && holds_blocks(block.addr, block.size));
    let segments: BTreeMap<u64, u64> = newer.map(|block| (block.addr, block.size)).collect();
    assert!(!segments.is_empty(), "{:x?}", truth.held);
    let is_inside = |addr: u64| segments.range(..=addr).next_back().is_some_and(|(start, size)| addr < start + size);
    let inside: u64 = at_end.iter().filter(|(addr, _)| is_inside(**addr)).map(|(_, size)| size).sum();
    let newer = at_end.iter().filter(|(addr, _)| !older.contains_key(addr));
    let outside: u64 = newer.filter(|(addr, _)| !is_inside(**addr)).map(|(_, size)| size).sum();
    let total: u64 = segments.values().sum();
    let end = &of_pool(&document, "fragmentation")["end"];
    assert_eq!([number(&end["space"], "total_bytes"), number(&end["space"], "used_bytes")], [total, inside], "{end:#}");
    let reserved = reports.last().expect("reports").reserved;
    assert_eq!([number(end, "unknown_bytes"), number(end, "outside_bytes")], [reserved - total, outside], "{end:#}");
}

/// An idle server that is full: its memory is unknown, and the report says so. From its first call on the pool's own
/// figure is a row: 200 blocks of 4096 bytes.
#[test]
fn an_idle_server_that_is_full() {
    let idle = ["--serve", "--idle", "--hold", "200", "--size", "4096", "--leaks", "0", "--workspaces", "0"];
    let mut target = Target::workload("pool", &idle);
    let (pid, silent) = (target.pid(), format!("No allocation or free of process {} was seen", target.pid()));
    for calls in [false, true] {
        let (running, _) = attach(&[&target], &[]);
        if calls {
            target.signal(Signal::SIGUSR1);
            running.wait_for_rows_of(",PTA,", 1);
        }
        running.signal(Signal::SIGINT);
        let run = running.finish();
        let held = run.stdout.lines().find(|line| line.starts_with("Pytorch Caching memory pool held at the end"));
        assert_eq!((run.stdout.contains(&silent), held.is_some()), (!calls, calls), "{}", run.said());
        assert!(held.is_none_or(|held| held.contains("800.00 KiB (819200 bytes) from before the attach")), "{held:?}");
        let capture = Tracer::replay(&run.folder.capture()).options(&["--json"]).succeed().json();
        let found = capture["findings"].as_array().expect("findings").iter().find(|it| it["finding"] == "silent");
        assert_eq!(found.map(|it| it["pids"].clone()), (!calls).then(|| vec![pid].into()));
    }
    target.stop();
}
