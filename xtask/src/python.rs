//! `python`: the Python package, as it lies where it is installed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arch::Arch,
    project::{RELEASED, cargo, program, root, run as run_command, run_quietly, target},
};

/// Names the package's folder to tests.
pub(crate) const FOLDER: &str = "MEMSCOPE_PYTHON_DIR";
/// Import packages: what there is to copy.
const PACKAGES: [&str; 2] = ["memscope_bpf", "msmemscope"];
/// The cdylib, and the name by which every `CPython` from 3.8 on imports it.
const MODULE: (&str, &str) = ("lib_memscope_bpf.so", "memscope_bpf/_memscope_bpf.abi3.so");
/// Kinds of files that belong to a package.
const KINDS: [&str; 4] = ["py", "pyi", "typed", "json"];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments {
        [] => build(Arch::host()),
        _ => bail!("usage: ./x python"),
    }
}

/// Where it is put.
pub(crate) fn folder(arch: &Arch) -> PathBuf {
    if arch.is_host() {
        return target().join("python-package");
    }
    target().join(format!("python-package-{}", arch.name))
}

pub(crate) fn build(arch: &Arch) -> Result<()> {
    let mut cargo = cargo();
    cargo.args(["build", "--release", "--locked"]);
    if arch.is_host() {
        cargo.args(RELEASED);
    } else {
        cargo.args(["--package", "memscope-python"]);
        cargo.env(arch.cargo_variable("LINKER"), arch.tool("gcc")).args(["--target", arch.target]);
    }
    run_command(&mut cargo)?;
    pack(arch)
}

/// Puts the built module where it is imported from.
pub(crate) fn pack(arch: &Arch) -> Result<()> {
    let built = if arch.is_host() { target() } else { target().join(arch.target) };
    let folder = folder(arch);
    for package in PACKAGES {
        copy(&root().join("python").join(package), &folder.join(package))?;
    }
    let (library, module) = MODULE;
    let (from, to) = (built.join("release").join(library), folder.join(module));
    run_quietly(program(arch.tool("strip")).arg("--strip-debug").arg("-o").args([to, from]))
}

/// Makes `to` hold the files of the package in `from`, those of packages in it too, and no others.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove `{}`", to.display()))?;
    }
    fs::create_dir_all(to).with_context(|| format!("cannot make `{}`", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read `{}`", from.display()))? {
        let path = entry?.path();
        if let Some(name) = path.file_name().filter(|_| path.join("__init__.py").exists()) {
            copy(&path, &to.join(name))?;
        }
        let is_part = path.extension().is_some_and(|kind| KINDS.iter().any(|known| kind == *known));
        if let Some(name) = path.file_name().filter(|_| is_part) {
            replace(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn replace(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).with_context(|| format!("cannot copy `{}` to `{}`", from.display(), to.display()))
}
