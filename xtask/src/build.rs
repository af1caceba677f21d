//! `build`: the program, with the BPF object inside.

use anyhow::Result;

use crate::{
    project::{cargo, run as run_command},
    setup,
};

pub(crate) fn run() -> Result<()> {
    setup::to_build()?;
    run_command(cargo().args(["build", "--release", "--locked", "--package", "memscope-user"]))
}
