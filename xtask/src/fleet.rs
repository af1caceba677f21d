//! `fleet`: the queries over a fleet's evidence, in both engines: see `docs/fleet.md`.

use anyhow::{Result, ensure};

use crate::{
    project::{program, root, run as run_command, target},
    venv,
};

/// Spark needs Java 17 or later.
const PACKAGES: &str = "duckdb==1.5.5 pyspark==4.3.0";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    ensure!(arguments.is_empty(), "usage: ./x fleet");
    let python = venv::with(&target().join("fleet"), PACKAGES, "`fleet`")?;
    run_command(program(python).args(["-B", "-m", "unittest"]).current_dir(root().join("fleet/tests")))
}
