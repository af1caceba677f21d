//! Installing Debian packages on this machine.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};

use crate::project::{as_root, find, is_root, run};

static UPDATED: AtomicBool = AtomicBool::new(false);

/// Installs the packages of missing commands.
pub(crate) fn install_missing(commands_and_packages: &[(&str, &str)]) -> Result<()> {
    let missing = commands_and_packages.iter().filter(|(command, _)| find(command).is_none());
    install(&missing.map(|(_, package)| *package).collect::<Vec<_>>())
}

/// Installs packages.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    ensure!(find("apt-get").is_some(), "install these first (there is no apt-get here to do it): {names}");
    ensure!(is_root() || find("sudo").is_some(), "run `./x setup` once as root, or install: {names}");
    if !UPDATED.swap(true, Ordering::Relaxed) {
        run(as_root("apt-get").args(["update", "-qq"]))?;
    }
    let options = ["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends"];
    run(as_root("env").args(options).args(packages)).with_context(|| format!("could not install: {names}"))
}
