//! The framework's memory pools: a hidden function of a stripped library, found and probed.

use memscope_tests::harness::journal::Journal;
use memscope_tests::harness::journal::{Entry, Library, PtaReport};
use memscope_tests::harness::rows::Rows;
use memscope_tests::harness::tracer::{Target, Tracer, in_vm};

use super::attach::attach;
use super::shared::{assert_nothing_lost, assert_nothing_lost_since_attach, assert_sound};

/// Event, address, size, bytes handed out, bytes held.
type Reported = (&'static str, u64, u64, u64, u64);

/// Reports of the caching allocator about the blocks of one process, in order. The later return of a freed block to the
/// pool does not matter here.
fn reported(journal: &Journal) -> Vec<Reported> {
    let reports = journal.entries.iter().filter_map(Entry::pta_report);
    let of_tensors = reports.filter(|report| report.component == 0 && report.kind < 2);
    of_tensors
        .map(|PtaReport { kind, addr, size, allocated, reserved, .. }| {
            (if kind == 0 { "MALLOC" } else { "FREE" }, addr, size.unsigned_abs(), allocated, reserved)
        })
        .collect()
}

fn written(rows: &Rows) -> Vec<Reported> {
    let of_tensors = rows.all().filter(|row| row.event_type == "PTA" && !row.is_made_up());
    of_tensors
        .map(|row| {
            let event = if row.event == "MALLOC" { "MALLOC" } else { "FREE" };
            (event, row.ptr.expect("an address"), row.number("size"), row.number("used"), row.number("total"))
        })
        .collect()
}

/// Each block of the pool with the pool's own totals, late ones of other streams among them.
#[test]
fn every_block_of_the_pool_is_reported() {
    let variants: [&[&str]; 3] = [
        &[],
        &["--blocks", "40", "--size", "3000000", "--leak-size", "30000000", "--device", "2"],
        &["--rounds", "10", "--leaks", "0", "--shared", "16"],
    ];
    for variant in variants {
        let run = Tracer::run("pool", variant).succeed();
        assert_nothing_lost(&run);
        assert_sound(&run);
        let reported = reported(&run.journal());
        assert_eq!(reported.len() as u64, run.counted("mallocs") + run.counted("frees"), "{variant:?}");
        assert_eq!(written(&run.rows()), reported, "{variant:?}");
        assert_eq!(reported.last().expect("some").3, run.counted("allocated"), "{variant:?}");
    }
}

/// The real function may throw, and an entry probe is not in the way of what unwinds the stack.
#[test]
fn a_report_that_throws_does_the_program_no_harm() {
    let run = Tracer::run("pool", &["--rounds", "20"]).env("ASCEND_SIM_PTA_THROW", "2").succeed();
    assert_nothing_lost(&run);
    assert_eq!(written(&run.rows()), reported(&run.journal()));
    assert!(run.journal().count(Library::TorchNpu, "reportMemoryDataToNpuProfiler") > 1000);
}

/// A million events: every row is the pool's own word, totals included, at every one of them.
#[test]
fn a_million_events_of_a_pool() {
    let rounds = if in_vm() { "10" } else { "500" };
    let arguments = ["--rounds", rounds, "--blocks", "1000", "--leaks", "0", "--shared", "0", "--workspaces", "0"];
    let run = Tracer::run("pool", &arguments).succeed();
    assert_nothing_lost(&run);
    let reported = reported(&run.journal());
    assert_eq!(reported.len() as u64, 2 * run.counted("mallocs"));
    assert!(written(&run.rows()) == reported, "a row differs from what the pool said");
}

fn findings<'a>(json: &'a serde_json::Value, kind: &'a str) -> impl Iterator<Item = &'a serde_json::Value> {
    json["findings"].as_array().expect("findings").iter().filter(move |finding| finding["finding"] == kind)
}

/// Attached to a process that holds many blocks: totals are right from the first event, frees of older blocks are counted
/// apart, and neither they nor what the pool keeps is called a leak.
#[test]
fn attached_to_a_full_pool() {
    let held = 10_000;
    let arguments = ["--serve", "--hold", &held.to_string(), "--size", "4096", "--leaks", "0"];
    let mut target = Target::workload("pool", &arguments);
    let (running, _) = attach(&[&target], &["--json"]);
    running.wait_for_rows_of(",PTA,", 1000);
    target.stop();
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost_since_attach(&run);
    let (reported, written) = (reported(&target.folder.journal()), written(&run.rows()));
    // From the end backwards: rows are what the pool said, but for frees of blocks that are older than the trace.
    let (mut rows, mut older) = (written.iter().rev().peekable(), 0);
    for event in reported.iter().rev() {
        if rows.peek() == Some(&event) {
            rows.next();
        } else if event.0 == "FREE" {
            older += 1;
        } else {
            break;
        }
    }
    assert_eq!(rows.count(), 0, "rows that the pool said nothing of, or other totals");
    assert!(written.len() > 100 && older >= held, "{} rows, {older} frees of older blocks", written.len());
    let json = run.json();
    let of_pool: Vec<_> = findings(&json, "held").filter(|finding| finding["pool"] == "PTA").collect();
    let sum = |key: &str| of_pool.iter().map(|finding| finding[key].as_u64().expect("a count")).sum::<u64>();
    // The frees just before the first row may have come before the attach.
    assert!((held..=older).contains(&sum("older_frees")), "{older}: {json:#}");
    assert_eq!((sum("unknown_frees"), sum("blocks")), (0, 0), "{json:#}");
    let steps: Vec<_> = findings(&json, "step_leaks").collect();
    assert!(steps.iter().any(|found| found["steps_ended"].as_u64() > Some(3)), "{json:#}");
    for found in steps {
        assert_eq!(found["leaks"].as_array().expect("leaks").len(), 0, "{found:#}");
    }
}
