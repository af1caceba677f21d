//! `prometheus`: the rules and the dashboard of the node agent in a real Prometheus, beside an agent at work.

use anyhow::Result;

use crate::{arch::Arch, build, nextest, project::run as run_command, sim, vm};

/// Where its programs are.
const FOLDER: &str = "MEMSCOPE_PROMETHEUS";
/// Debian's release that it is from: version 2.42.
const RELEASE: &str = "bookworm";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let host = Arch::host();
    let folder = vm::unpacked("prometheus", &["prometheus"], RELEASE)?.join("usr/bin");
    build::run()?;
    sim::build_for_tests(host)?;
    let mut nextest = nextest::as_root(host)?;
    nextest.args(["--profile", "prometheus", "--test", "prometheus"]).env(FOLDER, folder);
    run_command(nextest.args(arguments))
}
