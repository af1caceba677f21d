//! `bench overload`: more events than are analysed at once.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{
    lab::{Held, Lab, Running, files_below, send},
    proc,
    table::Table,
};
use crate::nextest::NO_STACKS;

/// Of each thread.
const EVENTS_PER_SECOND: u64 = 5000;
/// Of each process that takes no time for anything else.
const THREADS: u64 = 4;
/// Of a rank: what computes, and what loads.
const THREADS_OF_RANK: u64 = 2;
/// Calls with a stack that was left out.
const NO_STACK: &str = "no call stack: the tracer was behind";
/// Of both tables, behind what was offered.
const MEASURED: [&str; 9] = [
    "events/s offered",
    "reached",
    "without stack",
    "events lost",
    "processor",
    "memory, MB",
    "capture, MB/s",
    "rows, MB/s",
    "after the end",
];

/// What is traced at once.
struct Load {
    processes: u64,
    threads: u64,
    /// Each process has a device of its own.
    ranks: bool,
    nice: i32,
}

/// Processes with threads that all allocate.
pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    let seconds = lab.pick(2, 20);
    let mut busy = Table::new(
        "Processes of four threads",
        &format!(
            "{EVENTS_PER_SECOND} events/s of each thread for {seconds} s, HAL allocations and frees below 28 frames; the tracer attached to running \
             processes, default settings with call stacks. *Reached* is what the machine had room for, with all processes on it. Percent are of \
             one core, memory counts each page once. *After the end* is until the report is there. The 128 threads of 32 processes leave two \
             processors no time. A tracer that is behind takes its share and more (`CAP_SYS_NICE`), then leaves out call stacks, of frees first, \
             and loses only what the ring has no room for."
        ),
        &[&["processes", "nice of the tracer"][..], &MEASURED].concat(),
    );
    for (processes, nice) in [(2, 0), (8, 0), (32, 0), (32, -20)] {
        let figures = measured(lab, &Load { processes, threads: THREADS, ranks: false, nice }, seconds)?;
        busy.row([vec![processes.to_string(), nice.to_string()], figures].concat());
    }
    let mut ranks = Table::new(
        "Ranks in one trace",
        &format!(
            "The same by ranks of {THREADS_OF_RANK} threads, each with a device of its own, in one trace: rows of each rank are in a folder of its own, the \
             capture is one."
        ),
        &[&["ranks"][..], &MEASURED].concat(),
    );
    for processes in [2, 4, 8] {
        let load = Load { processes, threads: THREADS_OF_RANK, ranks: true, nice: 0 };
        ranks.row([vec![processes.to_string()], measured(lab, &load, seconds)?].concat());
    }
    Ok(vec![busy, ranks])
}

fn measured(lab: &Lab, load: &Load, seconds: u64) -> Result<Vec<String>> {
    let mut targets = started(lab, load, seconds)?;
    let pids: Vec<String> = targets.iter().map(|target| target.target.to_string()).collect();
    let tracer = lab.tracer("attach", &["--json", "--pid", &pids.join(",")])?;
    let mut command = lab.command("nice");
    command.args(["-n", &load.nice.to_string()]).arg(tracer.get_program()).args(tracer.get_args());
    let mut tracer = Running::start(command.env_remove(NO_STACKS).arg("-q"))?;
    let pid = tracer.pid();
    proc::links_settled(pid, || Ok(proc::pidfds(pid)))?;
    let (cpu, begin) = (proc::cpu_ns(pid, None), Instant::now());
    for target in &targets {
        send(target.target, Signal::SIGUSR1)?;
    }
    for target in &mut targets {
        target.tracer.wait_for("{\"pid\"")?;
    }
    let wall_s = begin.elapsed().as_secs_f64();
    let processor = 100.0 * (proc::cpu_ns(pid, None) - cpu) / (wall_s * 1e9);
    let memory = proc::memory_bytes(pid) / 1e6;
    for target in targets {
        send(target.target, Signal::SIGTERM)?;
        target.tracer.finish()?;
    }
    let ended = Instant::now();
    let findings = tracer.wait_for_line("{\"schema\"")?;
    let after_s = ended.elapsed().as_secs_f64();
    tracer.finish()?;
    let (lost, without_stack) = losses(&serde_json::from_str(&findings)?)?;
    let offered = load.processes * load.threads * EVENTS_PER_SECOND;
    let size = |ending| -> Result<u64> {
        Ok(files_below(&lab.own("output"), ending)?.into_iter().map(|(bytes, _)| bytes).sum())
    };
    let (capture, rows) = (size("capture")?, size("csv")?);
    ensure!(capture > 0 && rows > 0, "no capture, or no rows");
    Ok(vec![
        offered.to_string(),
        format!("{:.0}", (offered * seconds) as f64 / wall_s),
        without_stack.to_string(),
        lost.to_string(),
        format!("{processor:.0} %"),
        format!("{memory:.0}"),
        format!("{:.1}", capture as f64 / 1e6 / wall_s),
        format!("{:.1}", rows as f64 / 1e6 / wall_s),
        format!("{after_s:.1} s"),
    ])
}

/// The programs, each ready to begin.
fn started(lab: &Lab, load: &Load, seconds: u64) -> Result<Vec<Held>> {
    let calls = EVENTS_PER_SECOND / 2;
    let start = |number: u64| {
        let mut command = lab.command(lab.program("calls"));
        command.args(["--frames", "28", "--blocks", "1", "--hold"]);
        command.arg("--threads").arg(load.threads.to_string());
        command.arg("--rate").arg((calls * load.threads).to_string());
        command.arg("--device").arg(if load.ranks { number } else { 0 }.to_string());
        Held::start(command.arg("--calls").arg((calls * seconds).to_string()))
    };
    (0..load.processes).map(start).collect()
}

/// Lost events, and calls without a stack.
fn losses(findings: &Value) -> Result<(u64, u64)> {
    let lost = findings["end"]["lost"].as_u64().context("no count of losses")?;
    let lines = findings["end"]["losses"].as_array().context("no losses")?;
    let without_stack = lines.iter().filter(|line| line["reason"] == NO_STACK);
    Ok((lost, without_stack.filter_map(|line| line["count"].as_u64()).sum()))
}
