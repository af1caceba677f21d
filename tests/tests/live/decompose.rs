//! Owners of driver memory, against the journal.

use memscope_tests::harness::expect::truth;
use memscope_tests::harness::tracer::Tracer;
use serde_json::Value;

use super::shared::{assert_nothing_lost, pool_blocks};
use super::sums::judged;

/// Bytes of a component at the end, in the tree of owners.
fn end_bytes(found: &Value, component: &str) -> u64 {
    let parts = found["parts"].as_array().unwrap_or_else(|| panic!("no parts: {found:#}")).iter();
    parts.filter(|part| part["component"] == component).filter_map(|part| part["end_bytes"].as_u64()).sum()
}

/// What `torch_npu`'s library itself asks the driver for is a pool's, by the stack; the rest is not.
#[test]
fn segments_of_pools() {
    let arguments = ["--rounds", "3", "--leaks", "2", "--leak-size", "3000000", "--workspaces", "0"];
    let options = ["--analysis=decompose", "--call-stack=c", "--json"];
    let run = Tracer::run("pool", &arguments).options(&options).succeed();
    assert_nothing_lost(&run);
    let journal = run.journal();
    let (_, entries) = journal.by_process().pop_first().expect("a process");
    let document = run.json();
    // At the end: when the exit began.
    let entries = judged(&entries, &document);
    let blocks = pool_blocks(&entries);
    let held = truth(&entries, false).held;
    let (segments, others): (Vec<_>, Vec<_>) =
        held.iter().partition(|block| blocks.range(block.addr..block.addr + block.size).next().is_some());
    assert!(!segments.is_empty() && !others.is_empty(), "{held:x?}");
    let findings = document["findings"].as_array().expect("findings");
    let found = findings.iter().find(|found| found["finding"] == "decompose" && found["pool"] == "HAL").expect("HAL");
    let sum = segments.iter().map(|block| block.size).sum::<u64>();
    assert_eq!(end_bytes(found, "pool_segment"), sum, "{found:#}");
}
