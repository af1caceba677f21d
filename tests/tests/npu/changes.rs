//! `whatif` about changed programs, against runs of the programs that were changed.

use std::path::Path;
use std::process::Command;

use memscope_tests::harness::document::document;
use memscope_tests::harness::tracer::{Folder, Run, tracer_path};
use memscope_tests::torch::bench::{Program, version};
use memscope_tests::torch::truth::Truth;
use serde_json::Value;

/// 9 of `torch_npu` 2.9.0.post9.
fn minor() -> u32 {
    let folder = version();
    let release = folder.file_name().and_then(|name| name.to_str()).expect("a version");
    release.split('.').nth(1).and_then(|minor| minor.parse().ok()).expect("a version")
}

fn program(line: &str) -> Program {
    Program::new(line).env("TASK_QUEUE_ENABLE", "1")
}

/// What it says of its peaks when it runs by itself: allocated and reserved bytes.
fn real(line: &str) -> [u64; 2] {
    let [output, _] = program(line).output(&Folder::new());
    peaks_of(&output)
}

fn peaks_of(output: &str) -> [u64; 2] {
    let peaks = output.lines().find_map(|line| line.strip_prefix("peaks ")).expect("peaks");
    let peaks: Vec<u64> = peaks.split(' ').map(|bytes| bytes.parse().expect("bytes")).collect();
    peaks.try_into().expect("two")
}

/// The same by its own account.
fn peaks_at_the_end(truth: &Truth) -> [u64; 2] {
    let last = truth.marks.last().expect("a mark");
    ["allocated_bytes.all.peak", "reserved_bytes.all.peak"].map(|key| last.stat(0, key))
}

fn recorded(line: &str) -> Run {
    program(line).traced_with(&[]).0
}

/// The answer about the process.
fn answer(capture: &Path, options: &[&str]) -> Value {
    answers(capture, options).remove(0)
}

/// The answers about all processes.
fn answers(capture: &Path, options: &[&str]) -> Vec<Value> {
    let output =
        Command::new(tracer_path()).arg("whatif").arg(capture).args(["--quick", "--json"]).args(options).output();
    let output = output.expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    document(&output.stdout)["processes"].as_array().expect("processes").clone()
}

/// Least and most of a figure of the device, under the recorded settings.
fn span(answer: &Value, figure: &str) -> [u64; 2] {
    span_of(&answer["recorded"], figure)
}

fn span_of(answer: &Value, figure: &str) -> [u64; 2] {
    let span = &answer["devices"][0][figure];
    ["least", "most"].map(|end| span[end].as_u64().unwrap_or_else(|| panic!("no {figure}: {answer:#}")))
}

fn assert_answers(answer: &Value, real: [u64; 2]) {
    assert_eq!(span(answer, "allocated_peak_bytes"), [real[0]; 2], "{answer:#}");
    let [least, most] = span(answer, "reserved_peak_bytes");
    assert!((least..=most).contains(&real[1]), "{least} to {most}, real {}", real[1]);
    println!("reserved {least} to {most}, real {}; allocated {}", real[1], real[0]);
}

/// Two batch sizes say what a third takes, larger and smaller.
#[test]
fn another_batch_size() {
    let (first, second) = (recorded("batches.py 128 4"), recorded("batches.py 256 4"));
    let second = second.folder.capture();
    let second = second.to_str().expect("text");
    for batch in [64, 8192] {
        let batches = format!("128,256,{batch}");
        let found = answer(&first.folder.capture(), &["--second", second, "--batches", &batches]);
        assert!(found["scaled"]["growing"].as_u64() > Some(20), "{:#}", found["scaled"]);
        assert_eq!(found["scaled"]["uneven"], 0, "{:#}", found["scaled"]);
        assert_answers(&found, real(&format!("batches.py {batch} 4")));
    }
}

/// Another number of steps is another program.
#[test]
fn batch_sizes_of_other_programs() {
    let (first, second) = (recorded("batches.py 128 3"), recorded("batches.py 256 4"));
    let mut ask = Command::new(tracer_path());
    ask.arg("whatif").arg(first.folder.capture()).arg("--second").arg(second.folder.capture());
    let output = ask.args(["--batches", "128,256,512"]).output().expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("the recordings differ behind"), "{said}");
}

/// Without `empty_cache` each epoch adds segments; with it, the pool holds those of the last one alone.
#[test]
fn emptied_caches() {
    let run = recorded("empties.py keep");
    let (kept, emptied) = (real("empties.py keep"), real("empties.py empty"));
    assert!(emptied[1] < kept[1] / 2, "{emptied:?} {kept:?}");
    let found = answer(&run.folder.capture(), &["--empty-at", "mark:epoch"]);
    assert_eq!(found["emptied"], 6);
    assert_answers(&found, emptied);
    assert_answers(&answer(&run.folder.capture(), &[]), kept);
}

/// Captured graphs have pools of their own: a recording with some is reproduced, and what it says of other settings is what a run under these has.
#[test]
fn captured_graphs() {
    const GROWING: &str = "expandable_segments:True";
    let traced = |configuration: &str| {
        let program = program("graphs.py 20").env("PYTORCH_NPU_ALLOC_CONF", configuration);
        let (run, truth) = program.traced(&[]);
        (run, peaks_at_the_end(&truth))
    };
    let [plain, growing] = ["", GROWING].map(traced);
    for (run, peaks) in [&plain, &growing] {
        let found = answer(&run.folder.capture(), &[]);
        let check = &found["check"];
        println!("{} of {} events", check["agreeing"], check["events"]);
        assert!(check["events"].as_u64() > Some(200) && check["agreeing"] == check["events"], "{found:#}");
        assert_answers(&found, *peaks);
    }
    let found = answer(&plain.0.folder.capture(), &["--set", GROWING]);
    let answers = found["answers"].as_array().expect("answers");
    let predicted = answers.iter().find(|answer| answer["settings"] == GROWING).expect("the settings");
    let predicted = ["allocated_peak_bytes", "reserved_peak_bytes"].map(|figure| span_of(predicted, figure));
    assert_eq!(predicted, growing.1.map(|peak| [peak; 2]), "{found:#}");
}

/// Pools that the program makes itself: a recording with some is reproduced, whatever they are used for.
#[test]
fn pools_of_the_program() {
    for configuration in ["", "expandable_segments:True"] {
        let program = program("mempools.py 30 3").env("PYTORCH_NPU_ALLOC_CONF", configuration);
        let (run, truth) = program.traced(&[]);
        let found = answer(&run.folder.capture(), &[]);
        let check = &found["check"];
        println!("{} of {} events", check["agreeing"], check["events"]);
        assert!(check["events"].as_u64() > Some(200) && check["agreeing"] == check["events"], "{found:#}");
        assert_answers(&found, peaks_at_the_end(&truth));
    }
}

/// A pool that the program makes for requests that would fail. Before `torch_npu` 2.13 there are none, and the program says so.
#[test]
fn pools_with_rules() {
    let has_rules = minor() >= 13;
    for configuration in ["", "expandable_segments:True"] {
        let program = program("mempool_rules.py 6 5").env("PYTORCH_NPU_ALLOC_CONF", configuration);
        let (run, truth) = program.traced(&[]);
        assert_eq!(run.stdout.contains("no rules"), !has_rules, "{}", run.stdout);
        let found = answer(&run.folder.capture(), &[]);
        let check = &found["check"];
        println!("{} of {} events", check["agreeing"], check["events"]);
        assert_eq!(check["agreeing"], check["events"], "{found:#}");
        assert!(
            !has_rules || check["events"].as_u64() > Some(100) && found["failures"].as_u64() > Some(5),
            "{found:#}"
        );
        assert_answers(&found, peaks_at_the_end(&truth));
    }
}

/// Settings of newer releases that limit what the pool may have: `throw_on_npumalloc_oom` rejects a request that would need the cache, which
/// `torch_npu` has since 2.13, and a fraction of the device fails what is beyond it, since 2.14. A recording without them foresees that, and what the pool
/// holds then. Set by the script, a fraction changes nothing: it counts when the pool begins.
#[test]
fn limits_of_newer_releases() {
    let limits = [(13, "throw_on_npumalloc_oom:True", "rejected"), (14, "per_process_memory_fraction:0.5", "failed")];
    let early = |settings: &str| program(&format!("early.py {settings}")).env("ASCEND_SIM_CAPACITY_MB", "8192");
    let reproduced = |found: &Value, own: [u64; 2]| {
        assert_eq!(found["check"]["agreeing"], found["check"]["events"], "{found:#}");
        assert_eq!(span(found, "reserved_peak_bytes"), [own[1]; 2], "{found:#}");
    };
    for (since, limit, said) in limits {
        if minor() < since {
            println!("{limit}: not before torch_npu 2.{since}");
            continue;
        }
        let run = early("").traced_with(&[]).0;
        let found = answer(&run.folder.capture(), &["--limit", "8GiB", "--set", limit]);
        let own = peaks_of(&run.stdout);
        reproduced(&found, own);
        let answers = found["answers"].as_array().expect("answers");
        let limited = answers.iter().find(|answer| answer["settings"] == limit).expect("the settings");
        let limited_run = early("").env("PYTORCH_NPU_ALLOC_CONF", limit).traced_with(&[]).0;
        let (output, real) = (&limited_run.stdout, peaks_of(&limited_run.stdout));
        println!("{own:?}, with {limit} {real:?}");
        let says = |output: &str| output.lines().any(|line| line == said);
        assert!(says(output) && !says(&run.stdout) && own != real, "{output}");
        assert_eq!(limited["fits"], "no", "{limited:#}");
        assert_eq!(
            ["allocated_peak_bytes", "reserved_peak_bytes"].map(|figure| span_of(limited, figure)),
            real.map(|peak| [peak; 2])
        );
        // What rejects a request knows the size of the device; the recording does not.
        if said == "failed" {
            reproduced(&answer(&limited_run.folder.capture(), &[]), real);
            let by_script = early(limit).traced_with(&[]).0;
            assert_eq!(peaks_of(&by_script.stdout), own);
            reproduced(&answer(&by_script.folder.capture(), &[]), own);
        }
    }
}

/// Blocks that other streams use, by seven programs on streams that need time: what the pool held in the recording is known to the byte, and runs under
/// other settings, which streams may let come out otherwise each time, hold as much as was foreseen. Two of 21 may not.
#[test]
fn blocks_that_other_streams_use() {
    let settings = ["expandable_segments:True", "max_split_size_mb:32", ""];
    let mut missed = Vec::new();
    for kind in ["prefetch", "gather", "offload", "serve", "buckets", "pipeline", "swap"] {
        let line = format!("streams.py {kind} 60 4");
        let program = program(&line).env("ASCEND_SIM_WORK_US", "150");
        let run = program.traced_with(&[]).0;
        // A retry waits for streams: the device's size counts, too.
        let mut asked = vec!["--limit", "2GiB"];
        asked.extend(settings.iter().flat_map(|text| ["--set", text]));
        let found = answer(&run.folder.capture(), &asked);
        let (check, used) = (&found["check"], found["used_by_streams"].as_u64());
        assert!(check["agreeing"] == check["events"] && used >= Some(60), "{kind}: {found:#}");
        let own = peaks_of(&run.stdout);
        assert_eq!(
            [span(&found, "allocated_peak_bytes"), span(&found, "reserved_peak_bytes")],
            own.map(|peak| [peak; 2])
        );
        for text in settings {
            let answers = found["answers"].as_array().expect("answers");
            let predicted = answers.iter().find(|answer| answer["settings"] == text).expect("the settings");
            let [least, most] = span_of(predicted, "reserved_peak_bytes");
            let [output, _] = program.clone().env("PYTORCH_NPU_ALLOC_CONF", text).output(&Folder::new());
            let real = peaks_of(&output)[1];
            println!("{kind} {text}: {least} to {most}, real {real}");
            if !(least..=most).contains(&real) {
                missed.push(format!("{kind} {text}: {least} to {most}, real {real}"));
            }
        }
    }
    assert!(missed.len() <= 2, "{missed:#?}");
}

/// Threads that make requests at once. Their reports may come in another order than their requests, so one of four recordings may be
/// reproduced in part; the peaks are those of the program in all.
#[test]
fn threads_at_once() {
    let mut whole = 0;
    for (configuration, seed) in [("", 2), ("", 3), ("expandable_segments:True", 2), ("expandable_segments:True", 3)] {
        let program = program(&format!("threads.py 400 {seed}")).env("PYTORCH_NPU_ALLOC_CONF", configuration);
        let run = program.traced_with(&[]).0;
        let found = answer(&run.folder.capture(), &[]);
        let check = &found["check"];
        println!("{} of {} events", check["agreeing"], check["events"]);
        assert!(check["events"].as_u64() > Some(1000), "{check:#}");
        whole += usize::from(check["agreeing"] == check["events"]);
        assert_answers(&found, peaks_of(&run.stdout));
    }
    assert!(whole >= 3, "{whole} of 4");
}

/// Two processes on one device, of which one gives memory back half-way: what was refused before, and had later, is reproduced for both.
#[test]
fn processes_on_one_device() {
    for configuration in ["", "expandable_segments:True"] {
        let shared = Folder::new();
        let file = shared.path().join("devices").display().to_string();
        let program = program("neighbours.py 5").env("PYTORCH_NPU_ALLOC_CONF", configuration);
        let run = program.env("ASCEND_SIM_SHARED", &file).traced_with(&[]).0;
        let found = answers(&run.folder.capture(), &[]);
        assert_eq!(found.len(), 2, "{found:#?}");
        for process in &found {
            let check = &process["check"];
            println!("{} of {} events, {} failed", check["agreeing"], check["events"], process["failures"]);
            assert_eq!(check["agreeing"], check["events"], "{process:#}");
        }
        let own = found.iter().find(|process| process["failures"] == 3).expect("three requests that failed");
        assert_answers(own, peaks_of(&run.stdout));
    }
}

/// Where the driver takes 20 ms to make memory, a recording says so; and what it has nothing of is not made up.
#[test]
fn times_of_driver_calls() {
    let recorded = |configuration: &str| {
        let program = program("churn.py 400").env("ASCEND_SIM_DRIVER_US", "20000");
        let run = program.env("PYTORCH_NPU_ALLOC_CONF", configuration).traced_with(&[]).0;
        answer(&run.folder.capture(), &["--set", "expandable_segments:False", "--set", "expandable_segments:True"])
    };
    for (configuration, kind, other, count) in
        [("", "segment", "page", "malloc"), ("expandable_segments:True", "page", "segment", "create")]
    {
        let found = recorded(configuration);
        let quartiles = &found["call_times"][kind]["quartiles_ns"];
        let median = quartiles[1].as_u64().unwrap_or_else(|| panic!("no time: {found:#}"));
        assert!((20_000_000..40_000_000).contains(&median), "{quartiles}");
        assert!(found["call_times"].get(other).is_none(), "{found:#}");
        let device = &found["recorded"]["devices"][0];
        let calls = device["calls"][count].as_u64().expect("calls");
        assert!(calls > 4 && device["making_ns"].as_u64() == Some(calls * median), "{device:#}");
        for asked in found["answers"].as_array().expect("answers") {
            let is_alike = (asked["settings"] == "expandable_segments:True") == (kind == "page");
            assert_eq!(asked["devices"][0].get("making_ns").is_some(), is_alike, "{asked:#}");
        }
    }
}

/// What a script sets is in the recording: it is reproduced, with the request that fails for its own limit.
#[test]
fn rules_that_the_script_sets() {
    let cases = [
        ("fraction", 1, vec!["at most"]),
        ("settings", 0, vec!["expandable_segments:True", "expandable_segments:False,max_split_size_mb:40"]),
        ("refused", 0, vec![]),
    ];
    // `_set_allocator_settings` came behind 2.7.
    let count = if minor() < 9 { 1 } else { cases.len() };
    println!("{count} of {} cases", cases.len());
    for (what, failures, set) in cases.into_iter().take(count) {
        let line = format!("sets.py {what}");
        let found = answer(&recorded(&line).folder.capture(), &[]);
        let check = &found["check"];
        assert!(check["events"].as_u64() > Some(8) && check["agreeing"] == check["events"], "{what}: {found:#}");
        assert_eq!(found["failures"], failures, "{what}");
        let said: Vec<&str> =
            check["set_by_script"].as_array().into_iter().flatten().map(|text| text.as_str().expect("text")).collect();
        assert_eq!(said.len(), set.len(), "{what}: {said:?}");
        assert!(said.iter().zip(&set).all(|(said, set)| said.starts_with(set)), "{what}: {said:?}");
        assert_answers(&found, real(&line));
    }
}

/// A call of `empty_cache` that frees nothing is recorded, too: with segments that can grow it frees pages, and the peak is another one.
#[test]
fn caches_emptied_in_vain() {
    const GROWING: &str = "expandable_segments:True";
    let peaks = |line: &str| {
        let run = recorded(line);
        let found = answer(&run.folder.capture(), &["--set", GROWING]);
        let [output, _] = program(line).env("PYTORCH_NPU_ALLOC_CONF", GROWING).output(&Folder::new());
        let peaks = output.lines().find_map(|line| line.strip_prefix("peaks ")).expect("peaks").to_owned();
        let [allocated, reserved] = ["allocated_peak_bytes", "reserved_peak_bytes"].map(|figure| {
            let answers = found["answers"].as_array().expect("answers");
            let growing = answers.iter().find(|answer| answer["settings"] == GROWING).expect("the settings");
            let [least, most] = span_of(growing, figure);
            assert_eq!(least, most, "{found:#}");
            least
        });
        assert_eq!(format!("{allocated} {reserved}"), peaks, "{found:#}");
        assert_eq!(span(&found, "reserved_peak_bytes"), [real(line)[1]; 2], "{found:#}");
        reserved
    };
    let [emptied, kept, by_torch] =
        ["empty", "keep", "accelerator"].map(|kind| peaks(&format!("empties.py {kind} pieces")));
    assert!(emptied < kept, "{emptied} {kept}");
    assert_eq!(by_torch, emptied);
}

/// Whether the tracer has missed operators, as on a busy machine: not only some of their tensors.
fn lost_operators(run: &Run) -> bool {
    let losses = run.json()["end"]["losses"].as_array().cloned().unwrap_or_default();
    let is_of_operators = |loss: &Value| {
        let touches = loss["touches"].as_array().into_iter().flatten().any(|figure| figure == "operators");
        touches && loss["reason"] != "tensor not readable"
    };
    losses.iter().any(is_of_operators)
}

/// Tensors that are kept until the end of a step, freed right behind their last use instead: what a run of the program with `del` there has.
#[test]
fn blocks_freed_early() {
    // What these use besides is kept by the program with `del`, too.
    let of = |function: &'static str| ["--free-early", function, "--free-early", "size>=1M"];
    let all = ["--free-early", "size>=1M"];
    let cases: [(&str, &[&str], bool); 6] = [
        ("forward", &of("stack~: forward"), false),
        ("learn", &all, false),
        ("adam", &all, true),
        ("threads", &of("stack~: threads"), false),
        ("again", &of("stack~: again"), false),
        ("unused", &of("stack~: unused"), false),
    ];
    for (what, options, uses_left_out) in cases {
        let [keep, del] = ["keep", "del"].map(|how| format!("late.py {how} {what}"));
        let run = program(&keep).traced_with(&["--events=alloc,free,access", "--call-stack=python"]).0;
        let (kept, freed) = (real(&keep), real(&del));
        assert!(freed[0] < kept[0], "{what}: {freed:?} {kept:?}");
        let found = answer(&run.folder.capture(), options);
        let early = &found["freed_early"];
        println!("{what}: {early}");
        assert_eq!(found["check"]["agreeing"], found["check"]["events"], "{what}");
        assert_eq!(early["left_out"].as_u64() > Some(0), uses_left_out, "{what}: {early}");
        assert_eq!(early["uses_lost"], lost_operators(&run), "{what}: {early}");
        assert_eq!(found["recorded"]["sure"], "estimate", "{what}");
        assert_answers(&found, freed);
        assert_answers(&answer(&run.folder.capture(), &[]), kept);
    }
}

/// Without uses in the recording no last use is known.
#[test]
fn blocks_freed_early_without_uses() {
    let run = recorded("late.py keep forward");
    let mut ask = Command::new(tracer_path());
    let output =
        ask.arg("whatif").arg(run.folder.capture()).args(["--free-early", "size>=1M"]).output().expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("a capture recorded with --events=alloc,free,access"), "{said}");
}
