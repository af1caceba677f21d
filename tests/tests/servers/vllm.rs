//! Serving with vLLM and vllm-ascend, in the process that asks.

use std::collections::BTreeMap;

use memscope_tests::harness::tracer::Run;
use memscope_tests::torch::bench::Program;
use memscope_tests::torch::checks::{driver, runtime_blocks};
use memscope_tests::torch::pool::Driver;
use memscope_tests::torch::truth::Truth;
use serde_json::Value;

use super::{EVERYTHING, LEAKS, accused_of_growth, compare, line_of, of_process, table};

/// vLLM takes half of it for the KV cache.
const CAPACITY_MB: &str = "4096";
/// By owners of blocks, at the end.
const OWNERS: [&str; 2] = ["--analysis=decompose", "--call-stack=python"];

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
    // At the peak all of them have memory, and none of torch_npu's segments is unknown.
    assert_eq!(segments(&run, truth.pid(), "peak"), [("segments_nested".to_owned(), gone)]);
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
    let line = run.stdout.lines().find_map(|line| line.strip_prefix(what)).expect("what the program knows");
    let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    (numbers[0], numbers[1])
}

/// The blocks of `torch_npu`'s pool at the end, by what they are for: how many, and their bytes.
fn named(json: &Value, pid: u32, pool: &str) -> BTreeMap<String, (u64, u64)> {
    let owners = of_process(json, "decompose", pid).into_iter().find(|owners| owners["pool"] == pool).expect("owners");
    let number = |part: &Value, key: &str| part[key].as_u64().expect("a number");
    let mut sums = BTreeMap::new();
    for part in owners["parts"].as_array().expect("parts") {
        let sum: &mut (u64, u64) = sums.entry(part["component"].as_str().expect("a word").to_owned()).or_default();
        *sum = (sum.0 + number(part, "end_blocks"), sum.1 + number(part, "end_bytes"));
    }
    sums
}

/// The KV cache and the weights are named as what they are, to the block. No block of the driver is unknown.
#[test]
fn owners() {
    let (run, folder) = program("eager").traced_with(&OWNERS);
    let pid = Truth::read(&folder).pid();
    let json = run.json();
    let named_in = |pool: &str| named(&json, pid, pool);
    let named = named_in("PTA");
    for (component, what) in [("kv_cache", "kv_cache "), ("weight", "weights ")] {
        assert_eq!(named.get(component).copied(), Some(said(&run, what)), "{component}: {named:#?}");
    }
    assert_eq!(named_in("HAL").into_keys().collect::<Vec<_>>(), ["pool_segment", "runtime"]);
}
