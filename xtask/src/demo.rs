//! `demo`: a simulated Ascend program, traced for real.

use anyhow::Result;

use crate::{
    arch::Arch,
    build,
    project::{as_root, run as run_command, tool},
    sim,
};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let host = Arch::host();
    build::run()?;
    sim::build(host)?;
    run_command(as_root(tool()).arg("demo").arg("--sim").arg(sim::folder(host)).args(arguments))
}
