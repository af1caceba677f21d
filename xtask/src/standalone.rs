//! Static programs, which need no library where they run: for virtual machines, and for systems with another C library than glibc.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{
    arch::Arch,
    project::{cargo, root, run, target},
};

/// Where they are built.
fn folder() -> PathBuf {
    target().join("static")
}

/// Cargo for static builds, with this machine's C library.
pub(crate) fn builder(arch: &Arch, verb: &str) -> Command {
    let mut cargo = cargo();
    // The linker says of getpwnam and the like that they load libraries; here they know users from files alone.
    let remap = format!("--remap-path-prefix={}=memscope", root().display());
    cargo.env("RUSTFLAGS", format!("-C target-feature=+crt-static -A linker_messages {remap}"));
    if !arch.is_host() {
        cargo.env(arch.cargo_variable("LINKER"), arch.tool("gcc"));
    }
    cargo.args([verb, "--release", "--locked", "--target", arch.target, "--target-dir"]).arg(folder());
    cargo
}

/// Builds the program.
pub(crate) fn build(arch: &Arch) -> Result<PathBuf> {
    run(builder(arch, "build").args(["--package", "memscope-user", "--bin", "memscope-bpf"]))?;
    Ok(folder().join(arch.target).join("release/memscope-bpf"))
}
