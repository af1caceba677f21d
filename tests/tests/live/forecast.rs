//! The forecast of running servers, against the moments that their own journals have.

use std::ops::Range;
use std::time::Duration;

use memscope_tests::harness::document::document;
use memscope_tests::harness::journal::PtaReport;
use memscope_tests::harness::tracer::{Run, Target, Tracer, in_vm, unix_offset_ns};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::usage::Dcmi;

const MIB: u64 = 1 << 20;
const FIGURES: [&str; 2] = ["reserved", "allocated"];

/// Grows by 100 blocks of 256 KiB a second from 50 on, by the clock.
fn growing(most_blocks: u64, seed: u64) -> Target {
    Target::workload("grows", &["--most", &most_blocks.to_string(), "--seed", &seed.to_string()])
}

fn steady() -> Target {
    Target::workload("grows", &["--rate", "0"])
}

fn tracer(target: &Target, options: &[&str]) -> Tracer {
    Tracer::forecast(target.pid()).options(options)
}

/// The forecast of a process, on its only device.
fn of(run: &Run, target: &Target) -> Value {
    assert_eq!(run.code(), 0, "{}", run.said());
    let found = document(run.stdout.as_bytes());
    let all = found["devices"].as_array().expect("devices").iter();
    let devices: Vec<&Value> = all.filter(|device| device["pid"] == target.pid()).collect();
    let [device] = devices[..] else { panic!("not one: {found:#}") };
    device.clone()
}

/// Reports of the pool with their times, nanoseconds since the Unix epoch.
fn reports(target: &Target) -> Vec<(u64, PtaReport)> {
    let (offset, journal) = (unix_offset_ns(), target.folder.journal());
    journal.of(target.pid()).filter_map(|entry| Some((entry.time_ns + offset, entry.pta_report()?))).collect()
}

fn figure(report: &PtaReport, name: &str) -> u64 {
    if name == "reserved" { report.reserved } else { report.allocated }
}

/// The highest value of the pool in a time.
fn peak(reports: &[(u64, PtaReport)], name: &str, time: Range<u64>) -> u64 {
    let before = reports.iter().rfind(|(at, _)| *at < time.start);
    let within = reports.iter().filter(|(at, _)| time.contains(at));
    within.chain(before).map(|(_, report)| figure(report, name)).max().expect("a report")
}

/// The limit is reached within the interval, by the server's own reports, and it holds what these say, with all of before.
fn agrees(found: &Value, target: &Target, limit: u64) {
    let (reports, until_ns) = (reports(target), found["until_ns"].as_u64().expect("an end"));
    assert_eq!((&found["limit_bytes"], &found["limit_from"]), (&limit.into(), &"given".into()));
    for name in FIGURES {
        let forecast = &found[name];
        assert_eq!(forecast["growth"], "grows", "{found:#}");
        let full = reports.iter().find(|(_, report)| figure(report, name) >= limit).expect("the limit").0;
        let left = (full as f64 - until_ns as f64) / 1e9;
        let [early, middle, late] = [0, 1, 2].map(|at| forecast["seconds_left"][at].as_f64().expect("a time"));
        println!("{name}: {left:.2} s left, {early:.2} to {late:.2} s ({middle:.2} s) by the forecast");
        assert!(left > 1.0 && early <= left && left <= late, "{left} {found:#}");
        // Of the last of 40 parts. The tracer goes deaf a moment before the end, and what grows has less then.
        let part_ns = (forecast["seen_seconds"].as_f64().expect("a time") / 40.0 * 1e9) as u64;
        let now = forecast["now_bytes"].as_u64().expect("bytes");
        let deaf_ns = until_ns - 500_000_000;
        let [least, most] = [deaf_ns, until_ns].map(|end| peak(&reports, name, end - part_ns..end));
        assert!((least..=most).contains(&now), "{least} {now} {most}");
    }
}

/// Servers that are attached to half-way are watched for five seconds, and reach the limit 15 s after their start, with their own pools
/// and their own tensors: within the interval.
#[test]
fn the_interval_holds_the_moment() {
    // An interpreted tracer takes seconds to attach and to end.
    let (most_blocks, limit) = if in_vm() { (3200, 700 * MIB) } else { (1700, 387 * MIB) };
    let mut targets = [1, 2].map(|seed| growing(most_blocks, seed));
    let also = targets[1].pid().to_string();
    let options = ["--pid", &also, "--for", "5s", "--json", "--limit", &limit.to_string()];
    let run = tracer(&targets[0], &options).finish();
    for target in &mut targets {
        assert!(target.wait().success());
        agrees(&of(&run, target), target, limit);
    }
}

/// What does not grow has no date, however low the limit; it holds what its journal says. The limit is what the driver has free
/// besides, where none is given; without either there is none.
#[test]
fn a_steady_server_has_no_date() {
    let mut target = steady();
    let pid = target.pid();
    let dcmi = Dcmi::new(&format!("device 0 4 0 65536 1000\nprocess 0 {pid} 5000000\n"));
    let found = of(&dcmi.trace(tracer(&target, &["--for", "4s", "--json"])).finish(), &target);
    let text = tracer(&target, &["--for", "4s", "--limit", "1GiB"]).finish();
    target.stop();
    let last = reports(&target).pop().expect("reports").1;
    for name in FIGURES {
        assert_eq!(found[name]["growth"], "not_seen", "{found:#}");
        assert!(found[name]["seconds_left"].is_null(), "{found:#}");
    }
    assert_eq!(found["reserved"]["now_bytes"], last.reserved, "{found:#}");
    // The largest request comes again and again; nothing else goes on. An interpreted program makes too few for one in each part of the time.
    let held = 50 * (MIB / 4);
    let lowest = if in_vm() { held } else { held + 2 * MIB };
    let now = found["allocated"]["now_bytes"].as_u64().expect("bytes");
    assert!((lowest..=held + 2 * MIB).contains(&now), "{found:#}");
    let room = last.reserved + (65536 - 1000) * MIB;
    assert_eq!((&found["limit_bytes"], &found["limit_from"]), (&room.into(), &"driver".into()));
    assert_eq!(found["ended"], false);
    assert_eq!(text.code(), 0, "{}", text.said());
    let lines: Vec<&str> = text.stdout.lines().collect();
    assert!(lines[0].starts_with(&format!("Process {pid} on npu:0, limit 1.00 GiB, from ")), "{}", text.said());
    assert!(lines.len() == 3 && lines[1..].iter().all(|line| line.ends_with(": no growth seen")), "{}", text.said());
}

/// Ctrl-C ends a watch that has no end of its own, and has the answer printed; the server goes on.
#[test]
fn ctrl_c_prints_the_forecast() {
    let target = steady();
    let running = tracer(&target, &["--limit", "20GiB"]).start();
    running.wait_for_message("watching process", 1);
    std::thread::sleep(Duration::from_secs(3));
    running.signal(Signal::SIGINT);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert!(run.stdout.contains("the pool holds ") && run.stdout.contains("no growth seen"), "{}", run.said());
    target.assert_unharmed();
}

/// A server that is killed meanwhile is said to have ended; what was seen until then stays.
#[test]
fn a_server_that_is_killed() {
    for json in [true, false] {
        let mut target = growing(100_000, 1);
        let options: &[&str] = if json { &["--json"] } else { &[] };
        let running = tracer(&target, options).option("--limit=20GiB").start();
        running.wait_for_message("watching process", 1);
        std::thread::sleep(Duration::from_secs(3));
        target.signal(Signal::SIGKILL);
        assert!(!target.wait().success());
        let run = running.finish();
        assert_eq!(run.code(), 0, "{}", run.said());
        if json {
            let found = of(&run, &target);
            assert_eq!((&found["ended"], &found["reserved"]["growth"]), (&true.into(), &"grows".into()), "{found:#}");
            let last = reports(&target).pop().expect("reports");
            assert!(found["until_ns"].as_u64().expect("an end") >= last.0 - 100_000_000, "{found:#}");
        } else {
            assert!(run.stdout.contains("  The process has ended: times count from its end.\n"), "{}", run.said());
        }
    }
}

/// What cannot be watched, or has no such pool, is said in a sentence.
#[test]
fn nothing_to_forecast() {
    let run = Tracer::forecast(4_194_303).options(&["--for", "1s"]).finish();
    assert_eq!(run.code(), 1, "{}", run.said());
    assert!(run.stdout.is_empty() && run.stderr.contains("no process 4194303: it does not exist"), "{}", run.said());
    let target = Target::serve(&[]);
    let run = tracer(&target, &["--for", "1s"]).finish();
    let none = format!("No figures of PyTorch's pool in process {}: there is nothing to forecast.\n", target.pid());
    assert_eq!((run.code(), &*run.stdout), (0, &*none), "{}", run.said());
    let run = tracer(&target, &["x.capture"]).finish();
    assert_eq!(run.code(), 2, "{}", run.said());
    let run = tracer(&target, &["--for", "soon"]).finish();
    assert_eq!(run.code(), 2, "{}", run.said());
    target.assert_unharmed();
}
