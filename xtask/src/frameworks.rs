//! What the groups of tests with real frameworks share. Each group prepares versions of a package and runs its tests on each.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    arch::Arch,
    build, nextest,
    project::{find, is_root, output, program, root, run as run_command, run_quietly, target},
    sim,
};

/// The one interpreter that all versions have wheels for.
pub(crate) const PYTHON: &str = "3.11";
/// Names the interpreter, if it is not `python3.11`.
const PYTHON_VARIABLE: &str = "MEMSCOPE_PYTHON";
/// Simulated libraries that stand where the program looks first for a missing symbol.
const SIMULATED: [&str; 3] = ["libascend_hal.so", "libruntime.so", "libms_tools_ext.so"];

/// A framework from the package index.
pub(crate) struct Framework {
    /// As its users write it.
    pub(crate) name: &'static str,
    /// The verb, the file of tests, and the profile of the test runner.
    pub(crate) group: &'static str,
    /// Gives the tests the folder of a version.
    pub(crate) variable: &'static str,
    /// What a version is: a word.
    pub(crate) what: &'static str,
    /// What is tested when nothing is said.
    pub(crate) versions: &'static [&'static str],
    /// Whether a text can be a version.
    pub(crate) is_version: fn(&str) -> bool,
    /// Which tests of the group are a version's, as the test runner has it; all, if nothing is said.
    pub(crate) tests: fn(&str) -> Option<String>,
    /// Makes the environment of a version in a folder, or completes it; also gets the folder of simulated libraries.
    pub(crate) prepare: fn(&str, &Path, &Path) -> Result<()>,
}

/// Runs the group's tests with each version.
pub(crate) fn run(framework: &Framework, arguments: &[String]) -> Result<()> {
    let Framework { name, group, variable, what, .. } = *framework;
    let host = Arch::host();
    ensure!(host.name == "x86_64", "the stand-ins are made for the wheels of x86-64");
    ensure!(is_root(), "`./x {group}` attaches probes: run it as root");
    let (versions, tests) =
        arguments.split_at(arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len()));
    if let Some(unknown) = versions.iter().find(|argument| !(framework.is_version)(argument)) {
        let list = what.to_uppercase();
        bail!("`{unknown}` is no {what} of {name}\nusage: ./x {group} [{list}...] [-- TEST ARGUMENTS]");
    }
    build::with_python()?;
    let versions: Vec<&str> =
        if versions.is_empty() { framework.versions.to_vec() } else { versions.iter().map(String::as_str).collect() };
    let mut different = Vec::new();
    for version in &versions {
        let folder = prepared(framework, version)?;
        eprintln!("{name} {version}");
        // As compiled for all other tests; the program runs as its users have it.
        let mut nextest = nextest::with_needs(host, nextest::runner()?)?;
        nextest.env_remove(nextest::REPORT).env_remove(nextest::NO_STACKS).env(variable, folder);
        nextest.args(["--test", group, "--profile", group, "--no-capture"]);
        if let Some(tests) = (framework.tests)(version) {
            nextest.args(["-E", &tests]);
        }
        let result = run_command(nextest.args(tests.iter().skip(1)));
        different.extend(result.err().map(|error| format!("{name} {version}: {error:#}")));
    }
    ensure!(different.is_empty(), "{}", different.join("\n"));
    Ok(())
}

/// Makes the environment of a version, or completes it; returns its folder.
pub(crate) fn prepared(framework: &Framework, version: &str) -> Result<PathBuf> {
    let host = Arch::host();
    sim::build(host)?;
    let folder = target().join(framework.group).join(version);
    fs::create_dir_all(&folder).with_context(|| format!("failed to create `{}`", folder.display()))?;
    (framework.prepare)(version, &folder, &sim::folder(host).join("lib"))?;
    Ok(folder)
}

/// Whether a text consists of this many numbers, with dots between.
pub(crate) fn is_numbers(text: &str, count: usize) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split('.').count() == count && text.split('.').all(is_number)
}

/// `CPython` of the one version.
pub(crate) fn interpreter() -> Result<PathBuf> {
    let name = format!("python{PYTHON}");
    let python = env::var_os(PYTHON_VARIABLE).map(PathBuf::from).or_else(|| find(&name));
    let needed = format!("CPython {PYTHON} with its module venv is needed: `{name}` in PATH, or {PYTHON_VARIABLE}");
    let python = python.with_context(|| needed.clone())?;
    let code = "import sys, venv; print(sys.implementation.name, *sys.version_info[:2])";
    let found = output(program(&python).args(["-c", code])).context(needed.clone())?;
    ensure!(found.trim() == format!("cpython {}", PYTHON.replace('.', " ")), "{needed}; this is {found}");
    Ok(python)
}

/// Where packages are in a version's folder.
pub(crate) fn packages(folder: &Path) -> PathBuf {
    folder.join(format!("venv/lib/python{PYTHON}/site-packages"))
}

/// Writes the sources of what the libraries need and no package has. Only once: they depend on the packages alone. `opens`: libraries
/// that look up functions by name; `operators`: those with names of operators.
pub(crate) fn generate(
    folder: &Path,
    simulated: &Path,
    roots: &[PathBuf],
    opens: &[PathBuf],
    operators: &[PathBuf],
) -> Result<()> {
    let out = folder.join("gen");
    let newest = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let made = newest(&out.join("libopapi.so.c"));
    let scripts = ["gen_stubs.py", "gen_opapi.py"].map(|name| root().join("tests/torch-npu").join(name));
    if made.is_some() && scripts.iter().all(|script| newest(script) < made) {
        return Ok(());
    }
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    let python = folder.join("venv/bin/python");
    let mut stubs = program(&python);
    stubs.arg(&scripts[0]).arg("--out").arg(&out);
    for name in SIMULATED {
        stubs.arg("--provided").arg(simulated.join(name));
    }
    for library in opens {
        stubs.arg("--opens").arg(library);
    }
    run_quietly(stubs.args(roots))?;
    run_quietly(program(&python).arg(&scripts[1]).arg(&out).args(operators))
}

/// Builds the stand-ins of a version.
pub(crate) fn build_stand_ins(folder: &Path, simulated: &Path, out: &Path) -> Result<()> {
    let mut make = program("make");
    make.args(["--silent", "-C", "tests/torch-npu"]);
    for (name, place) in [("GEN", folder.join("gen").as_path()), ("OUT", out), ("SIM", simulated)] {
        make.arg(format!("{name}={}", place.display()));
    }
    run_command(&mut make)
}

/// Shared libraries in a folder, in the order of their names.
pub(crate) fn libraries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("no folder `{}`", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "so") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::is_numbers;

    /// Numbers alone, and as many.
    #[test]
    fn versions() {
        assert!(is_numbers("2.10.0", 3) && is_numbers("2", 1));
        for wrong in ["", "2.9", "2.9.x", "2.9.0.9", "2..0", "../2.9.0", "2.9.-1"] {
            assert!(!is_numbers(wrong, 3), "{wrong}");
        }
    }
}
