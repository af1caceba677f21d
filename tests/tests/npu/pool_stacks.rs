//! Native stacks of blocks of `torch_npu`'s pool, down to the hidden function that reports them, against those of gdb.
//!
//! A program that does the same each time runs twice: in gdb, which stops at that function and says what its frames are, and
//! traced. Needs gdb, which `./x setup` installs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use memscope::model::StackEnd;
use memscope_tests::harness::tracer::{Folder, tracer_path};
use memscope_tests::torch::bench::{Program, version};
use serde_json::Value;

use super::stacks::{ByThread, DEPTH, Made, Place, assert_same, by_the_trace, in_order};

const HOOK: &str = "reportMemoryDataToNpuProfiler";
/// Its record's size of the block, among the values that are taken.
const SIZE_AT: usize = 2;
/// Pairs of runs at most: a block that two streams use comes back when the pool happens to look, now and then at another call. Of the last pair
/// allocations alone are compared, which are the same in all runs.
const PAIRS: usize = 3;
/// Writes `stack THREAD SIZE FILE+OFFSET…`, innermost first, for each call.
const SCRIPT: &str = r#"
import gdb
import os

TORCH = "libtorch_npu.so"


def mappings():
    """Where mappings begin and end, with the file's name and where its first one begins."""
    first, found = {}, []
    with open(f"/proc/{gdb.selected_inferior().pid}/maps") as lines:
        for line in lines:
            fields = line.split(maxsplit=5)
            start, end = (int(address, 16) for address in fields[0].split("-"))
            name = os.path.basename(fields[5].strip()) if len(fields) > 5 else ""
            first.setdefault(name, start)
            found.append((start, end, name, first[name]))
    return found


class Hook(gdb.Breakpoint):
    def stop(self):
        maps, places = mappings(), []
        frame = gdb.newest_frame()
        while frame is not None:
            if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                pc = frame.pc()
                name, first = next((name, first) for start, end, name, first in maps if start <= pc < end)
                places.append(f"{name}+{pc - first:x}")
            frame = frame.older()
        size = int(gdb.parse_and_eval("*(unsigned long *)($rdi + 16)"))
        out.write(f"stack {gdb.selected_thread().ptid[1]} {size} {' '.join(places)}\n")
        return False


def loaded(event):
    if os.path.basename(event.new_objfile.filename) == TORCH and not hooks:
        base = next(start for start, _, name, _ in mappings() if name == TORCH)
        hooks.append(Hook(f"*{base + int(os.environ['HOOK_ADDRESS'], 16):#x}", internal=True))


hooks, out = [], open(os.environ["HOOK_STACKS"], "w")
for setting in ("pagination off", "backtrace past-main on", "backtrace past-entry on", "backtrace limit unlimited"):
    gdb.execute(f"set {setting}")
gdb.events.new_objfile.connect(loaded)
gdb.execute("run")
out.close()
"#;

/// Where the hook is, as `doctor` says; what is at another place is no hook, and gdb's frames would not be those of the trace.
fn hook() -> u64 {
    let library = version().join("venv/lib/python3.11/site-packages/torch_npu/lib/libtorch_npu.so");
    let output = Command::new(tracer_path()).args(["doctor", "--json", "--library"]).arg(&library).output();
    let output = output.expect("the tracer runs").stdout;
    let text = String::from_utf8_lossy(&output);
    let json: Value = text.lines().find_map(|line| serde_json::from_str(line).ok()).expect("an object");
    let probes = json["libraries"][0]["probes"].as_array().expect("probes");
    let hook = probes.iter().find(|probe| probe["symbol"] == HOOK).expect("the hook");
    hook["located"]["vaddr"].as_u64().expect("an address")
}

/// What gdb says.
fn by_gdb(program: &Program) -> ByThread {
    let folder = Folder::new();
    let (script, stacks) = (folder.path().join("hook.py"), folder.path().join("stacks"));
    fs::write(&script, SCRIPT).expect("a script");
    // Debug information of the system's libraries has inlined frames, and reading it takes time.
    let mut gdb = Command::new("gdb");
    gdb.args(["--batch", "-nx", "-iex", "set debug-file-directory /nowhere", "-x"]).arg(&script).arg("--args");
    gdb.env("HOOK_ADDRESS", format!("{:x}", hook())).env("HOOK_STACKS", &stacks);
    let _ = program.run_below(gdb, &folder);
    read(&stacks)
}

fn read(stacks: &Path) -> ByThread {
    let text = fs::read_to_string(stacks).expect("what gdb said");
    let mut threads: BTreeMap<u32, (u64, Vec<Made>)> = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let mut words = line.strip_prefix("stack ").expect("a stack").split(' ');
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok()).expect("a number");
        let (tid, size) = (number(words.next()) as u32, number(words.next()));
        let place = |word: &str| -> Place {
            let (file, offset) = word.rsplit_once('+').expect("a place");
            (file.to_owned(), u64::from_str_radix(offset, 16).expect("an offset"))
        };
        let made = Made { size, places: words.map(place).collect(), end: StackEnd::Root };
        threads.entry(tid).or_insert_with(|| (at as u64, Vec::new())).1.push(made);
    }
    in_order(threads)
}

fn compare(line: &str) {
    let program = Program::new(line).env("PYTHONHASHSEED", "0");
    for pair in 1..=PAIRS {
        let truth = by_gdb(&program);
        let (run, _) = program.traced(&[&format!("--call-stack=c:{DEPTH}")]);
        let found = by_the_trace(&run.folder.capture(), HOOK, SIZE_AT);
        if sizes(&found) == sizes(&truth) {
            return assert_same(line, &found, &truth);
        }
        println!("{line}: the program did not do the same twice, once more");
        if pair == PAIRS {
            assert_same(line, &allocations(found), &allocations(truth));
        }
    }
}

/// A report of memory that is given back has a size below zero.
fn allocations(mut threads: ByThread) -> ByThread {
    for made in &mut threads {
        made.retain(|made| made.size.cast_signed() > 0);
    }
    threads
}

/// Of each thread's blocks, in order.
fn sizes(threads: &ByThread) -> Vec<Vec<u64>> {
    threads.iter().map(|made| made.iter().map(|made| made.size).collect()).collect()
}

#[test]
fn pool_stacks_of_training_are_those_of_gdb() {
    compare("train.py adamw 2 64");
}

#[test]
fn pool_stacks_of_churn_are_those_of_gdb() {
    compare("churn.py 300");
}
