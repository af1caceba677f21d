//! `live`: the tests under real probes, and only what they need.

use anyhow::Result;

use crate::{arch::Arch, build, project::run as run_command, python, setup, sim, test};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let host = Arch::host();
    setup::debuggers()?;
    build::run()?;
    sim::build_for_tests(host)?;
    python::build(host)?;
    run_command(test::nextest(host)?.args(["--test", "live"]).args(arguments))
}
