//! `unit`: what a developer runs all the time. No root, no network, no BPF build, no program beside the tests.

use anyhow::{Context as _, Result};

use crate::{
    interpreters, nextest,
    project::{program, root, run as run_command},
};

/// Rounds of each property test, of 256 in `./x test`.
const ROUNDS: &str = "32";
/// Of the package's tests, those that hold without the native half: what calls take and refuse.
pub(crate) const PURE_TESTS: [&str; 13] = [
    "test_api.Config",
    "test_api.Describe",
    "test_api.Record",
    "test_api.Snapshot",
    "test_daemon",
    "test_hooks.Hooks.test_misuse",
    "test_hooks.Versions",
    "test_offline.Reference.test_foreign_file",
    "test_offline.Reference.test_limits",
    "test_offline.Reference.test_misuse",
    "test_offline.Reference.test_rights",
    "test_tracer.Misuse",
    "test_watcher",
];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let mut all = nextest::runner()?;
    all.env("PROPTEST_CASES", ROUNDS);
    all.args(["--lib", "--bin", "xtask", "--bin", "memscope-bench", "--test", "dumps"]);
    run_command(all.args(arguments))?;
    if !arguments.is_empty() {
        eprintln!("left out: Python's, because only some tests were asked for");
        return Ok(());
    }
    python()
}

/// What the package's calls take and refuse, without its native half, by the newest interpreter.
fn python() -> Result<()> {
    let (_, python) = interpreters::all().pop_last().context("no CPython from 3.8 on in PATH")?;
    let mut unittest = program(python);
    unittest.args(["-B", "-m", "unittest", "--quiet"]).args(PURE_TESTS).current_dir(root().join("python/tests"));
    run_command(unittest.env("PYTHONPATH", root().join("python")).env("MEMSCOPE_BPF_SOCKET", ""))
}
