//! `demo`: a simulated Ascend program, traced for real; and the recording of that, which is part of the program.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    arch::Arch,
    build,
    project::{as_root, is_root, program, root, run as run_command, target, tool},
    sim,
};

/// What the demo runs: see memscope-user/src/cli/demo.rs.
const PROGRAM: [&str; 7] = ["./steps", "--steps", "6", "--leaks", "1", "--leak-size", "1048576"];
/// The recording is part of every program that is built.
const MAX_BYTES: u64 = 200 << 10;

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let host = Arch::host();
    build::run()?;
    sim::build(host)?;
    if matches!(arguments, [only] if only == "--record") {
        return record(&sim::folder(host));
    }
    run_command(as_root(tool()).arg("demo").arg("--sim").arg(sim::folder(host)).args(arguments))
}

/// Traces it in a folder of its own, so that no path of this machine is in the recording.
fn record(sim: &Path) -> Result<()> {
    ensure!(is_root(), "a recording is made as root: sudo would change the environment");
    let place = target().join("demo");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).with_context(|| format!("failed to create `{}`", place.display()))?;
    fs::copy(sim.join("bin/steps"), place.join("steps")).context("failed to copy the program")?;
    let mut tracer = program(tool());
    tracer.arg0("memscope-bpf").current_dir(&place).env("LD_LIBRARY_PATH", sim.join("lib"));
    tracer.args(["run", "--quiet", "--no-progress", "--call-stack=c", "-o", "out", "--"]).args(PROGRAM);
    run_command(&mut tracer)?;
    let capture = only_capture(&place.join("out"))?;
    let size_bytes = fs::metadata(&capture)?.len();
    ensure!(size_bytes <= MAX_BYTES, "the recording has {size_bytes} bytes, more than {MAX_BYTES}");
    let to = root().join("memscope-user/demo/steps.capture");
    fs::copy(&capture, &to).with_context(|| format!("failed to write `{}`", to.display()))?;
    eprintln!("{size_bytes} bytes in {}", to.display());
    Ok(())
}

fn only_capture(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("failed to list `{}`", folder.display()))?;
    let mut captures = entries.flatten().map(|entry| entry.path());
    let is_capture = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "capture");
    captures.find(is_capture).with_context(|| format!("no capture in `{}`", folder.display()))
}
