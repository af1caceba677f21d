//! Exports, as the packages of their viewers read them. Needs `MEMSCOPE_BIN`, and `MEMSCOPE_TABLES_PYTHON`, an interpreter
//! that has these packages: `./x test` fetches them.

#[path = "browser/run.rs"]
mod run;

use std::path::Path;
use std::process::Command;

use memscope_tests::harness::tracer::tracer_path;
use serde_json::{Value, json};

/// 24 weights of 1 MiB, the activation of 4 MiB, five kept blocks of 256 KiB.
const AT_PEAK: u64 = (24 << 20) + (4 << 20) + 5 * (256 << 10);
/// The weights and six kept blocks.
const AT_END: u64 = (24 << 20) + 6 * (256 << 10);

/// Perfetto's own schema reads the trace of the made-up run: no field is foreign to it, and the rules of its reference
/// hold (`tests/loaders/trace.py`). Its trace processor is a program from elsewhere, and is not run.
#[test]
fn perfetto_reads_its_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    let (dump, trace) = (folder.path().join("memscope_dump_1.csv"), folder.path().join("trace"));
    std::fs::write(&dump, run::dump(false)).expect("a dump");
    let mut export = Command::new(tracer_path());
    let made = export.arg("export").arg(&dump).args(["--format", "perfetto", "-o"]).arg(&trace).output();
    let made = made.expect("the program");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let found = read(&trace);
    let of = |kind: &str, track: &str| {
        let all = found[kind].as_object().expect("tracks");
        let (_, value) =
            all.iter().find(|(path, _)| path.ends_with(track)).unwrap_or_else(|| panic!("{track}: {found:#}"));
        value.clone()
    };
    // Highest and last.
    assert_eq!(of("counters", "/PTA/in use"), json!([AT_PEAK, AT_END]));
    assert_eq!(of("counters", "/HAL/in use"), json!([64 << 20, 64 << 20]));
    assert_eq!((of("slices", "/steps"), of("instants", "/marks")), (6.into(), 6.into()));
    let sum = |track: &str| -> u64 {
        let all = found["slices"].as_object().expect("tracks").iter();
        all.filter(|(path, _)| path.contains(track)).filter_map(|(_, count)| count.as_u64()).sum()
    };
    // 24 weights and six activations; four segments.
    assert_eq!((sum("/PTA/blocks from 1 MiB"), sum("/HAL/blocks from 1 MiB")), (30, 4), "{found:#}");
    // A slice of each block begins with its stack.
    assert_eq!(found["stacks"], 34, "{found:#}");
}

fn read(trace: &Path) -> Value {
    let python = std::env::var_os("MEMSCOPE_TABLES_PYTHON");
    let python = python.expect("MEMSCOPE_TABLES_PYTHON names no interpreter: run these tests with `./x test`");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("loaders/trace.py");
    let read = Command::new(python).arg("-B").arg(script).arg(trace).output().expect("an interpreter that starts");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    serde_json::from_slice(&read.stdout).expect("JSON")
}
