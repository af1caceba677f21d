//! Interpreters for tests: those in `MEMSCOPE_PYTHONS` (paths, separated by colons), `python3` and `python3.8` to `python3.14` in
//! `PATH`, those of pyenv (`PYENV_ROOT`, or `.pyenv` in the home directory), and what `./x pythons` fetched. At least one has to be there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An interpreter that is used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Python {
    /// Major and minor.
    pub version: (u8, u8),
    /// Its library; a program that has it all in itself has none.
    pub library: Option<PathBuf>,
    /// The program.
    pub path: PathBuf,
    /// Where its modules are.
    pub home: PathBuf,
}

/// All that there are; a version that is there in the same form twice is used once.
#[must_use]
pub fn interpreters() -> Vec<Python> {
    let mut paths: Vec<PathBuf> = Vec::new();
    if let Some(list) = std::env::var_os("MEMSCOPE_PYTHONS") {
        paths.extend(std::env::split_paths(&list));
    }
    let search: Vec<PathBuf> = std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect();
    // pyenv's own way of choosing is slow; its versions come below.
    let folders: Vec<PathBuf> =
        search.into_iter().filter(|folder| !folder.ends_with("shims")).chain([PathBuf::from("/usr/bin")]).collect();
    let names = (8..=14).map(|minor| format!("python3.{minor}")).chain(["python3".to_owned()]);
    paths.extend(names.flat_map(|name| folders.iter().map(move |folder| folder.join(&name)).collect::<Vec<_>>()));
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv"));
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(home);
    let versions = pyenv.into_iter().flat_map(|pyenv| fs::read_dir(pyenv.join("versions"))).flatten().flatten();
    paths.extend(versions.map(|version| version.path().join("bin/python3")));
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(|root| root.join("target/pythons"));
    let fetched = fetched.into_iter().flat_map(fs::read_dir).flatten().flatten();
    paths.extend(fetched.map(|version| {
        let name = format!("python{}", version.file_name().to_string_lossy());
        version.path().join("usr/bin").join(name)
    }));
    let mut found: Vec<Python> = paths.iter().filter(|path| path.exists()).filter_map(|path| ask(path)).collect();
    found.sort();
    found.dedup_by_key(|python| (python.version, python.library.is_some()));
    assert!(!found.is_empty(), "no CPython 3.8 to 3.14 in MEMSCOPE_PYTHONS, PATH or pyenv");
    let reported: Vec<String> = found.iter().map(|python| format!("{python:?}")).collect();
    println!("interpreters:\n{}", reported.join("\n"));
    found
}

/// What an interpreter says of itself; `None` if it is none that is meant to work.
fn ask(path: &Path) -> Option<Python> {
    const CODE: &str = "import sys, sysconfig, ctypes; print(sys.implementation.name, *sys.version_info[:2], \
        ([l.split()[5] for l in open('/proc/self/maps') if '/libpython' in l] + ['-'])[0], \
        int(bool(sysconfig.get_config_var('Py_DEBUG') or sysconfig.get_config_var('Py_GIL_DISABLED'))), sys.executable, sys.base_prefix)";
    let output = Command::new(path).args(["-I", "-c", CODE]).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let fields: Vec<&str> = said.split_whitespace().collect();
    let [name, major, minor, library, other, executable, home] = fields[..] else { return None };
    let version = (major.parse().ok()?, minor.parse().ok()?);
    let usable = name == "cpython" && other == "0" && ((3, 8)..=(3, 14)).contains(&version);
    // Not a script that chooses one.
    let library = (library != "-").then(|| PathBuf::from(library));
    usable.then(|| Python { version, library, path: PathBuf::from(executable), home: PathBuf::from(home) })
}
