//! Parts of runs, against what the program says that it did and what its rows say when.

use std::path::PathBuf;
use std::process::{Command, Output};

use memscope_tests::harness::document::document;
use memscope_tests::harness::tracer::{Run, Tracer, tracer_path};
use serde_json::Value;

use super::shared::assert_nothing_lost;

const LEAK_BYTES: u64 = 1 << 20;
const TENSORS: [&str; 4] = ["--filter", "layer=PTA", "--filter", "size>=1M"];

/// Five rounds, each of which leaves two tensors of 1 MiB behind; all others are smaller and given back.
fn run() -> (Run, [PathBuf; 2]) {
    let tracer = Tracer::run("pool", &["--rounds", "5", "--leaks", "2"]);
    let run = tracer.options(&["--call-stack=c", "--json"]).succeed();
    assert_nothing_lost(&run);
    let files = [run.folder.capture(), run.rows().files.first().expect("a dump").clone()];
    (run, files)
}

fn command(verb: &str, file: &PathBuf, options: &[&str]) -> Output {
    Command::new(tracer_path()).arg(verb).arg(file).args(options).output().expect("runs")
}

/// Findings of one kind, of `leaks` or another command.
fn findings(verb: &str, file: &PathBuf, options: &[&str], kind: &str) -> Vec<Value> {
    let output = command(verb, file, &[options, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document = document(&output.stdout);
    let all = document["findings"].as_array().expect("findings").iter();
    all.filter(|finding| finding["finding"] == kind).cloned().collect()
}

/// Pool, blocks and bytes at the end, peak, allocations, frees.
fn held(file: &PathBuf, options: &[&str]) -> Vec<(String, [u64; 5])> {
    findings("leaks", file, options, "held").iter().map(figures_of).collect()
}

fn figures_of(held: &Value) -> (String, [u64; 5]) {
    let number = |held: &Value, key: &str| held[key].as_u64().expect("a number");
    let figures = ["blocks", "size_bytes", "peak_bytes", "allocations", "frees"];
    (held["pool"].as_str().expect("a pool").to_owned(), figures.map(|key| number(held, key)))
}

/// The tensors that stay, alone; from the capture and from the dump.
#[test]
fn blocks_are_chosen() {
    let (_run, files) = run();
    let kept = |blocks: u64| vec![("PTA".to_owned(), [blocks, blocks * LEAK_BYTES, blocks * LEAK_BYTES, blocks, 0])];
    for file in files {
        assert_eq!(held(&file, &TENSORS), kept(10));
        // Where the probe is: that frame is there, too, if the stack of a first call is cut.
        assert_eq!(held(&file, &[&TENSORS[..], &["--filter", "stack~libtorch_npu.so"]].concat()), kept(10));
        let peak = &findings("peaks", &file, &TENSORS, "peak")[0];
        assert_eq!((peak["peak_bytes"].as_u64(), peak["seen"]["blocks"].as_u64()), (Some(10 * LEAK_BYTES), Some(10)));
        let output = command("leaks", &file, &[&TENSORS[..], &["--filter", "stack!~libtorch_npu.so"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("no blocks match --filter"), "{said}");
    }
}

/// From the sixth of the ten tensors on, up to the eighth, as its row has the time.
#[test]
fn times_are_chosen() {
    let (run, files) = run();
    let rows = run.rows();
    let tensors = rows.all().filter(|row| row.event == "MALLOC" && row.event_type == "PTA");
    let kept = tensors.filter(|row| row.number("size") == LEAK_BYTES);
    let mut times_ns: Vec<u64> = kept.map(|row| row.time_ns).collect();
    times_ns.sort_unstable();
    assert_eq!(times_ns.len(), 10);
    let [since, until] = [times_ns[5], times_ns[7]].map(|time_ns| time_ns.to_string());
    for file in files {
        let part = |options: &[&str]| held(&file, &[&TENSORS[..], options].concat())[0].1;
        let mib = |count: u64| count * LEAK_BYTES;
        assert_eq!(part(&["--until", &until]), [8, mib(8), mib(8), 8, 0]);
        assert_eq!(part(&["--since", &since]), [10, mib(10), mib(10), 5, 0]);
        assert_eq!(part(&["--since", &since, "--until", &until]), [8, mib(8), mib(8), 3, 0]);
        assert_eq!(part(&["--since", "0s", "--until", "1h"]), [10, mib(10), mib(10), 10, 0]);
        let output = command("leaks", &file, &["--since", "1h"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("no blocks match"), "{said}");
    }
}

/// Of one kind, in the report of a trace.
fn reported(run: &Run, kind: &str) -> Vec<Value> {
    let json = run.json();
    let all = json["findings"].as_array().expect("findings").iter();
    all.filter(|finding| finding["finding"] == kind).cloned().collect()
}

/// The report of a trace, or of its replay, is of the part that was asked for; rows, capture and ledger are of all of it.
#[test]
fn traces_report_of_a_part() {
    let mib = |count: u64| count * LEAK_BYTES;
    let options =
        [&TENSORS[..], &["--since", "0s", "--until", "1h", "--json", "--analysis=leaks,peaks,decompose"]].concat();
    let run = Tracer::run("pool", &["--rounds", "5", "--leaks", "2"]).options(&options).succeed();
    assert_nothing_lost(&run);
    let kept = ("PTA".to_owned(), [10, mib(10), mib(10), 10, 0]);
    assert_eq!(reported(&run, "held").iter().map(figures_of).collect::<Vec<_>>(), [kept]);
    assert_eq!(reported(&run, "peak")[0]["peak_bytes"].as_u64(), Some(mib(10)));
    let parts = reported(&run, "decompose");
    assert_eq!(parts.iter().map(|found| found["pool"].as_str()).collect::<Vec<_>>(), [Some("PTA")]);
    let ledgers = reported(&run, "ledger");
    assert!(ledgers.iter().any(|ledger| ledger["hal"]["total"]["size_bytes"].as_u64() > Some(mib(10))), "{ledgers:#?}");
    let rows = run.rows();
    let tensors = rows.all().filter(|row| row.event == "MALLOC" && row.event_type == "PTA");
    let (large, small): (Vec<_>, Vec<_>) = tensors.partition(|row| row.number("size") == LEAK_BYTES);
    assert!(large.len() == 10 && small.len() > 50, "{} and {}", large.len(), small.len());
    // From the sixth tensor on, up to the eighth.
    let mut times_ns: Vec<u64> = large.iter().map(|row| row.time_ns).collect();
    times_ns.sort_unstable();
    let [since, until] = [times_ns[5], times_ns[7]].map(|time_ns| time_ns.to_string());
    let replay = Tracer::replay(&run.folder.capture()).options(&TENSORS).option("--json");
    let replay = replay.options(&["--since", &since, "--until", &until]).succeed();
    let kept = ("PTA".to_owned(), [8, mib(8), mib(8), 3, 0]);
    assert_eq!(reported(&replay, "held").iter().map(figures_of).collect::<Vec<_>>(), [kept]);
    assert_eq!(replay.rows().all().count(), rows.all().count());
}

/// A trace that leaves nothing says so; one that cannot be does not begin.
#[test]
fn mistakes_of_traces_are_reported() {
    let run = Tracer::run("exits", &["--how", "return"]).options(&["--filter", "size=12345"]).succeed();
    assert!(run.stderr.contains("no blocks match --filter, --since and --until"), "{}", run.said());
    let options = ["--analysis=fragmentation", "--filter", "size>1"];
    let run = Tracer::run("exits", &["--how", "return"]).options(&options).finish();
    assert_eq!(run.code(), 2, "{}", run.said());
    assert!(run.stderr.contains("--filter takes layer, pid and device with fragmentation"), "{}", run.said());
}

/// What is wrong is said in a sentence, and nothing is read.
#[test]
fn mistakes_are_reported() {
    let nowhere = PathBuf::from("/nowhere");
    for (verb, options, says) in [
        ("leaks", &["--filter", "size~1"][..], "`size` cannot be compared by `~`"),
        ("export", &["--filter", "colour=red"], "`colour` is not one of size, owner, layer, tid, pid, device, stack"),
        ("decompose", &["--since", "soon"], "`soon` is not a time like 30s"),
        ("fragmentation", &["--filter", "size>1"], "--filter takes layer, pid and device with fragmentation"),
    ] {
        let output = command(verb, &nowhere, options);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(says), "{verb}: {said}");
    }
}
