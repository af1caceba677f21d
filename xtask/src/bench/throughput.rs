//! `bench throughput`: what the tracer itself takes, and how that grows.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::{
    resource::{UsageWho, getrusage},
    signal::Signal,
};

use super::{
    lab::{Held, Lab, Running, files_below, send},
    proc,
    stats::Spread,
    table::Table,
};
use crate::{
    findings,
    project::{find, run_quietly},
};

/// Writes the capture and does nothing else.
const CAPTURE_ONLY: &[&str] = &["--capture-only"];

/// All tables.
pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    let events = lab.pick(20_000, 2_000_000);
    let capture = record(lab, events)?;
    Ok(vec![
        stages(lab, &capture, events)?,
        rates(lab)?,
        disk(lab, &capture, events)?,
        memory(lab)?,
        starts(lab)?,
        growth(lab)?,
    ])
}

/// The capture of a target with this number of events, half of them allocations, half frees.
fn record(lab: &Lab, events: u64) -> Result<PathBuf> {
    let mut command = lab.tracer("run", CAPTURE_ONLY)?;
    command.arg("--").args(target(lab, events));
    Running::start(&mut command)?.finish()?;
    keep_capture(lab, events)
}

/// The capture that was written last, in a place of its own.
fn keep_capture(lab: &Lab, events: u64) -> Result<PathBuf> {
    let kept = lab.own(&format!("{events}.capture"));
    let written = file_below(&lab.own("output"), "capture").context("no capture was written")?;
    fs::rename(&written, &kept).with_context(|| format!("cannot move {}", written.display()))?;
    Ok(kept)
}

/// The words that start it.
fn target(lab: &Lab, events: u64) -> Vec<String> {
    let program = lab.program("calls").display().to_string();
    [program, "--blocks".into(), "1".into(), "--calls".into(), (events / 2).to_string()].to_vec()
}

/// The largest file with that ending.
fn file_below(folder: &Path, ending: &str) -> Option<PathBuf> {
    files_below(folder, ending).ok()?.into_iter().max().map(|(_, path)| path)
}

/// What a run to the end took.
struct Taken {
    /// Processor time of all threads, in seconds.
    cpu_s: f64,
    /// Largest resident memory, in bytes.
    peak_bytes: f64,
}

/// Runs a program to its end; there must be no other child.
fn taken(command: &mut Command) -> Result<Taken> {
    let cpu_s = || -> Result<f64> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        let times = [usage.user_time(), usage.system_time()];
        Ok(times.iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum())
    };
    let before = cpu_s()?;
    let running = Running::start(command)?;
    let peak_bytes = proc::peak_bytes_until_end(running.pid());
    running.finish()?;
    Ok(Taken { cpu_s: cpu_s()? - before, peak_bytes })
}

/// Writes the outputs of a capture again.
fn replay(lab: &Lab, capture: &Path, options: &[&str]) -> Result<Command> {
    let mut command = lab.command(&lab.tool);
    command.arg("replay").arg(capture).args(options).arg("-o").arg(lab.output("output")?);
    Ok(command)
}

/// Ways from a capture: name, options of `replay`, goal in thousands of events a second.
const REPLAYS: &[(&str, &[&str], &str)] = &[
    ("capture → analyses (no rows)", &["--events", "none"], "–"),
    ("capture → CSV", &["--format", "csv"], "≥ 800"),
    ("capture → DB", &["--format", "db"], "≥ 400"),
];
const TO_CAPTURE: &str = "ring → capture (`--capture-only`)";

/// Two builds in one run, a repetition of each in turn; each reads the capture that it has written.
pub(super) fn beside([other, ours]: [&Lab; 2]) -> Result<Table> {
    let events = ours.pick(20_000, 2_000_000);
    let captures = [other, ours].map(|lab| -> Result<PathBuf> {
        let kept = lab.own(&format!("{}.capture", if lab.tool == ours.tool { "ours" } else { "other" }));
        let written = record(lab, events)?;
        fs::rename(&written, &kept).with_context(|| format!("cannot move {}", written.display()))?;
        Ok(kept)
    });
    let [of_other, of_ours] = captures;
    let labs = [(other, of_other?), (ours, of_ours?)];
    let mut samples: Vec<[Vec<f64>; 2]> = vec![[Vec::new(), Vec::new()]; REPLAYS.len() + 1];
    for _ in 0..ours.repetitions {
        for (at, (lab, capture)) in labs.iter().enumerate() {
            for ((_, options, _), samples) in REPLAYS.iter().zip(&mut samples) {
                samples[at].push(events as f64 / taken(&mut replay(lab, capture, options)?)?.cpu_s / 1e3);
            }
            let live = traced(lab, CAPTURE_ONLY, events, &[])?;
            samples[REPLAYS.len()][at].push(live.events / live.cpu_s / 1e3);
        }
    }
    let mut table = Table::new(
        "Events per second of one core, beside the other build",
        "Thousands of events in a second of processor time, all threads of the tracer added up.",
        &["from → to", "other build", "this build", "this ÷ other"],
    );
    let names = REPLAYS.iter().map(|(name, ..)| *name).chain([TO_CAPTURE]);
    for (name, [other, ours]) in names.zip(samples) {
        let ratio = Spread::of(ours.iter().zip(&other).map(|(ours, other)| ours / other));
        let cells = [Spread::of(other), Spread::of(ours), ratio].map(|cell| cell.to_string());
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    Ok(table)
}

fn stages(lab: &Lab, capture: &Path, events: u64) -> Result<Table> {
    let mut table = Table::new(
        "Events per second of one core",
        "Thousands of events in a second of processor time, all threads of the tracer added up, start and end included. \
         The last rows are of a live trace as fast as the target goes; of them the tracer's own work counts.",
        &["from → to", "thousand events/s", "goal"],
    );
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); REPLAYS.len()];
    let mut live: [Vec<f64>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    for repetition in 0..lab.repetitions {
        for ((_, options, _), samples) in REPLAYS.iter().zip(&mut samples) {
            samples.push(events as f64 / taken(&mut replay(lab, capture, options)?)?.cpu_s / 1e3);
        }
        let captured = traced(lab, CAPTURE_ONLY, events, &[])?;
        live[0].push(captured.events / captured.cpu_s / 1e3);
        live[1].push(captured.events / captured.ring_s / 1e3);
        if repetition < 3 {
            let no_rows = traced(lab, &["--events", "none", "--analysis", "none"], events, &[])?;
            live[2].push(no_rows.events / no_rows.cpu_s / 1e3);
        }
    }
    for ((name, _, goal), samples) in REPLAYS.iter().zip(samples) {
        table.row([(*name).to_owned(), Spread::of(samples).to_string(), (*goal).to_owned()]);
    }
    let [captured, ring, held] = live.map(|samples| Spread::of(samples).to_string());
    table.row([TO_CAPTURE.to_owned(), captured, "≥ 2000".to_owned()]);
    table.row(["ring → memory (the thread that empties it)".to_owned(), ring, "–".to_owned()]);
    table.row(["ring → capture and what is held at the end (no rows, no analyses)".to_owned(), held, "–".to_owned()]);
    Ok(table)
}

/// What a live trace took.
struct Live {
    events: f64,
    lost: u64,
    /// From the first call to the last.
    wall_s: f64,
    /// Processor time of the tracer's threads meanwhile.
    meanwhile_s: f64,
    /// The same until all is written, and of the thread that empties the ring.
    cpu_s: f64,
    ring_s: f64,
}

/// Traces a target; its calls begin when all is set up.
fn traced(lab: &Lab, options: &[&str], events: u64, more: &[&str]) -> Result<Live> {
    let mut command = lab.tracer("run", &[options, &["--json"]].concat())?;
    command.arg("--").args(target(lab, events)).args(more).arg("--hold");
    let mut held = Held::start(&mut command)?;
    let pid = held.tracer.pid();
    let (cpu, ring) = (proc::cpu_ns(pid, None), proc::cpu_ns(pid, Some("memscope-ring")));
    let begin = Instant::now();
    send(held.target, Signal::SIGUSR1)?;
    held.tracer.wait_for("{\"pid\"")?;
    let wall_s = begin.elapsed().as_secs_f64();
    let meanwhile_s = (proc::cpu_ns(pid, None) - cpu) / 1e9;
    // What is still in the ring is work, too.
    proc::wait_until_idle(pid);
    let cpu_s = (proc::cpu_ns(pid, None) - cpu) / 1e9;
    let ring_s = (proc::cpu_ns(pid, Some("memscope-ring")) - ring) / 1e9;
    send(held.target, Signal::SIGTERM)?;
    let said = held.tracer.finish()?;
    let findings = findings::last(&said)?;
    let lost = findings["end"]["lost"].as_u64().context("no count of losses")?;
    Ok(Live { events: events as f64, lost, wall_s, meanwhile_s, cpu_s, ring_s })
}

fn rates(lab: &Lab) -> Result<Table> {
    const RATES: &[(u64, u64, &str)] =
        &[(1000, 10, "≤ 0.5 %"), (10_000, 10, "≤ 3 %"), (100_000, 10, "–"), (300_000, 60, "no loss")];
    let mut table = Table::new(
        "The tracer at a given rate",
        "CSV, capture and analyses, default settings; HAL allocations and frees of one thread. Percent are of one core.",
        &["events/s offered", "reached", "for", "events lost", "processor", "goal"],
    );
    for &(rate, seconds, goal) in RATES {
        let seconds = lab.pick(1, seconds);
        let per_second = (rate / 2).to_string();
        let repetitions = if rate < 300_000 { lab.repetitions.min(3) } else { 1 };
        let mut runs = Vec::new();
        for _ in 0..repetitions {
            runs.push(traced(lab, &[], rate * seconds, &["--rate", &per_second])?);
        }
        table.row([
            rate.to_string(),
            format!("{:.0}", Spread::of(runs.iter().map(|run| run.events / run.wall_s)).median),
            format!("{seconds} s"),
            runs.iter().map(|run| run.lost).sum::<u64>().to_string(),
            format!("{} %", Spread::of(runs.iter().map(|run| 100.0 * run.meanwhile_s / run.wall_s))),
            goal.to_owned(),
        ]);
    }
    Ok(table)
}

fn disk(lab: &Lab, capture: &Path, events: u64) -> Result<Table> {
    let mut table =
        Table::new("Bytes on disk per event", "HAL allocations and frees.", &["file", "bytes/event", "goal"]);
    let mut row = |name: &str, path: &Path, goal: &str| -> Result<()> {
        let bytes = fs::metadata(path).with_context(|| format!("no {}", path.display()))?.len();
        table.row([name.to_owned(), format!("{:.1}", bytes as f64 / events as f64), goal.to_owned()]);
        Ok(())
    };
    row("capture", capture, "≤ 40")?;
    for (format, goal) in [("csv", "–"), ("db", "below CSV")] {
        taken(&mut replay(lab, capture, &["--format", format])?)?;
        row(format, &file_below(&lab.own("output"), format).context("no dump was written")?, goal)?;
    }
    // The last that was written.
    if let (Some(python), Some(database)) = (find("python3"), file_below(&lab.own("output"), "db")) {
        const VACUUM: &str = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('VACUUM INTO ?', sys.argv[2:])";
        let packed = lab.own("packed.db");
        let _ = fs::remove_file(&packed);
        run_quietly(lab.command(python).args(["-c", VACUUM]).args([&database, &packed]))?;
        row("db: the same table, as small as SQLite makes it (`VACUUM`)", &packed, "–")?;
    }
    Ok(table)
}

/// After this time a tracer has given back what a burst has taken.
const CALM: Duration = Duration::from_secs(2);

fn memory(lab: &Lab) -> Result<Table> {
    let most: u64 = lab.pick(40_000, 400_000);
    let mut table = Table::new(
        "Memory of the tracer",
        "Each page once, the ring of 64 MiB included, with N live blocks of the driver, two seconds after the last \
         event; *per block* is what is more than with one.",
        &["live blocks", "MB", "bytes per block", "goal"],
    );
    let mut least = 0.0;
    for blocks in [1, most / 100, most / 10, most] {
        let mut command = lab.tracer("run", &[])?;
        let words = ["--kind", "keep", "--blocks", "1", "--hold", "--calls"];
        command.arg("--").arg(lab.program("calls")).args(words).arg(blocks.to_string());
        let mut held = Held::start(&mut command)?;
        send(held.target, Signal::SIGUSR1)?;
        held.tracer.wait_for("{\"pid\"")?;
        proc::wait_until_idle(held.tracer.pid());
        thread::sleep(CALM);
        let bytes = proc::memory_bytes(held.tracer.pid());
        held.end()?;
        let per_block = if blocks == 1 {
            least = bytes;
            "–".to_owned()
        } else {
            format!("{:.0}", (bytes - least) / blocks as f64)
        };
        let goal = if blocks == 1 { "≤ 100 MB" } else { "≤ 150" };
        table.row([blocks.to_string(), format!("{:.1}", bytes / 1e6), per_block, goal.to_owned()]);
    }
    Ok(table)
}

/// How long things take at the start and at the end.
fn starts(lab: &Lab) -> Result<Table> {
    let mut untraced = Vec::new();
    let mut below_run = Vec::new();
    let mut attached = Vec::new();
    let mut detached = Vec::new();
    let mut probes = 0;
    let ready_ms = |command: &mut Command| -> Result<f64> {
        let held = Held::start(command)?;
        let ms = held.tracer.age().as_secs_f64() * 1e3;
        held.end()?;
        Ok(ms)
    };
    for _ in 0..lab.repetitions {
        let program = lab.program("calls");
        untraced.push(ready_ms(lab.command(&program).arg("--hold"))?);
        below_run.push(ready_ms(lab.tracer("run", &[])?.arg("--").arg(&program).arg("--hold"))?);
        let target = Held::start(lab.command(&program).arg("--hold"))?;
        let tracer = Running::start(lab.tracer("attach", &["--pid", &target.target.to_string()])?.arg("-q"))?;
        // Links are made library by library; the last ones are there when none has come for a while.
        let (count, at) = proc::links_settled(tracer.pid(), || lab.site_count(&tracer))?;
        ensure!(count > 0, "nothing was attached");
        probes = count;
        let (to_attach, to_detach) = to_last_probe_and_end(tracer, at)?;
        attached.push(to_attach);
        detached.push(to_detach);
        target.end()?;
    }
    let mut table = Table::new(
        "Start and end",
        &format!("{probes} places were probed, entries and returns counted apart."),
        &["what", "ms"],
    );
    table.row([
        "from the command to the target's first own call, untraced".to_owned(),
        Spread::of(untraced).to_string(),
    ]);
    table.row(["the same, below `run`".to_owned(), Spread::of(below_run).to_string()]);
    table.row(["from the command to the last probe, `--pid`".to_owned(), Spread::of(attached).to_string()]);
    table.row(["from Ctrl-C to the end, all written and detached".to_owned(), Spread::of(detached).to_string()]);
    Ok(table)
}

/// Milliseconds from the tracer's start to the moment its last probe was there, and from Ctrl-C, which it gets now, to its end.
pub(super) fn to_last_probe_and_end(tracer: Running, last_probe: Instant) -> Result<(f64, f64)> {
    let attached_ms = last_probe.duration_since(tracer.started()).as_secs_f64() * 1e3;
    let begin = Instant::now();
    tracer.signal(Signal::SIGINT)?;
    tracer.wait()?;
    Ok((attached_ms, begin.elapsed().as_secs_f64() * 1e3))
}

/// The way to each output, at 1, 10 and 100 times the events.
fn growth(lab: &Lab) -> Result<Table> {
    let most: u64 = lab.pick(20_000, 2_000_000);
    let mut table = Table::new(
        "Growth",
        "1, 10 and 100 times the events, from the ring to the capture, and from there (`replay`) to rows: processor time, \
         largest resident memory, bytes on disk. How the tracer's work and memory grow with rate and live blocks is above.",
        &[
            "events",
            "capture: µs per event",
            "bytes",
            "CSV: µs per event",
            "bytes",
            "MB of memory",
            "DB: µs per event",
            "bytes",
            "MB of memory",
        ],
    );
    for events in [most / 100, most / 10, most] {
        let per_event = |samples: Vec<f64>| Spread::of(samples.into_iter().map(|cpu_s| cpu_s * 1e6 / events as f64));
        let bytes_per_event = |path: &Path| -> Result<String> {
            let bytes = fs::metadata(path).with_context(|| format!("no {}", path.display()))?.len();
            Ok(format!("{:.1}", bytes as f64 / events as f64))
        };
        let mut captured = Vec::new();
        for _ in 0..lab.repetitions.min(3) {
            captured.push(traced(lab, CAPTURE_ONLY, events, &[])?.cpu_s);
        }
        let capture = keep_capture(lab, events)?;
        let mut cells = vec![events.to_string(), per_event(captured).to_string(), bytes_per_event(&capture)?];
        for format in ["csv", "db"] {
            let mut runs = Vec::new();
            for _ in 0..lab.repetitions.min(3) {
                runs.push(taken(&mut replay(lab, &capture, &["--format", format])?)?);
            }
            cells.push(per_event(runs.iter().map(|run| run.cpu_s).collect()).to_string());
            let written = file_below(&lab.own("output"), format).context("no dump was written")?;
            cells.push(bytes_per_event(&written)?);
            cells.push(format!("{:.1}", Spread::of(runs.iter().map(|run| run.peak_bytes / 1e6)).median));
        }
        table.row(cells);
    }
    Ok(table)
}
