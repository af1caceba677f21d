//! Real servers and frameworks on `torch_npu`, traced, against the program's own books: see `docs/servers.md`.
//!
//! A group of its own: `./x servers` prepares each server's packages and runs the tests of its module; where they are is in
//! `MEMSCOPE_TORCH_NPU`.

use std::collections::BTreeMap;

use memscope_tests::harness::tracer::Run;
use memscope_tests::torch::bench::version;
use memscope_tests::torch::checks::{driver, lost, names, pools, sound};
use memscope_tests::torch::compare::Begin;
use memscope_tests::torch::table::Table;
use memscope_tests::torch::truth::Truth;
use serde_json::Value;

/// Everything that is written, launches too.
const EVERYTHING: [&str; 2] = ["--level=op,kernel", "--events=alloc,free,launch,block_free"];
/// What is kept from step to step, and the lines of Python that made it.
const LEAKS: [&str; 2] = ["--analysis=leaks", "--call-stack=python"];
/// By owners of blocks, at the end.
const OWNERS: [&str; 2] = ["--analysis=decompose", "--call-stack=python"];

/// Holds a run to the books of its processes, one `Truth` for each, and to the journal of the simulated libraries.
fn compare(title: &str, run: &Run, truths: &[Truth]) {
    for truth in truths {
        let table = table(run, truth);
        println!("{title}, {}\n{table}", version().file_name().unwrap_or_default().to_string_lossy());
        table.assert_equal();
    }
    let totals = driver(&run.journal(), &run.rows());
    println!(
        "{title}: {} calls of the driver, {} launches, by the journal",
        totals.allocs + totals.frees,
        totals.launches
    );
}

/// One process and its books.
fn table(run: &Run, truth: &Truth) -> Table {
    let rows = run.rows();
    let mut table = pools(truth, &run.journal(), &rows, Begin::Process);
    names(&mut table, &rows.processes[&truth.pid()]);
    reported(&mut table, &run.json(), truth);
    lost(&mut table, run, &[]);
    sound(&mut table, &rows);
    table
}

/// What the report says of the pool is what the last mark says of it: behind it, nothing is handed out.
fn reported(table: &mut Table, json: &Value, truth: &Truth) {
    let end = truth.marks.last().expect("a mark");
    let used = end.devices.keys().filter(|device| end.stat(**device, "allocation.all.allocated") > 0);
    for device in used {
        let is_meant = |held: &&Value| held["pool"] == "PTA" && held["device"] == format!("npu:{device}");
        let pool = of_process(json, "held", truth.pid()).into_iter().find(is_meant);
        let pool = pool.unwrap_or_else(|| panic!("the report says nothing of the pool on device {device}"));
        for (key, figure) in [("peak_bytes", "allocated_bytes.all.peak"), ("allocations", "allocation.all.allocated")] {
            let (wanted, found) = (end.stat(*device, figure), pool[key].as_u64());
            let difference = (found != Some(wanted)).then(|| format!("torch_npu {wanted}, report {found:?}"));
            table.add(format!("report: `{key}`, device {device}"), wanted.to_string(), difference);
        }
    }
}

/// Findings of a kind about a process.
fn of_process<'a>(json: &'a Value, kind: &str, pid: u32) -> Vec<&'a Value> {
    let all = json["findings"].as_array().expect("findings").iter();
    all.filter(|found| found["finding"] == kind && found["pid"] == pid).collect()
}

/// What a process is accused of: blocks, bytes, and the line of Python that made them.
fn accused(json: &Value, pid: u32) -> Vec<(u64, u64, String)> {
    let [leaks] = of_process(json, "step_leaks", pid)[..] else { panic!("not one finding of steps: {json:#}") };
    let places = leaks["places"].as_array().expect("places").iter().filter(|place| place["verdict"] == "leak");
    let number = |place: &Value, key: &str| place[key].as_u64().expect("a number");
    let first = |place: &Value| place["stacks"]["python"]["frames"][0].as_str().unwrap_or_default().to_owned();
    places.map(|place| (number(place, "blocks"), number(place, "size_bytes"), first(place))).collect()
}

/// How many places of a process grow, by the report.
fn accused_of_growth(json: &Value, pid: u32) -> usize {
    of_process(json, "growth", pid).iter().map(|growth| growth["sites"].as_array().map_or(0, Vec::len)).sum()
}

/// How many steps of a process have ended, by the report.
fn steps_ended(json: &Value, pid: u32) -> u64 {
    let [leaks] = of_process(json, "step_leaks", pid)[..] else { panic!("not one finding of steps: {json:#}") };
    leaks["steps_ended"].as_u64().expect("a number")
}

/// Two numbers that a program prints behind these words.
fn numbers(said: &str, what: &str) -> (u64, u64) {
    let line = said.lines().find_map(|line| line.strip_prefix(what)).expect("what the program knows");
    let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    (numbers[0], numbers[1])
}

/// The blocks of a pool at the end, by what they are for (`component`) or by `owner`: how many, and their bytes.
fn named(json: &Value, pid: u32, pool: &str, by: &str) -> BTreeMap<String, (u64, u64)> {
    let owners = of_process(json, "decompose", pid).into_iter().find(|owners| owners["pool"] == pool).expect("owners");
    let number = |part: &Value, key: &str| part[key].as_u64().expect("a number");
    let mut sums = BTreeMap::new();
    for part in owners["parts"].as_array().expect("parts") {
        let sum: &mut (u64, u64) = sums.entry(part[by].as_str().expect("a word").to_owned()).or_default();
        *sum = (sum.0 + number(part, "end_blocks"), sum.1 + number(part, "end_bytes"));
    }
    sums
}

/// The frame of the line of a program that has this comment.
fn line_of(script: &str, comment: &str, function: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("servers/workloads").join(script);
    let text = std::fs::read_to_string(&path).expect("the program");
    let line = text.lines().position(|line| line.ends_with(comment)).expect("the line") + 1;
    format!("{}({line}): {function}", path.display())
}

mod ddp;
mod deepspeed;
mod fsdp2;
mod ranks;
mod transformers;
mod vllm;
