//! The Python package's own tests (python/tests), by all interpreters that are at hand. No tracer, no root.
//!
//! Needs `MEMSCOPE_PYTHON_DIR` and `MEMSCOPE_BIN`: `./x test` sees to it.

use std::{fs, path::Path, process::Command};

use memscope_tests::harness::{
    pythons::interpreters,
    tracer::{python_package, tracer_path},
    user::copy_folder,
};
use serde_json::Value;
use tempfile::TempDir;

/// A copy of the package: other tests' tracers have probes on the one that they trace.
fn copy_of_package() -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    copy_folder(&python_package(), copy.path());
    copy
}

#[test]
fn package_passes_its_tests_with_every_interpreter() {
    let package = copy_of_package();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests");
    for python in interpreters() {
        let mut command = Command::new(&python.path);
        command.args(["-B", "-m", "unittest", "discover", "-s"]).arg(&tests);
        command.env("PYTHONPATH", package.path()).env("PYTHONDONTWRITEBYTECODE", "1");
        // None of this machine is asked.
        command.env("MEMSCOPE_BPF_SOCKET", "");
        let output = command.output().expect("an interpreter that starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{python:?}\n{said}");
        // No test found is no success.
        let ran = said.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<u32>().ok());
        assert!(ran.is_some_and(|ran| ran >= 40), "{python:?}\n{said}");
    }
}

/// A run of one process: steps, marks, operators, and a block that outlives its step.
const DUMP: &str = "\
ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)
1,MALLOC,HAL,N/A,1000,7,8,0,0x1000,\"{allocation_id:1,addr:0x1000,size:4096,owner:CANN@APP}\",,
2,MSTX,Mark,m,1100,7,8,0,N/A,,,
3,OP_LAUNCH,ATEN_START,add,1200,7,8,0,N/A,,,
4,MALLOC,PTA,N/A,1300,7,8,0,0x1000,\"{allocation_id:2,addr:0x1000,size:512,total:2048,used:512}\",\"a.py(3): f\",
5,OP_LAUNCH,ATEN_END,add,1400,7,8,0,N/A,,,
6,MSTX,Mark,m,1500,7,8,0,N/A,,,
7,MALLOC,PTA,N/A,1600,7,8,0,0x1800,\"{allocation_id:3,addr:0x1800,size:1024,total:2048,used:1536}\",,
8,FREE,PTA,N/A,1700,7,8,0,0x1800,\"{allocation_id:3,addr:0x1800,size:1024,total:2048,used:512}\",,
9,MSTX,Mark,m,1800,7,8,0,N/A,,,
";

/// Findings are those of the commands, word for word.
#[test]
fn findings_are_those_of_the_commands() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("memscope_dump_1.csv");
    fs::write(&path, DUMP).expect("a dump");
    let path = path.to_str().expect("a plain path");
    let table: [(&[&str], &str); 11] = [
        (&["leaks", path], "leaks(path)"),
        (&["leaks", path, "--mark", "m"], "leaks(path, mark='m')"),
        (&["leaks", path, "--until", "0.0000003"], "leaks(path, until=0.0000003)"),
        (&["inefficient", path], "inefficient(path)"),
        (&["decompose", path], "decompose(path)"),
        (&["peaks", path], "peaks(path)"),
        (&["fragmentation", path], "fragmentation(path)"),
        (&["waits", path], "ask('waits', path)"),
        (&["lifetimes", path], "ask('lifetimes', path)"),
        (&["diff", path, "--from", "peak"], "diff(path, start='peak')"),
        (&["compare", path, path], "compare(path, path)"),
    ];
    let python = interpreters().pop().expect("an interpreter");
    for (command, call) in table {
        let reported = Command::new(tracer_path())
            .args(command)
            .arg("--json")
            .current_dir(folder.path())
            .output()
            .expect("a command");
        assert!(reported.status.success(), "{command:?}: {}", String::from_utf8_lossy(&reported.stderr));
        let code = format!(
            "import json, sys, memscope_bpf; path = sys.argv[1]; print(json.dumps(memscope_bpf.{call}.document))"
        );
        let mut script = Command::new(&python.path);
        script.args(["-B", "-c", &code, path]).env("PYTHONPATH", python_package());
        let found = script.output().expect("an interpreter that starts");
        assert!(found.status.success(), "{call}: {}", String::from_utf8_lossy(&found.stderr));
        let mut reported: Value = serde_json::from_slice(&reported.stdout).expect("a document");
        // Only the command writes files.
        reported.as_object_mut().expect("an object").remove("files");
        let found: Value = serde_json::from_slice(&found.stdout).expect("a document");
        assert_eq!(found, reported, "{call}");
        assert!(reported.to_string().len() > 60, "{call}: nothing was found: {reported}");
    }
}
