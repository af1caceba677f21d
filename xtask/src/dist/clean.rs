//! The packages in a system that has nothing else: installed, and used to trace; and the static program there.
//!
//! There is one system, Debian's. The RPM package goes into it with a database of its own, without the C library's package: it shows that
//! rpm installs, verifies and removes it and that it runs, not that it runs on `openEuler`.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{deb, folder, rpm, static_name, trial};
use crate::{
    apt,
    arch::Arch,
    project::{as_root, output, program, root, run as run_command},
    setup, sim,
};

/// What happens in there; `$0` is the system. The mounts are gone with the namespace. The static program is started where there is nothing
/// but itself. Removing the package leaves nothing behind.
const SCRIPT: &str = "set -e
mount -t proc proc \"$0/proc\"
mount --rbind /sys \"$0/sys\"
trace() {
    chroot \"$0\" sh /trial.sh \"$@\"
}
chroot \"$0\" dpkg --install /package.deb >&2
chroot \"$0\" memscope-bpf doctor >&2
trace package memscope-bpf
mkdir \"$0/nothing\"
cp \"$0/static\" \"$0/nothing/static\"
chroot \"$0/nothing\" /static --version >&2
trace static /static
chroot \"$0\" sh -c 'zcat /usr/share/man/man1/memscope-bpf-run.1.gz | head -c 300; bash -n /usr/share/bash-completion/completions/memscope-bpf' >&2
chroot \"$0\" sh -c 'ls /usr/lib/systemd/system/memscope-bpf.service /usr/lib/systemd/system/memscope-bpf.socket' >&2
chroot \"$0\" dpkg --purge memscope-bpf >&2
gone() {
    [ -z \"$(find \"$0/usr\" -name '*memscope*' | tee /dev/stderr)\" ]
}
gone
rpm --root \"$0\" --initdb
rpm --root \"$0\" --install --nodeps \"$0/package.rpm\" >&2
trace rpm memscope-bpf
rpm --root \"$0\" --verify --nodeps memscope-bpf >&2
rpm --root \"$0\" --erase memscope-bpf >&2
gone
";

/// Installs the packages of this machine's architecture, and traces with them, and with the static program.
pub(super) fn test(host: &Arch) -> Result<()> {
    sim::build(host)?;
    setup::to_pack()?;
    let system = fresh_system()?;
    let into = |path: &str| system.join(path);
    let names = [deb::name(host), static_name(host), rpm::name(host)];
    for (name, to) in names.iter().zip(["package.deb", "static", "package.rpm"]) {
        let made = folder().join(name);
        ensure!(made.is_file(), "`{}` is not there: `./x dist` makes it", made.display());
        run_command(as_root("cp").arg(&made).arg(into(to)))?;
    }
    trial::put_into(&system, &sim::folder(host))?;
    let said = output(as_root("unshare").args(["--mount", "sh", "-c", SCRIPT]).arg(&system))?;
    let traces = trial::traces(&said);
    ensure!(traces.len() == names.len(), "{} traces of {}", traces.len(), names.len());
    for (what, said) in names.iter().zip(traces) {
        trial::check(said).with_context(|| format!("the trace by {what}"))?;
    }
    let [deb, standalone, rpm] = names;
    println!("{deb}, {rpm}: installed into a clean system, traced with, removed; {standalone} traced as it is");
    Ok(())
}

/// A minimal Debian, made once, copied for each test.
fn fresh_system() -> Result<PathBuf> {
    let cache = root().join(".cache/dist");
    let (kept, fresh) = (cache.join("system"), cache.join("fresh"));
    fs::create_dir_all(&cache).with_context(|| format!("failed to make `{}`", cache.display()))?;
    if !kept.is_dir() {
        apt::install_missing(&[("debootstrap", "debootstrap")])?;
        let sites = output(program("apt-get").args(["indextargets", "--format", "$(RELEASE) $(REPO_URI)"]))?;
        let (release, site) = sites.lines().find_map(own_site).context("apt has no source of a Debian release")?;
        let partial = cache.join("partial");
        run_command(as_root("rm").arg("-rf").arg(&partial))?;
        run_command(as_root("debootstrap").args(["--variant=minbase", release]).arg(&partial).arg(site))?;
        fs::rename(&partial, &kept).with_context(|| format!("failed to make `{}`", kept.display()))?;
    }
    run_command(as_root("rm").arg("-rf").arg(&fresh))?;
    run_command(as_root("cp").arg("-a").arg(&kept).arg(&fresh))?;
    Ok(fresh)
}

/// Release and site of a line, if it is of a release itself.
fn own_site(line: &str) -> Option<(&str, &str)> {
    let (release, site) = line.split_once(' ')?;
    ["bullseye", "bookworm", "trixie"].contains(&release).then_some((release, site))
}
