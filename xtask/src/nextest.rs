//! The test runner on our crates.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{
    arch::Arch,
    bpf,
    project::{BPF_OBJECT, cargo, find, is_root, program, tool},
    python, setup, sim,
};

/// What the program prints of a report.
pub(crate) const REPORT: &str = "MEMSCOPE_REPORT";
/// Whether the program takes call stacks where none are asked for.
pub(crate) const NO_STACKS: &str = "MEMSCOPE_NO_STACKS";

/// Our crates, for nextest.
pub(crate) const OURS: [&str; 5] = ["--locked", "--cargo-quiet", "--workspace", "--exclude", "memscope-ebpf"];

/// Nextest on our crates.
pub(crate) fn runner() -> Result<Command> {
    let mut nextest = with_stand_in("run")?;
    nextest.args(OURS);
    Ok(nextest)
}

/// Nextest. No test loads the BPF object that is in the library: the program does, which has one of its own.
pub(crate) fn with_stand_in(verb: &str) -> Result<Command> {
    let mut nextest = program(setup::nextest()?);
    nextest.args(["nextest", verb]);
    nextest.env("CARGO", cargo().get_program()).env(BPF_OBJECT, bpf::stand_in()?);
    // Tests of figures read the details; those of the first screen ask for it.
    nextest.env(REPORT, "details");
    // Stacks are taken by tests that ask for them.
    nextest.env(NO_STACKS, "true");
    Ok(nextest)
}

/// The same with all that tests need, as root.
pub(crate) fn as_root(host: &Arch) -> Result<Command> {
    with_needs(host, runner()?)
}

pub(crate) fn with_needs(host: &Arch, mut nextest: Command) -> Result<Command> {
    nextest.env("MEMSCOPE_BIN", tool()).env("MEMSCOPE_SIM_DIR", sim::folder(host));
    nextest.env(python::FOLDER, python::folder(host));
    if !is_root() {
        let can = find("sudo").is_some() && program("sudo").arg("-v").status().is_ok_and(|status| status.success());
        ensure!(can, "the live tests attach probes: run `./x test` as root or with a working `sudo`");
        // Built by this user, run by root.
        nextest.env(host.cargo_variable("RUNNER"), "sudo -E");
    }
    Ok(nextest)
}
