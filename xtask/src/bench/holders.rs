//! `bench holders`: what it takes to find who holds a block, by the host memory of the process, and what that costs the process.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{proc, stats::Spread, table::Table};
use crate::{
    build, interpreters,
    project::{program, root, tool},
};

/// The block that the program holds in the list `held`.
const BLOCK: &str = "0x12c100000000";
const PATH: &str = "__main__.held[0]";
/// Kind of memory, and GiB of it.
const PROGRAMS: [(&str, &str, f64); 6] = [
    ("numbers", "nothing else", 0.0),
    ("numbers", "arrays of numbers", 1.0),
    ("numbers", "arrays of numbers", 4.0),
    ("objects", "dicts and lists", 1.0),
    ("objects", "dicts and lists", 3.0),
    ("both", "half of each", 8.0),
];

/// Passes over a process that works, and GiB of its host memory.
const PASSES: usize = 7;
const WORKING_GIB: f64 = 1.0;

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
    let note = format!(
        "One block, in CPython 3.{minor}; two threads read, or share one processor. The process is not stopped."
    );
    let columns = [
        "Host memory",
        "GiB",
        "seconds",
        "per GiB",
        "on one processor",
        "per GiB",
        "pointers, millions",
        "own memory, MiB",
        "per GiB",
    ];
    let mut table = Table::new("Who holds a block", &note, &columns);
    for (kind, title, gib) in PROGRAMS {
        table.row(measure(python, kind, title, gib)?);
    }
    println!("{table}");
    println!("{}", working(python)?);
    Ok(())
}

/// What a pass costs a process that works in one thread, on as many processors as this machine has.
fn working(python: &Path) -> Result<Table> {
    let counted = root().join("target/bench/holders.count");
    fs::create_dir_all(root().join("target/bench")).context("a folder for the count")?;
    fs::write(&counted, [0; 8]).context("a file for the count")?;
    let path = counted.to_str().context("a name for the file")?;
    let target = start(python, &["objects", &WORKING_GIB.to_string(), path])?;
    let rounds = || -> Result<u64> {
        let bytes = fs::read(&counted).context("the count")?;
        Ok(bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first)))
    };
    while rounds()? == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    let rate = |work: &mut dyn FnMut() -> Result<()>| -> Result<(f64, f64)> {
        let (begin, before) = (Instant::now(), rounds()?);
        work()?;
        let seconds = begin.elapsed().as_secs_f64();
        Ok(((rounds()? - before) as f64 / seconds, seconds))
    };
    let (mut kept, mut taken) = (Vec::new(), Vec::new());
    for _ in 0..PASSES {
        let (during, seconds) = rate(&mut || ask(target.0.id(), false).map(drop))?;
        let pause = Duration::from_secs_f64(seconds);
        let (alone, _) = rate(&mut || {
            thread::sleep(pause);
            Ok(())
        })?;
        kept.push(100.0 * during / alone);
        taken.push(seconds);
    }
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let note = format!(
        "Rounds of work of one thread with {WORKING_GIB} GiB of dicts and lists on {processors} processors, during a pass and in the same time \
         after it; {PASSES} passes."
    );
    let mut table =
        Table::new("Work of the process during a pass", &note, &["seconds of a pass", "% of the work without"]);
    table.row([Spread::of(taken).to_string(), Spread::of(kept).to_string()]);
    Ok(table)
}

fn start(python: &Path, arguments: &[&str]) -> Result<Target> {
    let script = root().join("xtask/src/bench/holders.py");
    let mut command = program(python);
    command.arg(script).args(arguments).stdout(Stdio::piped());
    let mut target = Target(command.spawn().context("failed to start the program")?);
    let output = target.0.stdout.take().context("its output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    ensure!(line.trim_end() == "ready", "the program says `{line}`");
    Ok(target)
}

/// The answer as JSON, and the most memory that the command had, on all processors or on one.
fn ask(pid: u32, is_on_one: bool) -> Result<(serde_json::Value, f64)> {
    let mut ask = if is_on_one {
        let mut ask = program("taskset");
        ask.args(["--cpu-list", "0"]).arg(tool());
        ask
    } else {
        program(tool())
    };
    ask.args(["holders", &pid.to_string(), "--block", BLOCK, "--json"]).stdout(Stdio::piped());
    let mut asking = ask.spawn().context("failed to start the command")?;
    let own_bytes = proc::peak_bytes_until_end(asking.id());
    let mut text = String::new();
    asking.stdout.take().context("its output")?.read_to_string(&mut text)?;
    ensure!(asking.wait()?.success(), "the command has failed");
    let found: serde_json::Value = serde_json::from_str(&text)?;
    ensure!(found["groups"][0]["held_by"][0]["path"] == PATH, "another path: {}", found["groups"]);
    Ok((found, own_bytes))
}

fn measure(python: &Path, kind: &str, title: &str, gib: f64) -> Result<[String; 9]> {
    let target = start(python, &[kind, &gib.to_string()])?;
    let timed = |is_on_one| -> Result<_> {
        let begin = Instant::now();
        let (found, own_bytes) = ask(target.0.id(), is_on_one)?;
        Ok((found, own_bytes, begin.elapsed().as_secs_f64()))
    };
    let (found, own_bytes, seconds) = timed(false)?;
    let (_, _, one_seconds) = timed(true)?;
    let number = |key: &str| found["effort"][key].as_f64().unwrap_or(0.0);
    let scanned = number("scanned_bytes") / f64::from(1 << 30);
    let own = own_bytes / f64::from(1 << 20);
    Ok([
        title.to_owned(),
        format!("{scanned:.2}"),
        format!("{seconds:.2}"),
        format!("{:.2}", seconds / scanned),
        format!("{one_seconds:.2}"),
        format!("{:.2}", one_seconds / scanned),
        format!("{:.1}", number("pointers") / 1e6),
        format!("{own:.0}"),
        format!("{:.0}", own / scanned),
    ])
}
