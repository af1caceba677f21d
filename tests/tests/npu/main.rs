//! Real `torch_npu`, traced, against its own statistics and history.
//!
//! A group of its own: `./x npu` prepares a version's wheels, and says where they are in `MEMSCOPE_TORCH_NPU`.

use memscope_tests::harness::document::npu;
use memscope_tests::harness::tracer::Run;
use memscope_tests::torch::bench::{Program, version};
use memscope_tests::torch::checks::{driver, lost, names, pools, sound};
use memscope_tests::torch::compare::Begin;
use memscope_tests::torch::table::Table;
use memscope_tests::torch::truth::Truth;

/// Everything that is written, launches too.
const EVERYTHING: [&str; 2] = ["--level=op,kernel", "--events=alloc,free,launch,block_free"];

/// What a program did and said.
struct Outcome {
    truth: Truth,
    launches: u64,
    stdout: String,
}

/// Traces a program from its start to its end, and compares everything.
fn compare(title: &str, program: &Program) -> Outcome {
    let (run, truth) = program.traced(&EVERYTHING);
    let (journal, rows) = (run.journal(), run.rows());
    let mut table = pools(&truth, &journal, &rows, Begin::Process);
    let totals = driver(&journal, &rows);
    table.add("calls of the driver, by its journal", format!("{} calls", totals.allocs + totals.frees), None);
    table.add("launches and their names, by the journal", format!("{} launches", totals.launches), None);
    failures(&mut table, &run, &truth);
    names(&mut table, &rows.processes[&truth.pid()]);
    lost(&mut table, &run, &[]);
    sound(&mut table, &rows);
    println!("{title}, torch_npu {}\n{table}", version_name());
    table.assert_equal();
    Outcome { truth, launches: totals.launches, stdout: run.stdout }
}

/// Requests that have failed up to each mark are the errors that were raised until then; each of them, and each that a further
/// attempt helped, was tried again once. The report says the same of all of them.
fn failures(table: &mut Table, run: &Run, truth: &Truth) {
    let found = requests::at_marks(&run.folder.capture(), truth.pid());
    let names = |marks: &mut dyn Iterator<Item = &String>| marks.cloned().collect::<Vec<_>>();
    assert_eq!(names(&mut found.iter().map(|(name, _)| name)), names(&mut truth.marks.iter().map(|mark| &mark.name)));
    let reported = reported_failures(run, truth.pid());
    let end = truth.marks.last().expect("a mark");
    for device in end.devices.keys() {
        let of = |requests: &requests::ByDevice| requests.get(device).copied().unwrap_or_default();
        let figures: [(_, _, Figure); 2] = [
            ("errors raised", "num_ooms", requests::Requests::failed),
            ("second attempts", "num_alloc_retries", |requests| requests.tried_again),
        ];
        for (what, key, figure) in figures {
            let pairs = truth.marks.iter().zip(&found);
            let wrong =
                pairs.map(|(mark, (_, by_device))| (&mark.name, mark.stat(*device, key), figure(of(by_device))));
            let wrong = wrong.into_iter().find(|(_, wanted, found)| wanted != found);
            let reported = figure(of(&reported));
            let difference = match wrong {
                Some((mark, wanted, found)) => Some(format!("at `{mark}`: torch_npu {wanted}, events {found}")),
                None if reported != end.stat(*device, key) => Some(format!("the report says {reported}")),
                None => None,
            };
            table.add(
                format!("out of memory: {what}, device {device}"),
                end.stat(*device, key).to_string(),
                difference,
            );
        }
    }
}

/// A figure of requests.
type Figure = fn(requests::Requests) -> u64;

/// What the report says of failed requests.
fn reported_failures(run: &Run, pid: u32) -> requests::ByDevice {
    let json = run.json();
    let mut reported = requests::ByDevice::new();
    for found in json["findings"].as_array().expect("findings") {
        let device = npu(found).filter(|_| found["finding"] == "held" && found["pid"] == pid);
        let Some(device) = device else { continue };
        let count = |key: &str| found[key].as_u64().unwrap_or(0);
        let requests = reported.entry(device as u32).or_default();
        requests.recovered += count("recovered");
        requests.tried_again += count("failed") + count("recovered");
    }
    reported
}

fn version_name() -> String {
    version().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

mod attach;
mod changes;
mod forecast;
mod found;
mod holders;
mod kinds;
mod operators;
mod pieces;
mod pool_stacks;
mod programs;
mod requests;
mod scripts;
mod snapshots;
mod stacks;
mod tasks;
mod verdicts;
mod waits;
