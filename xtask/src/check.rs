//! `check`: all that needs no run of the program.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    arch::Arch,
    bpf,
    code::{figures, layers, terminal},
    docs,
    project::{BPF_OBJECT, cargo, run as run_command},
    setup,
};

const USER_SPACE: [&str; 3] = ["--workspace", "--exclude", "memscope-ebpf"];
const DENY: [&str; 3] = ["--", "-D", "warnings"];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments {
        [] => all(),
        [figures] if figures == "--figures" => figures::print(),
        _ => bail!("usage: ./x check [--figures]"),
    }
}

/// All of it.
pub(crate) fn all() -> Result<()> {
    setup::to_build()?;
    setup::to_check()?;
    format()?;
    layers::check()?;
    figures::check()?;
    terminal::check()?;
    docs::check()?;
    lints()?;
    bpf::lint()?;
    features()?;
    other_architecture()?;
    documentation()
}

fn format() -> Result<()> {
    run_command(cargo().args(["fmt", "--all", "--check"]))
}

/// Cargo for what loads no BPF object: the one for this machine is made by `build`.
fn host() -> Result<Command> {
    let mut cargo = cargo();
    cargo.env(BPF_OBJECT, bpf::stand_in()?);
    Ok(cargo)
}

fn lints() -> Result<()> {
    run_command(host()?.args(["clippy", "--locked", "--quiet", "--all-targets"]).args(USER_SPACE).args(DENY))
}

/// The library without tracing: what reads captures and dumps on any machine.
fn features() -> Result<()> {
    let library = ["clippy", "--locked", "--quiet", "--package", "memscope-user", "--no-default-features", "--lib"];
    run_command(cargo().args(library).args(DENY))
}

/// Builds its BPF object too, in the build script.
fn other_architecture() -> Result<()> {
    let package = ["clippy", "--locked", "--quiet", "--package", "memscope-user"];
    run_command(cargo().args(package).args(["--target", Arch::other().target]).args(DENY))
}

fn documentation() -> Result<()> {
    let doc = ["doc", "--locked", "--quiet", "--no-deps"];
    run_command(host()?.env("RUSTDOCFLAGS", "-D warnings").args(doc).args(USER_SPACE))
}
