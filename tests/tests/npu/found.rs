//! What the pool held when the tracer was attached: live blocks and segments, against the program's own account at every mark after that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use memscope_tests::checkers::page::Page;
use memscope_tests::harness::agent::Agent;
use memscope_tests::harness::holders::{ALLOCATORS, allocator};
use memscope_tests::harness::rows::Row;
use memscope_tests::harness::tracer::{Run, Tracer};
use memscope_tests::torch::bench::{Program, go_on};
use memscope_tests::torch::checks::runtime_blocks;
use memscope_tests::torch::pool::{Block, Change, Driver, Pool};
use memscope_tests::torch::truth::{Mark, Truth};

/// Said when the pool was read.
const READ: &str = "read the pool of process";
/// Said of devices that were not proved.
const REFUSED: &str = "held at the attach was not found";
const PROBED: &str = "libtorch_npu.so: ";

/// Attaches half-way. `still`: the program waits until its pool was read; else it goes on as soon as its calls are seen.
fn attached(program: &Program, still: bool) -> (Run, Truth) {
    let (mut target, folder) = program.waiting();
    let running = Tracer::attach(&[&target]).options(&["--verbose", "--json", "--events=alloc,free"]).start();
    running.wait_for_message(if still { READ } else { PROBED }, 1);
    go_on(&folder);
    let status = target.wait();
    assert!(status.success(), "the program ended with {status}");
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    (run, Truth::read(&folder))
}

/// Attaches to a program that works, and waits for no tracer.
fn attached_to_busy(pause: Duration) -> (Run, Truth) {
    let (mut target, folder) = Program::new("busy.py 50").waiting();
    std::thread::sleep(pause);
    let running = Tracer::attach(&[&target]).options(&["--verbose", "--json", "--events=alloc,free"]).start();
    // Said in either case.
    running.wait_for_message("the pool of process", 1);
    std::fs::write(folder.join("stop"), "").expect("file that ends the program");
    let status = target.wait();
    assert!(status.success(), "the program ended with {status}");
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    (run, Truth::read(&folder))
}

/// Live bytes of blocks and of segments, by device.
#[derive(Default)]
struct Live {
    blocks: BTreeMap<(u32, u64), u64>,
    driver: Driver,
    /// Of the driver's blocks those that are no segments.
    others: BTreeSet<u64>,
    /// Devices of which the pool was read.
    devices: BTreeSet<u32>,
    found: usize,
}

impl Live {
    fn see(&mut self, row: &Row) {
        let is_found = row.attr.get("found").is_some_and(|found| found == "true");
        if is_found {
            self.devices.extend(row.device.parse::<u32>());
        }
        self.driver.see(row);
        let Some(block) = Block::of(row).filter(|block| block.pool == Pool::Caching) else { return };
        let key = (block.device, block.addr);
        match block.change {
            Change::Alloc => {
                assert_eq!(self.blocks.insert(key, block.size), None, "{:#x} is live", block.addr);
                self.found += usize::from(is_found);
            }
            Change::Free => assert_eq!(self.blocks.remove(&key), Some(block.size), "{row:?}"),
            Change::BlockFree => {}
        }
    }

    fn allocated(&self, device: u32) -> u64 {
        self.blocks.range((device, 0)..=(device, u64::MAX)).map(|(_, size)| size).sum()
    }

    fn reserved(&self, device: u32) -> u64 {
        let own = |addr: u64| !self.others.contains(&addr);
        self.driver.segments(device).filter(|segment| own(segment.addr)).map(|segment| segment.size).sum()
    }
}

/// Compares at every mark behind the rows of what was found; gives the number of blocks found, and of marks.
fn compare(run: &Run, truth: &Truth, with_segments: bool) -> (usize, usize) {
    let all = run.rows();
    let rows = &all.processes[&truth.pid()];
    let workspaces = rows.iter().filter_map(Block::of).filter(|block| block.pool == Pool::Workspace);
    let mut others = runtime_blocks(&run.folder.journal(), truth.pid());
    others.extend(workspaces.map(|block| block.addr));
    others.extend(truth.marks.iter().flat_map(|mark| &mark.workspaces).flat_map(BTreeMap::keys));
    let mut live = Live { others, ..Live::default() };
    let mark_of = |row: &Row| -> Option<&Mark> {
        let name = row.name.as_deref().filter(|_| row.event == "MSTX")?.strip_prefix("truth ")?;
        truth.marks.iter().find(|mark| mark.name == name)
    };
    let is_refused = run.said().contains(REFUSED);
    let mut compared = 0;
    for row in rows {
        live.see(row);
        let Some(mark) = mark_of(row).filter(|_| !live.devices.is_empty()) else { continue };
        compared += 1;
        // Of a device that was refused nothing is known.
        let all = if is_refused { live.devices.clone() } else { mark.devices.keys().copied().collect() };
        for device in &all {
            let stat = |key: &str| mark.stat(*device, key);
            let what = format!("device {device} at `{}`", mark.name);
            assert_eq!(live.allocated(*device), stat("allocated_bytes.all.current"), "allocated, {what}");
            if with_segments {
                assert_eq!(live.reserved(*device), stat("reserved_bytes.all.current"), "reserved, {what}");
            }
        }
    }
    (live.found, compared)
}

/// Held memory of the pool has no part that was not seen, and no free was one of an unknown block.
fn nothing_is_unseen(run: &Run) {
    let json = run.json();
    let held = json["findings"].as_array().expect("findings").iter().filter(|found| found["finding"] == "held");
    let pool: Vec<_> = held.filter(|found| found["pool"] == "PTA").collect();
    assert!(!pool.is_empty());
    for held in pool {
        assert_eq!((&held["unseen_bytes"], &held["unknown_frees"]), (&0.into(), &0.into()), "{held}");
    }
}

fn found(program: &Program, with_segments: bool) {
    let (run, truth) = attached(program, true);
    let (found, compared) = compare(&run, &truth, with_segments);
    println!("{found} blocks found, {compared} marks compared");
    assert!(found > 10 && compared > 3, "{found} blocks, {compared} marks");
    assert!(!run.said().contains(REFUSED), "{}", run.said());
    nothing_is_unseen(&run);
}

#[test]
fn churn_found() {
    found(&Program::new("churn.py 2000 1000"), true);
}

#[test]
fn training_found() {
    found(&Program::new("train.py adamw 10 128 npu 5"), true);
}

/// The driver's memory of an expandable segment came piece by piece, and its pieces are not known: its blocks are.
#[test]
fn churn_found_expandable() {
    let program = Program::new("churn.py 2000 1000").env("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True");
    found(&program, false);
}

/// Captured graphs have pools of their own, with blocks that go on living, and memory that is given back with the graph.
#[test]
fn graphs_found() {
    found(&Program::new("graphs.py 20 12"), true);
}

#[test]
fn graphs_found_expandable() {
    let program = Program::new("graphs.py 20 12").env("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True");
    found(&program, false);
}

/// Blocks come and go while the pool is read. What was proved is the program's own; what was not is not said.
#[test]
fn found_while_it_works() {
    let (run, truth) = attached(&Program::new("churn.py 20000 1000"), false);
    let (found, compared) = compare(&run, &truth, true);
    println!("{found} blocks found, {compared} marks compared");
    let is_refused = run.said().contains(REFUSED);
    assert!(run.said().contains(READ) || is_refused, "{}", run.said());
    // Of blocks that were all freed while the pool was read, none is left to be found.
    assert!(compared > 0 || found == 0, "{found} blocks without a mark");
}

/// The same of a program that waits at no time, at several moments.
#[test]
fn found_in_full_work() {
    for pause_ms in [0, 70, 130, 290, 610] {
        let (run, truth) = attached_to_busy(Duration::from_millis(pause_ms));
        let (found, compared) = compare(&run, &truth, true);
        let is_refused = run.said().contains(REFUSED);
        println!("after {pause_ms} ms {found} blocks found, {compared} marks compared, refused: {is_refused}");
        assert!(is_refused || found >= 50 && compared == 5, "{found} blocks, of 50 that stay; {compared} marks");
    }
}

/// An agent that joins a program: its page has what the pool holds and has of the driver, as the program says, and the pool's own figure leaves
/// nothing beyond the blocks that are known. Blocks may wait for the other stream at that moment.
#[test]
fn found_by_an_agent() {
    let expandable = ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True");
    joined_by_an_agent(&Program::new("churn.py 1200 1000"));
    joined_by_an_agent(&Program::new("churn.py 1200 1000").env(expandable.0, expandable.1));
    joined_by_an_agent(&Program::new("churn.py 1800 1650"));
    joined_by_an_agent(&Program::new("churn.py 2300 2100"));
}

/// No pass over the memory is made for an agent, so the starts of host blocks are those that the allocator's table of pages says.
#[test]
fn found_by_an_agent_with_other_allocators() {
    for library in ALLOCATORS {
        joined_by_an_agent(&Program::new("churn.py 1200 1000").env("LD_PRELOAD", &allocator(library)));
    }
}

/// A process that is traced without its pool as it has too many events: that is read, and all of it is beyond the blocks that are known by
/// place. The driver's blocks that were found at the attach stay.
#[test]
fn reduced_by_an_agent() {
    for visible in [[0, 1], [1, 0]] {
        let list = format!("{},{}", visible[0], visible[1]);
        let program = Program::new("churn.py 1200 1000").env("ASCEND_RT_VISIBLE_DEVICES", &list);
        agrees_with_an_agent(&program, |name| Agent::start_for(name, 1), visible, true);
    }
}

fn joined_by_an_agent(program: &Program) {
    agrees_with_an_agent(program, Agent::start, [0, 1], false);
}

/// `visible`: numbers of the program's two devices on the machine.
fn agrees_with_an_agent(program: &Program, agent: impl FnOnce(&str) -> Agent, visible: [u32; 2], is_reduced: bool) {
    let (mut target, folder) = program.waiting();
    let name = std::fs::read_to_string(format!("/proc/{}/comm", target.pid())).expect("it runs");
    let agent = agent(name.trim());
    let of_pool = |page: &Page, pool: &str, metric: &str, device: u32| {
        let labels = [("pool", pool), ("id", &*device.to_string())];
        page.count(metric, &labels).unwrap_or_default()
    };
    let of = |page: &Page, metric: &str, device: u32| of_pool(page, "pta", metric, device);
    let page = agent.wait_for_page("the pool", |page| {
        let reduced = page.count("memscope_targets", &[("state", "reduced")]);
        // Its pool has left the trace when no block is known by place any more.
        let metric = if is_reduced { "memscope_memory_untracked_bytes" } else { "memscope_memory_live_bytes" };
        reduced == Some(u64::from(is_reduced)) && [0, 1].iter().all(|device| of(page, metric, *device) > 0)
    });
    go_on(&folder);
    assert!(target.wait().success());
    agent.end();
    let truth = Truth::read(&folder);
    let mark = truth.marks.iter().find(|mark| mark.name == "attached").expect("the moment");
    for (device, number) in (0..).zip(visible) {
        let metrics = ["memscope_memory_live_bytes", "memscope_pool_reserved_bytes", "memscope_memory_untracked_bytes"];
        let said = ["allocated_bytes.all.current", "reserved_bytes.all.current"].map(|key| mark.stat(device, key));
        let found = metrics.map(|metric| of(&page, metric, number));
        let untracked = if is_reduced { said[0] } else { 0 };
        assert_eq!(found, [said[0], said[1], untracked], "device {device}, {program:?}");
        // What the driver gave the pool piece by piece is not found.
        if is_reduced {
            let of_driver = of_pool(&page, "hal", "memscope_memory_live_bytes", number);
            assert_eq!(of_driver, said[1], "the driver's of device {device}, {program:?}");
        }
    }
}
