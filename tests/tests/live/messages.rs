//! Messages do no harm: not when they cannot be written, not when they repeat another user's text, and not when a
//! thread of the tracer fails.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use memscope_tests::harness::terminal::obeyed;
use memscope_tests::harness::tracer::{Target, assert_runs, simulation, tracer_path, workload_path};
use tempfile::TempDir;

/// A name that a terminal would obey: its screen, its colours, its bell, the direction of writing; and that would make a line of its
/// own. Without what separates folders in `LD_LIBRARY_PATH`.
const HOSTILE: &str = "a\x1b[2J\x07\u{9b}31m\u{202e}b\nforged line\r";

fn folder() -> TempDir {
    TempDir::new().expect("temporary folder")
}

/// A shell's line; `$T` is the tracer, `$W` the folder of the workloads. What hangs is ended, with status 124 or 137.
fn shell(line: &str, folder: &Path) -> Output {
    let programs = workload_path("pairs").parent().expect("folder").to_path_buf();
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "90", "bash", "-c", line]).current_dir(folder).stdin(Stdio::null());
    command.env("T", tracer_path()).env("W", programs).env("LD_LIBRARY_PATH", simulation().join("lib"));
    command.output().expect("started a shell")
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn said(output: &Output) -> String {
    format!("status {}\n{}{}", status(output), text(&output.stdout), text(&output.stderr))
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn captures(folder: &Path) -> Vec<PathBuf> {
    files(folder).into_iter().filter(|path| path.extension() == Some(OsStr::new("capture"))).collect()
}

/// Rows of allocations in all dumps of a folder.
fn allocations(folder: &Path) -> usize {
    let dumps = files(folder).into_iter().filter(|path| path.extension() == Some(OsStr::new("csv")));
    dumps.map(|path| fs::read_to_string(path).expect("a dump").matches(",MALLOC,HAL,").count()).sum()
}

/// Make sure that a stderr that is closed, full or not read any more costs messages and nothing else: the program ends with its own
/// status, rows and report are complete.
#[test]
fn stderr_that_cannot_be_written() {
    const PROGRAM: &str = "sh -c '$W/pairs --pairs 300 --hal; exit 7'";
    for to in ["2>&-", "2>/dev/full", "2> >(head -n 1 >/dev/null)"] {
        let folder = folder();
        let line = format!("export W T; $T run --log-level=debug -o out -- {PROGRAM} {to}");
        let output = shell(&line, folder.path());
        assert_eq!(status(&output), 7, "{to}: {}", said(&output));
        assert!(text(&output.stdout).contains("lost: 0 (ring full), 0 (any other reason)"), "{to}: {}", said(&output));
        assert_eq!(allocations(folder.path()), 300, "{to}");
        assert_eq!(captures(folder.path()).len(), 1, "{to}");
    }
}

/// Make sure that one who reads the first line of everything and goes away leaves program and outputs complete.
#[test]
fn a_reader_who_goes_away() {
    let folder = folder();
    // The program's own line goes elsewhere, or SIGPIPE would end it.
    let program = "sh -c '$W/pairs --pairs 300 --hal >printed'";
    let line =
        format!("export W; $T run --log-level=debug -o out -- {program} 2>&1 | head -n 1; exit ${{PIPESTATUS[0]}}");
    let output = shell(&line, folder.path());
    assert_eq!(status(&output), 0, "{}", said(&output));
    assert_eq!(allocations(folder.path()), 300);
}

/// Make sure that a running process goes on, whatever becomes of what the tracer says of it.
#[test]
fn attached_without_messages() {
    let target = Target::serve(&[]);
    let folder = folder();
    for to in ["2>&-", "2>/dev/full", "2>&1 >&-", "2>&1 | head -n 1"] {
        let line = format!(
            "$T --pid {} --duration 300ms --log-level=debug -o out {to}; exit ${{PIPESTATUS[0]}}",
            target.pid()
        );
        let output = shell(&line, folder.path());
        assert_eq!(status(&output), 0, "{to}: {}", said(&output));
        assert_runs(target.pid());
    }
}

/// Make sure that a report that finds no room is a failure with a status and one sentence, and that the program has run to its end.
#[test]
fn report_on_a_full_disk() {
    let folder = folder();
    let output =
        shell("export W; $T run -o out -- sh -c '$W/pairs --pairs 300 --hal > printed' >/dev/full", folder.path());
    assert_eq!(status(&output), 125, "{}", said(&output));
    let errors: Vec<String> =
        text(&output.stderr).lines().filter(|line| line.contains("Error:")).map(str::to_owned).collect();
    assert!(errors.len() == 1 && errors[0].contains("cannot print the report: No space left"), "{}", said(&output));
    let reported = fs::read_to_string(folder.path().join("printed")).expect("the program's");
    assert!(reported.contains("\"allocs\":300,\"frees\":300"), "{reported}");
    assert_eq!(allocations(folder.path()), 300);
}

/// Make sure that a thread of ours that fails ends the trace in order: the program runs to its end and keeps its status, the fault is
/// reported, nothing is said to be complete, and what was captured can be replayed.
#[test]
fn threads_that_fail() {
    for thread in ["memscope-write", "memscope-ring", "memscope-stacks", "memscope-symbols", "memscope-bpf"] {
        for (ending, expected) in [("exit 0", 125), ("exit 7", 7)] {
            let folder = folder();
            // Two processes that map libraries late, so that both are stopped while their probes are placed.
            let program =
                format!("sh -c '$W/latedl --generations 1; $W/pairs --pairs 20000 --hal; $W/latedl && {ending}'");
            let line = format!("export W; $T run --call-stack=c --fail-thread {thread} -o out -- {program}");
            let output = shell(&line, folder.path());
            assert_eq!(status(&output), expected, "{thread}: {}", said(&output));
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            assert!(stdout.contains("\"allocs\":20000,\"frees\":20000"), "{thread}: {}", said(&output));
            assert!(!stdout.contains("lost: 0"), "{thread}: {stdout}");
            let failed = format!(
                "thread `{thread}` of this tracer failed (as was asked for by --fail-thread); tracing ends here"
            );
            assert!(stderr.contains(&failed) && stderr.contains("please report"), "{thread}: {stderr}");
            let [capture] = &captures(folder.path())[..] else { panic!("{thread}: not one capture") };
            let replay = format!("$T replay -o again {}", capture.display());
            let replayed = shell(&replay, folder.path());
            assert_eq!(status(&replayed), 0, "{thread}: {}", said(&replayed));
            if thread == "memscope-write" {
                assert_eq!(text(&output.stdout).matches("lost").count(), 0, "{stdout}");
            }
        }
    }
}

/// Make sure that a running process goes on when a thread of ours fails, with the status of a failure.
#[test]
fn threads_that_fail_beside_a_running_process() {
    let target = Target::serve(&[]);
    let folder = folder();
    let line = format!("$T --pid {} --fail-thread memscope-bpf -o out", target.pid());
    let output = shell(&line, folder.path());
    assert_eq!(status(&output), 1, "{}", said(&output));
    assert!(text(&output.stderr).contains("tracing ends here, the traced program goes on"), "{}", said(&output));
    assert_runs(target.pid());
}

/// Panics where a character is that a terminal obeys, or a line that a name has forged.
fn assert_clean(what: &str, output: &Output) {
    for bytes in [&output.stdout, &output.stderr] {
        let text = std::str::from_utf8(bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(obeyed(text), None, "{what}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("forged")), "{what}: {text:?}");
    }
}

/// Make sure that names which another user may have chosen reach no terminal as they are: paths of libraries, folders, programs,
/// dumps, captures, probe and rule files, and what is in those files; and words of the command line.
#[test]
fn hostile_names() {
    let folder = folder();
    let place = folder.path().join(HOSTILE);
    fs::create_dir(&place).expect("a folder");
    for entry in fs::read_dir(simulation().join("lib")).expect("libraries") {
        let from = entry.expect("a library").path();
        if from.is_dir() {
            continue;
        }
        fs::copy(&from, place.join(from.file_name().expect("a name"))).expect("copied");
    }
    let program = place.join(HOSTILE.replace('/', "_"));
    fs::copy(workload_path("pairs"), &program).expect("copied");
    let (csv, probes, rules) = (place.join("leaks.csv"), place.join("probes.json"), place.join("rules.json"));
    fs::write(&csv, format!("{HOSTILE},Event\n1,{HOSTILE}\n")).expect("written");
    let quoted = serde_json::to_string(HOSTILE).expect("JSON");
    fs::write(&probes, format!("[{{\"symbol\":{quoted},{quoted}:1}}]")).expect("written");
    fs::write(&rules, format!("{{{quoted}:[{quoted}]}}")).expect("written");
    let library = place.join("libascend_hal.so");
    let missing = place.join("missing");
    let [csv, probes, rules, library, missing, place, program] =
        [&csv, &probes, &rules, &library, &missing, &place, &program].map(|path| path.to_str().expect("UTF-8"));
    let run = ["run", "--log-level=debug", "--no-progress", "-o"];
    let lines: Vec<Vec<&str>> = vec![
        vec![HOSTILE],
        vec!["doctor", HOSTILE],
        vec!["doctor", "--pid", HOSTILE],
        vec!["doctor", "--library", csv],
        vec!["doctor", "--library", library],
        vec!["doctor", "--json", "--library", library],
        vec!["doctor", "--probes", probes],
        vec!["replay", missing],
        vec!["replay", csv],
        vec!["recover", missing],
        vec!["leaks", csv],
        vec!["leaks", missing],
        vec!["inefficient", csv],
        vec!["peaks", csv],
        vec!["fragmentation", csv],
        vec!["decompose", csv],
        vec!["decompose", "--rules", rules, csv],
        vec!["diff", csv, missing],
        vec!["compare", csv, missing],
        vec!["export", csv],
        vec!["export", csv, "-o", missing],
        vec!["stat", "--pid", HOSTILE],
        vec!["stat", "--json", "--pid", HOSTILE],
        vec!["leaks", "--json", csv],
        vec!["compare", "--json", csv, missing],
        vec!["inefficient", csv, "-o", missing],
        vec!["schema", HOSTILE],
        vec!["completions", HOSTILE],
        vec!["manual", csv],
        vec!["demo", "--sim", HOSTILE],
        vec!["daemon", "--group", HOSTILE],
        vec!["run", "--probes", probes, "--", "true"],
        vec!["run", "--user", HOSTILE, "--", "true"],
        vec!["run", "--device", HOSTILE, "--", "true"],
        vec!["run", "--", missing],
        vec!["run", "--", library],
        [&run[..], &[place, "--", program, "--pairs", "30", "--hal"]].concat(),
        [&run[..], &[place, "--json", "--call-stack=c", "--", program, "--pairs", "30", "--hal"]].concat(),
    ];
    for line in lines {
        let mut command = Command::new(tracer_path());
        command.args(&line).current_dir(folder.path()).stdin(Stdio::null()).env("LD_LIBRARY_PATH", place);
        let output = command.output().expect("started tracer");
        assert_clean(&format!("{line:?}"), &output);
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{line:?} says nothing");
    }
    // Bytes that are no text.
    let no_text = OsStr::from_bytes(b"\xff\x9b\x1b[2J");
    let output = Command::new(tracer_path()).arg("leaks").arg(no_text).current_dir(folder.path()).output();
    assert_clean("bytes", &output.expect("started tracer"));
}

/// Rows of a good dump in which all that may be a text is hostile: of kernels, operators, marks, owners, blocks, stacks.
fn hostile_rows() -> String {
    let text = "b\x1b[2J\u{9b}31m\u{202e}c";
    let head = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)\n";
    let mut rows = head.to_owned();
    let mut id = 0;
    let mut row = |event: &str, kind: &str, name: &str, ptr: &str, attr: &str| {
        id += 1;
        let stack = format!("\"{text}(1)\nforged {text}(2)\"");
        let time_ns = 1_790_000_000_000_000_000_u64 + id * 1000;
        let row = [format!("{id},{event},{kind},{name},{time_ns},7,7,0,{ptr},{attr},{stack},{stack}\n")];
        rows.extend(row);
    };
    for step in 1..=6_u64 {
        let addr = format!("{:#018x}", step << 20);
        row("MSTX", "Mark", &format!("step start {text}"), "N/A", "");
        row("OP_LAUNCH", "ATB_START", text, "N/A", "");
        row("KERNEL_LAUNCH", "KERNEL_START", text, "N/A", "");
        let attr = format!(
            "\"{{allocation_id:{step},addr:{addr},size:1048576,owner:{text},total:8388608,used:{}}}\"",
            step << 20
        );
        row("MALLOC", "PTA", "N/A", &addr, &attr);
        row(
            "ACCESS",
            "READ",
            text,
            &addr,
            &format!("\"{{dtype:{text},shape:{text},size:1048576,name:{text},type:PTA,allocation_id:{step}}}\""),
        );
        row("OP_LAUNCH", "ATB_END", text, "N/A", "");
    }
    rows
}

/// Make sure that what a file holds reaches no terminal as it is, whatever is asked, in reports and in JSON: it is read, and names are cleaned.
#[test]
fn hostile_contents() {
    let folder = folder();
    let dump = folder.path().join("memscope_dump_1.csv");
    fs::write(&dump, hostile_rows()).expect("written");
    let dump = dump.to_str().expect("plain");
    let mut shown = 0;
    for verb in [
        "leaks",
        "decompose",
        "peaks",
        "fragmentation",
        "waits",
        "lifetimes",
        "inefficient",
        "diff",
        "compare",
        "export",
    ] {
        for json in [false, true] {
            let mut command = Command::new(tracer_path());
            command.arg(verb).arg(dump).current_dir(folder.path()).stdin(Stdio::null());
            match verb {
                "diff" => command.args(["--from", "0s"]),
                "compare" => command.arg(dump),
                "inefficient" => command.arg("--force"),
                _ => &mut command,
            };
            if json && verb != "export" {
                command.arg("--json");
            }
            let output = command.output().expect("started tracer");
            assert_eq!(status(&output), 0, "{verb}: {}", said(&output));
            assert_clean(&format!("{verb}, JSON: {json}"), &output);
            if json && verb != "export" {
                serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON");
            }
            shown += usize::from(text(&output.stdout).contains("[2J"));
        }
    }
    // The test would hold if nothing of it were ever printed.
    assert!(shown > 4, "{shown} outputs with names");
}
