//! The report at the end: findings as text for people, or as one JSON object for programs.
//!
//! The leak and the gap report have the reference's layout, byte for byte (contract §8.2, §8.3); findings unknown to
//! the reference follow, and the completeness of the trace comes last.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Write},
};

pub use crate::analyses::Report;
use crate::analyses::{Context, Finding, LeftOut, registry};
use crate::document::{self, Findings};
use crate::model::{Device, Figures, LossLine, RunEnd};
use crate::printable::OneLine;
use crate::text::{clock::Clock, stacks};

impl Report {
    /// Writes the findings by process, then device; then hints and the loss report.
    pub fn write_text(&self, findings: &[Finding], end: &RunEnd, out: &mut dyn Write) -> io::Result<()> {
        let processes = by_process(findings);
        for (pid, process) in &processes {
            if processes.len() > 1 {
                writeln!(out, "Process {pid}")?;
            }
            registry::write_process(&Context { report: *self, clock: Clock::of(end), process }, out)?;
        }
        write_left_out(findings, out)?;
        registry::write_end(findings, *self, out)?;
        stacks::write_cut(&end.cut_stacks, out)?;
        if self.losses { write_losses(end, out) } else { Ok(()) }
    }
}

fn by_process(findings: &[Finding]) -> BTreeMap<u32, Vec<&Finding>> {
    let mut processes: BTreeMap<u32, Vec<&Finding>> = BTreeMap::new();
    for finding in findings {
        if let Some(pid) = finding.subject().and_then(|subject| subject.pid) {
            processes.entry(pid).or_default().push(finding);
        }
    }
    processes
}

/// Writes findings and losses as one JSON document on a line.
pub fn write_json(findings: &[Finding], end: &RunEnd, out: &mut dyn Write) -> io::Result<()> {
    document::write(Findings { findings: in_order(findings), end }, out)?;
    writeln!(out)
}

/// Findings as outputs for programs have them: by process.
#[must_use]
pub fn in_order(findings: &[Finding]) -> Vec<&Finding> {
    let mut findings: Vec<&Finding> = findings.iter().collect();
    // Dropped findings belong to no process, and come last.
    findings.sort_by_key(|finding| {
        finding.subject().map_or((true, None, Device::None), |subject| (false, subject.pid, subject.device))
    });
    findings
}

/// Writes the number of findings that were dropped: there were too many processes.
fn write_left_out(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    for finding in findings {
        if let Finding::LeftOut(LeftOut { kind, count }) = finding {
            writeln!(
                out,
                "Left out: {count} more findings (`{kind}`) about processes that ended and had less memory."
            )?;
        }
    }
    Ok(())
}

fn write_losses(end: &RunEnd, out: &mut dyn Write) -> io::Result<()> {
    let RunEnd { lost, losses, fault, unopened, .. } = end;
    if let Some(fault) = fault {
        writeln!(out, "lost: not known: {fault}, so a part of the trace may be missing")?;
    }
    for file in unopened {
        writeln!(out, "lost: not known: {} may not be opened, so all calls in it are missing", OneLine(file))?;
    }
    let is_known = fault.is_none() && unopened.is_empty();
    if *lost == 0 && losses.is_empty() {
        return if is_known { writeln!(out, "lost: 0 (ring full), 0 (any other reason)") } else { Ok(()) };
    }
    // None that are known are not none.
    if is_known || *lost > 0 {
        writeln!(out, "lost: {lost} (ring full)")?;
    }
    for loss in losses {
        let LossLine { layer, symbol, count, reason, touches } = loss;
        writeln!(out, "  {layer} {symbol}: {count} ({reason}), {}", Touched(touches))?;
    }
    if end.touches(&[Figures::Memory]) {
        return writeln!(
            out,
            "What is lost is in no figure above: after a lost allocation memory is missing, after a lost free a block \
             counts as held, and maybe as leaked."
        );
    }
    writeln!(out, "No allocation or free was lost: figures of memory are whole.")
}

/// Figures that a loss may affect, in words.
struct Touched<'a>(&'a [Figures]);

impl fmt::Display for Touched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("touches no figure"),
            all if all.len() == Figures::ALL.len() => f.write_str("may touch every figure"),
            some => {
                let names: Vec<&str> = some.iter().map(|figures| figures.name()).collect();
                write!(f, "may touch: {}", names.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::{
        FluctuationAnalysis, HeldAnalysis, StepLeaksAnalysis,
        script::{Script, run},
    };
    use crate::backend::ascend::pools;

    const NPU0: Device = Device::Npu(0);

    fn findings(script: &Script, end: &RunEnd) -> Vec<Finding> {
        let mut found = run(StepLeaksAnalysis::default(), script.events(), end);
        found.extend(run(FluctuationAnalysis::default(), script.events(), end));
        found.extend(run(HeldAnalysis::default(), script.events(), end));
        found
    }

    fn text_of(report: Report, findings: &[Finding], end: &RunEnd) -> String {
        let mut out = Vec::new();
        report.write_text(findings, end, &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("the report is text")
    }

    fn text(script: &Script) -> String {
        let end = RunEnd::default();
        text_of(Report::default(), &findings(script, &end), &end)
    }

    /// With the lines of the reference.
    fn text_with_blocks(script: &Script) -> String {
        let end = RunEnd::default();
        text_of(Report { leak_blocks: true, ..Report::default() }, &findings(script, &end), &end)
    }

    /// The golden run's console output, byte for byte, and our additions after it.
    #[test]
    fn leaky_run_prints_what_the_reference_prints() {
        let places = "\
Leaks of steps on device 0: 2.00 MiB (2097152 bytes) in 2 blocks of 1 place
  Pytorch Caching memory pool: 2.00 MiB (2097152 bytes) in 2 blocks of 1048576 bytes, of 2 steps, 2 to 3
Not judged on device 0: 1 block, 1.00 MiB (1048576 bytes), live at the end. No step after their own ended, so \
whether they leak is open.
";
        let reference = "\
====== ERROR: Detected memory leaks on device 0 ======
Direct Pytorch Caching memory pool leak of 1.000000 Mb(s) at 0x168008144000 in kernel_0 at step 2.
Direct Pytorch Caching memory pool leak of 1.000000 Mb(s) at 0x16800825c000 in kernel_0 at step 3.
====== SUMMARY: 2 Mb(s) leaked in 2 allocation(s) ======
";
        let rest = "\
======= Pytorch Caching memory pool Gap Analysis of Device 0 =======
\tMinAlloc/MaxAlloc(%)     MinAllocMem(MB)          StepId                   \n\
MinGap\t99.2308                  129.0000                 2                        \n\
MaxGap\t99.2424                  131.0000                 4                        \n\
Pytorch Caching memory pool held at the end on device 0: 132.00 MiB (138412032 bytes) in 5 blocks; \
peak 132.00 MiB (138412032 bytes); 13 allocations, 8 frees
lost: 0 (ring full), 0 (any other reason)
";
        assert_eq!(text_with_blocks(&Script::golden_leaky()), [places, reference, rest].concat());
        assert_eq!(text(&Script::golden_leaky()), [places, rest].concat());
    }

    /// The golden run at kernel level counts launches; sizes that are no whole number of MB are spelt as in C++.
    #[test]
    fn leak_lines_name_the_kernel_and_round_as_the_reference() {
        let mut script = Script::new(1, NPU0);
        script.step(1).step_start(2);
        for _ in 0..16 {
            script.launch();
        }
        script.alloc(pools::ATB, 0x1680_0814_4000, 59_756).alloc(pools::MIND_SPORE, 0x2000, 3).step_end(2).step(3);
        let expected = "\
====== ERROR: Detected memory leaks on device 0 ======
Direct ATB memory pool leak of 0.056988 Mb(s) at 0x168008144000 in kernel_16 at step 2.
Direct Mindspore memory pool leak of 0.000003 Mb(s) at 0x2000 in kernel_16 at step 2.
====== SUMMARY: 0.0569906 Mb(s) leaked in 2 allocation(s) ======
";
        let text = text_with_blocks(&script);
        let reference = text.find("======").map_or("", |at| &text[at..]);
        assert!(reference.starts_with(expected), "{text}");
    }

    /// Steps without leaks are reported, with their number.
    #[test]
    fn clean_run_says_so() {
        let mut script = Script::new(1, NPU0);
        script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).free(pools::PTA, 0x1000).step_end(2).step(3);
        let text = text(&script);
        assert!(text.starts_with("No memory leaks detected on device 0 (3 steps ended).\n"), "{text}");
        assert!(!text.contains("ERROR") && !text.contains("No steps were marked"), "{text}");
    }

    /// Driver memory is listed by module, and without steps there is no claim about leaks.
    #[test]
    fn driver_memory_is_a_table_by_module() {
        let mut script = Script::new(1, NPU0);
        script.module(Some(33)).alloc(pools::HAL, 0x1000, 64 << 20).alloc(pools::HAL, 0x2000, 64 << 20);
        script.module(Some(3)).alloc(pools::HAL, 0x3000, 100).alloc(pools::HAL, 0x4000, 1).free(pools::HAL, 0x4000);
        script.unknown_free(pools::HAL, 0x9000, true).alloc_failed(pools::HAL, 1 << 40, (1, 1));
        let expected = "\
Hal memory held at the end on device 0: 128.00 MiB (134217828 bytes) in 3 blocks; \
peak 128.00 MiB (134217829 bytes); 4 allocations, 1 free, 1 failed allocation, \
1 free of blocks older than the trace
  Module              Blocks  Size
  APP                      2  128.00 MiB (134217728 bytes)
  HCCL                     1  100 bytes
No steps were marked, so leaks of steps are not judged. Call `msmemscope.step()` after each step, or mark it with an mstx range \
named `step start`. torch_npu's own `mstx` module makes no call while no profiler runs: its ranges mark no steps. With \
`--call-stack=python` steps of training are inferred from the optimizer.
lost: 0 (ring full), 0 (any other reason)
";
        assert_eq!(text(&script), expected);
        let end = RunEnd::default();
        let quiet = text_of(Report { step_hint: false, ..Report::default() }, &findings(&script, &end), &end);
        assert!(!quiet.contains("No steps"), "{quiet}");
    }

    /// Each process has its own block under its name, in order, devices in order within.
    #[test]
    fn processes_are_named_when_there_are_several() {
        let mut script = Script::new(20, NPU0);
        script.alloc(pools::HAL, 0x1000, 1).free(pools::HAL, 0x1000);
        script.on(10, Device::Npu(1)).alloc(pools::HAL, 0x1000, 1).free(pools::HAL, 0x1000);
        script.on(10, NPU0).alloc(pools::HAL, 0x1000, 1).free(pools::HAL, 0x1000);
        let text = text(&script);
        let lines: Vec<&str> = text.lines().map(|line| line.split(':').next().unwrap_or("")).collect();
        let expected = [
            "Process 10",
            "Hal memory held at the end on device 0",
            "Hal memory held at the end on device 1",
            "Process 20",
            "Hal memory held at the end on device 0",
        ];
        assert_eq!(lines[..5], expected);
        assert!(text.contains("device 0: nothing; peak 1 byte; 1 allocation, 1 free\n"), "{text}");
    }

    /// Long lists are cut; the summary still counts everything.
    #[test]
    fn long_lists_of_leaks_are_cut() {
        let mut script = Script::new(1, NPU0);
        script.step(1).step_start(2);
        for block in 0..103 {
            script.alloc(pools::PTA, block << 20, 1 << 20);
        }
        script.step_end(2).step(3);
        let text = text_with_blocks(&script);
        assert_eq!(text.lines().filter(|line| line.starts_with("Direct ")).count(), 100);
        let cut = "… and 3 more (see --json)\n====== SUMMARY: 103 Mb(s) leaked in 103 allocation(s) ======\n";
        assert!(text.contains(cut), "{text}");
    }

    /// The pools' gaps come first, driver memory's after them.
    #[test]
    fn gaps_of_driver_memory_come_last() {
        let mut script = Script::new(1, NPU0);
        script.step(1).step_start(2).alloc(pools::HAL, 0x1000, 1).alloc(pools::MIND_SPORE, 0x1000, 1).step_end(2);
        let text = text(&script);
        let titles: Vec<&str> = text.lines().filter(|line| line.contains("Gap Analysis")).collect();
        let expected = [
            "======= Mindspore memory pool Gap Analysis of Device 0 =======",
            "======= Hal memory Gap Analysis of Device 0 =======",
        ];
        assert_eq!(titles, expected);
    }

    fn lossy() -> RunEnd {
        let line = |symbol: &str, reason: &str, count| LossLine {
            layer: "hal".to_owned(),
            symbol: symbol.to_owned(),
            reason: reason.to_owned(),
            count,
            touches: if count > 4 { (&[Figures::Memory]).into() } else { (&[]).into() },
        };
        RunEnd {
            time_ns: 1,
            lost: 12,
            losses: vec![line("halMemAlloc", "ring full", 12), line("halMemFree", "no entry", 3)],
            ..RunEnd::default()
        }
    }

    /// If a mapped file was not opened, no completeness is claimed.
    #[test]
    fn unopened_files_make_losses_unknown() {
        let end = RunEnd { unopened: vec!["/lib/a\nlost: 0".to_owned()], ..RunEnd::default() };
        let text = text_of(Report::default(), &[], &end);
        let expected = "lost: not known: /lib/a\\nlost: 0 may not be opened, so all calls in it are missing\n";
        assert!(text.ends_with(expected) && !text.contains("lost: 0 (ring full)"), "{text}");
        // Nor where something else is counted.
        let losses = lossy().losses;
        let text = text_of(Report::default(), &[], &RunEnd { losses, ..end.clone() });
        assert!(!text.contains("lost: 0 (ring full)"), "{text}");
        assert!(text.contains("missing\n  hal halMemAlloc: 12 (ring full), may touch: memory\n"), "{text}");
        let json = serde_json::to_value(&end).expect("JSON");
        assert_eq!(json["unopened"][0], "/lib/a\nlost: 0");
        assert!(serde_json::to_value(RunEnd::default()).expect("JSON").get("unopened").is_none());
    }

    /// If the tracer itself failed, no completeness is claimed, in text and JSON.
    #[test]
    fn faults_make_losses_unknown() {
        let end = RunEnd { fault: Some("thread `x` failed".to_owned()), ..RunEnd::default() };
        let text = text_of(Report::default(), &[], &end);
        let expected = "lost: not known: thread `x` failed, so a part of the trace may be missing\n";
        assert!(text.ends_with(expected) && !text.contains("lost: 0"), "{text}");
        let json = |end: &RunEnd| serde_json::to_value(end).expect("JSON").get("fault").cloned();
        assert_eq!(json(&end), Some("thread `x` failed".into()));
        assert_eq!(json(&RunEnd::default()), None);
    }

    /// Losses are listed by function, with their meaning, and make the leak report doubtful.
    #[test]
    fn losses_are_listed_with_their_meaning() {
        let end = lossy();
        let text = text_of(Report::default(), &findings(&Script::golden_leaky(), &end), &end);
        let expected = "\
lost: 12 (ring full)
  hal halMemAlloc: 12 (ring full), may touch: memory
  hal halMemFree: 3 (no entry), touches no figure
What is lost is in no figure above: after a lost allocation memory is missing, after a lost free a block counts as \
held, and maybe as leaked.
";
        assert!(text.ends_with(expected), "{text}");
        assert!(text.contains("\nDoubtful on device 0: events were lost"), "{text}");
    }

    /// A launch without its start is no lost allocation: leaks are certain, and the report says that memory is whole.
    #[test]
    fn losses_of_other_things_leave_memory_certain() {
        let loss = |touches: &'static [Figures]| LossLine {
            layer: "runtime".to_owned(),
            symbol: "rtKernelLaunch".to_owned(),
            reason: "entered before attach".to_owned(),
            count: 1,
            touches: touches.into(),
        };
        let end = RunEnd {
            lost: 1,
            losses: vec![loss(&[]), loss(&[Figures::Launches, Figures::Failures]), loss(&Figures::ALL)],
            ..RunEnd::default()
        };
        let text = |end: &RunEnd| text_of(Report::default(), &findings(&Script::golden_leaky(), end), end);
        let doubtful = text(&end);
        let expected = "\
lost: 1 (ring full)
  runtime rtKernelLaunch: 1 (entered before attach), touches no figure
  runtime rtKernelLaunch: 1 (entered before attach), may touch: launches, failed requests
  runtime rtKernelLaunch: 1 (entered before attach), may touch every figure
What is lost is";
        assert!(doubtful.contains(expected) && doubtful.contains("Doubtful on device 0"), "{doubtful}");
        let certain = text(&RunEnd { losses: end.losses[..2].to_vec(), ..end });
        assert!(certain.ends_with("\nNo allocation or free was lost: figures of memory are whole.\n"), "{certain}");
        assert!(!certain.contains("Doubtful"), "{certain}");
    }

    /// An empty trace still reports its losses.
    #[test]
    fn empty_run_still_reports() {
        let text = text_of(Report::default(), &[], &RunEnd::default());
        assert!(text.starts_with("No steps were marked"), "{text}");
        assert!(text.ends_with("\nlost: 0 (ring full), 0 (any other reason)\n"), "{text}");
    }

    /// One object on one line, findings by process, everything in it.
    #[test]
    fn json_is_one_object() {
        let mut script = Script::golden_leaky();
        script.on(5, NPU0).alloc(pools::HAL, 0x1000, 64);
        let end = lossy();
        let mut out = Vec::new();
        write_json(&findings(&script, &end), &end, &mut out).expect("memory takes everything");
        assert_eq!(out.iter().position(|&byte| byte == b'\n'), Some(out.len() - 1));
        let json: serde_json::Value = serde_json::from_slice(&out).expect("valid JSON");
        let kinds: Vec<_> = json["findings"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|finding| (finding["pid"].as_u64(), finding["finding"].as_str()))
            .collect();
        let expected = [
            (Some(5), Some("fluctuation")),
            (Some(5), Some("held")),
            (Some(30057), Some("step_leaks")),
            (Some(30057), Some("fluctuation")),
            (Some(30057), Some("held")),
        ];
        assert_eq!(kinds, expected);
        let leaks = &json["findings"][2];
        assert_eq!(leaks["leaks"][0]["addr"], 0x1680_0814_4000_u64);
        assert_eq!(leaks["confidence"], "doubtful");
        assert_eq!((&json["end"]["lost"], &json["end"]["losses"][1]["count"]), (&12.into(), &3.into()));
    }
}
