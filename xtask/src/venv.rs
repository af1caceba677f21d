//! Environments of Python with packages from the package index.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::project::{program, run as run_command};

/// One with these packages, as pip names them with blanks between; made again for other packages. `who` needs it.
pub(crate) fn with(venv: &Path, packages: &str, who: &str) -> Result<PathBuf> {
    of(Path::new("python3"), venv, packages, who)
}

/// The same of an interpreter.
pub(crate) fn of(interpreter: &Path, venv: &Path, packages: &str, who: &str) -> Result<PathBuf> {
    let python = venv.join("bin/python");
    let done = venv.join("installed");
    // Its programs begin with its path: one that was moved is of no use.
    let wanted = format!("{packages}\nin {}\n", venv.display());
    if fs::read_to_string(&done).is_ok_and(|what| what == wanted) {
        return Ok(python);
    }
    let what = || format!("{who} needs {} with its module venv, and the package index", interpreter.display());
    run_command(program(interpreter).args(["-m", "venv", "--clear"]).arg(venv)).with_context(what)?;
    // Used a few times: neither compiled ahead nor kept a second time in pip's cache.
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-cache-dir"];
    run_command(program(&python).args(pip).args(packages.split(' '))).with_context(what)?;
    fs::write(done, wanted)?;
    Ok(python)
}
