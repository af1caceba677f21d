//! Starts tracers and targets, and asks the kernel about them.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    nextest::NO_STACKS,
    project::{silent_output, target, tool},
};

/// What all measurements share.
#[derive(Clone, Debug)]
pub(super) struct Lab {
    /// The tracer that is measured.
    pub(super) tool: PathBuf,
    /// Another build of it, which `bench beside` measures in the same run.
    pub(super) other: Option<PathBuf>,
    simulation: PathBuf,
    /// For outputs; emptied by each run.
    folder: PathBuf,
    /// Fewer and shorter measurements.
    pub(super) quick: bool,
    /// Of each measurement.
    pub(super) repetitions: usize,
    /// How long the soak takes.
    pub(super) soak_minutes: u64,
}

impl Lab {
    /// Uses the simulation in that folder.
    pub(super) fn new(simulation: &Path, quick: bool, soak_minutes: u64) -> Result<Self> {
        let folder = target().join("bench");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self {
            tool: tool(),
            other: None,
            simulation: simulation.to_owned(),
            folder,
            quick,
            repetitions: if quick { 2 } else { 7 },
            soak_minutes,
        })
    }

    /// The same for another build of the tracer.
    pub(super) fn with(&self, tool: PathBuf) -> Self {
        Self { tool, ..self.clone() }
    }

    /// Makes sure that no other tracer has probes in the simulated libraries: the untraced rows would be traced.
    pub(super) fn refuse_strangers(&self) -> Result<()> {
        let all = silent_output(Command::new(self.program("emptyprobes")).arg("list"))?;
        let ours = self.simulation.join("lib").display().to_string();
        let count = all.lines().filter(|line| line.contains(&ours)).count();
        ensure!(count == 0, "another tracer has {count} probes in {ours}: end it first");
        Ok(())
    }

    /// `quick` in a quick run, else `full`.
    pub(super) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// A program of the simulation.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.simulation.join("bin").join(name)
    }

    /// A library of the simulation.
    pub(super) fn library(&self, name: &str) -> PathBuf {
        self.simulation.join("lib").join(name)
    }

    /// A file or folder for our own use.
    pub(super) fn own(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// An output directory that is not there yet.
    pub(super) fn output(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        Ok(folder)
    }

    /// A command that finds the simulated libraries.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.simulation.join("lib")).current_dir(&self.folder).stdin(Stdio::null());
        // Cases that are about stacks ask for them.
        command.env(NO_STACKS, "true");
        command
    }

    /// The tracer with its verb and options, writing to a fresh directory.
    pub(super) fn tracer(&self, verb: &str, options: &[&str]) -> Result<Command> {
        let mut command = self.command(&self.tool);
        command.arg(verb).arg("--no-progress").args(options).arg("-o").arg(self.output("output")?);
        Ok(command)
    }

    /// Where probes of a tracer are, a line for each.
    fn sites(&self, tracer: &Running) -> Result<String> {
        silent_output(Command::new(self.program("emptyprobes")).arg("list").arg(tracer.pid().to_string()))
    }

    /// How many there are.
    pub(super) fn site_count(&self, tracer: &Running) -> Result<usize> {
        Ok(self.sites(tracer)?.lines().count())
    }

    /// How many of these BPF objects exist.
    pub(super) fn existing(&self, kind: &str, numbers: &[u32]) -> Result<usize> {
        let numbers = numbers.iter().map(ToString::to_string);
        let found = silent_output(Command::new(self.program("emptyprobes")).arg("exist").arg(kind).args(numbers))?;
        found.trim().parse().context("no number")
    }

    /// Where they are, as a file for [`Lab::probes`].
    pub(super) fn sites_of(&self, tracer: &Running, name: &str) -> Result<PathBuf> {
        let sites = self.sites(tracer)?;
        ensure!(!sites.is_empty(), "no multi links: the empty probe needs them (Linux 6.8)");
        let file = self.own(name);
        fs::write(&file, sites).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// Probes that do `what` (see `emptyprobes.c`) at these places, until dropped.
    pub(super) fn probes(&self, sites: &Path, what: &str) -> Result<Running> {
        let mut attach = Command::new(self.program("emptyprobes"));
        attach.arg("attach").arg(sites).arg(what).stdin(Stdio::piped());
        let mut running = Running::start(&mut attach)?;
        running.wait_for("ready")?;
        Ok(running)
    }
}

/// The files with that ending below a folder, each with its size in bytes.
pub(super) fn files_below(folder: &Path, ending: &str) -> Result<Vec<(u64, PathBuf)>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                found.push((entry.metadata()?.len(), path));
            }
        }
    }
    Ok(found)
}

/// A program at work; its output is read. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    started: Instant,
}

impl Running {
    /// Starts it; its messages are thrown away.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let started = Instant::now();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.with_context(|| format!("cannot run `{name}`"))?;
        let stdout = child.stdout.take().context("no standard output")?;
        Ok(Self { child, stdout: BufReader::new(stdout), started })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads lines up to one that starts so; gives the rest of it.
    pub(super) fn wait_for(&mut self, start: &str) -> Result<String> {
        Ok(self.wait_for_line(start)?[start.len()..].to_owned())
    }

    /// The same, with its start.
    pub(super) fn wait_for_line(&mut self, start: &str) -> Result<String> {
        let mut line = String::new();
        while self.stdout.read_line(&mut line)? > 0 {
            if line.starts_with(start) {
                return Ok(line.trim_end().to_owned());
            }
            line.clear();
        }
        bail!("a program ended without `{start}`")
    }

    /// When it was started.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Time since then.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        send(self.pid(), signal)
    }

    /// Waits for any end.
    pub(super) fn wait(mut self) -> Result<()> {
        self.stdout.read_to_string(&mut String::new())?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for a good end; gives what it had still to say.
    pub(super) fn finish(mut self) -> Result<String> {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "a program failed ({status}): {text}");
        Ok(text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, or has no more output.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal.
pub(super) fn send(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(pid.try_into().context("no process id")?);
    kill(pid, signal).with_context(|| format!("cannot signal {pid}"))
}

/// A traced target that has set up all and waits.
pub(super) struct Held {
    pub(super) tracer: Running,
    pub(super) target: u32,
}

impl Held {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let mut tracer = Running::start(command)?;
        let target = tracer.wait_for("ready ")?.parse().context("no process id")?;
        Ok(Self { tracer, target })
    }

    /// Ends target and tracer without any call.
    pub(super) fn end(self) -> Result<()> {
        send(self.target, Signal::SIGKILL)?;
        self.tracer.wait()
    }
}

/// What `calls` says at its end.
#[derive(Debug)]
pub(super) struct Calls {
    /// Processor time of one call, in nanoseconds, in each block.
    pub(super) block_ns: Vec<f64>,
}

impl Calls {
    /// Finds the line in what was printed.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let line = text.lines().find(|line| line.starts_with("{\"pid\"") && line.contains("block_ps"));
        let line = line.with_context(|| format!("`calls` did not say what it did: {text}"))?;
        let value: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        let blocks = value["block_ps"].as_array().context("no blocks")?;
        Ok(Self { block_ns: blocks.iter().filter_map(Value::as_f64).map(|ps| ps / 1000.0).collect() })
    }
}
