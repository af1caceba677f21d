//! Programs that are half-way through when the tracer is attached.

use std::collections::BTreeMap;

use memscope_tests::harness::journal::{Call, Entry, Journal, outermost_launches};
use memscope_tests::harness::rows::Row;
use memscope_tests::harness::tracer::Tracer;
use memscope_tests::torch::bench::{Program, go_on};
use memscope_tests::torch::checks::{lost, pools, sound};
use memscope_tests::torch::compare::{Begin, difference};
use memscope_tests::torch::table::Table;
use memscope_tests::torch::truth::Truth;

use super::{EVERYTHING, version_name};

/// The probes are placed, also those of the library that is found by its code.
const ATTACHED: [&str; 2] = ["libascend_hal.so: ", "libtorch_npu.so: "];
/// The mark at which the programs go on.
const BEGIN: &str = "attached";
/// A call that a thread was inside of when the tracer was attached.
const OLDER: &str = "entered before attach";

fn attach(title: &str, program: &Program) {
    let (mut target, folder) = program.waiting();
    // What was before is another matter (`found`).
    let options = ["--verbose", "--json", "--no-pool-at-attach"];
    let running = Tracer::attach(&[&target]).options(&options).options(&EVERYTHING).start();
    for library in ATTACHED {
        running.wait_for_message(library, 1);
    }
    go_on(&folder);
    let status = target.wait();
    assert!(status.success(), "the program ended with {status}");
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    let (truth, rows) = (Truth::read(&folder), run.rows());
    let mut table = pools(&truth, &target.folder.journal(), &rows, Begin::Mark(BEGIN.to_owned()));
    launches(&mut table, &target.folder.journal(), &rows.processes[&truth.pid()]);
    lost(&mut table, &run, &[OLDER]);
    sound(&mut table, &rows);
    println!("{title}, torch_npu {}\n{table}", version_name());
    table.assert_equal();
}

/// Each launch since then has its row. A kernel has a name if it was registered since then, else its handle is shown.
fn launches(table: &mut Table, journal: &Journal, rows: &[Row]) {
    let entries: Vec<&Entry> = journal.entries.iter().collect();
    let mark = format!("truth {BEGIN}");
    let begins = |entry: &&Entry| matches!(entry.call(), Call::Mark(Some((text, _))) if text == mark.as_bytes());
    let begin_ns = entries.iter().copied().find(begins).expect("the mark of the beginning").time_ns;
    let named: BTreeMap<u64, (String, bool)> = entries
        .iter()
        .filter_map(|entry| match entry.call() {
            Call::KernelName { handle, name } => {
                Some((handle, (String::from_utf8_lossy(name).into_owned(), entry.time_ns >= begin_ns)))
            }
            _ => None,
        })
        .collect();
    let wanted: Vec<String> = outermost_launches(&entries)
        .into_iter()
        .filter(|entry| entry.time_ns >= begin_ns)
        .filter_map(|entry| match entry.call() {
            Call::Launch { handle, .. } => Some(match &named[&handle] {
                (name, true) => name.clone(),
                (_, false) => format!("{handle:#x}"),
            }),
            _ => None,
        })
        .collect();
    let found: Vec<String> = rows
        .iter()
        .filter(|row| row.event == "KERNEL_LAUNCH")
        .map(|row| row.name.clone().unwrap_or_default())
        .collect();
    let with_name = wanted.iter().filter(|name| !name.starts_with("0x")).count();
    let what = "launches, by name or older handle, by the journal";
    table.add(what, format!("{} launches, {with_name} with a name", wanted.len()), difference(&wanted, &found));
}

#[test]
fn train_attached() {
    attach("training, attached half-way", &Program::new("train.py adamw 10 128 npu 5"));
}

#[test]
fn churn_attached() {
    attach("churn, attached half-way", &Program::new("churn.py 2000 1000"));
}

#[test]
fn churn_attached_expandable() {
    let program = Program::new("churn.py 2000 1000").env("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True");
    attach("churn, expandable segments, attached half-way", &program);
}
