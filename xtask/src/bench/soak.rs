//! `bench soak`: a trace that goes on, of a program that starts other programs all the time.

use std::{
    collections::BTreeMap,
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::{
    lab::{Calls, Lab, Running, send},
    proc,
    stats::Spread,
    table::Table,
};
use crate::findings;

/// Events of the server in a second: an allocation and a free each.
const EVENTS_PER_SECOND: u64 = 20_000;
/// Blocks in which the server times its calls, of each of its two threads.
const BLOCKS: u64 = 40;
/// Moments with a row, besides the beginning.
const SAMPLES: u32 = 10;
/// A server, and beside it five short programs in a second that allocate and free, each after the other.
const PROGRAM: &str = "\"$0\" --kind hal --threads 2 --rate \"$1\" --blocks \"$2\" --calls \"$3\" --hold & server=$!
while kill -0 $server 2>/dev/null; do \"$0\" --blocks 1 --calls 20 >/dev/null; count=$((count + 1)); sleep 0.17; done
wait $server; echo \"churned $count\"";

/// What the tracer has at one moment.
struct Moment {
    minutes: f64,
    memory_bytes: f64,
    descriptors: usize,
    mappings: usize,
    threads: usize,
    cpu_ns: f64,
}

impl Moment {
    fn of(pid: u32, begin: Instant) -> Self {
        let entries = |name: &str| fs::read_dir(format!("/proc/{pid}/{name}")).map_or(0, Iterator::count);
        Self {
            minutes: begin.elapsed().as_secs_f64() / 60.0,
            memory_bytes: proc::memory_bytes(pid),
            descriptors: entries("fd"),
            mappings: fs::read_to_string(format!("/proc/{pid}/maps")).map_or(0, |maps| maps.lines().count()),
            threads: entries("task"),
            cpu_ns: proc::cpu_ns(pid, None),
        }
    }
}

/// Both tables.
pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    let duration = Duration::from_secs(lab.soak_minutes * 60);
    let alone = untraced(lab)?;
    let calls = EVENTS_PER_SECOND / 2 / 2 * duration.as_secs() / BLOCKS;
    let mut command = lab.tracer("run", &["--json"])?;
    command.arg("--").args(["sh", "-c", PROGRAM]).arg(lab.program("calls"));
    command.args([(EVENTS_PER_SECOND / 2).to_string(), BLOCKS.to_string(), calls.to_string()]);
    let mut tracer = Running::start(&mut command)?;
    let server: u32 = tracer.wait_for("ready ")?.parse().context("no process id")?;
    let pid = tracer.pid();
    let begin = Instant::now();
    send(server, Signal::SIGUSR1)?;
    let mut moments = Vec::new();
    for sample in 0..=SAMPLES {
        let due = duration.mul_f64(0.98) * sample / SAMPLES;
        // What is taken at the start is there after some seconds.
        thread::sleep(due.max(Duration::from_secs(5)).saturating_sub(begin.elapsed()));
        moments.push(Moment::of(pid, begin));
    }
    let objects = Objects::of(pid)?;
    let server_said = tracer.wait_for_line("{\"pid\"")?;
    send(server, Signal::SIGTERM)?;
    let said = tracer.finish()?;
    let watched = Calls::parse(&server_said)?;
    Ok(vec![over_time(&moments), totals(lab, &said, &objects, (alone, watched))?])
}

/// The server by itself, at the same rate.
fn untraced(lab: &Lab) -> Result<Calls> {
    let rate = (EVENTS_PER_SECOND / 2).to_string();
    let mut command = lab.command(lab.program("calls"));
    command.args(["--kind", "hal", "--threads", "2", "--blocks", "20", "--calls", "2500", "--rate", &rate]);
    Calls::parse(&Running::start(&mut command)?.finish()?)
}

fn over_time(moments: &[Moment]) -> Table {
    let mut table = Table::new(
        "The tracer over time",
        &format!(
            "`./x bench soak`: {EVENTS_PER_SECOND} events/s of a server, and beside it programs that come and go, five in a \
             second, each with two more events for each of its 20 calls; default settings, so CSV, capture and analyses. \
             Memory counts each page once, the ring of 64 MiB included; processor is percent of a core since the row before."
        ),
        &["minutes", "memory, MB", "processor", "open files", "mappings", "threads"],
    );
    let mut before: Option<&Moment> = None;
    for moment in moments {
        let processor = before.map_or_else(
            || "–".to_owned(),
            |before| {
                let passed_ns = (moment.minutes - before.minutes) * 60e9;
                format!("{:.1} %", 100.0 * (moment.cpu_ns - before.cpu_ns) / passed_ns)
            },
        );
        table.row([
            format!("{:.1}", moment.minutes),
            format!("{:.1}", moment.memory_bytes / 1e6),
            processor,
            moment.descriptors.to_string(),
            moment.mappings.to_string(),
            moment.threads.to_string(),
        ]);
        before = Some(moment);
    }
    table
}

fn totals(lab: &Lab, said: &str, objects: &Objects, (alone, watched): (Calls, Calls)) -> Result<Table> {
    let findings = findings::last(said)?;
    let lost = findings["end"]["lost"].as_u64().context("no count of losses")?;
    let other = findings["end"]["losses"].as_array().map_or(0, Vec::len);
    let churned = said.lines().find_map(|line| line.strip_prefix("churned ")).context("nothing was started")?;
    let cost = |calls: &Calls| Spread::of(calls.block_ns.iter().map(|ns| ns / 1e3));
    let mut table = Table::new("What is left in the end", "", &["what", "found", "goal"]);
    let mut row = |what: &str, found: String, goal: &str| table.row([what.to_owned(), found, goal.to_owned()]);
    row("minutes", lab.soak_minutes.to_string(), "20");
    row("programs that came and went", churned.to_owned(), "5 each second");
    row("events lost, ring full", lost.to_string(), "0");
    row("other reasons for losses", other.to_string(), "0");
    let (links, maps, programs) = objects.left(lab)?;
    row(
        "BPF links, maps and programs left, of those that the tracer had",
        format!("{links}, {maps}, {programs} of {objects}"),
        "0",
    );
    let (alone, watched) = (cost(&alone), cost(&watched));
    row("alloc + free in the server and its waiting, untraced, µs of its processor", alone.to_string(), "–");
    row("the same, traced", watched.to_string(), "–");
    row(
        "what tracing adds to each of the two events, µs",
        format!("{:.2}", (watched.median - alone.median) / 2.0),
        "see above",
    );
    Ok(table)
}

/// Numbers of BPF objects that a process has open, by kind.
struct Objects(BTreeMap<&'static str, Vec<u32>>);

impl std::fmt::Display for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = |kind| self.0.get(kind).map_or(0, Vec::len);
        write!(f, "{}, {}, {}", count("link"), count("map"), count("prog"))
    }
}

impl Objects {
    fn of(pid: u32) -> Result<Self> {
        let mut found: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten() {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            // A link names its program, too.
            for (kind, name) in [("link", "link_id:"), ("map", "map_id:"), ("prog", "prog_id:")] {
                if let Some(number) = text.lines().find_map(|line| line.strip_prefix(name)) {
                    found.entry(kind).or_default().push(number.trim().parse()?);
                }
            }
        }
        for numbers in found.values_mut() {
            numbers.sort_unstable();
            numbers.dedup();
        }
        ensure!(found.get("link").is_some_and(|links| !links.is_empty()), "process {pid} has no BPF links");
        Ok(Self(found))
    }

    /// How many of them still exist, of each kind. The kernel frees them a moment after their last user has gone.
    fn left(&self, lab: &Lab) -> Result<(usize, usize, usize)> {
        const MOMENT: Duration = Duration::from_secs(10);
        let count = |kind: &str| self.0.get(kind).map_or(Ok(0), |numbers| lab.existing(kind, numbers));
        let begin = Instant::now();
        loop {
            let left = (count("link")?, count("map")?, count("prog")?);
            if left == (0, 0, 0) || begin.elapsed() > MOMENT {
                return Ok(left);
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}
