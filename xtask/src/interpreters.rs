//! `CPython` interpreters of this machine.

use std::{collections::BTreeMap, env, fs, path::PathBuf, process::Stdio};

use crate::project::{find, program};

/// One of each version from 3.8 on, in `MEMSCOPE_PYTHONS`, `PATH` or pyenv's, by its minor version.
pub(crate) fn all() -> BTreeMap<u32, PathBuf> {
    let named = (8..=14).filter_map(|minor| find(&format!("python3.{minor}")));
    let pyenv = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let installed = pyenv.into_iter().flat_map(|pyenv| fs::read_dir(pyenv.join("versions"))).flatten().flatten();
    let added = env::var_os("MEMSCOPE_PYTHONS").map(|list| env::split_paths(&list).collect::<Vec<_>>());
    let all = named.chain(installed.map(|version| version.path().join("bin/python3")));
    // The last one of a version is taken.
    let all = all.chain(added.into_iter().flatten());
    let by_version = all.filter_map(|python| {
        let code = "import sys; sys.version_info >= (3, 8) and print(sys.version_info[1])";
        // pyenv's names for versions that are not chosen fail.
        let said = program(&python).args(["-c", code]).stderr(Stdio::null()).output().ok()?;
        let minor = String::from_utf8(said.stdout).ok()?.trim().parse().ok()?;
        said.status.success().then_some((minor, python))
    });
    by_version.collect()
}
