//! `live`: the tests under real probes, and only what they need.

use anyhow::Result;

use crate::{arch::Arch, build, nextest, project::run as run_command, setup, sim};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let host = Arch::host();
    setup::debuggers()?;
    setup::allocators()?;
    build::with_python()?;
    sim::build_for_tests(host)?;
    run_command(nextest::as_root(host)?.args(["--test", "live"]).args(arguments))
}
