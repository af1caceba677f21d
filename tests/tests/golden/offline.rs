//! The offline analyses on what msMemScope wrote: the findings of its own console where it is right.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use memscope::analyses::compare::{Names, Recorded, Recorder, Which, compare};
use memscope::analyses::decompose::RuleSet;
use memscope::analyses::diff::{self, At, Snapshot};
use memscope::analyses::held::Held;
use memscope::analyses::step_leaks::StepLeaks;
use memscope::analyses::{
    Analysis, Finding, FluctuationAnalysis, HeldAnalysis, InefficientAnalysis, InefficientRules, MarkLeaksAnalysis,
    Observer, StepLeaksAnalysis,
};
use memscope::backend::ascend::pools;
use memscope::input::annotate::{Annotations, Destination, annotate};
use memscope::input::{self, Outcome};
use memscope::model::Pool;
use memscope::sinks::compare::CompareFiles;
use memscope::sinks::report::Report;

use super::{golden, leaky_db, shared};

fn analyses() -> Vec<Box<dyn Analysis>> {
    vec![
        Box::new(StepLeaksAnalysis::default()),
        Box::new(FluctuationAnalysis::default()),
        Box::new(HeldAnalysis::default()),
    ]
}

fn read(path: PathBuf) -> Outcome {
    input::run(&[path], analyses()).expect("a dump")
}

fn report(outcome: &Outcome) -> String {
    let mut out = Vec::new();
    let report = Report { leak_blocks: true, losses: false, ..Report::default() };
    report.write_text(&outcome.findings, &outcome.end, &mut out).expect("memory");
    String::from_utf8(out).expect("text")
}

/// The lines of the reference's console that its analyses printed; of gap reports the one of the pools.
fn console(name: &str) -> String {
    let text = fs::read_to_string(golden(name)).expect("golden file");
    let wanted = |line: &&str| {
        ["======", "Direct", "\tMin", "MinGap", "MaxGap"].iter().any(|start| line.starts_with(start))
            && !line.starts_with("=======================")
    };
    text.lines().filter(wanted).flat_map(|line| [line, "\n"]).collect()
}

fn step_leaks(outcome: &Outcome) -> &StepLeaks {
    let found = outcome.findings.iter().find_map(|finding| match finding {
        Finding::StepLeaks(leaks) => Some(leaks),
        _ => None,
    });
    found.expect("steps")
}

fn held(outcome: &Outcome, pool: Pool) -> &Held {
    let found = outcome.findings.iter().find_map(|finding| match finding {
        Finding::Held(held) if held.pool == pool => Some(held),
        _ => None,
    });
    found.expect("an account")
}

/// Leaks and variation are those that the reference printed, to the byte, from CSV (with and without stacks), and db.
#[test]
fn step_leaks_are_those_of_the_console() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let runs = [
        (golden("leaky_csv.csv"), "leaky_csv.console.txt"),
        (golden("leaky_cstack.csv"), "leaky_cstack.console.txt"),
        (golden("kernel_csv.csv"), "kernel_csv.console.txt"),
        (leaky_db(folder.path()), "leaky_db.console.txt"),
    ];
    for (path, expected) in runs {
        let outcome = read(path);
        assert_eq!(outcome.notes.lines(), Vec::<String>::new(), "{expected}");
        let text = report(&outcome);
        let console = console(expected);
        // Behind the places, which are ours.
        let reference = text.find("======").map_or("", |at| &text[at..]);
        assert!(console.lines().count() == 8 && reference.starts_with(&console), "{expected}: {text}");
        // What the reference passes over: the block of the last step.
        let unjudged: Vec<_> = step_leaks(&outcome).unjudged.iter().map(|leak| (leak.addr, leak.step)).collect();
        assert_eq!(unjudged, [(0x1680_0835_c000, 4)], "{expected}");
    }
}

/// At its end the leaky run has four blocks of 1 MiB more than the clean one, in the pool, and nothing else.
#[test]
fn leaky_run_differs_by_its_leaks() {
    let end = |name: &str| -> Snapshot {
        let (recorder, snapshot) = diff::Recorder::new(At::End, Arc::new(RuleSet::builtin()));
        observe(golden(name), Box::new(recorder));
        snapshot.recv().expect("a snapshot")
    };
    let found = diff::diff(&end("clean_csv.csv"), &end("leaky_csv.csv"));
    let grown: Vec<_> =
        found.iter().map(|it| (it.pool, it.change.grown_bytes, it.change.grown_blocks, it.sizes.len())).collect();
    assert_eq!(grown, [(pools::HAL, 0, 0, 0), (pools::PTA, 4 << 20, 4, 1)]);
}

/// Nothing leaks: nothing is reported.
#[test]
fn clean_run_is_clean() {
    for name in ["clean_csv", "ops_access"] {
        let outcome = read(golden(&format!("{name}.csv")));
        assert!(step_leaks(&outcome).leaks.is_empty(), "{name}");
        let text = report(&outcome);
        assert!(text.contains(&console(&format!("{name}.console.txt"))), "{name}: {text}");
    }
}

/// The check by marks finds the block of the reference's console. Of the other steps' blocks it finds one each, too.
#[test]
fn marks_are_those_of_the_console() {
    let by_marks = |start_index| {
        let analysis: Box<dyn Analysis> = Box::new(MarkLeaksAnalysis::new("iter".to_owned(), start_index));
        input::run(&[golden("marks.csv")], vec![analysis]).expect("a dump")
    };
    let text = report(&by_marks(0));
    assert!(text.starts_with(&console("check_leaks.console.txt")), "{text}");
    assert!(text.contains("In all 1.00 MiB (1048576 bytes) in 1 block."), "{text}");
    // The second mark's block, worked out by hand from the file: row 96.
    let text = report(&by_marks(1));
    assert!(text.contains("Direct Hal memory leak of 1.0 Mb(s) at 0x0000150000100000 in Index 96.\n"), "{text}");
    let text = report(&by_marks(2));
    assert!(text.contains("Not judged on device 0: 4 marks with the text `iter`"), "{text}");
}

/// A file that another program rewrote (CR LF, quotes gone) reads the same.
#[test]
fn rewritten_file_reads_the_same() {
    let [before, after] = ["ops_access.csv", "check_inefficient.after.csv"].map(|name| read(golden(name)));
    assert_eq!(before.findings, after.findings);
    assert_eq!(before.notes.rows, after.notes.rows);
}

/// Dumps from a real NPU. Rows counted with `cut` and `uniq`; bytes by hand from the rows without a FREE.
#[test]
fn recordings_of_a_real_npu() {
    let read = |name: &str| read(shared("data/npu-recordings").join(name));
    let brief = |held: &Held| (held.allocations, held.frees, held.blocks, held.size_bytes);
    let baseline = read("baseline.csv");
    assert_eq!(brief(held(&baseline, pools::PTA)), (18, 14, 4, 512 + 512 + 512 + 1536));
    assert_eq!(brief(held(&baseline, pools::HAL)), (5, 2, 3, 2_815_668 + 2_097_152 + 2_097_152));
    let leaks = read("leaks.csv");
    assert_eq!((held(&leaks, pools::PTA).allocations, held(&leaks, pools::PTA).frees), (20, 14));
    assert_eq!((held(&leaks, pools::HAL).allocations, held(&leaks, pools::HAL).frees), (5, 1));
    for outcome in [baseline, leaks] {
        assert_eq!(outcome.notes.lines(), Vec::<String>::new());
        assert_eq!(outcome.notes.unused.values().sum::<u64>(), 2, "START_TRACE and STOP_TRACE");
    }
}

/// ID and Attr of the MALLOC rows of a file that holds marks of inefficient use.
fn marked(text: &str) -> Vec<(String, String)> {
    let row = |line: &str| {
        let (id, rest) = line.split_once(',')?;
        let attr = rest.split_once("\"{")?.1.split_once("}\"")?.0;
        (rest.starts_with("MALLOC") && attr.contains("inefficient_type")).then(|| (id.to_owned(), attr.to_owned()))
    };
    text.lines().filter_map(row).collect()
}

/// The marks are those that the reference wrote, in the same rows and at the same place; all other bytes stay.
#[test]
fn inefficient_marks_are_those_of_the_reference() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let analysis: Box<dyn Analysis> = Box::new(InefficientAnalysis::new(InefficientRules::default()));
    let outcome = input::run(&[golden("ops_access.csv")], vec![analysis]).expect("a dump");
    let found = outcome.findings.iter().filter_map(|finding| match finding {
        Finding::Inefficient(found) => Some(found),
        _ => None,
    });
    let path = folder.path().join("marked.csv");
    let count =
        annotate(&golden("ops_access.csv"), &Annotations::of(found), &Destination::New(path.clone()), &mut |_, _| {});
    assert_eq!(count.expect("marked"), 8);
    let ours = fs::read_to_string(path).expect("readable");
    let theirs = fs::read_to_string(golden("check_inefficient.after.csv")).expect("golden file");
    assert_eq!(marked(&ours), marked(&theirs));
    let unmarked =
        ours.replace(",inefficient_type:early_allocation", "").replace(",inefficient_type:late_deallocation", "");
    assert_eq!(unmarked, fs::read_to_string(golden("ops_access.csv")).expect("golden file"));
}

/// Launches of these kernels are followed by one of that kernel in the golden comparison's second run.
const EXTRA: [(&str, &str); 3] =
    [("MatMulV2_fp16_256", "MatMulV2_fp16_256"), ("Add_fp16", "LayerNormV4"), ("Cast_fp32_fp16", "SoftmaxV2")];

/// The golden run at kernel level with the launches that the other run of the golden comparison has more.
fn with_more_launches() -> String {
    let text = fs::read_to_string(golden("kernel_csv.csv")).expect("golden file");
    let mut out = String::new();
    for line in text.lines() {
        out.push_str(line);
        out.push('\n');
        let cells: Vec<&str> = line.split(',').collect();
        let extra =
            EXTRA.iter().find(|(after, _)| cells.get(2) == Some(&"KERNEL_LAUNCH") && cells.get(3) == Some(after));
        if let Some((_, name)) = extra {
            let time: u64 = cells[4].parse().expect("a time");
            // Rows of one ID are in the order of their times.
            let row = format!("{},KERNEL_LAUNCH,KERNEL_LAUNCH,{name},{},{}", cells[0], time + 1, cells[5..].join(","));
            out.push_str(&row);
            out.push('\n');
        }
    }
    out
}

/// Shows a dump to an observer.
fn observe(path: PathBuf, observer: Box<dyn Observer>) {
    let options = input::Options { observers: vec![observer], ..input::Options::default() };
    input::run_with(&[path], options, Vec::new()).expect("a dump");
}

fn record(path: PathBuf, which: Which, names: Names) -> Recorded {
    let (recorder, taken) = Recorder::new(which, names);
    observe(path, Box::new(recorder));
    taken.recv().expect("a recording")
}

/// The file is the reference's to the byte.
#[test]
fn comparison_is_that_of_the_reference() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let other = folder.path().join("other.csv");
    fs::write(&other, with_more_launches()).expect("written");
    let which = Which { op: false, kernel: true };
    let Recorded { sequences: base, names } = record(golden("kernel_csv.csv"), which, Names::default());
    let Recorded { sequences: other, names } = record(other, which, names);
    let mut files = CompareFiles::create(folder.path(), None).expect("made");
    compare(&base, &other, &names, |row| files.write(row).expect("written"), |_, _| {});
    let path = files.paths()[0].to_owned();
    files.finish().expect("written");
    let expected = fs::read_to_string(golden("compare.csv")).expect("golden file");
    assert_eq!(fs::read_to_string(path).expect("readable"), expected);
}

/// Two runs of a real NPU: 40 and 44 operators (counted with `cut` and `uniq`).
#[test]
fn recordings_are_compared() {
    let read =
        |name: &str, names| record(shared("data/npu-recordings").join(name), Which { op: true, kernel: false }, names);
    let Recorded { sequences: base, names } = read("baseline.csv", Names::default());
    let Recorded { sequences: other, names } = read("leaks.csv", names);
    let found = compare(&base, &other, &names, |_| {}, |_, _| {});
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].aligned + found[0].only_base, 40);
    assert_eq!(found[0].aligned + found[0].only_compare, 44);
    assert!(found[0].shortest);
}
