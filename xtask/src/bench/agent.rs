//! `bench agent`: what the node agent costs a process at each of its levels, and what it takes itself.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;

use super::{
    lab::{Calls, Held, Lab, Running, send},
    stats::Spread,
    table::Table,
};
use crate::project::root;

/// Reports of one call: a block comes, goes back, and is given up.
const EVENTS: f64 = 3.0;
/// Frames of the target, of each language.
const FRAMES: &str = "10";
/// The target's calls in a second, where the agent itself is measured.
const RATE: u64 = 1500;
/// Longest wait for the agent to find the target.
const FOUND: Duration = Duration::from_secs(30);

/// Seconds from page to page, and from look to look, where only the target is measured.
const HASTE: [f64; 2] = [0.2, 0.05];

/// What of the target is traced.
struct Level {
    name: &'static str,
    how: How,
}

#[derive(PartialEq, Eq)]
enum How {
    /// All of it, with frames of native stacks and of Python's.
    Whole([u32; 2]),
    /// Without its pool: after the first page with events.
    WithoutPool,
    LeftOut,
}

impl How {
    const fn stacks(&self) -> [u32; 2] {
        match self {
            Self::Whole(stacks) => *stacks,
            Self::WithoutPool | Self::LeftOut => [0, 0],
        }
    }
}

const LEVELS: [Level; 5] = [
    Level { name: "level 0: stacks of Python, or native ones", how: How::Whole([32, 32]) },
    Level { name: "level 1: native stacks", how: How::Whole([32, 0]) },
    Level { name: "level 2: no stacks", how: How::Whole([0, 0]) },
    Level { name: "level 3, of a process without its pool", how: How::WithoutPool },
    Level { name: "of a process that is left out", how: How::LeftOut },
];

pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    Ok(vec![in_target(lab)?, of_agent(lab)?])
}

/// An agent at work. It keeps no budget, so it stays at its level.
struct Agent {
    running: Running,
    port: u16,
}

impl Agent {
    /// Pages are made, and processes looked for, in these intervals, in seconds.
    fn start(lab: &Lab, level: &Level, [page, look]: [f64; 2]) -> Result<Self> {
        let port = free_port()?;
        let socket = lab.own("agent.sock");
        let [native, python] = level.how.stacks();
        let most = if level.how == How::WithoutPool { 1000 } else { 4_000_000_000_u32 };
        // One that is left out is found, and leaves at once. Another one has to be in, or nothing would be probed.
        let rules = if level.how == How::LeftOut {
            "[[rules.list]]\ncommand = \"python3\"\naction = \"exclude\"\n"
        } else {
            ""
        };
        let settings = format!(
            "[discovery]\ninterval_seconds = {look:.2}\n[metrics]\nlisten = \"127.0.0.1:{port}\"\n\
             interval_seconds = {page:.1}\n[budget]\ncores = 1000.0\nevents_per_process = {most}\n\
             [stacks]\nnative = {native}\npython = {python}\n[names]\ncontainer_logs = \"\"\n\
             [control]\nsocket = \"{}\"\n{rules}",
            socket.display()
        );
        let file = lab.own("agent.toml");
        fs::write(&file, settings).with_context(|| format!("cannot write {}", file.display()))?;
        let running = Running::start(lab.command(&lab.tool).args(["agent", "--config"]).arg(&file))?;
        Ok(Self { running, port })
    }

    /// Waits until these many processes are traced. One is found before all of its probes are placed.
    fn wait_for(&self, lab: &Lab, traced: u64) -> Result<()> {
        let begin = Instant::now();
        let mut placed = 0;
        while begin.elapsed() < FOUND {
            let before = std::mem::replace(&mut placed, lab.site_count(&self.running)?);
            if let Ok(page) = self.page()
                && number(&page, "memscope_targets{state=\"traced\"}").is_some_and(|count| count >= traced as f64)
                && placed > 0
                && placed == before
            {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(200));
        }
        bail!("the agent did not find the target within {} s", FOUND.as_secs())
    }

    fn page(&self) -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    }

    fn end(self) -> Result<()> {
        self.running.signal(Signal::SIGTERM)?;
        self.running.wait()
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The number of a line of the page.
fn number(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

/// Calls from Python: both kinds of stack are there.
fn target(lab: &Lab) -> Command {
    target_of(lab, lab.pick(2000, 10_000))
}

fn target_of(lab: &Lab, calls: u64) -> Command {
    let calls = calls.to_string();
    let mut command = lab.command("python3");
    command.arg(root().join("tests/workloads/calls.py")).arg(lab.library("bench/libcalls.so"));
    command.args(["pool", &calls, "5", FRAMES, "--hold"]);
    command
}

/// A process with the same libraries that waits: what is probed stays probed.
fn bystander(lab: &Lab) -> Result<Held> {
    Held::start(lab.command(lab.program("calls")).args(["--kind", "pool", "--hold"]))
}

/// Nanoseconds of a call of this target, while what `around` starts is at work.
fn call_ns<T>(
    command: &mut Command,
    around: impl FnOnce() -> Result<T>,
    end: impl FnOnce(T) -> Result<()>,
) -> Result<f64> {
    let Held { mut tracer, target } = Held::start(command)?;
    let beside = around()?;
    send(target, Signal::SIGUSR1)?;
    let line = tracer.wait_for_line("{\"pid\"")?;
    end(beside)?;
    send(target, Signal::SIGTERM)?;
    tracer.finish()?;
    Ok(Spread::of(Calls::parse(&line)?.block_ns).median)
}

/// The same with nothing beside it.
fn alone_ns(command: &mut Command) -> Result<f64> {
    call_ns(command, || Ok(()), Ok)
}

fn at_level(lab: &Lab, level: &Level) -> Result<f64> {
    let beside = bystander(lab)?;
    let start = || {
        let agent = Agent::start(lab, level, HASTE)?;
        agent.wait_for(lab, if level.how == How::LeftOut { 1 } else { 2 })?;
        Ok(agent)
    };
    // Several pages pass within its first block of calls; of one that is left out there are as many, so that the two compare.
    let is_whole = matches!(level.how, How::Whole(_));
    let mut target = if is_whole { target(lab) } else { target_of(lab, 400_000) };
    let call = call_ns(&mut target, start, Agent::end)?;
    drop(beside);
    Ok(call)
}

/// Probes of nothing at the places of a trace, or a trace.
fn beside_trace(lab: &Lab, sites: &Path) -> Result<[f64; 2]> {
    let empty = call_ns(
        &mut target(lab),
        || lab.probes(sites, "empty"),
        |probes| {
            drop(probes);
            Ok(())
        },
    )?;
    let mut command = lab.tracer("run", &["--capture-only", "--call-stack", "c:32,python:32"])?;
    let target = target(lab);
    command.arg("--").arg(target.get_program()).args(target.get_args());
    Ok([empty, alone_ns(&mut command)?])
}

/// Where a trace has its probes.
fn sites(lab: &Lab) -> Result<std::path::PathBuf> {
    let beside = bystander(lab)?;
    let agent = Agent::start(lab, &LEVELS[2], HASTE)?;
    agent.wait_for(lab, 1)?;
    let sites = lab.sites_of(&agent.running, "agent.sites")?;
    agent.end()?;
    drop(beside);
    Ok(sites)
}

/// All ways side by side, in each repetition.
fn in_target(lab: &Lab) -> Result<Table> {
    let note = format!(
        "µs of one call of `torch_npu`'s pool, a block and its end, from below {FRAMES} frames of Python; *per event* is what one of its three events adds. \
         The trace writes a capture and takes both stacks."
    );
    let mut table = Table::new("Cost in the target, by the agent's level", &note, &["way", "a call", "per event"]);
    let sites = sites(lab)?;
    let mut found: Vec<Vec<f64>> = Vec::new();
    for _ in 0..lab.repetitions {
        let untraced = alone_ns(&mut target(lab))?;
        let [empty, traced] = beside_trace(lab, &sites)?;
        let levels = LEVELS.iter().map(|level| at_level(lab, level)).collect::<Result<Vec<f64>>>()?;
        found.push([untraced, empty, traced].into_iter().chain(levels).collect());
    }
    let names = ["untraced", "empty probe", "streaming trace"].into_iter().chain(LEVELS.map(|level| level.name));
    for (at, name) in names.enumerate() {
        let call = Spread::of(found.iter().map(|ways| ways[at] / 1000.0));
        let per_event = Spread::of(found.iter().map(|ways| (ways[at] - ways[0]) / EVENTS / 1000.0));
        table.row([name.to_owned(), call.to_string(), per_event.to_string()]);
    }
    Ok(table)
}

/// Parts of its own cost on the page.
const PARTS: [&str; 3] = ["process", "program", "trap"];

fn of_agent(lab: &Lab) -> Result<Table> {
    let seconds = lab.pick(12, 40);
    let events = RATE as f64 * EVENTS;
    let note = format!(
        "µs of processor time per event, of a native program with {events:.0} events a second and 28 frames, over {seconds} s, as the agent publishes it: its own \
         process, its BPF programs by the kernel's statistics (on for one second in ten), and stops at probes by `budget.trap_ns`."
    );
    let columns = ["level", "process", "programs", "stops", "all", "of a core"];
    let mut table = Table::new("What the agent takes", &note, &columns);
    for level in &LEVELS[1..3] {
        let parts = agent_parts(lab, level, Duration::from_secs(seconds))?;
        let all: f64 = parts.iter().sum();
        let us = parts.iter().map(|us| format!("{us:.2}"));
        let share = all * events / 1e4;
        let cells = us.chain([format!("{all:.2}"), format!("{share:.2} %")]);
        table.row(std::iter::once(level.name.to_owned()).chain(cells));
    }
    Ok(table)
}

/// Microseconds of an event by part.
fn agent_parts(lab: &Lab, level: &Level, time: Duration) -> Result<Vec<f64>> {
    let calls = (RATE * (time.as_secs() + 15)).to_string();
    let mut command = lab.command(lab.program("calls"));
    command.args(["--kind", "pool", "--frames", "28", "--hold", "--blocks", "1", "--calls", &calls]);
    let held = Held::start(command.args(["--rate", &RATE.to_string()]))?;
    let agent = Agent::start(lab, level, [2.0, 1.0])?;
    agent.wait_for(lab, 1)?;
    send(held.target, Signal::SIGUSR1)?;
    // The first stacks are looked up.
    thread::sleep(Duration::from_secs(11));
    let first = figures(&agent.page()?)?;
    thread::sleep(time);
    let last = figures(&agent.page()?)?;
    agent.end()?;
    held.end()?;
    let events = last[0] - first[0];
    ensure!(events > 0.0, "the agent saw no event of the target");
    let parts = first.iter().zip(&last).skip(1).map(|(first, last)| (last - first) * 1e6 / events).collect();
    Ok(parts)
}

/// Events, and seconds of each part.
fn figures(page: &str) -> Result<Vec<f64>> {
    let parts = PARTS.iter().map(|part| format!("memscope_agent_cpu_seconds_total{{part=\"{part}\"}}"));
    let series = std::iter::once("memscope_events_total".to_owned()).chain(parts);
    series.map(|series| number(page, &series).with_context(|| format!("no `{series}` on the page"))).collect()
}
