//! What the analyses find, and what that costs, by made-up programs.

use anyhow::Result;

use crate::{
    build,
    project::{cargo, program, run as run_command, target, tool},
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

/// Pages for a browser: time, memory and size.
pub(super) fn report() -> Result<()> {
    run_command(made_up()?.arg("report"))
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
