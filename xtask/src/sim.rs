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
        [] => build_for_tests(Arch::host()),
        [arch] => build_for_tests(Arch::named(arch)?),
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

/// All but what only tests need.
pub(crate) fn build(arch: &Arch) -> Result<()> {
    make(arch, &[])
}

/// With the programs that are there by a second compiler.
pub(crate) fn build_for_tests(arch: &Arch) -> Result<()> {
    setup::second_compiler()?;
    make(arch, &["all", "clang"])
}

fn make(arch: &Arch, goals: &[&str]) -> Result<()> {
    if !arch.has_compiler() {
        apt::install(&arch.cross_packages)?;
    }
    setup::to_simulate(arch)?;
    let mut make = program("make");
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make.arg(format!("-j{jobs}"));
    make.args(["--silent", "-C", "tests/ascend-sim", &format!("OUT={}", folder(arch).display())]);
    if !arch.is_host() {
        for (variable, tool) in [("CC", "gcc"), ("CXX", "g++"), ("STRIP", "strip")] {
            make.arg(format!("{variable}={}", arch.tool(tool)));
        }
        make.arg(format!("CLANGXX=clang++ --target={}", arch.gnu));
    }
    run_command(make.args(goals))
}
