//! `sim`: the simulated Ascend libraries and the programs that call them.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::{
    apt,
    arch::Arch,
    project::{program, run as run_command, target},
    setup,
};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments {
        [] => build(Arch::named(std::env::consts::ARCH)?),
        [arch] => build(Arch::named(arch)?),
        _ => bail!("usage: ./x sim [x86_64|aarch64]"),
    }
}

/// Where they are put.
pub(crate) fn folder(arch: &Arch) -> PathBuf {
    if arch.is_host() {
        return target().join("ascend-sim");
    }
    target().join(format!("ascend-sim-{}", arch.name))
}

pub(crate) fn build(arch: &Arch) -> Result<()> {
    if !arch.has_compiler() {
        apt::install(&arch.cross_packages)?;
    }
    setup::to_simulate(arch)?;
    let mut make = program("make");
    make.args(["--silent", "-C", "tests/ascend-sim", &format!("OUT={}", folder(arch).display())]);
    if !arch.is_host() {
        for (variable, tool) in [("CC", "gcc"), ("CXX", "g++"), ("STRIP", "strip")] {
            make.arg(format!("{variable}={}", arch.tool(tool)));
        }
    }
    run_command(&mut make)
}
