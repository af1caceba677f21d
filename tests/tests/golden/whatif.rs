//! `whatif` on a recording of real `torch_npu` 2.9.0: 47 of its blocks were used by other streams.

use std::process::Command;

use memscope_tests::harness::document::document;
use memscope_tests::harness::tracer::tracer_path;

use super::shared;

/// The self-check compares each block's place and size, and what the pool holds, with the recording: all of it agrees, under the
/// settings that were in force. Real figures: device 0 reserved at most 134 MiB, device 1 44 MiB.
#[test]
fn a_recording_reproduces_itself() {
    let capture = shared("prototypes/whatif/cases/churn.capture");
    let output =
        Command::new(tracer_path()).args(["whatif", "--quick", "--json"]).arg(capture).output().expect("started");
    let found = document(&output.stdout);
    let process = &found["processes"][0];
    let check = &process["check"];
    assert_eq!((check["agreeing"].as_u64(), check["events"].as_u64()), (Some(1832), Some(1832)), "{check:#}");
    assert_eq!((check["settings"].as_str(), check["places"].as_bool()), (Some(""), Some(true)));
    let peak = |device: usize| process["recorded"]["devices"][device]["reserved_peak_bytes"]["most"].as_u64();
    assert_eq!([peak(0), peak(1)], [134, 44].map(|mib: u64| Some(mib << 20)));
}
