//! The forecast of running servers of `torch_npu`, against the program's own account.

use std::fs;
use std::path::Path;

use memscope_tests::harness::document::document;
use memscope_tests::harness::tracer::{Run, Tracer};
use memscope_tests::torch::bench::{Program, go_on};
use memscope_tests::torch::truth::Truth;
use serde::Deserialize;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const FIGURES: [&str; 2] = ["reserved", "allocated"];

/// A line of the server's book: its highest figures since the line before.
#[derive(Deserialize)]
struct Line {
    time_ns: u64,
    allocated: u64,
    reserved: u64,
}

impl Line {
    fn figure(&self, name: &str) -> u64 {
        if name == "reserved" { self.reserved } else { self.allocated }
    }
}

fn book(folder: &Path) -> Vec<Line> {
    let text = fs::read_to_string(folder.join("book.jsonl")).expect("a book");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("`{line}`: {error}"))).collect()
}

/// Lets a server go on as soon as it is watched; gives what was forecast, and its book.
fn watched(program: &Program, options: &[&str]) -> (Value, Vec<Line>) {
    let (mut target, folder) = program.waiting();
    let running = Tracer::forecast(target.pid()).option("--json").options(options).start();
    running.wait_for_message("watching process", 1);
    go_on(&folder);
    let run = running.finish();
    assert!(target.wait().success());
    let [device] = &devices(&run)[..] else { panic!("not one: {}", run.said()) };
    assert_eq!(device["ended"], false, "{}", run.said());
    (device.clone(), book(&folder))
}

fn devices(run: &Run) -> Vec<Value> {
    assert_eq!(run.code(), 0, "{}", run.said());
    document(run.stdout.as_bytes())["devices"].as_array().expect("devices").clone()
}

/// A server that is attached to half-way reaches the limit within the interval, by its own account.
fn grows(program: &Program) {
    let limit = 300 * MIB;
    let (found, book) = watched(program, &["--for", "6s", "--limit", &limit.to_string()]);
    let until_ns = found["until_ns"].as_u64().expect("an end");
    for name in FIGURES {
        let forecast = &found[name];
        assert_eq!(forecast["growth"], "grows", "{found:#}");
        let full = book.iter().find(|line| line.figure(name) >= limit).expect("the limit").time_ns;
        let left = (full as f64 - until_ns as f64) / 1e9;
        let [early, middle, late] = [0, 1, 2].map(|at| forecast["seconds_left"][at].as_f64().expect("a time"));
        println!("{name}: {left:.2} s left, {early:.2} to {late:.2} s ({middle:.2} s) by the forecast");
        assert!(left > 1.0 && early <= left && left <= late, "{left} {found:#}");
    }
}

/// 80 tensors of 256 KiB a second: some 280 MiB more after 14 s.
#[test]
fn the_interval_holds_the_moment() {
    grows(&Program::new("server.py grows 80 1300 1"));
    grows(&Program::new("server.py grows 80 1300 2").env("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True"));
}

/// A server that keeps as many tensors as it drops has no date, however low the limit; it holds what it says itself.
#[test]
fn a_steady_server_has_no_date() {
    let program = Program::new("server.py steady 0 200 1");
    let (found, book) = watched(&program, &["--for", "8s", "--limit", "1GiB"]);
    let until_ns = found["until_ns"].as_u64().expect("an end");
    for name in FIGURES {
        assert_eq!(
            (&found[name]["growth"], &found[name]["seconds_left"]),
            (&"not_seen".into(), &Value::Null),
            "{found:#}"
        );
        // A cycle has four requests, and all were served again and again.
        let before = book.iter().filter(|line| line.time_ns <= until_ns).rev().take(16);
        let most = before.map(|line| line.figure(name)).max();
        assert_eq!(found[name]["now_bytes"].as_u64(), most, "{found:#}");
    }
}

/// A program that waits makes no call while it is watched: what its pools hold on both devices is known nevertheless.
#[test]
fn what_was_before_counts() {
    let (mut target, folder) = Program::new("churn.py 1200 1000").waiting();
    let found = devices(&Tracer::forecast(target.pid()).options(&["--for", "6s", "--json"]).finish());
    go_on(&folder);
    assert!(target.wait().success());
    let truth = Truth::read(&folder);
    let mark = truth.marks.iter().find(|mark| mark.name == "attached").expect("the moment");
    assert_eq!(found.len(), 2, "{found:#?}");
    for device in &found {
        let number = u32::try_from(device["device"].as_u64().expect("a device")).expect("a number");
        for name in FIGURES {
            let own = mark.stat(number, &format!("{name}_bytes.all.current"));
            assert_eq!((&device[name]["now_bytes"], &device[name]["growth"]), (&own.into(), &"not_seen".into()));
        }
    }
}
