//! What the analyses find, and what that costs, by made-up programs.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::{
    bpf, build,
    project::{BPF_OBJECT, cargo, program, run as run_command, target, tool},
    setup,
};

/// Leaks that are found, and those that are none.
pub(super) fn leaks() -> Result<()> {
    run_command(made_up()?.arg("leaks"))
}

/// Time and memory.
pub(super) fn sizes() -> Result<()> {
    let mut made_up = made_up()?;
    build::run()?;
    run_command(made_up.arg("sizes").arg(tool()))
}

/// Pages for a browser: time, memory and size, and what drawing them takes in one.
pub(super) fn report() -> Result<()> {
    let folder = target().join("bench/pages");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
    run_command(made_up()?.arg("report").arg(&folder))?;
    let mut pages: Vec<PathBuf> =
        fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    pages.sort();
    let mut open = cargo();
    open.args(["run", "--locked", "--quiet", "--package", "memscope-tests", "--bin", "pages", "--"]).args(pages);
    // What opens pages needs no BPF object.
    run_command(open.env(setup::CHROMIUM, setup::browser()?).env(BPF_OBJECT, bpf::stand_in()?))
}

/// Replays under other settings: time, and memory of a request.
pub(super) fn whatif() -> Result<()> {
    run_command(made_up()?.arg("whatif"))
}

/// The program that makes up programs.
fn made_up() -> Result<std::process::Command> {
    setup::to_build()?;
    run_command(cargo().args(["build", "--release", "--locked", "--package", "memscope-bench"]))?;
    Ok(program(target().join("release/memscope-bench")))
}
