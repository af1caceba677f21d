//! Exports, as the packages of their viewers read them. Needs `MEMSCOPE_BIN`, and `MEMSCOPE_TABLES_PYTHON`, an interpreter
//! that has these packages: `./x test` fetches them.

#[path = "loaders/fleet.rs"]
mod fleet;
#[path = "loaders/live_agent.rs"]
mod live_agent;
#[path = "loaders/object_store.rs"]
mod object_store;
#[path = "browser/run.rs"]
mod run;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::harness::tracer::tracer_path;
use serde_json::{Value, json};
use tempfile::TempDir;

/// 24 weights of 1 MiB, the activation of 4 MiB, five kept blocks of 256 KiB.
const AT_PEAK: u64 = (24 << 20) + (4 << 20) + 5 * (256 << 10);
/// The weights and six kept blocks.
const AT_END: u64 = (24 << 20) + 6 * (256 << 10);

/// Perfetto's own schema reads the trace of the made-up run: no field is foreign to it, and the rules of its reference
/// hold (`tests/loaders/trace.py`). Its trace processor is a program from elsewhere, and is not run.
#[test]
fn perfetto_reads_its_trace() {
    let (_folder, trace) = exported("perfetto");
    let found = by_script("trace.py", &[&trace]);
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

/// Tables of the made-up run as `pyarrow`, Polars and `DuckDB` read them (`tests/loaders/tables.py`); the queries are those of docs/parquet.md.
#[test]
fn tables_are_read() {
    let (_folder, tables) = exported("parquet");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/parquet.md");
    let found = by_script("tables.py", &[&tables, &page]);
    assert_eq!(found["kinds"], json!({ "alloc": 40, "free": 6, "step_start": 6, "step_end": 6 }));
    // Four segments, 24 weights, six activations, six kept blocks; three places and the segments'.
    let rows = &found["rows"];
    assert_eq!((&rows["events"], &rows["blocks"], &rows["stacks_python"]), (&58.into(), &40.into(), &4.into()));
    assert_eq!((&found["peak"], &found["sorted"]), (&AT_PEAK.into(), &0.into()));
    assert_eq!(found["notes"]["memscope.lost"], "0");
    let types = &found["types"];
    assert_eq!((&types["alloc_time"], &types["free_time"]), (&"timestamp[ns, tz=UTC]".into(), &types["alloc_time"]));
    assert_eq!(
        (&types["size_bytes"], &types["device_id"], &types["owner"]),
        (&"uint64".into(), &"int32".into(), &"string".into())
    );
    assert!(found["frames"].as_str().is_some_and(|frames| frames.starts_with("list<")), "{found:#}");
    let [owners, left, peaks, churn] = &found["answers"].as_array().expect("answers")[..] else { panic!("{found:#}") };
    let sum = |rows: &Value, column: usize| -> u64 {
        rows.as_array().expect("rows").iter().filter_map(|row| row[column].as_u64()).sum()
    };
    // At the peak, in the last step: 24 weights, the activation, five kept blocks.
    assert_eq!((sum(owners, 1), sum(owners, 2)), (30, AT_PEAK));
    assert_eq!(*left, json!([["/srv/model.py(7): Metrics.update", 6, 6, 6 << 18]]));
    let peak = |step: u64| (24 << 20) + (4 << 20) + (step - 1) * (1 << 18);
    assert_eq!(*peaks, json!((1..=6).map(|step| json!([step, peak(step)])).collect::<Vec<_>>()));
    // An activation is freed by the next row, a millisecond later.
    assert_eq!(*churn, json!([["/srv/model.py(7): Block.forward", 6, 1.0]]));
}

/// The made-up run in a format; the folder that it is in, and its path.
fn exported(format: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let (dump, export) = (folder.path().join("memscope_dump_1.csv"), folder.path().join(format));
    std::fs::write(&dump, run::dump(false)).expect("a dump");
    let mut command = Command::new(tracer_path());
    let made = command.arg("export").arg(&dump).args(["--format", format, "-o"]).arg(&export).output();
    let made = made.expect("the program");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (folder, export)
}

/// What a script of `tests/loaders` prints.
fn python() -> OsString {
    let python = std::env::var_os("MEMSCOPE_TABLES_PYTHON");
    python.expect("MEMSCOPE_TABLES_PYTHON names no interpreter: run these tests with `./x test`")
}

/// Queries over the evidence of a fleet, in `DuckDB`, on scenarios with rows that were worked out by hand (`fleet/tests`). `./x fleet` has Spark
/// besides.
#[test]
fn queries_of_a_fleet() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fleet/tests");
    let mut all = Command::new(python());
    all.args(["-B", "-m", "unittest"]).current_dir(tests).env("MEMSCOPE_FLEET_ENGINES", "DuckDB");
    let output = all.output().expect("an interpreter that starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<u32>().ok());
    assert!(output.status.success() && count > Some(40), "{said}");
}

/// The agent's manifests are what Kubernetes 1.25 and 1.37 know, to the last field (`tests/loaders/manifests.py`); a misspelled one is refused.
#[test]
fn manifests_fit_their_schemas() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/agent/kubernetes");
    let found = by_script("manifests.py", &[&folder]);
    let kinds = ["ConfigMap", "DaemonSet", "Namespace", "NetworkPolicy"];
    let expected = [
        ["ConfigMap", "memscope-agent"],
        ["DaemonSet", "memscope-agent"],
        ["Namespace", "memscope"],
        ["NetworkPolicy", "memscope-agent"],
    ];
    assert_eq!((&found["found"], &found["refused"]), (&json!(expected), &json!(kinds)));
}

/// The interpreter with a script.
fn python_with(script: &str) -> Command {
    let mut command = Command::new(python());
    command.arg("-B").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("loaders").join(script));
    command
}

fn by_script(script: &str, arguments: &[&Path]) -> Value {
    let read = python_with(script).args(arguments).output().expect("an interpreter that starts");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    serde_json::from_slice(&read.stdout).expect("JSON")
}
