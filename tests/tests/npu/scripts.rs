//! Scripts with the Python package on real torch and `torch_npu`: the reference's six examples as they use it (`examples`), the calls of its
//! documentation, labels, modules, and what hooks find in torch.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use memscope_tests::harness::daemon::Daemon;
use memscope_tests::harness::rows::{Row, Rows, python_traces};
use memscope_tests::harness::tracer::{Folder, python_package};
use memscope_tests::torch::bench::Program;

use super::version_name;

const MIB: u64 = 1 << 20;
/// Without it torch does not import `torch_npu` by itself, and no example does.
const AUTOLOAD: &str = "TORCH_DEVICE_BACKEND_AUTOLOAD";
/// What is said of blocks that were live when the tracer came.
const LATE: &str = "of torch_npu's pool were allocated before the tracer came";

fn program(line: &str) -> Program {
    let package = python_package();
    Program::new(line).env("PYTHONPATH", package.to_str().expect("a plain path")).env("MEMSCOPE_BPF_SOCKET", "")
}

/// What an example did, as the daemon's tracer saw it: with all settings of its own, as it says them.
struct Example {
    folder: Folder,
    rows: Vec<Row>,
    stdout: String,
    report: String,
}

impl Example {
    /// A busy machine may take longer than a script waits for its tracer: then it is run again.
    fn run(name: &str, autoload: bool) -> Self {
        (0..3).find_map(|_| Self::run_once(name, autoload)).expect("a tracer in time")
    }

    fn run_once(name: &str, autoload: bool) -> Option<Self> {
        let daemon = Daemon::start(&[]);
        let folder = Folder::new();
        let socket = daemon.socket();
        let program = program(&format!("../examples/{name}.py"));
        let program = program.env("MEMSCOPE_BPF_SOCKET", socket.to_str().expect("a plain path"));
        let program = program.env(AUTOLOAD, if autoload { "1" } else { "0" });
        // One way of both: the tracer comes with `config()`, before all blocks, or with `start()`, and says that it is late.
        let program = program.env("MEMSCOPE_BPF_EARLY", if autoload { "1" } else { "0" });
        let [stdout, stderr] = program.output(&folder);
        if stderr.contains("it did not answer within 20 s") {
            return None;
        }
        let mut said = stderr.lines().filter(|line| line.contains("[msmemscope]"));
        assert!(said.all(|line| !autoload && line.contains(LATE)), "{name}: {stderr}");
        daemon.wait_for("the tracer of process ", 1);
        let Rows { processes, .. } = folder.rows();
        let [rows] = <[Vec<Row>; 1]>::try_from(processes.into_values().collect::<Vec<_>>()).expect("one process");
        let report = below(&folder.output_path()).into_iter().find(|path| ends(path, ".report.txt"));
        let report = fs::read_to_string(report.expect("a report")).expect("a report");
        assert!(report.contains("lost: 0 (ring full), 0 (any other reason)"), "{name}: {report}");
        let example = Self { folder, rows, stdout, report };
        example.assert_whole(name);
        Some(example)
    }

    /// One window; each block of the pool that began has its end; the pool held what torch says.
    fn assert_whole(&self, name: &str) {
        let windows: Vec<&str> =
            self.rows.iter().map(|row| row.event_type.as_str()).filter(|kind| kind.ends_with("_TRACE")).collect();
        assert_eq!(windows, ["START_TRACE", "STOP_TRACE"], "{name}");
        let mut live = BTreeMap::new();
        let mut blocks = 0;
        for row in self.pool() {
            if row.event == "MALLOC" {
                blocks += 1;
                assert_eq!(live.insert(row.number("allocation_id"), row.ptr), None, "{name}: {row:?}");
            } else if row.event == "FREE" {
                assert_eq!(live.remove(&row.number("allocation_id")), Some(row.ptr), "{name}: {row:?}");
            }
        }
        assert!(blocks >= 3 && live.is_empty(), "{name}: {blocks} blocks, without an end: {live:?}");
        let printed = self.stdout.lines().find_map(|line| line.strip_prefix("allocated ")).expect("torch's statistics");
        let (_, most) = printed.split_once(" at most ").expect("two figures");
        let used = self.pool().filter_map(|row| row.attr.get("used")?.parse::<u64>().ok());
        assert_eq!(used.max(), most.parse().ok(), "{name}: {printed}");
    }

    fn pool(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.event_type == "PTA")
    }

    fn count(&self, event: &str) -> usize {
        self.rows.iter().filter(|row| row.event == event).count()
    }

    /// The dump as it is.
    fn dump(&self) -> String {
        let dump = below(&self.folder.output_path()).into_iter().find(|path| ends(path, "device_0/dump"));
        let dump = fs::read_dir(dump.expect("a dump")).expect("a folder").next().expect("a file").expect("an entry");
        fs::read_to_string(dump.path()).expect("a dump")
    }
}

/// A block's size as it was asked for, in whole MiB: the pool adds what operators may read behind it.
fn whole_mib(row: &Row) -> u64 {
    let (whole, rest) = (row.number("size") / MIB, row.number("size") % MIB);
    if rest <= 512 { whole } else { 0 }
}

fn ends(path: &Path, end: &str) -> bool {
    path.to_str().is_some_and(|path| path.ends_with(end))
}

fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    if folder.is_dir() {
        found.extend(fs::read_dir(folder).expect("a folder").flat_map(|entry| below(&entry.expect("an entry").path())));
    }
    found
}

/// All rows there are, with stacks of Python.
#[test]
fn scripts_example_api() {
    for autoload in [true, false] {
        let example = Example::run("example_api", autoload);
        assert!(example.count("KERNEL_LAUNCH") > 20 && example.count("OP_LAUNCH") > 40 && example.count("ACCESS") > 40);
        assert!(example.dump().contains("example_api.py("), "no stack of the script");
    }
}

/// Six steps, each of which leaves 3 MiB behind; the first is not judged, and nothing ends after the last one's.
#[test]
fn scripts_example_leaks() {
    for autoload in [true, false] {
        let example = Example::run("test_leaks", autoload);
        let steps: Vec<&str> =
            example.rows.iter().filter(|row| row.event_type == "STEP").filter_map(|row| row.name.as_deref()).collect();
        assert_eq!(steps, ["1", "2", "3", "4", "5", "6"]);
        let kept: Vec<&Row> = example.pool().filter(|row| row.event == "MALLOC" && whole_mib(row) == 3).collect();
        assert_eq!(kept.len(), 6);
        let size_bytes: u64 = kept[1..5].iter().map(|row| row.number("size")).sum();
        let leak = format!("12.00 MiB ({size_bytes} bytes) in 4 blocks, of 4 steps, 2 to 5\n");
        assert!(example.report.contains(&leak), "{leak}\n{}", example.report);
        assert!(example.report.contains("test_leaks.py(24): <module>"), "{}", example.report);
    }
}

#[test]
fn scripts_example_profile() {
    for autoload in [true, false] {
        let example = Example::run("test_profile", autoload);
        // What the pool has taken from the driver it has given back.
        let freed =
            example.rows.iter().filter(|row| row.event == "FREE" && row.event_type == "HAL" && !row.is_made_up());
        assert!(freed.count() >= 1 && example.count("KERNEL_LAUNCH") > 10);
    }
}

/// Both sides of each operator while a tensor is watched, with its bytes: 1.0 never, 2.0 from `add_` on.
#[test]
fn scripts_example_watch() {
    for autoload in [true, false] {
        let example = Example::run("test_watch", autoload);
        let looks: Vec<PathBuf> =
            below(&example.folder.output_path()).into_iter().filter(|path| ends(path, ".bin")).collect();
        for index in 0..3 {
            let of = |side: &str| -> Vec<&PathBuf> {
                let end = format!("-tensor{index}_0_{side}.bin");
                looks.iter().filter(|path| ends(path, &end)).collect()
            };
            let (before, after) = (of("before"), of("after"));
            assert!(before.len() >= 2 && before.len() == after.len(), "{looks:?}");
            for path in before.iter().chain(&after) {
                assert_eq!(fs::read(path).expect("bytes").len(), 16 * 16 * 4, "{}", path.display());
            }
        }
    }
}

/// What is allocated inside of the range has its label behind the framework's; what was before has none.
#[test]
fn scripts_example_decompose() {
    for autoload in [true, false] {
        let example = Example::run("test_decompose", autoload);
        let owners: Vec<&str> = example
            .pool()
            .filter(|row| row.event == "MALLOC")
            .map(|row| row.attr.get("owner").map_or("", String::as_str))
            .collect();
        let labelled = owners.iter().filter(|owner| owner.ends_with("@train")).count();
        assert!(owners.iter().all(|owner| owner.starts_with("PTA")), "{owners:?}");
        assert!(labelled >= 9 && !owners[0].contains("train"), "{owners:?}");
        // The optimizer's state is known by its hook once a step has been made.
        assert!(
            example.pool().any(|row| row.attr.get("owner").is_some_and(|owner| owner.contains("optimizer_state"))),
            "{owners:?}"
        );
    }
}

/// Blocks that are used late, and that stay long after.
#[test]
fn scripts_example_inefficient() {
    for autoload in [true, false] {
        let example = Example::run("test_inefficient", autoload);
        for kind in ["early_allocation", "late_deallocation"] {
            assert!(example.report.contains(kind), "{kind}: {}", example.report);
        }
    }
}

/// Labels of threads, and the window, exactly: what each block is for is its size.
#[test]
fn scripts_labels() {
    let options = ["--analysis=decompose"];
    let (run, _) = program("labels.py").traced_with(&options);
    let rows = run.rows();
    let [rows] = <[Vec<Row>; 1]>::try_from(rows.processes.into_values().collect::<Vec<_>>()).expect("one process");
    let mut found = BTreeMap::<(u64, String), usize>::new();
    let main = rows.iter().find(|row| row.event_type == "START_TRACE").expect("a window").tid;
    for row in rows.iter().filter(|row| row.event == "MALLOC" && row.event_type == "PTA") {
        let mib = whole_mib(row);
        if mib >= 64 {
            assert_eq!(mib % 2, 0, "{row:?}");
            let owner = row.attr.get("owner").cloned().unwrap_or_default();
            let mark = if row.is_made_up() { " shadow" } else { "" };
            let thread = if row.tid == main { "" } else { " of another thread" };
            *found.entry(((mib - 64) / 2, format!("{owner}{mark}{thread}"))).or_default() += 1;
        }
    }
    let expected = [
        (1, " shadow", 1),
        (2, "PTA@train", 1),
        (3, "PTA@train@inner", 1),
        (5, "PTA@decorated", 1),
        (9, "PTA", 2),
        (9, "PTA of another thread", 7),
    ];
    assert_eq!(found, expected.map(|(case, owner, count)| ((case, owner.to_owned()), count)).into(), "{}", run.said());
    // A label of an address comes when the row of the allocation is written already.
    let owner = |row: &Row| row.attr.get("owner").cloned().unwrap_or_default();
    let [end] = &rows.iter().filter(|row| row.event == "FREE" && !owner(row).is_empty()).collect::<Vec<_>>()[..] else {
        panic!("not one block: {}", run.said())
    };
    let id = end.number("allocation_id");
    let begin = rows.iter().find(|row| row.event == "MALLOC" && row.number("allocation_id") == id).expect("its row");
    assert_eq!((owner(begin).as_str(), owner(end).as_str()), ("PTA", "PTA@weights"), "{}", run.said());
}

/// Modules, when they return; only in the window; on another thread, too.
#[test]
fn scripts_modules_in_the_python_trace() {
    let (run, _) = program("modules.py").traced_with(&[]);
    let mut threads = BTreeMap::<u32, Vec<String>>::new();
    for row in python_traces(&run.folder.output_path()) {
        if let Some(name) = row.name.strip_prefix("nn.Module: ") {
            assert!(row.start_ns.expect("a begin") <= row.end_ns.expect("an end"), "{row:?}");
            threads.entry(row.tid).or_default().push(name.to_owned());
        }
    }
    let threads: Vec<Vec<String>> = threads.into_values().collect();
    let expected: [&[&str]; 2] = [&["Linear", "ReLU", "Linear", "Sequential", "Block"], &["Linear"]];
    assert_eq!(threads, expected, "{}", run.said());
}

/// Every function of the tables is there, wrapped once and no more afterwards, and none leaves a label behind.
#[test]
fn scripts_hooks_of_fsdp() {
    let [stdout, stderr] = program("hooks.py").output(&Folder::new());
    assert!(!stderr.contains("[msmemscope]"), "{stderr}");
    let places: Vec<&str> = stdout.lines().filter_map(|line| line.strip_prefix("place ")).collect();
    // Of the contract: 6 of fsdp1; of fsdp2 10 before torch 2.10, and 8 since.
    let is_old = version_name().starts_with("2.9");
    assert_eq!(places.len(), if is_old { 16 } else { 14 }, "{stdout}");
    assert!(places.iter().all(|place| place.ends_with(" 1")), "{stdout}");
    assert_eq!(stdout.lines().filter(|line| *line == "left []").count(), 2, "{stdout}");
}

/// Calls of the documentation on real tensors: rows of the pool have what was said of them.
#[test]
fn scripts_snippets() {
    let snippet = |name: &str, options: &[&str]| {
        let (run, _) = program(&format!("../../../python/tests/snippet.py {name}")).traced_with(options);
        assert!(!run.stderr.contains("[msmemscope] Warn"), "{}", run.said());
        let rows: Vec<Row> = run.rows().all().cloned().collect();
        (run, rows)
    };
    let (run, rows) = snippet("describe", &["--analysis=decompose"]);
    let tensor = rows.iter().filter(|row| row.event == "FREE" && row.event_type == "PTA");
    let owners: Vec<_> = tensor.filter_map(|row| row.attr.get("owner").cloned()).collect();
    assert_eq!(owners, ["PTA@test3"], "{}", run.said());
    let (run, rows) = snippet("take_snapshot", &[]);
    let names: Vec<&str> =
        rows.iter().filter(|row| row.event == "SNAPSHOT").filter_map(|row| row.name.as_deref()).collect();
    let wanted = ["one", "Memory Snapshot", "a list", "a tuple", "Memory Snapshot"];
    let wanted = [&wanted[..], &["block Start", "block End", "function Start", "function End"]].concat();
    assert_eq!(names, wanted, "{}", run.said());
    let (run, _) = snippet("watcher", &["--watch=,none"]);
    // No operator runs meanwhile: blocks that change are in `scripts_example_watch`.
    assert!(run.stderr.contains("block watch is on"), "{}", run.said());
}
