//! The tools that the verbs need. Installed tools are left alone.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    apt,
    arch::Arch,
    project::{BPF_OBJECT, cargo, find, output, program, run as run_command, tools},
};

/// Uses the LLVM inside rustc at run time; later versions want an LLVM of their own (docs/building.md).
const BPF_LINKER: &str = "0.10.3";
/// The one the configuration was written for; any that is installed will do.
const NEXTEST: &str = "0.9.143";
/// The same of deny.toml.
const DENY: &str = "0.20.2";
/// The same of docs/book.toml.
const MDBOOK: &str = "0.5.4";

/// Where tests find the browser.
pub(crate) const CHROMIUM: &str = "MEMSCOPE_CHROMIUM";

/// What a build needs besides the toolchain.
pub(crate) fn to_build() -> Result<()> {
    // A prebuilt object needs no linker.
    if env::var_os(BPF_OBJECT).is_some() || has_bpf_linker() {
        return Ok(());
    }
    install("bpf-linker", BPF_LINKER, &[])
}

/// What building for the other architecture needs.
pub(crate) fn to_check() -> Result<()> {
    let other = Arch::other();
    if other.has_compiler() { Ok(()) } else { apt::install(&other.cross_packages) }
}

/// What makes packages, and a copy of the sources; dpkg-deb is there.
pub(crate) fn to_pack() -> Result<()> {
    apt::install_missing(&[("rpmbuild", "rpm"), ("cpio", "cpio")])
}

/// What the simulated libraries need besides: some are C++.
pub(crate) fn to_simulate(arch: &Arch) -> Result<()> {
    apt::install_missing(&[(&arch.tool("g++"), arch.cxx_package())])
}

/// Tests hold stacks of what another compiler made, too.
pub(crate) fn second_compiler() -> Result<()> {
    apt::install_missing(&[("clang++", "clang"), ("ld.lld", "lld")])
}

/// What reads exports.
pub(crate) fn readers() -> Result<()> {
    apt::install_missing(&[("protoc", "protobuf-compiler"), ("python3", "python3")])
}

/// What tests hold stacks against.
pub(crate) fn debuggers() -> Result<()> {
    apt::install_missing(&[("gdb", "gdb"), ("eu-stack", "elfutils")])
}

/// Libraries that tests preload, and their packages.
const ALLOCATORS: [(&str, &str); 2] =
    [("libjemalloc.so.2", "libjemalloc2"), ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4")];

/// What programs of tests have in place of the C library's allocator.
pub(crate) fn allocators() -> Result<()> {
    let folder = format!("{}-linux-gnu", Arch::host().name);
    let folders = [Path::new("/usr/lib").join(folder), "/usr/lib64".into(), "/usr/lib".into()];
    let is_missing = |library: &str| !folders.iter().any(|folder| folder.join(library).exists());
    let missing = ALLOCATORS.iter().filter(|(library, _)| is_missing(library));
    apt::install(&missing.map(|(_, package)| *package).collect::<Vec<_>>())
}

/// What pages are tested in; Debian's program.
pub(crate) fn browser() -> Result<PathBuf> {
    const NAME: &str = "chromium";
    apt::install_missing(&[(NAME, NAME)])?;
    find(NAME)
        .with_context(|| format!("`{NAME}` is not in PATH: `./x test --no-browser` leaves pages in a browser out"))
}

/// The test runner.
pub(crate) fn nextest() -> Result<PathBuf> {
    own_or_installed("cargo-nextest", NEXTEST, &[])
}

/// What makes the site of the documentation; without the server that shows pages while they are written.
pub(crate) fn mdbook() -> Result<PathBuf> {
    own_or_installed("mdbook", MDBOOK, &["--no-default-features", "--features", "search"])
}

/// What holds crates to deny.toml.
pub(crate) fn deny() -> Result<PathBuf> {
    own_or_installed("cargo-deny", DENY, &[])
}

fn own_or_installed(name: &str, version: &str, features: &[&str]) -> Result<PathBuf> {
    let own = tools().join("bin").join(name);
    if own.is_file() {
        return Ok(own);
    }
    if let Some(installed) = find(name) {
        return Ok(installed);
    }
    install(name, version, features)?;
    Ok(own)
}

/// The build script looks into `.tools` first, then into `PATH`.
fn has_bpf_linker() -> bool {
    let own = tools().join("bin/bpf-linker");
    own.is_file()
        || find("bpf-linker").is_some_and(|installed| {
            output(program(installed).arg("--version")).is_ok_and(|version| version.trim().ends_with(BPF_LINKER))
        })
}

/// Built quickly rather than well: each of these tools waits for what it calls (LLVM, tests), or runs for a moment.
fn install(name: &str, version: &str, features: &[&str]) -> Result<()> {
    let mut cargo = cargo();
    cargo.args(["install", &format!("{name}@{version}"), "--locked", "--root"]).arg(tools()).args(features);
    cargo.envs([("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"), ("CARGO_PROFILE_RELEASE_LTO", "off")]);
    cargo.envs([("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"), ("CARGO_PROFILE_RELEASE_DEBUG", "0")]);
    run_command(&mut cargo)
}
