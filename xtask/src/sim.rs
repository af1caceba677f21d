//! `sim`: the simulated Ascend libraries and the programs that call them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

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

/// A program and the libraries that it calls, for a system with another C library than this machine's, by compilers for it.
pub(crate) fn build_by(arch: &Arch, cc: &Path, cxx: &Path, out: &Path) -> Result<()> {
    let mut make = command(out);
    for (variable, compiler) in [("CC", cc), ("CXX", cxx)] {
        // They do not know all that GCC is asked for. The journal has call stacks, which the unwinder finds.
        make.arg(format!(
            "{variable}={} -Wno-unknown-attributes -Wno-unused-command-line-argument -lunwind",
            compiler.display()
        ));
    }
    let goals = ["bin/calls", "bin/journal2text"].map(|goal| out.join(goal));
    run_command(make.arg(format!("STRIP={}", arch.tool("strip"))).args(goals))
}

fn make(arch: &Arch, goals: &[&str]) -> Result<()> {
    if !arch.has_compiler() {
        apt::install(&arch.cross_packages)?;
    }
    setup::to_simulate(arch)?;
    let mut make = command(&folder(arch));
    if !arch.is_host() {
        for (variable, tool) in [("CC", "gcc"), ("CXX", "g++"), ("STRIP", "strip")] {
            make.arg(format!("{variable}={}", arch.tool(tool)));
        }
        make.arg(format!("CLANGXX=clang++ --target={}", arch.gnu));
    }
    run_command(make.args(goals))
}

fn command(out: &Path) -> Command {
    let mut make = program("make");
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make.arg(format!("-j{jobs}"));
    make.args(["--silent", "-C", "tests/ascend-sim", &format!("OUT={}", out.display())]);
    make
}
