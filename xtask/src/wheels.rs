//! `wheels`: real libraries from the package index, and the tests that look for our functions in them.
//!
//! Which ones is said by `tests/wheels.txt`, which the tests read too. They are fetched once, into `target/wheels`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    apt,
    arch::Arch,
    build, nextest,
    project::{program, root, run as run_command, run_quietly, target},
    sim,
};

/// Where they are; and which of them are to be looked at.
pub(crate) const FOLDER: &str = "MEMSCOPE_WHEELS";
pub(crate) const SET: &str = "MEMSCOPE_WHEELS_SET";

/// Platforms that the wheels are tagged for, oldest last.
const PLATFORMS: [&str; 5] = ["manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014"];
const PYTHON: &str = "311";

/// Takes libraries out of a wheel: arguments are the wheel, the folder, and names, `*` for all.
const UNPACK: &str = "
import os, sys, zipfile
wheel, folder, names = sys.argv[1], sys.argv[2], set(sys.argv[3:])
with zipfile.ZipFile(wheel) as archive:
    for member in archive.namelist():
        name = os.path.basename(member)
        if '.so' in name and ('*' in names or name in names):
            with archive.open(member) as source, open(os.path.join(folder, name), 'wb') as to:
                while block := source.read(1 << 20):
                    to.write(block)
";

/// How much is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// What `./x test` looks at.
    Small,
    /// Everything.
    All,
}

impl Set {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::All => "all",
        }
    }
}

/// One wheel and the libraries of it that are wanted.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wheel {
    package: String,
    version: String,
    machine: String,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    ensure!(arguments.is_empty(), "usage: ./x wheels");
    let host = Arch::host();
    build::run()?;
    sim::build(host)?;
    fetch(Set::All)?;
    let mut nextest = nextest::as_root(host)?;
    nextest.env(FOLDER, folder()).env(SET, Set::All.name());
    // The tables are what one wants to see.
    run_command(nextest.args(["--success-output", "immediate", "-E", "binary(=wheels)"]))
}

/// Where the libraries are put: a folder for each wheel.
pub(crate) fn folder() -> PathBuf {
    target().join("wheels")
}

/// Gets what is not there yet.
pub(crate) fn fetch(set: Set) -> Result<()> {
    let list = root().join("tests/wheels.txt");
    let text = fs::read_to_string(&list).with_context(|| format!("failed to read `{}`", list.display()))?;
    for (wheel, names) in wheels(&text, set)? {
        let to = folder().join(format!("{}-{}-{}", wheel.package, wheel.version, wheel.machine));
        if !to.is_dir() {
            get(&wheel, &names, &to)?;
        }
    }
    Ok(())
}

/// The wheels of a set, with the libraries that any set wants of them: a folder that is there is complete.
fn wheels(text: &str, set: Set) -> Result<BTreeMap<Wheel, BTreeSet<&str>>> {
    let mut found: BTreeMap<Wheel, (bool, BTreeSet<&str>)> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let [of, package, version, machine, file, _, _] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            bail!("tests/wheels.txt: not seven words: `{line}`");
        };
        let wheel = Wheel { package: package.to_owned(), version: version.to_owned(), machine: machine.to_owned() };
        let (wanted, names) = found.entry(wheel).or_default();
        *wanted |= set == Set::All || of == Set::Small.name();
        names.insert(file);
    }
    Ok(found.into_iter().filter(|(_, (wanted, _))| *wanted).map(|(wheel, (_, names))| (wheel, names)).collect())
}

/// Under another name until it is complete.
fn get(wheel: &Wheel, names: &BTreeSet<&str>, to: &Path) -> Result<()> {
    let (download, partial) = (folder().join("download"), folder().join("partial"));
    for folder in [&download, &partial] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).with_context(|| format!("failed to make `{}`", folder.display()))?;
    }
    let name = format!("{}=={}", wheel.package, wheel.version);
    eprintln!("fetching {name} for {} from the package index", wheel.machine);
    let mut pip_download = pip()?;
    pip_download
        .args(["download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"])
        .args(["--disable-pip-version-check", "--implementation", "cp", "--python-version", PYTHON])
        .args(["--abi", &format!("cp{PYTHON}"), "--abi", "none"])
        .args(PLATFORMS.iter().flat_map(|platform| ["--platform".to_owned(), format!("{platform}_{}", wheel.machine)]))
        .arg("--dest")
        .arg(&download)
        .arg(&name);
    run_quietly(&mut pip_download).with_context(|| {
        format!(
            "could not fetch the wheel of {name}: is there a network? `./x test --no-wheels` leaves real wheels out"
        )
    })?;
    let mut files = fs::read_dir(&download).context("no folder for downloads")?;
    let wheel = files.find_map(|file| Some(file.ok()?.path())).context("pip fetched nothing")?;
    run_quietly(program("python3").args(["-c", UNPACK]).arg(&wheel).arg(&partial).args(names))?;
    ensure!(fs::read_dir(&partial)?.next().is_some(), "no such libraries in `{}`", wheel.display());
    fs::rename(&partial, to).with_context(|| format!("failed to make `{}`", to.display()))?;
    fs::remove_dir_all(&download).with_context(|| format!("failed to remove `{}`", download.display()))
}

fn pip() -> Result<Command> {
    apt::install_missing(&[("python3", "python3"), ("pip3", "python3-pip")])?;
    let mut pip = program("python3");
    pip.args(["-m", "pip"]);
    Ok(pip)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
# set package version machine file function address
all   a 1 x86_64 * - -
small b 2 aarch64 libb.so f 0x10

all   b 2 aarch64 libc.so g 0x20
";

    /// Make sure that a set has its wheels, and each wheel all that any set wants of it.
    #[test]
    fn sets() {
        let names = |set| {
            let wheels = wheels(LIST, set).expect("a good list");
            wheels.into_iter().map(|(wheel, names)| (wheel.package, names.into_iter().collect())).collect::<Vec<_>>()
        };
        let b = || ("b".to_owned(), vec!["libb.so", "libc.so"]);
        assert_eq!(names(Set::Small), [b()]);
        assert_eq!(names(Set::All), [("a".to_owned(), vec!["*"]), b()]);
    }

    /// Make sure that a line that was cut is not passed over.
    #[test]
    fn short_line() {
        let error = wheels("all a 1 x86_64\n", Set::All).expect_err("four words");
        assert_eq!(error.to_string(), "tests/wheels.txt: not seven words: `all a 1 x86_64`");
    }
}
