//! The report at the end: findings as text for people, or as one JSON object for programs.
//!
//! The leak and the gap report have the reference's layout, byte for byte (contract §8.2, §8.3); what it does not
//! report follows after them, and how complete the trace was comes last.

mod decompose;
mod diff;
mod fragmentation;
mod growth;
mod inefficient;
mod ledger;
mod marks;
mod oom;
mod peaks;
mod sample;
mod span;
mod steps;

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Write},
};

pub use diff::write_diff;
pub use sample::{SAMPLE_CSV_HEADER, write_sample, write_sample_csv};
use serde::Serialize;

use crate::model::{
    ByStack, Decomposition, Device, ExitFreed, Figures, Finding, Fluctuation, Fragmentation, Growth, Held, HeldModule,
    Inefficient, Leak, Ledger, LeftOut, LossLine, MarkLeaks, Oom, Peak, Pool, RatioRecord, RunEnd, Span, StepLeaks,
    StepsFrom,
};
use crate::printable::OneLine;
use crate::text::{
    DeviceName,
    clock::Clock,
    numbers::{counted, general, mega, size},
    stacks,
};

/// How to write the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether to list the blocks that outlived their steps one by one, in msMemScope's lines.
    pub leak_blocks: bool,
    /// Leaks listed one by one for each process and device; the summary counts the rest too.
    pub leak_lines: usize,
    /// Places of leaks of steps listed for each process and device, and as many undecided ones.
    pub place_lines: usize,
    /// Growing sites listed for each process and device.
    pub growth_lines: usize,
    /// Whether to tell how to mark steps when none was marked. Only sensible when leaks were looked for.
    pub step_hint: bool,
    /// Whether the losses are known. A dump does not tell of them.
    pub losses: bool,
}

impl Report {
    /// What commands write if nothing else is wanted.
    pub const DEFAULT: Self =
        Self { leak_blocks: false, leak_lines: 100, place_lines: 10, growth_lines: 10, step_hint: true, losses: true };
}

impl Default for Report {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Findings of one process, each kind in its order.
#[derive(Debug, Default)]
struct Process<'a> {
    leaks: Vec<&'a StepLeaks>,
    gaps: Vec<&'a Fluctuation>,
    held: Vec<&'a Held>,
    ledgers: Vec<&'a Ledger>,
    marks: Vec<&'a MarkLeaks>,
    ooms: Vec<&'a Oom>,
    inefficient: Vec<&'a Inefficient>,
    spans: Vec<&'a Span>,
    growth: Vec<&'a Growth>,
    by_stack: Vec<&'a ByStack>,
    decompositions: Vec<&'a Decomposition>,
    peaks: Vec<&'a Peak>,
    fragmentation: Vec<&'a Fragmentation>,
}

impl Report {
    /// Writes the findings by process, then device; then hints and the loss report.
    pub fn write_text(&self, findings: &[Finding], end: &RunEnd, out: &mut dyn Write) -> io::Result<()> {
        let processes = by_process(findings);
        for (pid, process) in &processes {
            if processes.len() > 1 {
                writeln!(out, "Process {pid}")?;
            }
            self.write_process(process, Clock::of(end), out)?;
        }
        write_left_out(findings, out)?;
        let marked = processes.values().flat_map(|process| &process.leaks).any(|leaks| leaks.steps_ended > 0);
        if self.step_hint && !marked {
            writeln!(
                out,
                "No steps were marked, so leaks of steps are not judged. Call `msmemscope.step()` after each step, or mark it with \
                 an mstx range named `step start`. torch_npu's own `mstx` module makes no call while no profiler runs: its ranges \
                 mark no steps. With `--call-stack=python` steps of training are inferred from the optimizer."
            )?;
        }
        stacks::write_cut(&end.cut_stacks, out)?;
        if self.losses { write_losses(end, out) } else { Ok(()) }
    }

    fn write_process(&self, process: &Process<'_>, clock: Clock, out: &mut dyn Write) -> io::Result<()> {
        for found in &process.ooms {
            oom::write(found, clock, out)?;
        }
        for leaks in &process.leaks {
            steps::write(leaks, self.place_lines, out)?;
        }
        // The reference infers no steps.
        for leaks in process.leaks.iter().filter(|leaks| self.leak_blocks && leaks.steps_from == StepsFrom::Marks) {
            self.write_leaks(leaks, out)?;
        }
        for leaks in &process.marks {
            marks::write(leaks, self.leak_lines, out)?;
            let blocks = leaks.leaks.iter().map(|leak| (leak.stacks, leak.size_bytes));
            stacks::write_blocks("Leaked on device", leaks.device, blocks, out)?;
        }
        for gap in process.gaps.iter().filter(|gap| !self.leak_blocks || gap.steps_from == StepsFrom::Marks) {
            write_gap(gap, out)?;
        }
        process.spans.iter().try_for_each(|found| span::write(found, clock, out))?;
        let stepped = process.leaks.iter().any(|leaks| leaks.steps_ended > 0);
        for found in &process.growth {
            growth::write(found, stepped, clock, self.growth_lines, out)?;
        }
        for found in &process.inefficient {
            inefficient::write(found, self.leak_lines, out)?;
        }
        for found in &process.decompositions {
            decompose::write(found, clock, out)?;
        }
        for found in &process.peaks {
            peaks::write(found, clock, out)?;
        }
        for found in &process.fragmentation {
            fragmentation::write(found, clock, out)?;
        }
        for held in &process.held {
            let freed = process.spans.iter().flat_map(|span| &span.freed);
            write_held(held, freed.filter(|freed| (freed.device, freed.pool) == (held.device, held.pool)), out)?;
        }
        for found in &process.by_stack {
            stacks::write(found, out)?;
        }
        for ledger in &process.ledgers {
            ledger::write_ledger(ledger, out)?;
        }
        Ok(())
    }

    fn write_leaks(&self, StepLeaks { device, leaks, .. }: &StepLeaks, out: &mut dyn Write) -> io::Result<()> {
        if leaks.is_empty() {
            return Ok(());
        }
        writeln!(out, "====== ERROR: Detected memory leaks on device {} ======", DeviceName(*device))?;
        for Leak { pool, addr, size_bytes, step, kernel_index, .. } in leaks.iter().take(self.leak_lines) {
            let (pool, mb) = (pool.display_name(), mega(*size_bytes));
            writeln!(out, "Direct {pool} leak of {mb:.6} Mb(s) at {addr:#x} in kernel_{kernel_index} at step {step}.")?;
        }
        if let Some(more) = leaks.len().checked_sub(self.leak_lines).filter(|&more| more > 0) {
            writeln!(out, "… and {more} more (see --json)")?;
        }
        let (total, count) = (general(mega(total_bytes(leaks))), leaks.len());
        writeln!(out, "====== SUMMARY: {total} Mb(s) leaked in {count} allocation(s) ======")
    }
}

/// Writes the ledgers among the findings, and nothing else.
pub fn write_ledgers(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    let ledgers = findings.iter().filter_map(|finding| match finding {
        Finding::Ledger(ledger) => Some(ledger),
        _ => None,
    });
    ledgers.into_iter().try_for_each(|found| ledger::write_ledger(found, out))
}

/// Writes findings and losses as one JSON object: `{"findings":[…],"end":{…}}`.
pub fn write_json(findings: &[Finding], end: &RunEnd, out: &mut dyn Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Document<'a> {
        findings: Vec<&'a Finding>,
        end: &'a RunEnd,
    }

    serde_json::to_writer(&mut *out, &Document { findings: in_order(findings), end })?;
    writeln!(out)
}

/// Findings as outputs for programs have them: by process.
#[must_use]
pub fn in_order(findings: &[Finding]) -> Vec<&Finding> {
    let mut findings: Vec<&Finding> = findings.iter().collect();
    findings.sort_by_key(|finding| place(finding));
    findings
}

/// Process and device of a finding.
fn place(finding: &Finding) -> (u32, Device) {
    match finding {
        Finding::StepLeaks(found) => (found.pid, found.device),
        Finding::Fluctuation(found) => (found.pid, found.device),
        Finding::Held(found) => (found.pid, found.device),
        Finding::Ledger(found) => (found.pid, found.device),
        Finding::MarkLeaks(found) => (found.pid, found.device),
        Finding::Oom(found) => (found.pid, found.device),
        Finding::Inefficient(found) => (found.pid, found.device),
        Finding::Span(found) => (found.pid, Device::None),
        Finding::Growth(found) => (found.pid, found.device),
        Finding::ByStack(found) => (found.pid, found.device),
        Finding::Decompose(found) => (found.pid, found.device),
        Finding::Peak(found) => (found.pid, found.device),
        Finding::Fragmentation(found) => (found.pid, found.device),
        Finding::DeviceUse(found) => (0, found.device),
        // Behind all of them.
        Finding::LeftOut(_) => (u32::MAX, Device::None),
    }
}

fn by_process(findings: &[Finding]) -> BTreeMap<u32, Process<'_>> {
    let mut processes: BTreeMap<u32, Process<'_>> = BTreeMap::new();
    for finding in findings.iter().filter(|finding| !matches!(finding, Finding::LeftOut(_))) {
        let process = processes.entry(place(finding).0).or_default();
        match finding {
            Finding::StepLeaks(leaks) => process.leaks.push(leaks),
            Finding::Fluctuation(gap) => process.gaps.push(gap),
            Finding::Held(held) => process.held.push(held),
            Finding::Ledger(ledger) => process.ledgers.push(ledger),
            Finding::MarkLeaks(leaks) => process.marks.push(leaks),
            Finding::Oom(found) => process.ooms.push(found),
            Finding::Inefficient(found) => process.inefficient.push(found),
            Finding::Span(found) => process.spans.push(found),
            Finding::Growth(found) => process.growth.push(found),
            Finding::ByStack(found) => process.by_stack.push(found),
            Finding::Decompose(found) => process.decompositions.push(found),
            Finding::Peak(found) => process.peaks.push(found),
            Finding::Fragmentation(found) => process.fragmentation.push(found),
            // The ledger has it; and `write_left_out`.
            Finding::DeviceUse(_) | Finding::LeftOut(_) => {}
        }
    }
    for process in processes.values_mut() {
        let Process {
            leaks,
            gaps,
            held,
            ledgers,
            marks,
            ooms,
            inefficient,
            spans: _,
            growth,
            by_stack,
            decompositions,
            peaks,
            fragmentation,
        } = process;
        growth.sort_by_key(|found| found.device);
        by_stack.sort_by_key(|found| (found.device, found.pool));
        decompositions.sort_by_key(|found| (found.device, found.pool));
        peaks.sort_by_key(|found| (found.device, found.pool));
        fragmentation.sort_by_key(|found| (found.device, found.pool));
        inefficient.sort_by_key(|found| found.device);
        marks.sort_by_key(|leaks| leaks.device);
        ooms.sort_by_key(|found| found.time_ns);
        leaks.sort_by_key(|leaks| leaks.device);
        // The reference knows no gaps of driver memory, so readers of its output expect those of the pools first.
        gaps.sort_by_key(|gap| (gap.device, gap.pool == Pool::Hal, gap.pool));
        held.sort_by_key(|held| (held.device, held.pool));
        ledgers.sort_by_key(|ledger| (ledger.device, ledger.moment));
    }
    processes
}

/// What is not told, since so many processes were there.
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

fn total_bytes(leaks: &[Leak]) -> u64 {
    leaks.iter().map(|leak| leak.size_bytes).fold(0, u64::saturating_add)
}

/// Nothing where no step could be judged: a table of zeros would claim the strongest variation there is.
fn write_gap(found: &Fluctuation, out: &mut dyn Write) -> io::Result<()> {
    let Fluctuation { device, pool, min_gap, max_gap, steps_from, .. } = found;
    let (Some(min_gap), Some(max_gap)) = (min_gap, max_gap) else { return Ok(()) };
    writeln!(out, "======= {} Gap Analysis of Device {} =======", pool.display_name(), DeviceName(*device))?;
    writeln!(out, "\t{:<25}{:<25}{:<25}", "MinAlloc/MaxAlloc(%)", "MinAllocMem(MB)", "StepId")?;
    for (name, RatioRecord { ratio, min_used_bytes, step }) in [("MinGap", min_gap), ("MaxGap", max_gap)] {
        writeln!(out, "{name}\t{:<25.4}{:<25.4}{step:<25}", ratio * 100.0, mega(*min_used_bytes))?;
    }
    if *steps_from != StepsFrom::Marks {
        writeln!(out, "Steps{}", steps_from.note().trim_start_matches(','))?;
    }
    Ok(())
}

fn write_held<'a>(
    held: &Held,
    freed_by_exit: impl Iterator<Item = &'a ExitFreed>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let Held { pool, blocks, size_bytes, unseen_bytes, peak_bytes, .. } = held;
    write!(out, "{} held at the end on device {}: ", pool.display_name(), DeviceName(held.device))?;
    let seen = match blocks {
        0 => "nothing".to_owned(),
        _ => format!("{} in {}", size(*size_bytes), counted(*blocks, "block")),
    };
    match unseen_bytes {
        0 => write!(out, "{seen}")?,
        unseen => {
            let why = if held.attached { "from before the attach" } else { "not seen" };
            write!(out, "{}: {seen}, and {} {why}", size(size_bytes.saturating_add(*unseen)), size(*unseen))?;
        }
    }
    for ExitFreed { blocks, size_bytes, .. } in freed_by_exit {
        write!(out, "; freed by the exit: {} in {}", size(*size_bytes), counted(*blocks, "block"))?;
    }
    write!(out, "; peak {}; {}", size(*peak_bytes), traffic(held))?;
    let is_partial = held.attached && *unseen_bytes == 0;
    writeln!(out, "{}", if is_partial { "; blocks from before the attach are not known" } else { "" })?;
    if held.frees_are_not_seen() {
        writeln!(
            out,
            "  Frees of this pool are not seen: {} ended only when their addresses were handed out again, so it holds less than this. \
             Its library may free by a function that is not probed: see `doctor --pid`.",
            counted(held.replaced, "block")
        )?;
    }
    if held.by_module.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {:<16}  {:>8}  Size", "Module", "Blocks")?;
    for HeldModule { module, blocks, size_bytes } in &held.by_module {
        writeln!(out, "  {module:<16}  {blocks:>8}  {}", size(*size_bytes))?;
    }
    Ok(())
}

/// What was seen happening; unusual things only where they happened.
fn traffic(held: &Held) -> String {
    let mut parts = vec![counted(held.allocations, "allocation"), counted(held.frees, "free")];
    let unusual = [
        (held.failed, "failed allocation", ""),
        (held.recovered, "allocation", " that succeeded at a further attempt"),
        (held.older_frees, "free", " of blocks older than the trace"),
        (held.unknown_frees, "free", " of unknown blocks"),
    ];
    let unusual = unusual.into_iter().filter(|&(count, ..)| count > 0);
    parts.extend(unusual.map(|(count, noun, which)| counted(count, noun) + which));
    parts.join(", ")
}

fn write_losses(end: &RunEnd, out: &mut dyn Write) -> io::Result<()> {
    let RunEnd { lost, losses, fault, unopened, .. } = end;
    if let Some(fault) = fault {
        writeln!(out, "lost: not known: {fault}, so a part of the trace may be missing")?;
    }
    for file in unopened {
        writeln!(out, "lost: not known: {} may not be opened, so all calls in it are missing", OneLine(file))?;
    }
    if *lost == 0 && losses.is_empty() {
        if fault.is_some() || !unopened.is_empty() {
            return Ok(());
        }
        return writeln!(out, "lost: 0 (ring full), 0 (any other reason)");
    }
    writeln!(out, "lost: {lost} (ring full)")?;
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

/// Figures that a loss may touch, in words.
struct Touched(&'static [Figures]);

impl fmt::Display for Touched {
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
        script.alloc(Pool::Atb, 0x1680_0814_4000, 59_756).alloc(Pool::MindSpore, 0x2000, 3).step_end(2).step(3);
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

    /// Steps without leaks are said to be so, with the number of steps that this rests on.
    #[test]
    fn clean_run_says_so() {
        let mut script = Script::new(1, NPU0);
        script.step(1).step_start(2).alloc(Pool::Pta, 0x1000, 64).free(Pool::Pta, 0x1000).step_end(2).step(3);
        let text = text(&script);
        assert!(text.starts_with("No memory leaks detected on device 0 (3 steps ended).\n"), "{text}");
        assert!(!text.contains("ERROR") && !text.contains("No steps were marked"), "{text}");
    }

    /// Driver memory is told by module, and nothing is claimed about leaks without steps.
    #[test]
    fn driver_memory_is_a_table_by_module() {
        let mut script = Script::new(1, NPU0);
        script.module(Some(33)).alloc(Pool::Hal, 0x1000, 64 << 20).alloc(Pool::Hal, 0x2000, 64 << 20);
        script.module(Some(3)).alloc(Pool::Hal, 0x3000, 100).alloc(Pool::Hal, 0x4000, 1).free(Pool::Hal, 0x4000);
        script.unknown_free(Pool::Hal, 0x9000, true).alloc_failed(Pool::Hal, 1 << 40, (1, 1));
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
        script.alloc(Pool::Hal, 0x1000, 1).free(Pool::Hal, 0x1000);
        script.on(10, Device::Npu(1)).alloc(Pool::Hal, 0x1000, 1).free(Pool::Hal, 0x1000);
        script.on(10, NPU0).alloc(Pool::Hal, 0x1000, 1).free(Pool::Hal, 0x1000);
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
            script.alloc(Pool::Pta, block << 20, 1 << 20);
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
        script.step(1).step_start(2).alloc(Pool::Hal, 0x1000, 1).alloc(Pool::MindSpore, 0x1000, 1).step_end(2);
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
            touches: if count > 4 { &[Figures::Memory] } else { &[] },
        };
        RunEnd {
            time_ns: 1,
            lost: 12,
            losses: vec![line("halMemAlloc", "ring full", 12), line("halMemFree", "no entry", 3)],
            ..RunEnd::default()
        }
    }

    /// Make sure that nothing is said to be complete where a mapped file was not opened.
    #[test]
    fn unopened_files_make_losses_unknown() {
        let end = RunEnd { unopened: vec!["/lib/a\nlost: 0".to_owned()], ..RunEnd::default() };
        let text = text_of(Report::default(), &[], &end);
        let expected = "lost: not known: /lib/a\\nlost: 0 may not be opened, so all calls in it are missing\n";
        assert!(text.ends_with(expected) && !text.contains("lost: 0 (ring full)"), "{text}");
        let json = serde_json::to_value(&end).expect("JSON");
        assert_eq!(json["unopened"][0], "/lib/a\nlost: 0");
        assert!(serde_json::to_value(RunEnd::default()).expect("JSON").get("unopened").is_none());
    }

    /// Make sure that nothing is said to be complete when the tracer itself failed, in text and JSON.
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

    /// Losses are told by function, with what they mean, and make the leak report doubtful.
    #[test]
    fn losses_are_told_with_what_they_mean() {
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

    /// A launch without its beginning is no lost allocation: leaks are certain, and the report says that memory is whole.
    #[test]
    fn losses_of_other_things_leave_memory_certain() {
        let loss = |touches| LossLine {
            layer: "runtime".to_owned(),
            symbol: "rtKernelLaunch".to_owned(),
            reason: "entered before attach".to_owned(),
            count: 1,
            touches,
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

    /// A trace that saw nothing still says what it lost.
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
        script.on(5, NPU0).alloc(Pool::Hal, 0x1000, 64);
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
