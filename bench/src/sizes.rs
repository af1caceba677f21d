//! What do the analyses cost? Each case runs in a process of its own, so that its memory is known.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use memscope::analyses::{
    Analysis, DecomposeAnalysis, Finding, FragmentationAnalysis, Observer, PeaksAnalysis, StepLeaksAnalysis,
    decompose::RuleSet,
};
use memscope::backend::ascend::pools;
use memscope::input;
use memscope::model::{Event, RunEnd};
use memscope::report::{self, Reducer};

use crate::files;
use crate::program::Program;
use crate::random::Random;
use crate::training::{Shape, train};

/// Events of the largest case.
const EVENTS: u64 = 10_000_000;
/// Of the smaller ones.
const FEWER_EVENTS: u64 = 1_000_000;
/// Rows of each of the two inputs that are compared.
const ROWS: u64 = 1_000_000;

/// Bytes of a page, however long its run was.
const MAX_PAGE: usize = 5_000_000;

/// What a case takes, or may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Of a processor's time: what else the machine does does not count.
    pub(crate) cpu_seconds: f64,
    peak_bytes: u64,
}

/// Prints a line for each case; gives whether the goals are met.
pub(crate) fn run(tool: &str) -> Result<bool> {
    println!("{:<76} {:>9} {:>9} {:>9}  Goal", "", "Seconds", "CPU s", "Peak MiB");
    let one_pass = Cost { cpu_seconds: 15.0, peak_bytes: 1 << 30 };
    let compare = Cost { cpu_seconds: 30.0, peak_bytes: u64::MAX };
    // The time to read files has no goal; it is printed.
    let read = Cost { cpu_seconds: f64::INFINITY, peak_bytes: 1 << 30 };
    let mut met = true;
    met &= line("10^7 events, without analyses", &["events", "none"], None)?.1;
    met &= line("10^7 events: step leaks, peaks, decompose in one pass", &["events", "all"], Some(one_pass))?.1;
    for format in ["csv", "db", "capture"] {
        let folder = tempfile::tempdir()?;
        let path = files::write(format, folder.path(), Shape::large(EVENTS))?;
        let mebibytes = files::size_bytes(&path)? >> 20;
        let what = format!("the same, read from a {format} of {mebibytes} MiB");
        met &= line(&what, &["read", path.to_str().context("a path that is no text")?], Some(read))?.1;
    }
    met &= grows_linearly("live blocks", &[20_000, 40_000, 80_000], "live")?;
    met &= grows_linearly("leaking steps", &[400, 800, 1600], "leaking")?;
    for (name, names) in [("names of its own", "own"), ("other names of the run", "common")] {
        let what = format!("compare of two 10^6-row inputs, 33 % of kernels with {name}");
        met &= line(&what, &["compare", names, tool], Some(compare))?.1;
    }
    println!("goals: {}", if met { "met" } else { "MISSED" });
    Ok(met)
}

/// What a page costs, and how large it is, at any number of events (docs/reports.md). The pages go into `folder`.
pub(crate) fn pages(folder: &str) -> Result<bool> {
    println!("{:<76} {:>9} {:>9} {:>9}  Goal", "", "Seconds", "CPU s", "Peak MiB");
    let mut met = true;
    // 2 µs for each event, and two seconds for the page itself.
    let goal = |events: u64| Cost { cpu_seconds: 2.0 + events as f64 * 2e-6, peak_bytes: 1 << 30 };
    for (name, events) in [("10^5", 100_000_u64), ("10^6", FEWER_EVENTS), ("10^7", EVENTS)] {
        let what = format!("{name} events to a page of at most 5 MB");
        met &= line(&what, &["page", &events.to_string(), &format!("{folder}/{name}.html")], Some(goal(events)))?.1;
    }
    let what = "59 015 blocks, half of them of 20 000 places with 200 000 frames, the same";
    // Besides, 10 µs for each frame: it is matched once with each rule of owners, and packed.
    let frames = Cost { cpu_seconds: 4.0, peak_bytes: 1 << 30 };
    met &= line(what, &["page", "varied", &format!("{folder}/varied.html")], Some(frames))?.1;
    println!("goals: {}", if met { "met" } else { "MISSED" });
    Ok(met)
}

fn line(name: &str, arguments: &[&str], goal: Option<Cost>) -> Result<(Cost, bool)> {
    let begin = Instant::now();
    let cost = of_process(arguments)?;
    let met = goal.is_none_or(|goal| cost.cpu_seconds <= goal.cpu_seconds && cost.peak_bytes <= goal.peak_bytes);
    let verdict = match goal {
        None => String::new(),
        Some(Cost { cpu_seconds, peak_bytes: u64::MAX }) => format!("{cpu_seconds} s: {}", word(met)),
        Some(Cost { cpu_seconds: f64::INFINITY, peak_bytes }) => format!("{} MiB: {}", peak_bytes >> 20, word(met)),
        Some(Cost { cpu_seconds, peak_bytes }) => format!("{cpu_seconds} s, {} MiB: {}", peak_bytes >> 20, word(met)),
    };
    let (seconds, mebibytes) = (begin.elapsed().as_secs_f64(), cost.peak_bytes as f64 / f64::from(1 << 20));
    println!("{name:<76} {seconds:>9.2} {:>9.2} {mebibytes:>9.1}  {verdict}", cost.cpu_seconds);
    Ok((cost, met))
}

const fn word(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// Twice as many take about twice as long: less than three times, as the processor's caches hold a smaller part of it.
fn grows_linearly(what: &str, counts: &[u64], case: &str) -> Result<bool> {
    const MOST: f64 = 3.0;
    let (mut before, mut met): (Option<f64>, bool) = (None, true);
    for count in counts {
        let (cost, _) = line(&format!("{count} {what}"), &[case, &count.to_string()], None)?;
        met &= before.is_none_or(|before| cost.cpu_seconds < MOST * before);
        before = Some(cost.cpu_seconds);
    }
    println!("  less than {MOST} times as long for twice as many {what}: {}", word(met));
    Ok(met)
}

/// Runs a case in a process of its own.
fn of_process(arguments: &[&str]) -> Result<Cost> {
    let output = Command::new(std::env::current_exe()?).arg("case").args(arguments).output()?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let (cpu_seconds, peak_bytes) = text.trim().split_once(' ').context("no figures")?;
    Ok(Cost { cpu_seconds: cpu_seconds.parse()?, peak_bytes: peak_bytes.parse()? })
}

/// One case: prints the processor time that it took, and the most memory that it had.
pub(crate) fn case(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["events", "none"] => of_events(Vec::new(), Shape::large(EVENTS)),
        ["events", "all"] => of_events(in_one_pass(), Shape::large(EVENTS)),
        ["read", path] => of_file(Path::new(path), EVENTS)?,
        // For profilers: a smaller file, kept.
        ["read", path, events] => of_file(Path::new(path), events.parse()?)?,
        ["write", format, folder, events] => {
            files::write(format, Path::new(folder), Shape::large(events.parse()?))?;
        }
        ["live", count] => of_events(everything(), Shape::with_live_blocks(count.parse()?, FEWER_EVENTS)),
        ["leaking", steps] => of_events(everything(), Shape::with_leaking_steps(steps.parse()?)),
        ["page", "varied", file] => of_page(Shape::varied(), file)?,
        ["page", events, file] => of_page(Shape::large(events.parse()?), file)?,
        ["compare", names, tool] => of_compare(*names == "own", tool)?,
        other => bail!("no case {other:?}"),
    }
    let who = if arguments[0] == "compare" { libc::RUSAGE_CHILDREN } else { libc::RUSAGE_SELF };
    let Cost { cpu_seconds, peak_bytes } = cost_of(who);
    println!("{cpu_seconds} {peak_bytes}");
    Ok(())
}

fn in_one_pass() -> Vec<Box<dyn Analysis>> {
    vec![
        Box::new(StepLeaksAnalysis::default()),
        Box::new(PeaksAnalysis::default()),
        Box::new(DecomposeAnalysis::default()),
    ]
}

fn everything() -> Vec<Box<dyn Analysis>> {
    let mut analyses = in_one_pass();
    analyses.push(Box::new(FragmentationAnalysis::default()));
    analyses
}

fn of_events(to: Vec<Box<dyn Analysis>>, shape: Shape) {
    std::hint::black_box(train(Program::new(to), shape));
}

/// An observer among analyses.
struct Shown(Box<dyn Observer>);

impl Analysis for Shown {
    fn observe(&mut self, event: &Event) {
        self.0.observe(event);
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        self.0.finish(end);
        Vec::new()
    }
}

/// The page of a run, from its events to its bytes.
fn of_page(shape: Shape, file: &str) -> Result<()> {
    let (reducer, made) = Reducer::naming(Arc::new(RuleSet::builtin()));
    of_events(vec![Box::new(Shown(reducer))], shape);
    let run = made.recv().context("no run")?;
    let mut page = Vec::new();
    report::write(&run, &[], &report::Options::default(), &mut page)?;
    ensure!(page.len() <= MAX_PAGE, "the page has {} bytes", page.len());
    std::fs::write(file, page).with_context(|| format!("cannot write `{file}`"))
}

/// What is found in a file is what was found in the events: each step but the last leaves a block behind.
fn of_file(path: &Path, events: u64) -> Result<()> {
    let outcome = input::run(&[path.to_owned()], in_one_pass())?;
    let leaks: usize = outcome.findings.iter().map(leaks_of).sum();
    let expected = Shape::large(events).leaks_found();
    ensure!(leaks as u64 == expected, "{leaks} leaks were found, there are {expected}");
    ensure!(outcome.notes.lines().is_empty(), "{:?}", outcome.notes.lines());
    Ok(())
}

fn leaks_of(finding: &Finding) -> usize {
    if let Finding::StepLeaks(found) = finding {
        found.leaks.iter().filter(|leak| leak.pool == pools::PTA).count()
    } else {
        0
    }
}

fn of_compare(own_names: bool, tool: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (base, other) = (folder.path().join("a.csv"), folder.path().join("b.csv"));
    write_kernels(&base, None)?;
    write_kernels(&other, Some(own_names))?;
    let mut command = Command::new(tool);
    command.arg("compare").args([&base, &other]).args(["--level", "kernel", "-o"]).arg(folder.path().join("out"));
    let output = command.output().with_context(|| format!("cannot start {tool}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// What this process has taken so far, or its children that have ended.
pub(crate) fn cost_of(who: libc::c_int) -> Cost {
    // SAFETY: all zeros are a valid value of this structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it is written to a structure of the right type.
    unsafe { libc::getrusage(who, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Cost {
        cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        peak_bytes: usage.ru_maxrss.cast_unsigned() << 10,
    }
}

/// A dump of kernels out of 200 in any order; of the second run each third one is another.
fn write_kernels(path: &Path, other: Option<bool>) -> Result<()> {
    const NAMES: u64 = 200;
    const HEADER: &str = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)";
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(out, "{HEADER}")?;
    let (mut sequence, mut changes) = (Random::new(1), Random::new(2));
    for row in 0..ROWS {
        let name = sequence.below(NAMES);
        let name = match other {
            Some(true) if changes.once_in(3) => format!("kernel_of_b_{}", changes.below(NAMES)),
            Some(false) if changes.once_in(3) => format!("kernel_{}", changes.below(NAMES)),
            _ => format!("kernel_{name}"),
        };
        let time_ns = 1_790_000_000_000_000_000 + row * 1000;
        writeln!(out, "{row},KERNEL_LAUNCH,KERNEL_LAUNCH,{name},{time_ns},7,7,0,N/A,\"{{streamId:0,taskId:N/A}}\",,")?;
    }
    Ok(out.flush()?)
}
