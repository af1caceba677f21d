//! `miri`: pure code under Miri, which sees undefined behaviour that no test's assertion does.
//!
//! Pure is what computes alone: records of the kernel side, rows, pipeline, analyses. What opens files, calls SQLite or the
//! kernel is beyond Miri.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{
    nextest,
    project::{program, root, run as run_command, target},
};

/// Miri is a part of nightly compilers alone; a dated one says the same tomorrow.
const TOOLCHAIN: &str = "nightly-2026-10-29";
/// Rounds of each property test, of 256 in `./x test`: an interpreter is a hundred times slower.
const ROUNDS: &str = "4";
/// Modules of the library without tests that open files, map them, or take minutes here.
const PURE: [&str; 5] = ["model::", "dump_format::", "decode::", "pipeline::", "analyses::"];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    install()?;
    let mut common = miri();
    run_command(common.args(["--package", "memscope-common", "--all-features"]))?;
    let mut library = miri();
    library.args(["--package", "memscope-user", "--no-default-features", "--lib", "--"]);
    if arguments.is_empty() {
        library.args(PURE);
    } else {
        library.args(arguments);
    }
    run_command(&mut library)
}

fn install() -> Result<()> {
    let known = program("rustup").args(["run", TOOLCHAIN, "cargo", "miri", "--version"]).output();
    if known.context("rustup is missing")?.status.success() {
        return Ok(());
    }
    let install = ["toolchain", "install", TOOLCHAIN, "--profile", "minimal", "--component", "miri,rust-src"];
    run_command(program("rustup").args(install)).with_context(|| format!("`miri` needs {TOOLCHAIN} with Miri"))
}

/// Cargo of that toolchain, with a target folder of its own.
fn miri() -> Command {
    let mut cargo = program("rustup");
    cargo.args(["run", TOOLCHAIN, "cargo", "miri", "test", "--locked"]).current_dir(root());
    // Cargo names itself and its compiler to what it starts, such as this program: the other toolchain has its own.
    for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTDOC"] {
        cargo.env_remove(variable);
    }
    cargo.env("CARGO_TARGET_DIR", target().join("miri"));
    cargo.env("PROPTEST_CASES", ROUNDS).env(nextest::REPORT, "details");
    // Property tests look for their file of failures.
    cargo.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    cargo
}
