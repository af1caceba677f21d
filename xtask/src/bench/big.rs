//! `bench big`: what a process as servers are takes: many threads, libraries and mappings.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::{
    lab::{Lab, Running, files_below},
    proc,
    table::Table,
};
use crate::{findings, project::silent_output};

/// Threads, libraries, and GiB of mappings.
const PROCESSES: [[usize; 3]; 5] = [[1, 0, 0], [10_000, 0, 0], [1, 2000, 0], [1, 0, 100], [10_000, 2000, 100]];
/// A library that does nothing.
const LIBRARY: &str = "stacks/libframes_a.so";

pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    let mut table = Table::new(
        "Big processes",
        "Attached to while it waits; then each thread allocates a block of the driver's at the same time, and frees it but for one in ten. \
         Mapped memory was read, page by page. The journal's allocations and frees are those of its libraries. Processor time is the \
         target's from the signal to the last thread, per event; memory is the tracer's largest.",
        &[
            "threads",
            "libraries",
            "mapped, GiB",
            "to the last probe",
            "µs per event, untraced",
            "traced",
            "events in the journal",
            "rows",
            "lost",
            "Ctrl-C to the end",
            "memory, MB",
        ],
    );
    for process in PROCESSES.iter().take(lab.pick(1, PROCESSES.len())) {
        table.row(measure(lab, &copies(lab, process[1])?, process)?);
    }
    Ok(vec![table])
}

/// Copies are other files, so each is a library of its own.
fn copies(lab: &Lab, count: usize) -> Result<PathBuf> {
    let folder = lab.output("many-libraries")?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for number in 0..count {
        let copy = folder.join(format!("libmany{number}.so"));
        fs::copy(lab.library(LIBRARY), &copy).with_context(|| format!("cannot write {}", copy.display()))?;
    }
    Ok(folder)
}

/// A process that has set up all and waits.
struct Crowd {
    running: Running,
    journal: PathBuf,
}

impl Crowd {
    fn start(lab: &Lab, libraries: &Path, &[threads, _, gib]: &[usize; 3]) -> Result<Self> {
        let journal = lab.output("journal")?;
        fs::create_dir_all(&journal).with_context(|| format!("cannot make {}", journal.display()))?;
        let mut command = lab.command(lab.program("crowd"));
        command.env("ASCEND_SIM_JOURNAL", &journal).arg("--hold").arg("--libraries").arg(libraries);
        command.args(["--threads", &threads.to_string(), "--map-gib", &gib.to_string()]);
        let mut running = Running::start(&mut command)?;
        running.wait_for("ready")?;
        Ok(Self { running, journal })
    }

    /// Has all threads allocate; gives the processor time of it, in nanoseconds.
    fn work(&mut self) -> Result<f64> {
        let before = proc::cpu_ns(self.running.pid(), None);
        self.running.signal(Signal::SIGUSR1)?;
        self.running.wait_for("done")?;
        Ok(proc::cpu_ns(self.running.pid(), None) - before)
    }

    /// Allocations and frees of the driver so far.
    fn events(&self, lab: &Lab) -> Result<usize> {
        let text = silent_output(lab.command(lab.program("journal2text")).arg(&self.journal))?;
        let is_event = |line: &&str| line.contains("\thalMemAlloc\t") || line.contains("\thalMemFree\t");
        Ok(text.lines().filter(is_event).count())
    }

    fn end(self) -> Result<()> {
        self.running.signal(Signal::SIGTERM)?;
        self.running.finish().map(drop)
    }
}

fn measure(lab: &Lab, libraries: &Path, process: &[usize; 3]) -> Result<[String; 11]> {
    let mut alone = Crowd::start(lab, libraries, process)?;
    let set_up = alone.events(lab)?;
    let untraced_ns = alone.work()?;
    let events = alone.events(lab)? - set_up;
    alone.end()?;

    let mut target = Crowd::start(lab, libraries, process)?;
    let pid = target.running.pid().to_string();
    let tracer = Running::start(lab.tracer("attach", &["--json", "--pid", &pid])?.arg("-q"))?;
    let (_, at) = proc::links_settled(tracer.pid(), || lab.site_count(&tracer))?;
    let to_attach = at.duration_since(tracer.started());
    let traced_ns = target.work()?;
    ensure!(target.events(lab)? - set_up == events, "the traced process did something else");
    let memory = proc::memory_bytes(tracer.pid());
    tracer.signal(Signal::SIGINT)?;
    let (asked, pid) = (Instant::now(), tracer.pid());
    let peak = proc::peak_bytes_until_end(pid).max(memory);
    let findings = findings::last(&tracer.finish()?)?;
    let to_end = asked.elapsed();
    // It goes on as before.
    target.end()?;
    let lost = findings["end"]["lost"].as_u64().context("no count of losses")?;
    let per_event = |ns: f64| format!("{:.1}", ns / 1e3 / events as f64);
    Ok([
        process[0].to_string(),
        process[1].to_string(),
        process[2].to_string(),
        format!("{:.1} s", to_attach.as_secs_f64()),
        per_event(untraced_ns),
        per_event(traced_ns),
        events.to_string(),
        rows(lab)?.to_string(),
        lost.to_string(),
        format!("{:.1} s", to_end.as_secs_f64()),
        format!("{:.0}", peak / 1e6),
    ])
}

/// Rows of calls: what the end of the trace closes is none.
fn rows(lab: &Lab) -> Result<usize> {
    let mut count = 0;
    for (_, file) in files_below(&lab.own("output"), "csv")? {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let is_event = |line: &&str| line.contains(",HAL,") && !line.contains("shadow:true");
        count += text.lines().filter(is_event).count();
    }
    Ok(count)
}
