//! Free pieces of pools that agree with the journal, live and from files.

use std::collections::BTreeMap;

use memscope_tests::harness::expect::truth;
use memscope_tests::harness::tracer::Tracer;
use serde_json::Value;

use super::peaks::offline;
use super::shared::{assert_nothing_lost, pool_blocks};

fn of_pool(document: &Value) -> Value {
    let is_meant = |found: &&Value| found["finding"] == "fragmentation" && found["pool"] == "PTA";
    let found = document["findings"].as_array().expect("findings").iter().find(is_meant);
    found.unwrap_or_else(|| panic!("no finding: {document:#}")).clone()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key}: {value:#}"))
}

/// What leaks at the end of a run lies where the journal says, and leaves free what the journal says; the same from the
/// capture, and from the dump.
#[test]
fn pieces_at_the_end() {
    let arguments = ["--rounds", "4", "--blocks", "8", "--leaks", "2", "--leak-size", "200000"];
    let run = Tracer::run("pool", &arguments).option("--analysis=fragmentation").option("--json").succeed();
    assert_nothing_lost(&run);
    let journal = run.journal();
    let (_, entries) = journal.by_process().pop_first().expect("a process");
    let blocks = pool_blocks(&entries);
    let mut segments: BTreeMap<u64, u64> = BTreeMap::new();
    for block in truth(&entries, false).held {
        if blocks.range(block.addr..block.addr + block.size).next().is_some() {
            segments.insert(block.addr, block.addr + block.size);
        }
    }
    assert!(blocks.len() == 8 && !segments.is_empty(), "{blocks:x?} {segments:x?}");
    let mut pieces: Vec<u64> = Vec::new();
    for (start, end) in &segments {
        let mut at = *start;
        for (addr, size) in blocks.range(start..end) {
            pieces.push(addr - at);
            at = addr + size;
        }
        pieces.push(end - at);
    }
    let total: u64 = segments.iter().map(|(start, end)| end - start).sum();
    let (free, largest) = (pieces.iter().sum::<u64>(), *pieces.iter().max().expect("pieces"));
    let dump = run.rows().files.first().expect("a dump").clone();
    let documents = [run.json(), offline("fragmentation", &run.folder.capture()), offline("fragmentation", &dump)];
    for found in documents.iter().map(of_pool) {
        let space = &found["end"]["space"];
        let figures = ["total_bytes", "free_bytes", "largest_free_bytes"].map(|key| number(space, key));
        assert_eq!(figures, [total, free, largest], "{:#}", found["end"]);
        assert_eq!(number(space, "used_bytes"), blocks.values().sum::<u64>());
        assert_eq!(["returnable_bytes", "scattered_bytes"].map(|key| number(space, key)), [0, free - largest]);
        let ratio = space["ratio"].as_f64().expect("a ratio");
        assert!((ratio - (free - largest) as f64 / free as f64).abs() < 1e-9, "{space:#}");
        assert_eq!(["unknown_bytes", "outside_bytes"].map(|key| number(&found["end"], key)), [0, 0]);
        assert_eq!(number(&found["end"], "segments"), segments.len() as u64);
        for segment in found["end"]["pinned"].as_array().expect("segments") {
            let start = number(segment, "addr");
            let inside: Vec<u64> = blocks.range(start..segments[&start]).map(|(addr, _)| *addr).collect();
            let reported = segment["blocks"].as_array().expect("blocks").iter().map(|pin| number(pin, "addr"));
            assert_eq!(reported.collect::<Vec<_>>(), inside, "{segment:#}");
        }
    }
}
