//! `bench holders`: what it takes to find who holds a block, by the host memory of the process.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};

use super::{proc, table::Table};
use crate::{
    build, interpreters,
    project::{program, root, tool},
};

/// The block that the program holds in the list `held`.
const BLOCK: &str = "0x12c100000000";
const PATH: &str = "__main__.held[0]";
/// Kind of memory, and GiB of it.
const PROGRAMS: [(&str, &str, f64); 5] = [
    ("numbers", "nothing else", 0.0),
    ("numbers", "arrays of numbers", 1.0),
    ("numbers", "arrays of numbers", 4.0),
    ("objects", "dicts and lists", 1.0),
    ("objects", "dicts and lists", 3.0),
];

/// Ends with the measurement, whatever that does.
struct Target(Child);

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn run() -> Result<()> {
    build::run()?;
    let interpreters = interpreters::all();
    let (minor, python) = interpreters.last_key_value().context("no CPython 3.8 to 3.14")?;
    let note = format!("One block, in CPython 3.{minor}; two threads read. The process is not stopped.");
    let columns =
        ["Host memory", "GiB", "seconds", "seconds per GiB", "pointers, millions", "own memory, MiB", "per GiB"];
    let mut table = Table::new("Who holds a block", &note, &columns);
    for (kind, title, gib) in PROGRAMS {
        table.row(measure(python, kind, title, gib)?);
    }
    println!("{table}");
    Ok(())
}

fn measure(python: &Path, kind: &str, title: &str, gib: f64) -> Result<[String; 7]> {
    let script = root().join("xtask/src/bench/holders.py");
    let mut command = program(python);
    command.arg(script).args([kind, &gib.to_string()]).stdout(Stdio::piped());
    let mut target = Target(command.spawn().context("failed to start the program")?);
    let output = target.0.stdout.take().context("its output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    ensure!(line.trim_end() == "ready", "the program says `{line}`");
    let begin = Instant::now();
    let mut ask = program(tool());
    ask.args(["holders", &target.0.id().to_string(), "--block", BLOCK, "--json"]).stdout(Stdio::piped());
    let mut asking = ask.spawn().context("failed to start the command")?;
    let own_bytes = proc::peak_bytes_until_end(asking.id());
    let mut text = String::new();
    asking.stdout.take().context("its output")?.read_to_string(&mut text)?;
    ensure!(asking.wait()?.success(), "the command has failed");
    let seconds = begin.elapsed().as_secs_f64();
    let found: serde_json::Value = serde_json::from_str(&text)?;
    ensure!(found["groups"][0]["held_by"][0]["path"] == PATH, "another path: {}", found["groups"]);
    let number = |key: &str| found["effort"][key].as_f64().unwrap_or(0.0);
    let scanned = number("scanned_bytes") / f64::from(1 << 30);
    let own = own_bytes / f64::from(1 << 20);
    Ok([
        title.to_owned(),
        format!("{scanned:.2}"),
        format!("{seconds:.2}"),
        format!("{:.2}", seconds / scanned),
        format!("{:.1}", number("pointers") / 1e6),
        format!("{own:.0}"),
        format!("{:.0}", own / scanned),
    ])
}
