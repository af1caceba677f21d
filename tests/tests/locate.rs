//! Functions that stripped libraries do not name, found in libraries that a compiler made.
//!
//! Needs `MEMSCOPE_BIN` and `MEMSCOPE_SIM_DIR`: `./x test` sees to both.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memscope_tests::harness::tracer::{simulation, tracer_path};
use serde_json::Value;

const SYMBOL: &str = "_ZN9torch_npu8profiler29reportMemoryDataToNpuProfilerERKNS0_11MemoryUsageE";

fn library() -> PathBuf {
    simulation().join("lib/libtorch_npu.so")
}

fn doctor(file: &Path) -> Output {
    Command::new(tracer_path()).args(["doctor", "--json", "--library"]).arg(file).output().expect("the tracer runs")
}

/// What `doctor` says of one file.
fn look_into(file: &Path) -> Value {
    let output = doctor(file);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    found["libraries"][0].clone()
}

/// Where the linker put it, from the copy that still has its symbols.
fn address_by_nm() -> u64 {
    let copy = simulation().join("obj/torch_npu/symbols.so");
    let output = Command::new("nm").arg(&copy).output().expect("nm runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().find(|line| line.ends_with(SYMBOL)).expect("the function is in the copy");
    u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("hexadecimal")
}

#[test]
fn the_hidden_function_is_where_the_linker_put_it() {
    let found = look_into(&library());
    let located = &found["probes"][0]["located"];
    assert_eq!(located["vaddr"], address_by_nm(), "{found}");
    // Three of tensors, five of workspaces: see src/pta_*.cpp.
    assert_eq!((&located["callers"], &located["allocator"]), (&8.into(), &"agrees".into()), "{found}");
    assert_eq!(found["probes"][0]["with_return"], false);
}

/// The copy that is looked into has its name but no names of functions.
#[test]
fn it_is_neither_exported_nor_named() {
    for arguments in [&["-D"][..], &[]] {
        let output = Command::new("nm").args(arguments).arg(library()).output().expect("nm runs");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("reportMemoryData"), "{arguments:?}");
    }
}

/// Libraries that are cut off, empty, no libraries, or others under this name: a reason and no probe.
#[test]
fn what_is_no_such_library_gives_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("libtorch_npu.so");
    let whole = std::fs::read(library()).expect("readable");
    let cut = |len: usize| whole[..len].to_vec();
    let other = std::fs::read(simulation().join("lib/libnpu_profiler.so")).expect("readable");
    let cases = [Vec::new(), b"\x7fELF".to_vec(), cut(100), cut(whole.len() / 2), vec![0xff; 10_000], other];
    for (number, bytes) in cases.into_iter().enumerate() {
        std::fs::write(&file, bytes).expect("writable");
        let found = look_into(&file);
        assert_eq!(found["probes"].as_array().map(Vec::len), Some(0), "case {number}: {found}");
        let reason = if found["error"].is_null() { &found["not_located"][0]["reason"] } else { &found["error"] };
        assert!(reason.as_str().is_some_and(|reason| !reason.is_empty()), "case {number}: {found}");
    }
}

/// Section headers are no part of what is mapped.
#[test]
fn absurd_sections_do_not_matter() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("libtorch_npu.so");
    let mut bytes = std::fs::read(library()).expect("readable");
    bytes[40..48].fill(0); // e_shoff
    bytes[58..64].fill(0); // e_shentsize, e_shnum, e_shstrndx
    std::fs::write(&file, bytes).expect("writable");
    assert_eq!(look_into(&file)["probes"][0]["located"]["vaddr"], address_by_nm());
}
