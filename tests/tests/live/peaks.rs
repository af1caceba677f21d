//! Peaks that agree with the journal, live and from files.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use memscope_tests::harness::document::document;
use memscope_tests::harness::expect::{Block, truth};
use memscope_tests::harness::tracer::{Tracer, tracer_path};
use serde_json::Value;

use super::shared::{DEFAULT, assert_nothing_lost, compare};

/// The peak of a pool among the findings.
fn peak(document: &Value, pool: &str) -> Value {
    let is_meant = |found: &&Value| found["finding"] == "peak" && found["pool"] == pool;
    let found = document["findings"].as_array().expect("findings").iter().find(is_meant);
    found.unwrap_or_else(|| panic!("no peak of {pool}: {document:#}")).clone()
}

/// What a command says of a file.
pub(crate) fn offline(command: &str, file: &Path) -> Value {
    let output = Command::new(tracer_path()).arg(command).arg(file).arg("--json").output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    document(&output.stdout)
}

/// Blocks and bytes by the least size of their class, in the list of sums of a finding.
fn by_size(found: &Value) -> BTreeMap<u64, (u64, u64)> {
    let number = |sum: &Value, key: &str| sum[key].as_u64().expect("a number");
    let sums = found["groups"]["sizes"].as_array().expect("sizes").iter();
    sums.map(|sum| (number(sum, "least_bytes"), (number(sum, "blocks"), number(sum, "size_bytes")))).collect()
}

/// The driver's blocks at the peak are those that the journal has live then; the same from the capture and from the dump.
#[test]
fn driver_blocks_at_the_peak() {
    let (run, _) = compare(Tracer::run("steps", &[]).option("--analysis=peaks").option("--json"), DEFAULT);
    let journal = run.journal();
    let (_, entries) = journal.by_process().pop_first().expect("a process");
    let (mut live, mut best): (Vec<Block>, Vec<Block>) = Default::default();
    let sum = |blocks: &[Block]| blocks.iter().map(|block| block.size).sum::<u64>();
    for call in truth(&entries, false).calls {
        if call.is_alloc {
            live.push(call.block);
        } else {
            live.retain(|block| *block != call.block);
        }
        if sum(&live) > sum(&best) {
            best.clone_from(&live);
        }
    }
    let mut sizes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for block in &best {
        let (blocks, bytes) = sizes.entry(1 << block.size.ilog2()).or_default();
        *blocks += 1;
        *bytes += block.size;
    }
    let dump = run.rows().files.first().expect("a dump").clone();
    let documents = [run.json(), offline("peaks", &run.folder.capture()), offline("peaks", &dump)];
    for found in documents.iter().map(|document| peak(document, "HAL")) {
        assert_eq!((&found["peak_bytes"], &found["unseen_bytes"]), (&sum(&best).into(), &0.into()), "{found:#}");
        assert_eq!(found["seen"]["blocks"], best.len() as u64);
        assert_eq!(by_size(&found), sizes);
        let owners = found["groups"]["owners"].as_array().expect("owners").iter();
        assert_eq!(owners.filter_map(|owner| owner["size_bytes"].as_u64()).sum::<u64>(), sum(&best));
    }
}

/// A pool's peak is the most that it says it has handed out.
#[test]
fn pool_at_the_peak() {
    let run = Tracer::run("pool", &["--rounds", "5"]).option("--analysis=peaks").option("--json").succeed();
    assert_nothing_lost(&run);
    let reports = run.journal();
    let reports = reports.by_process().pop_first().expect("a process").1;
    let reports = reports.iter().filter_map(|entry| entry.pta_report()).filter(|report| report.component == 0);
    let most = reports.map(|report| report.allocated).max().expect("reports");
    let found = peak(&run.json(), "PTA");
    assert_eq!((&found["peak_bytes"], &found["seen"]["size_bytes"]), (&most.into(), &most.into()), "{found:#}");
}
