//! Serving with vLLM and vllm-ascend: in the process that asks, and by its server of HTTP.

use std::collections::BTreeMap;
use std::process::Command;

use memscope_tests::harness::document::document;
use memscope_tests::harness::holders::{self, ask, blocks, cases};
use memscope_tests::harness::tracer::{Run, Tracer, tracer_path};
use memscope_tests::torch::bench::{Program, go_on};
use memscope_tests::torch::checks::{driver, runtime_blocks};
use memscope_tests::torch::lookups::{look_up, unsure};
use memscope_tests::torch::pool::{Block, Change, Driver, Pool};
use memscope_tests::torch::truth::Truth;
use serde_json::Value;

use super::{EVERYTHING, LEAKS, OWNERS, accused_of_growth, compare, line_of, named, numbers, of_process, table};

/// vLLM takes half of it for the KV cache.
const CAPACITY_MB: &str = "4096";

/// What is different while vLLM has segments of its own for `torch_npu`.
const OF_SEGMENTS: [&str; 5] = [
    "order of segments, device 0",
    "segments",
    "reserved: `total` of the last row",
    "reserved: segments of the driver",
    "reserved at most: by the driver",
];

fn program(kind: &str) -> Program {
    Program::server(&format!("offline.py {kind}")).env("ASCEND_SIM_CAPACITY_MB", CAPACITY_MB)
}

/// Serves, and is exact at every mark.
fn serves(kind: &str, marks: usize) {
    let (run, truth) = program(kind).traced(&EVERYTHING);
    assert_eq!(truth.marks.len(), marks);
    assert!(run.stdout.contains("tokens 8 8 8 8"), "{}", run.stdout);
    assert_eq!(accused_of_growth(&run.json(), truth.pid()), 0);
    assert_replayed(&run, truth.pid());
    compare(&format!("offline, {kind}"), &run, &[truth]);
}

#[test]
fn eager() {
    serves("eager", 4);
}

#[test]
fn graphs() {
    serves("graphs", 4);
}

/// Asleep, the memory of vLLM's own pool is gone: `torch_npu` goes on to count segments that vLLM made for it there, the driver does not. At
/// every other mark both are equal; blocks are `torch_npu`'s all the time.
#[test]
fn sleep() {
    let (run, truth) = program("sleep").traced(&EVERYTHING);
    let mut table = table(&run, &truth);
    table.lines.retain(|line| !OF_SEGMENTS.contains(&line.what.as_str()));
    let gone = said(&run, "own pool ").1;
    let reserved = reserved(&run, truth.pid());
    assert_eq!(reserved.len(), 6);
    for (mark, found) in truth.marks.iter().zip(reserved) {
        let asleep = if mark.name == "asleep" { gone } else { 0 };
        let wanted = mark.stat(0, "reserved_bytes.all.current") - asleep;
        let difference = (wanted != found).then(|| format!("{wanted}, driver {found}"));
        table.add(format!("reserved at `{}`, by the driver", mark.name), wanted.to_string(), difference);
    }
    println!("offline, sleep\n{table}");
    table.assert_equal();
    let calls = driver(&run.journal(), &run.rows());
    // Each of the pool's blocks has its memory given back and taken again.
    assert!(calls.frees >= said(&run, "own pool ").0, "{calls:?}");
    assert_replayed(&run, truth.pid());
    // At the peak all of them have memory, and none of torch_npu's segments is unknown.
    assert_eq!(segments(&run, truth.pid(), "peak"), [("segments_nested".to_owned(), gone)]);
}

/// The recording is reproduced to its last request, with the pools that vLLM makes for its own allocator.
fn assert_replayed(run: &Run, pid: u32) {
    let capture = run.folder.capture();
    let output = Command::new(tracer_path()).arg("whatif").arg(capture).args(["--quick", "--json"]).output();
    let answers = document(&output.expect("started").stdout);
    let mut processes = answers["processes"].as_array().expect("processes").iter();
    let of_engine = processes.find(|answer| answer["pid"] == pid).expect("the engine's");
    let check = &of_engine["check"];
    println!("replayed: {} of {} events", check["agreeing"], check["events"]);
    assert!(check["events"].as_u64() > Some(100) && check["agreeing"] == check["events"], "{check:#}");
}

/// A tracer that attaches while it is awake has the memory of its own pool from before: asleep it is gone, and awake it is back.
#[test]
fn attached_before_it_sleeps() {
    let (mut target, folder) = program("wakes").waiting();
    let running = Tracer::attach(&[&target]).options(&["--verbose", "--json"]).options(&EVERYTHING).patiently().start();
    running.wait_for_message("read the pool of process", 1);
    go_on(&folder);
    assert!(target.wait().success());
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    let truth = Truth::read(&folder);
    let gone = numbers(&target.stdout(), "own pool ").1;
    let (rows, mut memory, mut sums) = (run.rows(), Driver::default(), Vec::new());
    for row in &rows.processes[&truth.pid()] {
        memory.see(row);
        let Some(name) = row.name.as_deref().and_then(|name| name.strip_prefix("truth ")) else { continue };
        sums.push((name.to_owned(), memory.segments(0).map(|segment| segment.size).sum::<u64>()));
    }
    let wanted =
        truth.marks.iter().filter(|mark| ["asleep", "awake", "end"].contains(&mark.name.as_str())).map(|mark| {
            let asleep = if mark.name == "asleep" { gone } else { 0 };
            (mark.name.clone(), mark.stat(0, "reserved_bytes.all.current") - asleep)
        });
    assert_eq!(sums, wanted.collect::<Vec<_>>());
}

/// Asleep to the end, its blocks are there, and their memory is not.
#[test]
fn asleep() {
    let (run, folder) = program("asleep").traced_with(&[]);
    let gone = said(&run, "own pool ").1;
    assert_eq!(segments(&run, Truth::read(&folder).pid(), "end"), [("segments_elsewhere".to_owned(), gone)]);
}

/// What the ledger has of `torch_npu`'s segments, beside those of its own.
fn segments(run: &Run, pid: u32, moment: &str) -> Vec<(String, u64)> {
    let json = run.json();
    let of_moment = |ledger: &&Value| ledger["moment"] == moment && ledger["device"] == "npu:0";
    let ledger = of_process(&json, "ledger", pid).into_iter().find(of_moment).expect("a ledger");
    let pool = ledger["pools"].as_array().expect("pools").iter().find(|pool| pool["pool"] == "PTA").expect("PTA");
    let parts = pool["reserved"]["parts"].as_array().expect("parts").iter();
    let part = |part: &Value| (part["item"].as_str().unwrap_or_default().to_owned(), part["size_bytes"].as_u64());
    let parts = parts.map(part).filter(|(item, _)| item != "pool_segments");
    parts.map(|(item, size_bytes)| (item, size_bytes.expect("bytes"))).collect()
}

/// What grows, by the report: the line of Python, and the blocks there.
fn growing(run: &Run, pid: u32) -> Vec<(String, u64)> {
    let json = run.json();
    let growth = of_process(&json, "growth", pid);
    assert!(growth.iter().all(|growth| growth["judged"] == true), "{growth:#?}");
    let sites = growth.iter().flat_map(|growth| growth["sites"].as_array().into_iter().flatten());
    let line = |site: &Value| site["site"]["stacks"]["python"]["frames"][0].as_str().unwrap_or_default().to_owned();
    sites.map(|site| (line(site), site["blocks"].as_u64().expect("a number"))).collect()
}

/// Tokens of a request, each a step.
const TOKENS: u64 = 8;

/// A copy for each step that the engine keeps is named at its line, and nothing else is. Blocks of the last request may be left to the exit.
#[test]
fn copies_that_are_kept() {
    let (run, folder) = program("keeps").traced_with(&LEAKS);
    let kept = said(&run, "kept ").0;
    let growing = growing(&run, Truth::read(&folder).pid());
    let [(place, blocks)] = &growing[..] else { panic!("{growing:?}") };
    assert_eq!(*place, line_of("offline.py", "# the leak", "keep_outputs.<locals>.keep_and_compute"));
    assert!((kept - TOKENS..=kept).contains(blocks), "{blocks} of {kept}");
}

/// The same server that keeps nothing is accused of nothing.
#[test]
fn nothing_is_kept() {
    let (run, folder) = program("serves").traced_with(&LEAKS);
    assert_eq!(growing(&run, Truth::read(&folder).pid()), []);
}

/// Bytes that the driver has given out at each mark, but for those of the runtime.
fn reserved(run: &Run, pid: u32) -> Vec<u64> {
    let (rows, runtime) = (run.rows(), runtime_blocks(&run.journal(), pid));
    let (mut memory, mut sums) = (Driver::default(), Vec::new());
    for row in &rows.processes[&pid] {
        memory.see(row);
        if row.name.as_deref().is_some_and(|name| name.starts_with("truth ")) {
            let pools = memory.segments(0).filter(|segment| !runtime.contains(&segment.addr));
            sums.push(pools.map(|segment| segment.size).sum());
        }
    }
    sums
}

/// What the program says of the blocks of its KV cache and its weights: how many, and their bytes.
fn said(run: &Run, what: &str) -> (u64, u64) {
    numbers(&run.stdout, what)
}

/// Requests that `api.py` makes.
const REQUESTS: usize = 4;

fn server(arguments: &str) -> Program {
    Program::server(&format!("api.py {arguments}")).env("ASCEND_SIM_CAPACITY_MB", CAPACITY_MB)
}

/// Each rank's worker to the byte at every mark, on its own device; none is accused of growth.
fn api(ranks: usize) {
    let (run, folder) = server(&ranks.to_string()).traced_with(&EVERYTHING);
    assert_eq!(run.stdout.lines().filter(|line| *line == "tokens 8").count(), REQUESTS, "{}", run.stdout);
    assert!(run.stdout.lines().any(|line| line == "ended 0"), "{}", run.stdout);
    let truths: Vec<Truth> = (0..ranks).map(|rank| Truth::read(&folder.join(format!("rank {rank}")))).collect();
    let json = run.json();
    for (rank, truth) in truths.iter().enumerate() {
        let held = of_process(&json, "held", truth.pid());
        let of_pool = held.iter().filter(|held| held["pool"] == "PTA").map(|held| held["device"].as_str());
        assert_eq!(of_pool.collect::<Vec<_>>(), [Some(format!("npu:{rank}").as_str())]);
        assert_eq!((truth.marks.len(), accused_of_growth(&json, truth.pid())), (4, 0), "rank {rank}");
    }
    compare(&format!("server, {ranks} ranks"), &run, &truths);
}

/// The engine is a process of its own.
#[test]
fn api_server() {
    api(1);
}

/// Tensors are shared among two workers, each a process of its own.
#[test]
fn api_server_on_two_ranks() {
    api(2);
}

/// A tracer that is attached to the server traces its engine, a child that is there already: exact from there on, with what the pool
/// held before by its purpose.
#[test]
fn attached_to_the_api_server() {
    let (mut target, folder) = server("1 waits").waiting();
    let pid = std::fs::read_to_string(folder.join("server")).expect("the server's number");
    let running = Tracer::attach_to(&pid).options(&["--verbose", "--json"]).options(&EVERYTHING).patiently().start();
    running.wait_for_message("found the purposes of", 1);
    go_on(&folder);
    let status = target.wait();
    assert!(status.success(), "the program ended with {status}");
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    let truth = Truth::read(&folder.join("rank 0"));
    let end = truth.marks.last().expect("a mark").stat(0, "allocated_bytes.all.current");
    assert_eq!(live_at_the_end(&run, truth.pid()), end);
    let json = run.json();
    let by_stack = of_process(&json, "by_stack", truth.pid());
    let found = by_stack.iter().find(|found| found["pool"] == "PTA").expect("places")["found"].clone();
    let of_purpose = |purpose: &str| {
        let sum = found.as_array().expect("sums").iter().find(|sum| sum["held_as"] == purpose).expect("a purpose");
        let number = |key: &str| sum[key].as_u64().expect("a number");
        (number("blocks"), number("size_bytes"))
    };
    assert_eq!(of_purpose("kv_cache"), numbers(&target.stdout(), "kv_cache "));
    // A table beside the parameters is no parameter, and none of them may be anything else.
    let (weight, weights) = (of_purpose("weight"), numbers(&target.stdout(), "weights "));
    assert!(weight.0 <= weights.0 && weight.1 <= weights.1, "{weight:?} of {weights:?}");
}

/// Bytes of the pool's blocks that are live at the last mark, found ones among them.
fn live_at_the_end(run: &Run, pid: u32) -> u64 {
    let rows = run.rows();
    let of_worker = rows.processes[&pid].iter().take_while(|row| row.name.as_deref() != Some("truth end"));
    let mut live = BTreeMap::new();
    for block in of_worker.filter_map(Block::of).filter(|block| block.pool == Pool::Caching) {
        match block.change {
            Change::Alloc => assert_eq!(live.insert(block.addr, block.size), None, "{block:?}"),
            Change::Free => assert_eq!(live.remove(&block.addr), Some(block.size), "{block:?}"),
            Change::BlockFree => {}
        }
    }
    live.into_values().sum()
}

/// The KV cache and the weights are named as what they are, to the block. No block of the driver is unknown.
#[test]
fn owners() {
    let (run, folder) = program("eager").traced_with(&OWNERS);
    let pid = Truth::read(&folder).pid();
    let json = run.json();
    let named_in = |pool: &str| named(&json, pid, pool, "component");
    let named = named_in("PTA");
    for (component, what) in [("kv_cache", "kv_cache "), ("weight", "weights ")] {
        assert_eq!(named.get(component).copied(), Some(said(&run, what)), "{component}: {named:#?}");
    }
    assert_eq!(named_in("HAL").into_keys().collect::<Vec<_>>(), ["pool_segment", "runtime"]);
}

/// Each block of a tensor has a holder, and each path that Python can follow leads to it: the program follows them. They name the KV cache, the weights and the
/// tables of blocks as vLLM's own objects have them.
#[test]
fn held_by_its_objects() {
    let (target, truth) = program("waits").waiting();
    let all = cases(&target.stdout());
    let found = ask(target.pid(), &[&blocks(&all)]);
    assert_eq!(unsure(&found), [0; 0], "{found}");
    let looked_up = look_up(&target, &truth, &found);
    println!("{} blocks, {} paths followed, {} not", all.len(), looked_up.right, looked_up.unreadable);
    assert_eq!(looked_up.wrong, []);
    assert!(looked_up.right > all.len() && all.len() > 50, "{looked_up:?}");
    let said = holders::said(&found);
    for end in [
        "impl.key_cache",
        "model.layers[*].self_attn.qkv_proj.weight",
        "input_batch.block_table.block_tables[*].block_table.gpu",
        "input_ids.gpu",
    ] {
        let is_named = |paths: &Vec<String>| {
            paths.iter().any(|path| path.replace("[1]", "[*]").replace("[0]", "[*]").ends_with(end))
        };
        assert!(said.values().any(is_named), "{end}: {said:#?}");
    }
}
