//! Markers of the Python package as other tools see them: by uprobes that are none of the tracer's.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use memscope_tests::harness::pythons::{Python, interpreters};
use memscope_tests::harness::tracer::{Folder, Target, Tracer, python_package, simulation};
use memscope_tests::harness::uprobes::{Hit, Symbols, Uprobes};
use nix::sys::signal::Signal;

/// Where the second instruction of a marker is.
const SECOND: u64 = if cfg!(target_arch = "aarch64") { 4 } else { 1 };

fn module() -> PathBuf {
    python_package().join("memscope_bpf/_memscope_bpf.abi3.so")
}

fn scenario(python: &Python, name: &str, folder: &Folder) -> Command {
    let script = folder.path().join("scripts.py");
    fs::write(&script, include_str!("../../workloads/scripts.py")).expect("the workload");
    let mut command = Command::new(&python.path);
    command.arg("-B").arg(script).arg(name).current_dir(folder.path());
    command.env("PYTHONPATH", python_package()).env("LD_LIBRARY_PATH", simulation().join("lib"));
    command.env("MEMSCOPE_BPF_SOCKET", "");
    command
}

/// Not one call is missed, at either instruction, and registers hold what was said: labels of the user are the levels from 5 on, 16 bits
/// each, of which level 4 is the lowest of the second register.
#[test]
fn python_markers_are_hit_as_often_as_they_are_called() {
    let symbols = Symbols::read(&module());
    for python in interpreters() {
        let probes = Uprobes::new();
        for (marker, function) in [("step", "memscope_mark_step"), ("labels", "memscope_mark_labels")] {
            probes.add(&format!("{marker}_at_0"), &symbols, function, 0, None);
            probes.add(&format!("{marker}_at_1"), &symbols, function, SECOND, None);
        }
        probes.add("text", &symbols, "memscope_mark_label_text", 0, None);
        probes.enable(true);
        let folder = Folder::new();
        let child = scenario(&python, "marks", &folder).spawn().expect("an interpreter that starts");
        let pid = child.id();
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{python:?}");
        let hits: Vec<Hit> = probes.hits().into_iter().filter(|hit| hit.tid == pid).collect();
        let of = |probe: &str| -> Vec<[u64; 2]> {
            hits.iter().filter(|hit| hit.probe == probe).map(|hit| hit.arguments).collect()
        };
        let labels: Vec<[u64; 2]> = (1..=250).flat_map(|id| [[0, id << 16], [0, 0]]).collect();
        for instruction in ["0", "1"] {
            assert_eq!(of(&format!("step_at_{instruction}")).len(), 1000, "{python:?}");
            assert_eq!(of(&format!("labels_at_{instruction}")), labels, "{python:?}");
        }
        let ids: Vec<u64> = of("text").into_iter().map(|[id, _]| id).collect();
        assert_eq!(ids, (1..=250).collect::<Vec<_>>(), "{python:?}");
    }
}

/// The tracer and another one listen at the same places. The script hears of them as long as one of them is there.
#[test]
fn python_markers_have_two_listeners() {
    let symbols = Symbols::read(&module());
    let python = interpreters().pop().expect("an interpreter");
    let folder = Folder::new();
    let command = scenario(&python, "beside", &folder);
    let mut target = Target::start(command, folder, "ready ");
    let file = |name: &str| fs::write(target.folder.path().join(name), "").expect("a file");
    let tracer = Tracer::attach(&[&target]).start();
    target.wait_for_output("listening");
    let probes = Uprobes::new();
    probes.add("presence", &symbols, "memscope_marks_1", 0, Some("memscope_semaphore"));
    probes.add("step_at_0", &symbols, "memscope_mark_step", 0, None);
    probes.add("step_at_1", &symbols, "memscope_mark_step", SECOND, None);
    probes.enable(true);
    file("steps");
    target.wait_for_output("stepped");
    tracer.signal(Signal::SIGINT);
    let run = tracer.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    let steps = run.rows().all().filter(|row| row.event_type == "STEP").count();
    let hits = |probe: &str| probes.hits().iter().filter(|hit| hit.probe == probe).count();
    assert_eq!((steps, hits("step_at_0"), hits("step_at_1")), (100, 100, 100), "{}", run.said());
    assert!(target.stdout().ends_with("listening\nstepped\n"), "{}", target.stdout());
    probes.enable(false);
    target.wait_for_output("alone");
    file("end");
    assert!(target.wait().success(), "{}", target.stderr());
    assert!(target.stdout().ends_with("listening\nstepped\nalone\n"), "{}", target.stdout());
}
