//! `build`: the program, with the BPF object inside.

use anyhow::Result;

use crate::{
    arch::Arch,
    project::{RELEASED, cargo, run as run_command},
    python, setup,
};

/// The program, and the module of the Python package: alone, either has other features of what both need, and all of it is compiled twice.
pub(crate) fn run() -> Result<()> {
    setup::to_build()?;
    run_command(cargo().args(["build", "--release", "--locked"]).args(RELEASED))
}

/// The program, and the Python package.
pub(crate) fn with_python() -> Result<()> {
    run()?;
    python::pack(Arch::host())
}
