//! `bench scale`: what many probes and many processes take.

use std::{fmt::Write as _, fs, path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{
    lab::{Held, Lab, Running, send},
    proc,
    stats::Spread,
    table::Table,
};
use crate::{
    findings,
    project::{program, run_quietly},
};

/// Functions of a library, and such libraries: each function gets an entry and a return.
const FUNCTIONS: usize = 190;
const LIBRARIES: usize = 8;

/// Both tables.
pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    Ok(vec![probes(lab)?, processes(lab)?])
}

/// Attaching and detaching of thousands of probes.
fn probes(lab: &Lab) -> Result<Table> {
    let libraries = many_functions(lab)?;
    let preload = libraries.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":");
    let rows = probe_rows(lab)?;
    let (mut count, mut attached, mut detached) = (0, Vec::new(), Vec::new());
    for _ in 0..lab.repetitions {
        let target = Held::start(lab.command(lab.program("calls")).arg("--hold").env("LD_PRELOAD", &preload))?;
        let pid = target.target.to_string();
        let options = ["--pid", &pid, "--probes", &rows.display().to_string()];
        let tracer = Running::start(lab.tracer("attach", &options)?.arg("-q"))?;
        let (found, at) = proc::links_settled(tracer.pid(), || lab.site_count(&tracer))?;
        ensure!(found >= 2 * FUNCTIONS * LIBRARIES, "only {found} probes");
        count = found;
        let (to_attach, to_detach) = super::throughput::to_last_probe_and_end(tracer, at)?;
        attached.push(to_attach);
        detached.push(to_detach);
        target.end()?;
    }
    let mut table = Table::new(
        "Many probes",
        &format!("{LIBRARIES} more libraries of {FUNCTIONS} functions, probed by `--probes`: {count} places in all."),
        &["what", "ms"],
    );
    table.row(["from the command to the last probe, `--pid`".to_owned(), Spread::of(attached).to_string()]);
    table.row(["from Ctrl-C to the end, all written and detached".to_owned(), Spread::of(detached).to_string()]);
    Ok(table)
}

/// Makes the libraries: copies are other files, so each has probes of its own.
fn many_functions(lab: &Lab) -> Result<Vec<PathBuf>> {
    let source = lab.own("many.c");
    let mut text = String::new();
    for number in 0..FUNCTIONS {
        writeln!(text, "void *many_{number}(unsigned long size) {{ return (void *)(size + {number}); }}")?;
    }
    fs::write(&source, text).with_context(|| format!("cannot write {}", source.display()))?;
    let first = lab.own("libmany0.so");
    run_quietly(
        program("gcc").args(["-O1", "-fno-omit-frame-pointer", "-shared", "-fPIC", "-o"]).arg(&first).arg(&source),
    )?;
    let mut libraries = vec![first.clone()];
    for number in 1..LIBRARIES {
        let copy = lab.own(&format!("libmany{number}.so"));
        fs::copy(&first, &copy).with_context(|| format!("cannot write {}", copy.display()))?;
        libraries.push(copy);
    }
    Ok(libraries)
}

/// The file for `--probes`.
fn probe_rows(lab: &Lab) -> Result<PathBuf> {
    let row = |number| {
        let function = format!("many_{number}");
        serde_json::json!({"library": "libmany*.so", "function": function, "kind": "alloc", "size": 0, "ret": "ptr"})
    };
    let rows: Vec<Value> = (0..FUNCTIONS).map(row).collect();
    let path = lab.own("many.json");
    fs::write(&path, serde_json::to_vec(&rows)?).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The same events from one process and from many.
fn processes(lab: &Lab) -> Result<Table> {
    const EVENTS_PER_SECOND: u64 = 20_000;
    let seconds = lab.pick(2, 10);
    let mut table = Table::new(
        "Many processes",
        &format!(
            "{EVENTS_PER_SECOND} events/s in all for {seconds} s, of running processes that the tracer attached to; CSV, capture and \
             analyses. Percent are of one core, memory counts each page once."
        ),
        &["processes", "from the command to the last one", "processor", "memory, MB", "events lost"],
    );
    for count in [1, 10, 100] {
        let rate = (EVENTS_PER_SECOND / 2 / count).to_string();
        let calls = (EVENTS_PER_SECOND / 2 / count * seconds).to_string();
        let targets: Vec<Held> = (0..count)
            .map(|_| {
                let mut command = lab.command(lab.program("calls"));
                Held::start(command.args(["--rate", &rate, "--blocks", "1", "--hold", "--calls", &calls]))
            })
            .collect::<Result<_>>()?;
        let pids: Vec<String> = targets.iter().map(|target| target.target.to_string()).collect();
        let tracer = Running::start(lab.tracer("attach", &["--json", "--pid", &pids.join(",")])?.arg("-q"))?;
        let pid = tracer.pid();
        // Each process is waited for by a descriptor; the last one is there when there are as many.
        let (_, at) = proc::links_settled(pid, || Ok(proc::pidfds(pid)))?;
        let ready_ms = at.duration_since(tracer.started()).as_secs_f64() * 1e3;
        let cpu = proc::cpu_ns(pid, None);
        for target in &targets {
            send(target.target, Signal::SIGUSR1)?;
        }
        thread::sleep(Duration::from_secs(seconds));
        let processor = 100.0 * (proc::cpu_ns(pid, None) - cpu) / (seconds as f64 * 1e9);
        let memory = proc::memory_bytes(pid) / 1e6;
        for target in targets {
            send(target.target, Signal::SIGTERM)?;
            target.tracer.finish()?;
        }
        let findings = findings::last(&tracer.finish()?)?;
        let lost = findings["end"]["lost"].as_u64().context("no count of losses")?;
        table.row([
            count.to_string(),
            format!("{ready_ms:.0} ms"),
            format!("{processor:.1} %"),
            format!("{memory:.1}"),
            lost.to_string(),
        ]);
    }
    Ok(table)
}
