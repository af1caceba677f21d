//! `export -f snapshot` against the allocator's own history: the same operations, addresses and sizes in the same order.

use std::path::Path;
use std::process::Command;

use memscope_tests::harness::tracer::tracer_path;
use memscope_tests::torch::bench::Program;
use memscope_tests::torch::truth::{Action, Operation};

/// Prints the trace of each device, as the truth has it.
const READ: &str = "
import json, pickle, sys
keys = ('action', 'addr', 'size')
traces = pickle.load(open(sys.argv[1], 'rb'))['device_traces']
print(json.dumps([[{key: entry[key] for key in keys if key in entry} for entry in trace] for trace in traces]))
";

fn exported(capture: &Path, pid: u32) -> Vec<Vec<Operation>> {
    let file = capture.with_extension("pickle");
    let mut export = Command::new(tracer_path());
    export.arg("export").arg(capture).args(["-f", "snapshot", "--at", "end", "--filter"]).arg(format!("pid={pid}"));
    let made = export.arg("-o").arg(&file).output().expect("the program");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let read = Command::new("python3").args(["-c", READ]).arg(&file).output().expect("an interpreter");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    serde_json::from_slice(&read.stdout).expect("traces")
}

/// The allocator's history begins later, and ends later: the export ends with its last allocation.
fn compare(program: &Program) {
    let (run, truth) = program.traced(&[]);
    let traces = exported(&run.folder.capture(), truth.pid());
    let mut compared = 0;
    for (device, history) in truth.history.iter().enumerate() {
        let Some(last) = history.iter().rposition(|operation| operation.action == Action::Alloc) else { continue };
        let (wanted, found) = (&history[..=last], &traces[device]);
        let found = &found[found.len().saturating_sub(wanted.len())..];
        if let Some(at) = wanted.iter().zip(found).position(|(wanted, found)| wanted != found) {
            let around = |of: &[Operation]| of[at.saturating_sub(3)..(at + 3).min(of.len())].to_vec();
            panic!("device {device}, operation {at}: torch_npu {:#?}, export {:#?}", around(wanted), around(found));
        }
        assert_eq!(found.len(), wanted.len(), "operations of device {device}");
        compared += found.len();
    }
    println!("{compared} operations are equal");
    assert!(compared > 200, "only {compared} operations");
}

#[test]
fn a_snapshot_is_torch_npus_own() {
    compare(&Program::new("train.py adamw 10 128").env("TASK_QUEUE_ENABLE", "1"));
}
