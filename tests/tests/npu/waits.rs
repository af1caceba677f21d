//! Memory that waits for streams, against the allocator's own sums: what it counts as active and not as allocated.

use std::path::Path;

use memscope::capture::Reader;
use memscope::decode::{Body, Records};
use memscope_tests::torch::bench::Program;
use serde_json::Value;

/// Where the allocator's sums are in a report: allocated, reserved, active.
const SUMS_AT: [usize; 3] = [3, 4, 5];

/// The most bytes that waited at once, and those when the pool was largest for the first time.
fn by_the_allocator(capture: &Path) -> (u64, u64) {
    let mut reader = Reader::open(capture).expect("a capture");
    let rows = &reader.header().rows;
    let row = rows.iter().position(|row| row.symbol == "reportMemoryDataToNpuProfiler").expect("the row") + 1;
    let (mut most, mut reserved_peak, mut at_peak) = (0, 0, 0);
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next_chunk().expect("readable") {
        bytes.extend_from_slice(chunk);
    }
    for record in Records::new(&bytes).map(|record| record.expect("a valid record")) {
        let Body::Call(call) = record.body else { continue };
        if usize::from(record.row) != row {
            continue;
        }
        let [allocated, reserved, active] = SUMS_AT.map(|at| call.values.get(at).expect("a sum"));
        let waiting = active - allocated;
        most = most.max(waiting);
        if reserved > reserved_peak {
            (reserved_peak, at_peak) = (reserved, waiting);
        }
    }
    (most, at_peak)
}

#[test]
fn what_waits_is_what_the_allocator_counts() {
    for kind in ["prefetch", "gather", "offload", "serve"] {
        let program = Program::new(&format!("streams.py {kind} 60 4")).env("ASCEND_SIM_WORK_US", "150");
        let run = program.traced_with(&["--analysis=waits", "--call-stack=python", "--json"]).0;
        let document = run.json();
        let findings = document["findings"].as_array().expect("findings").iter();
        let found: Vec<&Value> = findings.filter(|found| found["finding"] == "waits").collect();
        let [found] = found[..] else { panic!("{kind}: {document:#}") };
        let (most, at_peak) = by_the_allocator(&run.folder.capture());
        println!("{kind}: {most} bytes at most, {at_peak} at the peak; {} blocks", found["blocks"]);
        assert!(most > 0);
        let said = (found["most_bytes"].as_u64(), found["pool_peak_bytes"].as_u64());
        assert_eq!(said, (Some(most), Some(at_peak)), "{kind}: {found:#}");
        // Each of them is of a line of the script.
        let places = found["places"].as_array().expect("places");
        assert!(places.iter().all(|place| place["stacks"].to_string().contains("streams.py")), "{kind}: {places:#?}");
    }
}
