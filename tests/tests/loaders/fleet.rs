//! Queries of `fleet/` on files of the agent's own writer. Books and evidence are the agent's; the clock is ours: 100 minutes in a second.
//!
//! Minutes count from 2026-11-20 00:00 UTC. Three nodes: a job of four ranks on two of them, a server and a short job on the third.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use memscope::agent::books::Books;
use memscope::agent::config::EvidenceSettings;
use memscope::agent::evidence::Evidence;
use memscope::agent::fold::{Target, Where};
use memscope::backend::ascend::pools;
use memscope::model::{
    Alloc, AllocApi, AllocFailed, AllocRecovered, Asked, Block, Device, DriverFigures, Event, EventKind, Free,
    FreeCause, PageType, Pool, ProcessStart, Stack, StackEnd, Stacks,
};
use memscope_tests::harness::agent::{Agent, own_name, waiting};
use memscope_tests::harness::expect::truth;
use memscope_tests::harness::journal::pool_blocks;
use memscope_tests::harness::tracer::Folder;
use serde_json::{Value, json};

use super::by_script;

const START: u32 = 29_918_880;
const MINUTES: u32 = 100;
const MINUTE_NS: u64 = 60_000_000_000;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// An agent on a node.
struct Node {
    books: Books,
    evidence: Evidence,
    targets: BTreeMap<u32, Target>,
    /// What it says at the end of a minute.
    lost: u64,
    level: i32,
    events: u64,
}

/// A process as its own calls have it.
struct Process {
    pid: u32,
    device: Device,
    /// Bytes live in the pool.
    live_bytes: u64,
    /// What the pool says beside them: handed out before the agent came. `None`: it says nothing.
    older_bytes: Option<u64>,
}

impl Process {
    const fn new(pid: u32, device: u32, older_bytes: Option<u64>) -> Self {
        Self { pid, device: Device::Npu(device), live_bytes: 0, older_bytes }
    }
}

fn python(frame: &str) -> Stacks {
    let frames = ["/usr/lib/python3/dist-packages/torch/nn/modules/module.py(7): __call__", frame];
    Stacks { python: Some(Stack::keep(frames, StackEnd::Root)), ..Stacks::default() }
}

/// The address is another one in each process.
fn native(frame: &str, pid: u32) -> Stacks {
    let frame = format!("{frame} [{pid:#x}]");
    let frames = ["halMemAlloc", "libascendcl.so(aclrtMalloc+0x10) [0x7f10]", &frame];
    Stacks { native: Some(Stack::keep(frames, StackEnd::Root)), ..Stacks::default() }
}

impl Node {
    /// It starts at a minute, and finds these processes, by their pods, jobs and ranks.
    fn start(directory: &Path, host: &str, minute: u32, found: &[(&Process, &str, &str, &str)]) -> Self {
        let settings = EvidenceSettings { directory: directory.to_owned(), ..EvidenceSettings::default() };
        let evidence = Evidence::of_host(&settings, host, "0123456789ab").expect("a thread");
        let mut books = Books::by_minute();
        books.minute(START + minute);
        let mut node = Self { books, evidence, targets: BTreeMap::new(), lost: 0, level: 0, events: 0 };
        for (process, pod, job, rank) in found {
            node.join(minute, process, pod, job, rank);
        }
        node
    }

    fn join(&mut self, minute: u32, process: &Process, pod: &str, job: &str, rank: &str) {
        let place = Where { namespace: "team".into(), pod_name: pod.into(), container_name: "main".into() };
        let target = Target { place, job: job.into(), rank: rank.into(), ..Target::default() };
        self.targets.insert(process.pid, target);
        let start = ProcessStart { parent: 0, attached: true, command: "python".into(), pid_within: None };
        self.event(minute, process, Stacks::default(), EventKind::ProcessStart(start));
    }

    fn event(&mut self, minute: u32, process: &Process, stacks: Stacks, kind: EventKind) {
        self.events += 1;
        let time_ns = u64::from(START + minute) * MINUTE_NS + self.events;
        let (pid, device) = (process.pid, process.device);
        self.books.observe(&Event { id: self.events, time_ns, pid, tid: pid, device, stacks, kind });
    }

    fn block(&self, minute: u32, process: &Process, pool: Pool, size_bytes: u64, stacks: Stacks) -> Block {
        Block {
            allocation_id: self.events,
            pool,
            device: process.device,
            addr: self.events << 21,
            size_bytes,
            requested_bytes: None,
            alloc_time_ns: u64::from(START + minute) * MINUTE_NS,
            alloc_id: self.events,
            tid: process.pid,
            step: 0,
            kernel_index: 0,
            module_id: None,
            page: PageType::Normal,
            api: AllocApi::Alloc,
            caller: None,
            stacks,
            owner: None,
            found: false,
            held_as: None,
        }
    }

    fn alloc(&mut self, minute: u32, process: &mut Process, pool: Pool, size_bytes: u64, stacks: Stacks) -> Block {
        let block = self.block(minute, process, pool, size_bytes, stacks);
        self.comes(minute, process, block);
        block
    }

    fn comes(&mut self, minute: u32, process: &mut Process, block: Block) {
        let (used_bytes, total_bytes) = process.comes(&block, true);
        let driver = DriverFigures::default();
        let asked = Asked::default();
        let alloc = Alloc { block, used_bytes, total_bytes, driver, restored: false, promoted: false, asked };
        self.event(minute, process, block.stacks, EventKind::Alloc(alloc));
    }

    fn free(&mut self, minute: u32, process: &mut Process, block: Block) {
        let (used_bytes, total_bytes) = process.comes(&block, false);
        let free = Free {
            block,
            used_bytes,
            total_bytes,
            driver: DriverFigures::default(),
            cause: FreeCause::Program,
            owner: None,
            row_time_ns: None,
            without_row: false,
        };
        self.event(minute, process, Stacks::default(), EventKind::Free(free));
    }

    fn fails(&mut self, minute: u32, process: &Process, pool: Pool, size_bytes: u64, request: u64, attempt: u32) {
        let failed =
            AllocFailed { pool, size_bytes, status: 6, flags: 0, caller: None, out_of_memory: true, request, attempt };
        self.event(minute, process, python("/srv/sample.py(17): step"), EventKind::AllocFailed(failed));
    }

    /// What the agent does at the first page of the next minute.
    fn end_of_minute(&mut self, minute: u32) {
        self.books.minute(START + minute + 1);
        self.evidence.take(self.books.take().minutes, &self.targets, self.lost, self.level);
        assert_eq!(self.evidence.work(START + minute + 1, Instant::now()), [""; 0]);
    }

    /// What it does at its own end.
    fn end(mut self) {
        self.books.end_minute();
        self.evidence.take(self.books.take().minutes, &self.targets, self.lost, self.level);
        assert_eq!(self.evidence.finish(), [""; 0]);
    }
}

impl Process {
    /// What its pool says when a block has come or gone.
    const fn comes(&mut self, block: &Block, comes: bool) -> (u64, Option<u64>) {
        if block.pool.is_driver() {
            return (0, None);
        }
        if comes {
            self.live_bytes += block.size_bytes;
        } else {
            self.live_bytes -= block.size_bytes;
        }
        match self.older_bytes {
            Some(older_bytes) => (self.live_bytes + older_bytes, Some(10 * GIB)),
            None => (self.live_bytes, None),
        }
    }
}

/// A node with two ranks. Rank 2 keeps each batch, 3 MiB a minute; the others let go of the one before.
fn train(directory: &Path, host: &str, ranks: [u32; 2]) {
    let (collate, forward) = (python("/srv/data.py(41): collate"), python("/srv/model.py(120): forward"));
    let mut processes = [0, 1].map(|device| {
        let older_bytes = if ranks[device as usize] == 3 { GIB } else { 0 };
        Process::new(100 + device, device, Some(older_bytes))
    });
    let names = ranks.map(|rank| (format!("train-{rank}"), rank.to_string()));
    let [one, other] = &processes;
    let found = [(one, &*names[0].0, "train", &*names[0].1), (other, &*names[1].0, "train", &*names[1].1)];
    let mut node = Node::start(directory, host, 0, &found);
    for process in &mut processes {
        node.alloc(0, process, pools::HAL, 8 * GIB, native("trainer(load+0x1)", process.pid));
        node.alloc(0, process, pools::PTA, 4 * GIB, python("/srv/model.py(88): build"));
    }
    let mut batches: [Option<Block>; 2] = [None; 2];
    for minute in 0..MINUTES {
        for ((process, rank), batch) in processes.iter_mut().zip(ranks).zip(&mut batches) {
            let activation = node.alloc(minute, process, pools::PTA, GIB, forward);
            node.free(minute, process, activation);
            let last = batch.replace(node.alloc(minute, process, pools::PTA, 3 * MIB, collate));
            if let Some(last) = last.filter(|_| rank != 2) {
                node.free(minute, process, last);
            }
        }
        if host == "node-2" {
            // Five records are lost in minute 30. The agent goes to level 1 in minute 40 and back in minute 41.
            node.lost = if minute < 30 { 0 } else { 5 };
            node.level = i32::from(minute == 40);
        }
        if minute + 1 < MINUTES {
            node.end_of_minute(minute);
        }
    }
    // In the last minute, which has its rows by that.
    node.end();
}

/// The node of a server. The agent is away from minute 20 to 29; the processes end in minute 89.
fn serve(directory: &Path) {
    let (mut server, mut batch) = (Process::new(200, 0, None), Process::new(201, 0, None));
    let of_server = |server: &Process| {
        [
            (pools::HAL, 6 * GIB, native("server(reserve+0x1)", server.pid)),
            (pools::PTA, 5 * GIB, python("/srv/kv.py(203): reserve")),
            (pools::PTA, 512 * MIB, python("/srv/kv.py(9): table")),
        ]
    };
    let mut node = Node::start(directory, "node-3", 0, &[(&server, "serve-0", "serve", "")]);
    for (pool, size_bytes, stacks) in of_server(&server) {
        node.alloc(0, &mut server, pool, size_bytes, stacks);
    }
    (0..19).for_each(|minute| node.end_of_minute(minute));
    node.end();

    server.live_bytes = 0;
    let mut node = Node::start(directory, "node-3", 30, &[(&server, "serve-0", "serve", "")]);
    for (pool, size_bytes, stacks) in of_server(&server) {
        // As a trace that attaches finds it.
        let block = node.block(30, &server, pool, size_bytes, stacks);
        node.comes(30, &mut server, Block { found: true, ..block });
    }
    for minute in 30..MINUTES {
        match minute {
            50 => {
                node.fails(50, &server, pools::HAL, 64 * GIB, 1, 1);
                node.fails(50, &server, pools::HAL, 64 * GIB, 1, 2);
                node.evidence.bundle(200, 1, "bundle_50_200.json".into());
            }
            70 => {
                node.join(70, &batch, "batch-0", "batch", "");
                node.alloc(70, &mut batch, pools::HAL, 2 * GIB, native("batch(work+0x1)", 201));
                node.fails(70, &server, pools::PTA, 2 * GIB, 2, 1);
            }
            71 => {
                let (pool, size_bytes) = (pools::PTA, 2 * GIB);
                let recovered = AllocRecovered { pool, request: 2, failed_attempts: 1, size_bytes };
                node.event(71, &server, Stacks::default(), EventKind::AllocRecovered(recovered));
            }
            89 => {
                node.event(89, &server, Stacks::default(), EventKind::ProcessEnd);
                node.event(89, &batch, Stacks::default(), EventKind::ProcessEnd);
            }
            _ => {}
        }
        node.end_of_minute(minute);
    }
    node.end();
}

/// These columns of all rows.
fn columns(answer: &Value, names: &str) -> Value {
    let row = |row: &Value| names.split(' ').map(|name| row[name].clone()).collect::<Vec<Value>>();
    answer.as_array().expect("rows").iter().map(row).collect::<Vec<_>>().into()
}

#[test]
fn queries_agree_with_the_agents_own_files() {
    let folder = tempfile::tempdir().expect("a folder");
    train(folder.path(), "node-1", [0, 1]);
    train(folder.path(), "node-2", [2, 3]);
    serve(folder.path());
    let day = PathBuf::from("2026-11-20");
    let queries = ["leak_by_rank", "node_top", "out_of_memory", "evidence_gaps"].map(Path::new);
    let arguments: Vec<&Path> = [folder.path(), &day, &day].into_iter().chain(queries).collect();
    let found = by_script("fleet.py", &arguments);

    // The scenarios of `fleet/tests` have the columns that the agent writes.
    assert_eq!(found["columns"], found["expected"]);
    assert_leaks(&found["leak_by_rank"]);
    assert_holders(&found["node_top"]);
    assert_failures(&found["out_of_memory"]);
    assert_gaps(&found["evidence_gaps"]);
}

fn assert_leaks(found: &Value) {
    // 3 MiB are 384 times the least spread, 8 KiB.
    let names = "verdict reason job rank host pod pid layer pool place bytes_per_minute peers_bytes_per_minute robust_z ranks minutes level";
    let expected = json!([
        [
            "found",
            "this rank",
            "train",
            2,
            "node-2",
            "train-2",
            100,
            "pool",
            "pta",
            "data.py:41 collate",
            3 * MIB,
            0,
            384.0,
            4,
            100,
            1
        ],
        [
            "not judged",
            "fewer than 30 minutes",
            "batch",
            null,
            null,
            null,
            null,
            null,
            null,
            null,
            null,
            null,
            null,
            1,
            20,
            null
        ],
        [
            "not found",
            "nothing grows steadily",
            "serve",
            null,
            null,
            null,
            null,
            null,
            null,
            null,
            null,
            null,
            null,
            1,
            80,
            null
        ],
    ]);
    assert_eq!(columns(found, names), expected);
}

fn assert_holders(found: &Value) {
    let names = "host device_id layer pod pid job rank live_bytes share used_bytes untracked_bytes top_place top_place_bytes minutes_behind";
    let batch = 4 * GIB + 3 * MIB;
    let rank = |rank: u64, live: u64, older: u64| {
        let (host, pod) = (format!("node-{}", 1 + rank / 2), format!("train-{rank}"));
        let (device, pid) = (rank % 2, 100 + rank % 2);
        [
            json!([host, device, "hal", pod, pid, "train", rank, 8 * GIB, 1.0, null, 0, "trainer load", 8 * GIB, 0]),
            json!([
                host,
                device,
                "pool",
                pod,
                pid,
                "train",
                rank,
                live,
                1.0,
                live + older,
                older,
                "model.py:88 build",
                4 * GIB,
                0
            ]),
        ]
    };
    let ranks = [rank(0, batch, 0), rank(1, batch, 0), rank(2, 4 * GIB + 300 * MIB, 0), rank(3, batch, GIB)];
    let server = json!([
        ["node-3", 0, "hal", "serve-0", 200, "serve", -1, 6 * GIB, 0.75, null, 0, "server reserve", 6 * GIB, 10],
        ["node-3", 0, "hal", "batch-0", 201, "batch", -1, 2 * GIB, 0.25, null, 0, "batch work", 2 * GIB, 10],
        [
            "node-3",
            0,
            "pool",
            "serve-0",
            200,
            "serve",
            -1,
            5 * GIB + 512 * MIB,
            1.0,
            null,
            0,
            "kv.py:203 reserve",
            5 * GIB,
            10
        ],
    ]);
    let server = server.as_array().expect("rows").iter().cloned();
    let expected: Vec<Value> = ranks.into_iter().flatten().chain(server).collect();
    assert_eq!(columns(found, names), Value::from(expected));
}

fn assert_failures(found: &Value) {
    let names = "epoch_minute job rank host namespace pod container pid device_id layer pool requests recovered largest_request_bytes \
                 asked_place held_minute held_bytes top_place top_place_bytes device_bytes other_pod other_pid other_bytes bundle";
    let expected = json!([
        [
            START + 70,
            "serve",
            -1,
            "node-3",
            "team",
            "serve-0",
            "main",
            200,
            0,
            "pool",
            "pta",
            1,
            1,
            2 * GIB,
            "sample.py:17 step",
            START + 70,
            5 * GIB + 512 * MIB,
            "kv.py:203 reserve",
            5 * GIB,
            8 * GIB,
            "batch-0",
            201,
            2 * GIB,
            ""
        ],
        [
            START + 50,
            "serve",
            -1,
            "node-3",
            "team",
            "serve-0",
            "main",
            200,
            0,
            "hal",
            "hal",
            1,
            0,
            64 * GIB,
            "sample.py:17 step",
            START + 50,
            6 * GIB,
            "server reserve",
            6 * GIB,
            6 * GIB,
            null,
            null,
            null,
            "bundle_50_200.json"
        ],
    ]);
    assert_eq!(columns(found, names), expected);
}

fn assert_gaps(found: &Value) {
    // Of node-2 the pools of ranks 2 and 3 say 4396 and 5123 MiB, and 1024 of these are in no place.
    let names =
        "verdict host missing_minutes minutes_behind lost minutes_with_loss degraded_minutes level untracked_share";
    let expected = json!([
        ["found", "node-2", 0, 0, 5, 1, 2, 1, 0.108],
        ["found", "node-3", 10, 10, 0, 0, 0, 0, null],
        ["not found", "node-1", 0, 0, 0, 0, 0, 0, 0.0],
    ]);
    assert_eq!(columns(found, names), expected);
}

/// Of the real agent and a program with the simulated libraries: `node_top` has what the program's journal says it held at its end, in the
/// driver and in the pool.
#[test]
fn node_top_agrees_with_the_journal() {
    let name = own_name("ntop");
    let evidence = Folder::new();
    let directory = evidence.path();
    // Without stacks a place is a size.
    let settings = "[stacks]\nnative = 0\npython = 0\n[evidence]\ndirectory = ";
    let agent = Agent::start_with(&name, &format!("{settings}\"{}\"\n", directory.display()));
    let arguments = ["--rounds", "4", "--blocks", "3", "--size", "30000000", "--leaks", "2", "--leak-size", "200000"];
    let mut target = waiting(&name, "pool", &arguments);
    let pid = target.pid();
    let _ = agent.wait_for_processes(1);
    std::fs::write(target.folder.path().join("go"), "\n").expect("it reads");
    assert!(target.wait().success());
    let _ = agent.wait_for_processes(0);
    agent.end();

    let journal = target.folder.journal();
    let entries = &journal.by_process()[&pid];
    let driver: Vec<u64> = truth(entries, false).held.iter().map(|block| block.size).collect();
    let pool: Vec<u64> = pool_blocks(entries).into_values().collect();
    let days = ["0000-00-00", "9999-99-99", "node_top"].map(Path::new);
    let arguments: Vec<&Path> = [directory].into_iter().chain(days).collect();
    let found = by_script("fleet.py", &arguments);
    let rows = found["node_top"].as_array().expect("rows");
    for (name, blocks) in [("hal", driver), ("pta", pool)] {
        let is_of = |row: &&Value| row["pid"] == pid && row["pool"] == name;
        let row = rows.iter().find(is_of).unwrap_or_else(|| panic!("{name}: {found:#}"));
        let mut by_size: BTreeMap<u64, u64> = BTreeMap::new();
        for size in &blocks {
            *by_size.entry(*size).or_default() += size;
        }
        let live: u64 = blocks.iter().sum();
        let largest = by_size.values().max().expect("blocks");
        assert_eq!((&row["live_bytes"], &row["top_place_bytes"]), (&json!(live), &json!(largest)), "{row:#}");
        let named = |(size, bytes): (&u64, &u64)| bytes == largest && row["top_place"] == format!("{size} B");
        assert!(by_size.iter().any(named), "{row:#}");
    }
}
