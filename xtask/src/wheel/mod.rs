//! `wheel`: the Python package as it is installed. A wheel for each architecture, which every `CPython` from 3.8 on takes, and one
//! without the native half for interpreters that cannot load it.

mod test;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arch::{self, Arch},
    dist,
    project::{program, root, run as run_command, run_quietly, target, tools as own_tools},
    setup, venv,
};

/// From the Python package index, besides Zig, which brings old C libraries. maturin is what projects with `PyO3` are packed with; mypy
/// looks whether types are what stubs say.
const NEEDED: [&str; 4] = ["maturin==1.16.0", "auditwheel==6.4.2", "wheel==0.45.1", "mypy==2.4.1"];
/// Its C library is 2.17, as that of the programs (`dist`).
const PLATFORM: &str = "manylinux_2_17";

/// The file with the licences of all parts.
const LICENCES: &str = "LICENSES";

/// Takes the native half out of a wheel that was unpacked, and says that the rest is for any platform.
const MAKE_PURE: &str = "
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
natives = list(folder.glob('memscope_bpf/*.so'))
assert natives, 'no native half'
for native in natives:
    native.unlink()
about = next(folder.glob('*.dist-info/WHEEL'))
lines = [line for line in about.read_text().splitlines() if not line.startswith(('Tag:', 'Root-Is-Purelib:'))]
about.write_text('\\n'.join([*lines, 'Root-Is-Purelib: true', 'Tag: py3-none-any', '']))
";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => make(),
        ["--test"] => test::run(),
        _ => bail!("usage: ./x wheel [--test]"),
    }
}

/// Where they go.
fn folder() -> PathBuf {
    target().join("wheel")
}

/// An environment of our own, with the packages that are needed.
fn tools() -> Result<PathBuf> {
    let tools = own_tools().join("wheel");
    venv::with(&tools, &format!("{} {}", NEEDED.join(" "), dist::zig_package()), "`./x wheel`")?;
    Ok(tools)
}

fn make() -> Result<()> {
    setup::to_check()?;
    let venv = tools()?;
    let out = folder();
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).with_context(|| format!("cannot make `{}`", out.display()))?;
    for arch in arch::all() {
        run_command(&mut maturin(&venv, arch, &out)?)?;
        run_command(program(venv.join("bin/auditwheel")).arg("show").arg(of(arch)?))?;
    }
    let licences = dist::licences_of_all()?;
    for wheel in wheels()? {
        repack(&venv, &out, &wheel, |package| add_licences(package, &licences))?;
    }
    let host = of(Arch::host())?;
    let make_pure = |package: &Path| run_quietly(program(venv.join("bin/python")).args(["-c", MAKE_PURE]).arg(package));
    repack(&venv, &out, &host, make_pure)?;
    for wheel in wheels()? {
        println!("{}", wheel.display());
    }
    Ok(())
}

fn maturin(venv: &Path, arch: &Arch, out: &Path) -> Result<Command> {
    let mut maturin = program(venv.join("bin/maturin"));
    let path = env::join_paths(
        [venv.join("bin")].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    )?;
    // Names of functions stay: a tracer looks for them, and they are few.
    maturin
        .env("PATH", path)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "none")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    maturin.env("CARGO_TARGET_DIR", target().join("wheel-build"));
    maturin.args(["build", "--release", "--locked", "--zig", "--target", arch.target, "--compatibility", PLATFORM]);
    maturin.arg("--manifest-path").arg(root().join("python/Cargo.toml")).arg("--out").arg(out);
    Ok(maturin)
}

/// Unpacks a wheel, changes it, and packs it again: under its name, or under that which its tags have then.
fn repack(venv: &Path, out: &Path, wheel: &Path, change: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let python = || program(venv.join("bin/python"));
    let unpacked = out.join("unpacked");
    run_quietly(python().args(["-m", "wheel", "unpack", "--dest"]).arg(&unpacked).arg(wheel))?;
    let package = fs::read_dir(&unpacked)?.next().context("nothing was unpacked")??.path();
    change(&package)?;
    run_quietly(python().args(["-m", "wheel", "pack", "--dest-dir"]).arg(out).arg(&package))?;
    fs::remove_dir_all(&unpacked).with_context(|| format!("cannot remove `{}`", unpacked.display()))
}

/// Where an unpacked wheel says what it is.
fn about(package: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(package)?.filter_map(|entry| Some(entry.ok()?.path()));
    entries.find(|path| path.extension().is_some_and(|kind| kind == "dist-info")).context("no `dist-info`")
}

/// As PEP 639 has it: the text, and its name among what the wheel says of itself.
fn add_licences(package: &Path, licences: &str) -> Result<()> {
    const BEFORE: &str = "License-Expression:";
    let about = about(package)?;
    fs::create_dir_all(about.join("licenses"))?;
    fs::write(about.join("licenses").join(LICENCES), licences)?;
    let metadata = fs::read_to_string(about.join("METADATA"))?;
    let lines = metadata.split_inclusive('\n').flat_map(|line| {
        let named = line.starts_with(BEFORE).then(|| format!("License-File: {LICENCES}\n"));
        [Some(line.to_owned()), named].into_iter().flatten()
    });
    Ok(fs::write(about.join("METADATA"), lines.collect::<String>())?)
}

fn wheels() -> Result<Vec<PathBuf>> {
    let missing = || format!("`{}` is not there: `./x wheel` makes it", folder().display());
    let entries = fs::read_dir(folder()).with_context(missing)?;
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.retain(|path| path.extension().is_some_and(|kind| kind == "whl"));
    found.sort();
    Ok(found)
}

/// The wheel with this end of its tag.
fn tagged(end: &str) -> Result<PathBuf> {
    let is_it = |path: &PathBuf| path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with(end));
    wheels()?.into_iter().find(is_it).with_context(|| format!("no wheel for `{end}` in `{}`", folder().display()))
}

fn of(arch: &Arch) -> Result<PathBuf> {
    tagged(arch.name)
}
