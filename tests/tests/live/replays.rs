//! A capture, replayed, gives what the live run gave.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memscope_tests::harness::rows::Rows;
use memscope_tests::harness::tracer::{Run, Tracer};

/// Content by the parts of the path that do not carry the time of writing: process and device.
fn contents(rows: &Rows) -> BTreeMap<(String, String), Vec<u8>> {
    let name = |path: &Path, up: usize| {
        let part = path.ancestors().nth(up).and_then(Path::file_name).expect("a folder");
        part.to_string_lossy().into_owned()
    };
    let process = |path: &PathBuf| name(path, 3).split('_').nth(1).expect("a process").to_owned();
    let read = |path: &PathBuf| std::fs::read(path).expect("readable dump");
    rows.files.iter().map(|path| ((process(path), name(path, 2)), read(path))).collect()
}

/// Same files with the same rows, same report.
fn assert_replay_is_the_same(live: &Run, options: &[&str]) {
    let replay = Tracer::replay(&live.folder.capture()).options(options).succeed();
    let (live_rows, replayed) = (live.rows(), replay.rows());
    assert_eq!(live_rows.files.len(), replayed.files.len(), "{options:?}");
    assert_eq!(live_rows.processes, replayed.processes, "{options:?}");
    if !options.contains(&"db") {
        let (live, replayed) = (contents(&live_rows), contents(&replayed));
        assert!(live == replayed, "files differ: {:?}", live.keys());
    }
    assert!(live.stdout.ends_with(&replay.stdout), "reports differ: {}\n{}", live.said(), replay.said());
}

/// Byte for byte in CSV, and row for row in databases, whatever happened.
#[test]
fn replay_repeats_the_run() {
    let runs: [(&str, &[&str]); 7] = [
        ("steps", &["--steps", "6", "--leaks", "2"]),
        ("share", &["--events", "40000"]),
        ("marks", &[]),
        ("launches", &["--rounds", "20"]),
        ("forktree", &["--leak"]),
        ("badfree", &["--rounds", "100"]),
        ("exits", &["--how", "kill9"]),
    ];
    for (workload, arguments) in runs {
        let options = ["--level=kernel", "--format", "csv"];
        let live = Tracer::run(workload, arguments).options(&options).finish();
        assert!(!live.rows().files.is_empty(), "{workload}: {}", live.said());
        assert_replay_is_the_same(&live, &options);
    }
    for (workload, arguments) in &runs[..2] {
        let options = ["--level=kernel", "--format", "db", "--json"];
        let live = Tracer::run(workload, arguments).options(&options).finish();
        assert_replay_is_the_same(&live, &options);
    }
}

/// A capture holds everything, so a replay may ask for more, or less, than the run did.
#[test]
fn replay_may_ask_for_other_rows() {
    let live = Tracer::run("launches", &[]).succeed();
    assert_eq!(live.rows().count("KERNEL_LAUNCH"), 0);
    let replay = Tracer::replay(&live.folder.capture()).option("--level=kernel").succeed();
    assert_eq!(replay.rows().count("KERNEL_LAUNCH"), 200);
    let replay = Tracer::replay(&live.folder.capture()).option("--events=free").succeed();
    assert_eq!((replay.rows().count("MALLOC"), replay.rows().count("FREE")), (0, live.rows().count("FREE")));
}
