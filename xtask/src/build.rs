//! `build`: the program, with the BPF object inside.

use anyhow::Result;

use crate::{
    arch::Arch,
    project::{cargo, run as run_command},
    python, setup,
};

pub(crate) fn run() -> Result<()> {
    setup::to_build()?;
    run_command(cargo().args(PROGRAM))
}

/// The program and the Python module, by one cargo: apart, their features differ, and what both need is compiled twice.
pub(crate) fn with_python() -> Result<()> {
    setup::to_build()?;
    run_command(cargo().args(PROGRAM).args(["--package", "memscope-python"]))?;
    python::pack(Arch::host())
}

const PROGRAM: [&str; 5] = ["build", "--release", "--locked", "--package", "memscope-user"];
