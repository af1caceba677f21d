//! `wheel --test`: wheels as they are installed, with each interpreter that is at hand, and in an old system; and whether types are what
//! stubs say.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::{LICENCES, about, of, tagged, tools, wheels};
use crate::{
    arch::{self, Arch},
    interpreters,
    project::{as_root, program, root, run as run_command, run_quietly, target},
    unit::PURE_TESTS,
    vm,
};

/// What an installed package has to do in any interpreter.
const TRY: &str = "
import sys, msmemscope, memscope_bpf
from msmemscope import describe
msmemscope.config(events='alloc,free')
msmemscope.step()
with describe.describer(owner='tried'):
    pass
assert memscope_bpf.listening() is False
half = memscope_bpf._native.native.__name__
assert half.endswith(sys.argv[1]), half
";
const NATIVE: &str = "_memscope_bpf";
const PURE: &str = "_pure";
/// An interpreter of Debian 11, with its C library 2.31, and its dependencies.
const OLD: (&str, &str, &[&str]) = (
    "bullseye",
    "/usr/bin/python3.9",
    &[
        "python3.9",
        "python3.9-minimal",
        "libpython3.9-minimal",
        "libpython3.9-stdlib",
        "libc6",
        "libcrypt1",
        "libexpat1",
        "libffi7",
        "libgcc-s1",
        "libssl1.1",
        "libbz2-1.0",
        "liblzma5",
        "zlib1g",
    ],
);
/// Tests of the package that need nothing of a system but an interpreter.
const OLD_TESTS: [&str; 3] = ["test_labels", "test_markers", "test_offline.Tables"];

pub(super) fn run() -> Result<()> {
    let tools = tools()?;
    let place = target().join("wheel-test");
    markers(&tools, &place)?;
    licences(&tools, &place)?;
    types(&tools, &place)?;
    old_system()?;
    let interpreters = interpreters::all();
    ensure!(!interpreters.is_empty(), "no CPython from 3.8 on in PATH, to try the wheels with");
    for (version, python) in &interpreters {
        for (wheel, half) in [(of(Arch::host())?, NATIVE), (tagged("py3-none-any")?, PURE)] {
            installed(&tools, python, &wheel, half, &place)?;
        }
        println!("CPython 3.{version}: both wheels installed and used");
    }
    Ok(())
}

fn tests() -> PathBuf {
    root().join("python/tests")
}

/// Makes an empty folder.
fn empty(place: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(place);
    fs::create_dir_all(place).with_context(|| format!("cannot make `{}`", place.display()))
}

fn unpack(tools: &Path, wheel: &Path, place: &Path) -> Result<()> {
    empty(place)?;
    run_quietly(program(tools.join("bin/python")).args(["-m", "zipfile", "-e"]).args([wheel, place]))
}

/// Who gives a wheel out gives out the licences of its parts.
fn licences(tools: &Path, place: &Path) -> Result<()> {
    for wheel in wheels()? {
        unpack(tools, &wheel, place)?;
        let about = about(place)?;
        let text = fs::read_to_string(about.join("licenses").join(LICENCES))?;
        let metadata = fs::read_to_string(about.join("METADATA"))?;
        ensure!(
            text.contains("Redistributions in binary form") && metadata.contains("\nLicense-File: LICENSES\n"),
            "`{}` lacks licences",
            wheel.display()
        );
    }
    Ok(())
}

/// The markers of both architectures' modules are what tracers and other tools rely on.
fn markers(tools: &Path, place: &Path) -> Result<()> {
    for arch in arch::all() {
        unpack(tools, &of(arch)?, place)?;
        let module = place.join("memscope_bpf/_memscope_bpf.abi3.so");
        run_command(program(tools.join("bin/python")).arg("-B").arg(tests().join("marker_file.py")).arg(module))?;
    }
    Ok(())
}

/// The package, and scripts that use it, have types throughout; stubs cover the package.
fn types(tools: &Path, place: &Path) -> Result<()> {
    unpack(tools, &of(Arch::host())?, place)?;
    let settings = root().join("python/pyproject.toml");
    let mypy = |arguments: &[&str]| {
        let mut mypy = program(tools.join("bin/mypy"));
        mypy.arg("--config-file").arg(&settings).args(arguments).current_dir(place);
        mypy.env("MYPYPATH", place).env("MYPY_CACHE_DIR", target().join("mypy"));
        mypy
    };
    run_command(&mut mypy(&["-p", "memscope_bpf", "-p", "msmemscope"]))?;
    run_command(mypy(&[]).arg(tests().join("typed_script.py")))?;
    let mut stubtest = program(tools.join("bin/stubtest"));
    stubtest.args(["--ignore-disjoint-bases", "--mypy-config-file"]).arg(&settings).arg("memscope_bpf");
    run_command(stubtest.current_dir(place).env("PYTHONPATH", place).env("PYTHONDONTWRITEBYTECODE", "1"))
}

/// This machine's wheel in a system that is as old as those that are in use.
fn old_system() -> Result<()> {
    let (release, python, packages) = OLD;
    let system = vm::unpacked(&format!("{release}-python"), packages, release)?;
    // Copied as root, who alone may enter it.
    let wheel = of(Arch::host())?;
    let script = "set -e
rm -rf \"$0/package\" \"$0/tests\"
mkdir -p \"$0/package\" \"$0/tmp\" \"$0/proc\"
cp -r \"$1\" \"$0/tests\"
cp \"$2\" \"$0/package.whl\"
mount -t proc proc \"$0/proc\"
chroot \"$0\" \"$3\" -m zipfile -e /package.whl /package
cd /
shift 3
export PYTHONPATH=/package:/tests PYTHONDONTWRITEBYTECODE=1 MEMSCOPE_BPF_SOCKET=
exec chroot \"$0\" \"$@\"
";
    let inside = |arguments: &[&str]| {
        let mut command = as_root("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(&system).arg(tests()).arg(&wheel).arg(python);
        command.arg(python).args(arguments);
        command
    };
    run_quietly(&mut inside(&["-c", TRY, NATIVE]))?;
    run_quietly(inside(&["-m", "unittest", "--quiet"]).args(OLD_TESTS))?;
    println!("{release}: the wheel of this machine used with {python}");
    Ok(())
}

/// Installs a wheel for an interpreter, and uses it.
fn installed(tools: &Path, python: &Path, wheel: &Path, half: &str, place: &Path) -> Result<()> {
    empty(place)?;
    // pip is the tools' own: not every interpreter has one.
    run_quietly(program(python).args(["-m", "venv", "--without-pip"]).arg(place))?;
    let inside = place.join("bin/python");
    let mut pip = program(tools.join("bin/python"));
    pip.args(["-m", "pip", "--python"]).arg(&inside).args(["install", "--quiet", "--no-deps", "--no-index"]);
    run_quietly(pip.args(["--disable-pip-version-check"]).arg(wheel))?;
    run_quietly(program(&inside).args(["-c", TRY, half]).current_dir(place))?;
    let mut unittest = program(&inside);
    unittest.args(["-B", "-m", "unittest"]).current_dir(tests()).env("MEMSCOPE_BPF_SOCKET", "");
    // `discover` has to come first.
    let which: &[&str] = if half == NATIVE { &["discover"] } else { &PURE_TESTS };
    run_quietly(unittest.args(which).arg("--quiet"))
}
