//! The node agent: whom it finds, and its numbers against the journal of the simulated libraries.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memscope_tests::checkers::page::Page;
use memscope_tests::harness::agent::{Agent, named, own_name, waiting, waiting_with};
use memscope_tests::harness::container::{Contained, Image};
use memscope_tests::harness::expect::truth;
use memscope_tests::harness::journal::{Call, Entry, Library};
use memscope_tests::harness::rows::Rows;
use memscope_tests::harness::tracer::{Folder, Target, in_vm, simulation, tracer_path, workload_path};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::shared::pool_blocks;

/// The agent finds a process by itself; each call of the driver and of the pool is counted as the journal has it, to the byte, and
/// the counters stay when it has ended.
#[test]
fn numbers_agree_with_the_journal() {
    let name = own_name("agnt");
    let agent = Agent::start(&name);
    let arguments = ["--rounds", "4", "--blocks", "3", "--size", "30000000", "--leaks", "2", "--leak-size", "200000"];
    let mut target = waiting(&name, "pool", &arguments);
    let pid = target.pid();
    let _ = agent.wait_for_processes(1);
    fs::write(target.folder.path().join("go"), "\n").expect("it reads");
    assert!(target.wait().success());
    let page = agent.wait_for_processes(0);
    let journal = target.folder.journal();
    let entries = &journal.by_process()[&pid];
    let truth = truth(entries, false);
    let (allocations, frees): (Vec<_>, Vec<_>) = truth.calls.iter().partition(|call| call.is_alloc);
    assert!(allocations.len() > 2 && !frees.is_empty(), "{allocations:?}");
    let of_driver = |metric: &str| page.count(metric, &[("layer", "hal"), ("id", "0")]);
    assert_eq!(of_driver("memscope_allocations_total"), Some(allocations.len() as u64));
    assert_eq!(of_driver("memscope_frees_total"), Some(frees.len() as u64));
    let held: u64 = truth.held.iter().map(|block| block.size).sum();
    let allocated = of_driver("memscope_allocated_bytes_total").expect("bytes");
    assert_eq!(allocated - of_driver("memscope_freed_bytes_total").expect("bytes"), held);
    let reports: Vec<_> =
        entries.iter().filter_map(|entry| entry.pta_report()).filter(|report| report.component == 0).collect();
    let of_kind = |kind| reports.iter().filter(|report| report.kind == kind).count() as u64;
    let of_pool = |metric: &str| page.count(metric, &[("pool", "pta"), ("id", "0")]);
    assert_eq!(of_pool("memscope_allocations_total"), Some(of_kind(0)));
    assert_eq!(of_pool("memscope_frees_total"), Some(of_kind(1)));
    let live: u64 = pool_blocks(entries).values().sum();
    let allocated = of_pool("memscope_allocated_bytes_total").expect("bytes");
    assert_eq!(allocated - of_pool("memscope_freed_bytes_total").expect("bytes"), live);
    assert_eq!(page.count("memscope_allocation_size_bytes_count", &[("pool", "pta")]), Some(of_kind(0)));
    assert_eq!(page.count("memscope_events_lost_total", &[]), Some(0));
    // What was held is live no more.
    assert_eq!(page.count("memscope_memory_live_bytes", &[]), None);
    agent.end();
}

/// A process with too many events loses those of its pool. All calls of the driver go on to be counted to the byte, one that fails leaves a
/// bundle, and the pool's counters stay as they were.
#[test]
fn flooding_process_keeps_the_driver() {
    // The pool makes ten times as many in a page of 0.3 s, the driver a tenth; interpreted, both are slower.
    let events = if in_vm() { 1_000 } else { 20_000 };
    let name = own_name("fldr");
    let agent = Agent::start_for(&name, events);
    let mut target = waiting(&name, "pool", &["--serve", "--blocks", "200", "--size", "20000", "--leaks", "0"]);
    let pid = target.pid();
    let _ = agent.wait_for_processes(1);
    fs::write(target.folder.path().join("go"), "\n").expect("it reads");
    let state = |page: &Page, state: &str| page.count("memscope_targets", &[("state", state)]);
    let count = |page: &Page, metric: &str, pool: &str| page.count(metric, &[("pool", pool)]).unwrap_or_default();
    let allocations = "memscope_allocations_total";
    let page = agent.wait_for_page("a process without its pool", |page| {
        let live = page.count("memscope_memory_live_blocks", &[("pool", "pta")]);
        state(page, "reduced") == Some(1) && live.is_none()
    });
    let known = ["hal", "pta"].map(|pool| count(&page, allocations, pool));
    let page = agent.wait_for_page("further calls", |page| count(page, allocations, "hal") > known[0] + 100);
    assert_eq!(count(&page, allocations, "pta"), known[1]);
    assert_eq!([state(&page, "traced"), state(&page, "left_out")], [Some(0), Some(0)], "{}", agent.said());
    target.signal(Signal::SIGUSR1);
    let bundle: Value = serde_json::from_slice(&fs::read(agent.bundle()).expect("a bundle")).expect("JSON");
    let pools: Vec<&str> =
        bundle["pools"].as_array().expect("pools").iter().filter_map(|pool| pool["pool"].as_str()).collect();
    assert_eq!((&bundle["pid"], pools), (&pid.into(), vec!["HAL"]), "{bundle:#}");
    assert_eq!(bundle["not_looked_for"], "its pools are not traced", "{}", agent.said());
    target.signal(Signal::SIGTERM);
    assert!(target.wait().success());
    let page = agent.wait_for_processes(0);
    let journal = target.folder.journal();
    let entries = &journal.by_process()[&pid];
    let truth = truth(entries, false);
    let (allocated, freed): (Vec<_>, Vec<_>) = truth.calls.iter().partition(|call| call.is_alloc);
    let sizes: u64 = allocated.iter().map(|call| call.block.size).sum();
    assert_eq!(
        [allocations, "memscope_frees_total", "memscope_allocated_bytes_total"]
            .map(|metric| page.count(metric, &[("layer", "hal"), ("id", "0")])),
        [Some(allocated.len() as u64), Some(freed.len() as u64), Some(sizes)]
    );
    let failed = page.count("memscope_allocation_failures_total", &[("layer", "hal"), ("reason", "oom")]);
    assert_eq!((failed, count(&page, allocations, "pta")), (Some(1), known[1]));
    assert_eq!(page.count("memscope_events_lost_total", &[]), Some(0));
    agent.end();
}

/// A bundle has the newest events of its process up to the failed request, of the driver and of the pool, as the journal has them.
#[test]
fn bundle_has_the_newest_events() {
    let name = own_name("rcnt");
    let agent = Agent::start(&name);
    let mut target = agent.target_at_work(&name);
    target.signal(Signal::SIGUSR1);
    let bundle: Value = serde_json::from_slice(&fs::read(agent.bundle()).expect("a bundle")).expect("JSON");
    target.signal(Signal::SIGTERM);
    assert!(target.wait().success());
    agent.end();
    let recent = &bundle["recent_events"];
    let events = recent["events"].as_array().expect("events");
    let seen = |pool: &str| -> Vec<Recent> {
        let of_pool = events.iter().filter(|event| event["pool"] == pool);
        of_pool.map(|event| (text(&event["event"]), event["addr"].as_u64(), event["size_bytes"].as_u64())).collect()
    };
    let journal = target.folder.journal();
    let expected = until_failure(&journal.by_process()[&target.pid()]);
    // Workspaces have a pool of their own.
    let mut count = events.iter().filter(|event| event["pool"] != "HAL" && event["pool"] != "PTA").count();
    for (pool, expected) in ["HAL", "PTA"].into_iter().zip(expected) {
        let seen = seen(pool);
        let ends = [&seen, &expected].map(|rows| &rows[rows.len().saturating_sub(3)..]);
        assert!(!seen.is_empty() && expected.ends_with(&seen), "{pool}: {ends:#x?}");
        count += expected.len();
    }
    assert_eq!(events.len(), count.min(1000));
    let last = events.last().expect("events");
    assert_eq!((&last["event"], &last["size_bytes"]), (&"alloc_failed".into(), &TOO_MUCH.into()));
    assert!(events.is_sorted_by_key(|event| event["time_ns"].as_u64()));
    // Blocks and requests are made in the program's `main`; each call stack is there once.
    let places = recent["places"].as_array().expect("places");
    let is_of_main = |place: &Value| place["native"]["frames"].to_string().contains("main");
    assert!(places.iter().all(is_of_main) && (2..30).contains(&places.len()), "{places:#?}");
    // What was freed without being known was allocated before the agent came.
    let has_place = |event: &Value| match event["place"].as_u64() {
        Some(place) => place < places.len() as u64,
        None => event["event"] == "unknown_free",
    };
    assert!(events.iter().all(has_place), "{:#}", events.iter().find(|event| !has_place(event)).expect("one"));
}

/// Asked of the driver at SIGUSR1: `aclrtMalloc` adds 32 bytes.
const TOO_MUCH: u64 = (1 << 50) + 32;

/// A request that succeeds at its third attempt leaves no bundle, and hides none: two fail for good half a second later, at once, and leave one.
#[test]
fn bundle_is_of_what_fails_for_good() {
    const MIB: u64 = 1 << 20;
    let name = own_name("rtry");
    let agent = Agent::start(&name);
    let mut target = waiting_with(&name, "scenes", &["retries"], &[("ASCEND_SIM_CAPACITY_MB", "256")]);
    let _ = agent.wait_for_processes(1);
    fs::write(target.folder.path().join("go"), "\n").expect("it reads");
    assert!(target.wait().success());
    let page = agent.wait_for_processes(0);
    let bundle: Value = serde_json::from_slice(&fs::read(agent.bundle()).expect("a bundle")).expect("JSON");
    let requested = bundle["requested_bytes"].as_u64().expect("bytes");
    // `aclrtMalloc` adds 32 bytes.
    let sizes = [180, 190].map(|size| size * MIB + 32);
    assert!(sizes.contains(&requested) && bundle["recovered"] == false, "{bundle:#}");
    let failed = |reason| page.count("memscope_allocation_failures_total", &[("layer", "hal"), ("reason", reason)]);
    assert_eq!(["oom", "recovered", "refused"].map(failed), [2, 1, 0].map(Some));
    agent.end();
}

/// What happened, the address, and the size.
type Recent = (String, Option<u64>, Option<u64>);

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// Calls of the driver, the last of which failed, and what the pool did before it.
fn until_failure(entries: &[&Entry]) -> [Vec<Recent>; 2] {
    let (mut driver, mut pool) = (Vec::new(), Vec::new());
    let mut sizes = BTreeMap::new();
    for entry in entries {
        if let Some(report) = entry.pta_report().filter(|report| report.component == 0 && report.kind < 2) {
            let what = if report.kind == 0 { "alloc" } else { "free" };
            pool.push((what.to_owned(), Some(report.addr), Some(report.size.unsigned_abs())));
        }
        if entry.library != Library::Hal {
            continue;
        }
        match entry.call() {
            Call::Alloc { size, addr, .. } => {
                sizes.insert(addr, size);
                driver.push(("alloc".to_owned(), Some(addr), Some(size)));
            }
            Call::Free { addr, ok: Some(true) } => driver.push(("free".to_owned(), Some(addr), sizes.remove(&addr))),
            Call::AllocFailed => {
                driver.push(("alloc_failed".to_owned(), None, Some(TOO_MUCH)));
                return [driver, pool];
            }
            _ => {}
        }
    }
    panic!("no request has failed");
}

/// One that makes too many events without its pool, too, is left out: nothing of it is counted any more.
#[test]
fn process_that_floods_even_so_is_left_out() {
    let name = own_name("flde");
    let agent = Agent::start_for(&name, 10);
    let mut target = waiting(&name, "pool", &["--serve"]);
    let _ = agent.wait_for_processes(1);
    fs::write(target.folder.path().join("go"), "\n").expect("it reads");
    let state = |page: &Page, state: &str| page.count("memscope_targets", &[("state", state)]);
    let is_left_out = |page: &Page| ["traced", "reduced", "left_out"].map(|of| state(page, of)) == [0, 0, 1].map(Some);
    let _ = agent.wait_for_page("a process that is left out", is_left_out);
    let said = agent.said();
    let texts = ["is traced without its pools for 10 min: ", "is left out for 10 min: "];
    let [reduced, left_out] = texts.map(|text| said.find(text).unwrap_or_else(|| panic!("no `{text}` in {said}")));
    assert!(reduced < left_out, "{said}");
    let count = |page: &Page| page.count("memscope_events_total", &[]).expect("events");
    // What was on its way is there after some pages.
    let mut last = count(&agent.page());
    let is_silent = || {
        let now = count(&agent.page());
        std::mem::replace(&mut last, now) == now
    };
    assert!(std::iter::repeat_with(is_silent).take(20).any(|is_silent| {
        std::thread::sleep(Duration::from_secs(1));
        is_silent
    }));
    target.signal(Signal::SIGTERM);
    assert!(target.wait().success());
    agent.end();
}

/// Programs with libraries of their own come and go, as containers do: with the last process that has mapped them their probes and files are
/// given back. Who runs them again is counted to the byte.
#[test]
fn libraries_of_ended_programs_are_given_back() {
    let name = own_name("gone");
    let agent = Agent::start(&name);
    let copies = copies();
    let path = copies.path().to_str().expect("plain");
    let of_driver = |page: &Page, metric: &str| page.count(metric, &[("layer", "hal")]).unwrap_or_default();
    let before = agent.links();
    for round in 1..=3 {
        let metrics = ["memscope_allocations_total", "memscope_frees_total", "memscope_allocated_bytes_total"];
        let page = agent.page();
        let known = metrics.map(|metric| of_driver(&page, metric));
        let mut target = waiting_with(&name, "pool", &["--rounds", "3"], &[("LD_LIBRARY_PATH", path)]);
        let pid = target.pid();
        let _ = agent.wait_for_processes(1);
        // It is found before its probes are placed.
        let _ = agent
            .wait_for_page("its probes", |_| agent.links() > before && !agent.open_files(copies.path()).is_empty());
        fs::write(target.folder.path().join("go"), "\n").expect("it reads");
        assert!(target.wait().success());
        let page = agent.wait_for_processes(0);
        let journal = target.folder.journal();
        let truth = truth(&journal.by_process()[&pid], false);
        let (allocations, frees): (Vec<_>, Vec<_>) = truth.calls.iter().partition(|call| call.is_alloc);
        let sizes: u64 = allocations.iter().map(|call| call.block.size).sum();
        assert!(allocations.len() > 2, "{allocations:?}");
        let counted = metrics.map(|metric| of_driver(&page, metric));
        let expected = [allocations.len() as u64, frees.len() as u64, sizes];
        assert_eq!([0, 1, 2].map(|at| counted[at] - known[at]), expected, "round {round}");
        agent.wait_until_given_back(before, copies.path());
    }
    agent.end();
}

/// Probes are taken out while a shell runs one program after the other, each of which waits until it was looked at. That goes on: none waits
/// for the longest time that is allowed.
#[test]
fn no_program_waits_for_probes_that_are_taken_out() {
    let name = own_name("busy");
    let agent = Agent::start(&name);
    let folder = Folder::new();
    let mut command = named(Path::new("/bin/bash"), &name, &folder);
    command.env("LD_PRELOAD", "libascend_hal.so libascendcl.so");
    command.args(["-c", "echo ready; while [ ! -e stop ]; do \"$@\"; done", "bash"]);
    command.arg(workload_path("pool")).args(["--rounds", "1"]);
    let mut shell = Target::start(command, folder, "ready");
    let calls = |page: &Page| page.count("memscope_allocations_total", &[("layer", "hal")]) > Some(10);
    let _ = agent.wait_for_page("its calls", calls);
    let before = agent.links();
    for _ in 0..3 {
        let copies = copies();
        let path = copies.path().to_str().expect("plain");
        let mut target = waiting_with(&name, "pool", &["--rounds", "1"], &[("LD_LIBRARY_PATH", path)]);
        let _ = agent.wait_for_page("further probes", |_| agent.links() > before);
        fs::write(target.folder.path().join("go"), "\n").expect("it reads");
        assert!(target.wait().success());
        agent.wait_until_given_back(before, copies.path());
    }
    fs::write(shell.folder.path().join("stop"), "").expect("a file");
    assert!(shell.wait().success());
    assert!(!agent.said().contains("did not wait"), "{}", agent.said());
    agent.end();
}

/// A copy of the simulated libraries.
fn copies() -> Folder {
    let copies = Folder::new();
    for library in fs::read_dir(simulation().join("lib")).expect("libraries").filter_map(Result::ok) {
        if library.path().is_file() {
            fs::copy(library.path(), copies.path().join(library.file_name())).expect("a copy");
        }
    }
    copies
}

/// Containers of one image share its probes, which were placed for the first of them. They stay while the second one runs.
#[test]
fn probes_of_an_image_stay_with_its_last_container() {
    let name = own_name("layr");
    let agent = Agent::start(&name);
    let image = Image::new(&["serve"]);
    let program = image.root().join("bin").join(&name);
    fs::copy(image.root().join("bin/serve"), &program).expect("a copy");
    let path = format!("/bin/{name}");
    let start = || Contained::start(&image.below_overlay(), &[&path, "--rate", "500"], "ready 1\n");
    let before = agent.links();
    let mut first = start();
    let _ = agent.wait_for_processes(1);
    let mut second = start();
    let _ = agent.wait_for_processes(2);
    first.stop();
    let count = |page: &Page| page.count("memscope_allocations_total", &[("layer", "hal")]).unwrap_or_default();
    let _ = agent.wait_for_processes(1);
    // Several looks pass.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(400));
        let seen = count(&agent.page());
        let _ = agent.wait_for_page("further allocations", |page| count(page) > seen);
    }
    assert!(agent.links() > before);
    second.stop();
    let _ = agent.wait_for_processes(0);
    agent.wait_until_given_back(before, &image.root());
    agent.end();
}

/// Blocks that a running process holds, a child of it, a program of another name that is left alone, and a full capture meanwhile.
#[test]
fn running_processes_are_found_and_captured() {
    /// ACL asks the driver for 32 bytes more.
    const SIZE: u64 = 65_536 + 32;
    /// What the simulated runtime takes for a process's first use of a device: three blocks.
    const CONTEXT: u64 = 2_166_784;
    let name = own_name("srve");
    let serve = workload_path("serve");
    let start = |name: &str| {
        let folder = Folder::new();
        let mut command = named(&serve, name, &folder);
        command.args(["--rate", "200", "--hold", "3", "--children"]);
        Target::start(command, folder, "ready ")
    };
    let other = start(&own_name("othr"));
    let agent = Agent::start(&name);
    let target = start(&name);
    let page = agent.wait_for_processes(1);
    assert_eq!(
        page.count("memscope_process_info", &[("process_id", &target.pid().to_string()), ("comm", &name)]),
        Some(1)
    );
    // It is found before its probes are placed.
    let _ = agent.wait_for_page("its calls", |page| {
        page.count("memscope_allocations_total", &[("layer", "hal")]).is_some_and(|count| count > 0)
    });
    target.signal(Signal::SIGUSR1);
    let pids = target.ready(2);
    let page = agent.wait_for_processes(2);
    let info = |pid: u32| page.count("memscope_process_info", &[("process_id", &pid.to_string())]);
    assert_eq!((info(pids[0]), info(pids[1]), info(other.pid())), (Some(1), Some(1), None));
    // The child allocated what it holds under the agent's eyes.
    let child = pids.iter().find(|pid| **pid != target.pid()).expect("a child").to_string();
    let held = |page: &Page| page.count("memscope_process_memory_bytes", &[("process_id", &child), ("layer", "hal")]);
    let is_held =
        |page: &Page| held(page).is_some_and(|bytes| bytes == CONTEXT + 3 * SIZE || bytes == CONTEXT + 4 * SIZE);
    let _ = agent.wait_for_page("what the child holds", is_held);
    let status = agent.ask(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let seen: Vec<u64> = status["processes"]
        .as_array()
        .expect("processes")
        .iter()
        .filter_map(|process| process["pid"].as_u64())
        .collect();
    let mut expected: Vec<u64> = pids.iter().map(|pid| u64::from(*pid)).collect();
    expected.sort_unstable();
    assert_eq!((seen, &status["level"]), (expected, &0.into()), "{status:#}");
    let output = agent.folder.path().join("captured");
    let pid = target.pid().to_string();
    let asked = agent.ask(&["capture", "--pid", &pid, "--for", "1s", "--output-path", output.to_str().expect("plain")]);
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let rows = Rows::read(&output);
    let allocations = rows.all().filter(|row| row.event == "MALLOC" && row.pid == target.pid()).count();
    assert!(allocations > 10, "{allocations}");
    // The agent goes on.
    let count = |page: &Page| page.count("memscope_allocations_total", &[("layer", "hal")]).expect("allocations");
    let before = count(&agent.page());
    let _ = agent.wait_for_page("further allocations", |page| count(page) > before);
    target.assert_unharmed();
    other.assert_unharmed();
    agent.end();
    target.assert_unharmed();
}

/// Bytes of live blocks, and of the size that holds most of them.
fn live_and_largest(sizes: impl Iterator<Item = u64>) -> (u64, u64) {
    let mut by_size: BTreeMap<u64, u64> = BTreeMap::new();
    sizes.for_each(|size| *by_size.entry(size).or_default() += size);
    (by_size.values().sum(), by_size.values().copied().max().unwrap_or_default())
}

/// `agent top` of two processes that hold memory and do nothing: live bytes and the largest place are those of their journals, by process and
/// by device. Without a terminal it is one table; an agent that is not there is one sentence.
#[test]
fn top_agrees_with_the_journal() {
    let name = own_name("atop");
    // Without stacks a place is a size.
    let agent = Agent::start_with(&name, "[stacks]\nnative = 0\npython = 0\n");
    let targets = ["3", "1"].map(|hold| {
        let target = waiting(&name, "pool", &["--hold", hold, "--size", "30000000", "--serve", "--idle"]);
        let _ = agent.wait_for_page("the process", |page| {
            page.count("memscope_process_info", &[("process_id", &target.pid().to_string())]) == Some(1)
        });
        fs::write(target.folder.path().join("go"), "\n").expect("it reads");
        // The shell was the first.
        let _ = target.ready(2);
        target
    });
    let mut expected: BTreeMap<(u64, &str), (u64, u64)> = BTreeMap::new();
    for target in &targets {
        let (journal, pid) = (target.folder.journal(), target.pid());
        let entries = &journal.by_process()[&pid];
        let driver = live_and_largest(truth(entries, false).held.iter().map(|block| block.size));
        let pool = live_and_largest(pool_blocks(entries).into_values());
        assert!(driver.0 > 0 && pool.0 > 0, "{driver:?} {pool:?}");
        let _ = agent.wait_for_page("what it holds", |page| {
            let of = |layer| {
                let labels = [("process_id", &*pid.to_string()), ("layer", layer)];
                page.count("memscope_process_memory_bytes", &labels)
            };
            (of("hal"), of("pool")) == (Some(driver.0), Some(pool.0))
        });
        expected.insert((pid.into(), "HAL"), driver);
        expected.insert((pid.into(), "PTA"), pool);
    }

    let table = |by: &str| -> Value {
        let output = agent.ask(&["top", "--json", "--by", by]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let number = |value: &Value| value.as_u64().expect("a number");
    let found = table("process");
    let mut seen = BTreeMap::new();
    for row in found["rows"].as_array().expect("rows") {
        let (pool, pid) = (row["pool"].as_str().expect("a pool"), number(&row["pid"]));
        if ["HAL", "PTA"].contains(&pool) {
            assert_eq!((&row["device"], &row["growth_bytes_per_second"]), (&"npu:0".into(), &Value::Null), "{row:#}");
            seen.insert((pid, pool), (number(&row["live_bytes"]), number(&row["largest"]["live_bytes"])));
        }
    }
    assert_eq!(seen, expected, "{found:#}");
    let found = table("device");
    for pool in ["HAL", "PTA"] {
        let of_pool: Vec<_> = expected.iter().filter(|((_, of), _)| *of == pool).map(|(_, figures)| *figures).collect();
        let rows = found["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["pool"] == pool).unwrap_or_else(|| panic!("{pool}: {found:#}"));
        let [live, largest] = [&row["live_bytes"], &row["largest"]["live_bytes"]].map(number);
        assert_eq!(live, of_pool.iter().map(|(live, _)| live).sum::<u64>());
        assert_eq!(Some(largest), of_pool.iter().map(|(_, largest)| *largest).max());
        assert_eq!(row["processes"], 2, "{row:#}");
    }

    let text = agent.ask(&["top", "--by", "process"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for target in &targets {
        assert!(text.contains(&format!("{} {name}", target.pid())), "{text}");
    }
    assert!(text.lines().nth(1).is_some_and(|titles| titles.starts_with("DEVICE")), "{text}");
    for mut target in targets {
        target.signal(Signal::SIGTERM);
        assert!(target.wait().success());
    }
    let socket = agent.socket();
    agent.end();
    let asked = Command::new(tracer_path()).args(["agent", "top", "--socket"]).arg(socket).output().expect("it runs");
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(!asked.status.success() && said.contains("cannot ask the agent at"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
