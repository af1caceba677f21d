//! A capture, replayed, gives what the live run gave.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memscope_tests::harness::pythons::interpreters;
use memscope_tests::harness::rows::{Rows, dump_files};
use memscope_tests::harness::tracer::{Run, Tracer, python_package};

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

/// Rows that refer to stacks are smaller and lead to the same findings, live and of a replay, in CSV and in databases.
#[test]
fn stacks_in_a_table() {
    let live = Tracer::run("steps", &["--steps", "20", "--leaks", "2"]).options(&["--call-stack=c", "--stacks=table"]);
    let live = live.succeed();
    let tracer = memscope_tests::harness::tracer::tracer_path();
    let answers = |folder: &Path| {
        // The folder of the process: that above it stands for the capture.
        let dump = dump_files(folder).remove(0);
        let folder = dump.ancestors().nth(3).and_then(Path::to_str).expect("text");
        let commands = [
            vec!["export", folder, "--what=allocated"],
            vec!["export", folder, "--weight=count"],
            vec!["leaks", folder, "--json"],
            // A run of any length has this moment.
            vec!["diff", folder, "--from=0.001ms", "--json"],
            vec!["peaks", folder, "--json"],
        ];
        commands.map(|command| {
            let answer = std::process::Command::new(&tracer).args(&command).output().expect("runs");
            assert!(answer.status.success(), "{command:?}: {}", String::from_utf8_lossy(&answer.stderr));
            assert!(!String::from_utf8_lossy(&answer.stderr).contains("in no table"), "{command:?}");
            String::from_utf8(answer.stdout).expect("text").replace(folder, "")
        })
    };
    let expected = answers(&live.folder.output_path());
    assert!(expected[0].lines().all(|line| line.contains(';')) && expected[0].contains("main"), "{}", expected[0]);
    for format in ["csv", "db"] {
        for stacks in ["inline", "table"] {
            let options = ["--format", format, "--stacks", stacks];
            let replay = Tracer::replay(&live.folder.capture()).options(&options).succeed();
            assert_eq!(answers(&replay.folder.output_path()), expected, "{options:?}");
            if (format, stacks) == ("csv", "table") {
                assert!(contents(&live.rows()) == contents(&replay.rows()), "rows of the replay are those of the run");
            }
        }
    }
    for path in live.rows().files {
        let text = std::fs::read_to_string(&path).expect("readable");
        assert!(!text.contains("main") && text.contains(",#1\n"), "{}", path.display());
    }
}

/// Nothing but the capture is written; rows and report of its replay are those of a run that makes them at once.
#[test]
fn capture_alone_is_enough() {
    let live = Tracer::run("steps", &["--steps", "6", "--leaks", "2"]).option("--capture-only").succeed();
    assert!(live.rows().files.is_empty(), "{:?}", live.rows().files);
    assert!(live.stdout.ends_with("lost: 0 (ring full), 0 (any other reason)\n"), "{}", live.said());
    assert!(!live.stdout.contains("Leaks of steps") && !live.stdout.contains("held at the end"), "{}", live.said());
    let (replay, at_once) = (
        Tracer::replay(&live.folder.capture()).succeed(),
        Tracer::run("steps", &["--steps", "6", "--leaks", "2"]).succeed(),
    );
    assert!(replay.rows().count("MALLOC") > 0);
    let counts = |run: &Run| ["MALLOC", "FREE", "MSTX"].map(|event| run.rows().count(event));
    assert_eq!(counts(&replay), counts(&at_once));
    let leaks = |run: &Run| run.stdout.lines().filter(|line| line.starts_with("Leaks of steps ")).count();
    assert_eq!(leaks(&replay), leaks(&at_once));
    assert_eq!(leaks(&replay), 1, "{}", replay.said());
}

/// A capture holds all that was probed, so a replay may ask for more, or less, than the run wrote.
#[test]
fn replay_may_ask_for_other_rows() {
    let live = Tracer::run("launches", &[]).options(&["--level=kernel", "--events=alloc,free"]).succeed();
    assert_eq!(live.rows().count("KERNEL_LAUNCH"), 0);
    let replay = Tracer::replay(&live.folder.capture()).option("--level=kernel").succeed();
    assert_eq!(replay.rows().count("KERNEL_LAUNCH"), 200);
    let replay = Tracer::replay(&live.folder.capture()).option("--events=free").succeed();
    assert_eq!((replay.rows().count("MALLOC"), replay.rows().count("FREE")), (0, live.rows().count("FREE")));
}

/// Launches cost the program nothing if they are not requested: they are not probed, and a replay that wants them
/// reports that.
#[test]
fn launches_that_nobody_wants_are_not_probed() {
    const SAID: &str = "the capture holds no kernel launches";
    let live = Tracer::run("launches", &["--rounds", "20"]).succeed();
    assert!(live.counted("acl") > 0 && live.counted("rt") > 0);
    let replay = Tracer::replay(&live.folder.capture()).option("--level=kernel").succeed();
    assert_eq!(replay.rows().count("KERNEL_LAUNCH"), 0);
    assert!(replay.stderr.contains(SAID), "{}", replay.said());
    let same = Tracer::replay(&live.folder.capture()).succeed();
    assert_eq!(contents(&same.rows()), contents(&live.rows()));
    assert!(!same.stderr.contains(SAID), "{}", same.said());
}

/// A script may ask for launches at any time: from the moment on at which its process has the package, none is missed.
#[test]
fn launches_are_probed_for_scripts() {
    const SCRIPT: &str = "import ctypes\n\
        launch = ctypes.CDLL('libruntime.so').rtKernelLaunch\n\
        launch(16, 1, None, 0, None, None)\n\
        import msmemscope\n\
        for stub in (32, 48, 64):\n    launch(stub, 1, None, 0, None, None)\n";
    let python = interpreters().into_iter().next().expect("an interpreter");
    let tracer = Tracer::run_program(&python.path, &["-B", "-c", SCRIPT]).env("PYTHONPATH", python_package());
    let replay = Tracer::replay(&tracer.succeed().folder.capture()).option("--level=kernel").succeed();
    let rows = replay.rows();
    let names: Vec<_> =
        rows.all().filter(|row| row.event == "KERNEL_LAUNCH").filter_map(|row| row.name.clone()).collect();
    assert_eq!(names, ["0x20", "0x30", "0x40"], "{}", replay.said());
}
