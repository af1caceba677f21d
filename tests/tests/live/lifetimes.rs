//! Lifetimes that count the journal's blocks, live and from files.

use std::collections::BTreeMap;

use memscope_tests::harness::expect::truth;
use memscope_tests::harness::tracer::Tracer;
use serde_json::Value;

use super::peaks::offline;
use super::shared::{DEFAULT, compare};
use super::sums::judged;

/// Blocks, those freed, and those live at the end, by the least size of their class.
type Counts = BTreeMap<u64, (u64, u64, u64)>;

/// Counts of the driver's blocks in the finding.
fn counts(document: &Value) -> Counts {
    let is_meant = |found: &&Value| found["finding"] == "lifetimes" && found["pool"] == "HAL";
    let found = document["findings"].as_array().expect("findings").iter().find(is_meant);
    let found = found.unwrap_or_else(|| panic!("no lifetimes of driver blocks: {document:#}"));
    let number = |value: &Value| value.as_u64().expect("a number");
    let count = |size: &Value| {
        let freed = size["freed"].as_array().expect("bars").iter().map(number).sum();
        (number(&size["least_bytes"]), (number(&size["blocks"]), freed, number(&size["live_blocks"])))
    };
    assert_eq!(found["all"]["unseen_ends"], 0);
    found["sizes"].as_array().expect("sizes").iter().map(count).collect()
}

/// Each block of the journal is in one bar of its size class, or live; the same from the capture and from the dump.
#[test]
fn driver_blocks_by_size() {
    let (run, _) = compare(Tracer::run("steps", &[]).option("--analysis=lifetimes").option("--json"), DEFAULT);
    let journal = run.journal();
    let (_, entries) = journal.by_process().pop_first().expect("a process");
    let mut truths = Counts::new();
    // What the exit frees was live until then.
    for call in truth(&judged(&entries, &run.json()), false).calls {
        let (blocks, freed, live) = truths.entry(1 << call.block.size.ilog2()).or_default();
        if call.is_alloc {
            (*blocks, *live) = (*blocks + 1, *live + 1);
        } else {
            (*freed, *live) = (*freed + 1, *live - 1);
        }
    }
    let dump = run.rows().files.first().expect("a dump").clone();
    for document in [run.json(), offline("lifetimes", &run.folder.capture()), offline("lifetimes", &dump)] {
        assert_eq!(counts(&document), truths);
    }
}
