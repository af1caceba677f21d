//! `faults`: kills, signals and starves the tracer and what it traces, at random moments (`tests/src/faults`).

use anyhow::Result;

use crate::{
    arch::Arch,
    bpf, build, nextest,
    project::{BPF_OBJECT, cargo, run as run_command},
    sim,
};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let host = Arch::host();
    build::with_python()?;
    sim::build_for_tests(host)?;
    let mut campaign = nextest::with_needs(host, cargo())?;
    campaign.args(["run", "--locked", "--quiet", "--package", "memscope-tests", "--bin", "faults", "--"]);
    // The stand-in: the program has the real BPF object.
    campaign
        .env(BPF_OBJECT, bpf::stand_in()?)
        .env(nextest::NO_STACKS, "true")
        .env(nextest::REPORT, "details")
        .env("MEMSCOPE_BUSY", "true");
    run_command(campaign.args(arguments))
}
