//! Memory that waits for streams, against the allocator's own sums: what it counts as active and not as allocated.

use std::path::Path;

use memscope::capture::Reader;
use memscope::decode::{Body, Records};
use memscope_tests::torch::bench::Program;
use serde_json::Value;

/// Where the allocator's sums are in a report: allocated, reserved, active.
const SUMS_AT: [usize; 3] = [3, 4, 5];

/// What the records of a capture say.
#[derive(Default)]
struct Recorded {
    /// The most bytes that waited at once.
    most_bytes: u64,
    /// Those when the pool was largest for the first time.
    at_peak_bytes: u64,
    /// Calls of `recordStream`.
    calls: u64,
}

fn recorded(capture: &Path) -> Recorded {
    let mut reader = Reader::open(capture).expect("a capture");
    let rows = &reader.header().rows;
    let row_of = |symbol: &str| rows.iter().position(|row| row.symbol == symbol).expect(symbol) + 1;
    let (report, record_stream) =
        (row_of("reportMemoryDataToNpuProfiler"), row_of("NpuCachingAllocator::recordStream"));
    let (mut found, mut reserved_peak) = (Recorded::default(), 0);
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next_chunk().expect("readable") {
        bytes.extend_from_slice(chunk);
    }
    for record in Records::new(&bytes).map(|record| record.expect("a valid record")) {
        let Body::Call(call) = record.body else { continue };
        found.calls += u64::from(usize::from(record.row) == record_stream);
        if usize::from(record.row) != report {
            continue;
        }
        let [allocated, reserved, active] = SUMS_AT.map(|at| call.values.get(at).expect("a sum"));
        let waiting = active - allocated;
        found.most_bytes = found.most_bytes.max(waiting);
        if reserved > reserved_peak {
            (reserved_peak, found.at_peak_bytes) = (reserved, waiting);
        }
    }
    found
}

/// Lines of the script that have another stream use a block, as frames begin.
fn calling_lines() -> Vec<String> {
    let script = include_str!("../../torch-npu/workloads/streams.py");
    let calls = (1..).zip(script.lines()).filter(|(_, line)| line.contains(".record_stream("));
    calls.map(|(number, _)| format!("streams.py({number}): ")).collect()
}

#[test]
fn what_waits_is_what_the_allocator_counts() {
    // By hand, in a step: one call; one for each of 16 tensors that are gathered, and of 4 gradients, since every other of the last 8 turns takes
    // an activation instead; two for each of 6 activations; two.
    for (kind, calls) in [("prefetch", 60), ("gather", 60 * 20), ("offload", 60 * 12), ("serve", 60 * 2)] {
        let program = Program::new(&format!("streams.py {kind} 60 4")).env("ASCEND_SIM_WORK_US", "150");
        let run = program.traced_with(&["--analysis=waits", "--call-stack=python", "--json"]).0;
        let document = run.json();
        let findings = document["findings"].as_array().expect("findings").iter();
        let found: Vec<&Value> = findings.filter(|found| found["finding"] == "waits").collect();
        let [found] = found[..] else { panic!("{kind}: {document:#}") };
        let Recorded { most_bytes, at_peak_bytes, calls: seen } = recorded(&run.folder.capture());
        println!("{kind}: {most_bytes} bytes at most, {at_peak_bytes} at the peak; {} blocks", found["blocks"]);
        assert!(most_bytes > 0);
        let said = (found["most_bytes"].as_u64(), found["pool_peak_bytes"].as_u64());
        assert_eq!((said, seen), ((Some(most_bytes), Some(at_peak_bytes)), calls), "{kind}: {found:#}");
        // Each of them is of a line of the script, and waits because of a line.
        let (places, lines) = (found["places"].as_array().expect("places"), calling_lines());
        for place in places {
            assert!(place["stacks"].to_string().contains("streams.py"), "{kind}: {place:#}");
            let because = place["record_stream"]["python"]["frames"][0].as_str().unwrap_or_default();
            assert!(lines.iter().any(|line| because.contains(line)), "{kind}: {place:#}");
        }
    }
}
