//! The packages in systems of other families and C libraries, which are given as archives of their roots, as container images have them:
//! installed as far as the system has packages, and used to trace. A system of this machine's architecture is entered, one of the other is
//! booted.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{deb, folder, rpm, static_name, trial, zig, zig::Libc};
use crate::{
    arch::{self, Arch},
    project::{as_root, output, program, root, run as run_command, target},
    setup, sim, vm,
};

/// What the traced program and its libraries are compiled for where there is glibc.
const GLIBC: Libc = Libc::Glibc(2, 28);

/// How a system gets the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Its database is in this folder, which this machine's rpm would look for elsewhere.
    Rpm(&'static str),
    Deb,
    /// By no package: the static program is copied.
    Other,
}

/// A root and what it is.
#[derive(Debug)]
struct System {
    root: PathBuf,
    arch: &'static Arch,
    libc: Libc,
    family: Family,
    /// By its own words.
    name: String,
}

/// Tries each system.
pub(super) fn test(archives: &[&str]) -> Result<()> {
    setup::to_pack()?;
    for archive in archives {
        let archive = root().join(archive);
        ensure!(archive.is_file(), "`{}` is not there: give an archive of a system's root", archive.display());
        let system = System::unpack(&archive)?;
        system.test().with_context(|| format!("{} of `{}`", system.name, archive.display()))?;
    }
    Ok(())
}

impl System {
    fn unpack(archive: &Path) -> Result<Self> {
        let name = archive.file_name().context("an archive has a name")?;
        let root = root().join(".cache/dist/roots").join(name);
        run_command(as_root("rm").arg("-rf").arg(&root))?;
        fs::create_dir_all(&root).with_context(|| format!("failed to make `{}`", root.display()))?;
        run_command(as_root("tar").arg("-xf").arg(archive).arg("-C").arg(&root))?;
        let (arch, libc) = loader(&root)
            .with_context(|| format!("`{}` has no loader of glibc or musl for x86_64 or aarch64", archive.display()))?;
        let release = fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
        Ok(Self { family: family(&root), name: pretty_name(&release).to_owned(), root, arch, libc })
    }

    fn test(&self) -> Result<()> {
        let sim = target().join(format!("ascend-sim-{}", self.libc.target(self.arch)));
        setup::to_check()?;
        let compilers = zig::tools(self.arch, self.libc)?;
        sim::build_by(self.arch, &compilers.cc, &compilers.cxx, &sim)?;
        let (package, command) = self.install()?;
        trial::put_into(&self.root, &sim)?;
        let script = format!("{command} doctor && sh /trial.sh foreign {command}");
        let said =
            if self.arch.is_host() { self.enter(&script)? } else { vm::in_system(self.arch, &self.root, &script)? };
        let traces = trial::traces(&said);
        ensure!(traces.len() == 1, "{} traces: {said}", traces.len());
        trial::check(traces[0])?;
        self.remove()?;
        println!("{package} in {} ({}): installed, traced with, removed", self.name, self.arch.name);
        Ok(())
    }

    /// Gives the package's name, and the command.
    fn install(&self) -> Result<(String, &'static str)> {
        let (name, command) = match self.family {
            Family::Rpm(_) => (rpm::name(self.arch), "memscope-bpf"),
            Family::Deb => (deb::name(self.arch), "memscope-bpf"),
            Family::Other => (static_name(self.arch), "/usr/bin/memscope-bpf"),
        };
        let made = folder().join(&name);
        ensure!(made.is_file(), "`{}` is not there: `./x dist` makes it", made.display());
        match self.family {
            // What it needs is held against the system's own packages; nothing of it is run.
            Family::Rpm(database) => {
                self.rpm(database, &["--install", "--ignorearch"], made.into_os_string())?;
                self.rpm(database, &["--verify"], "memscope-bpf".into())?;
            }
            Family::Deb if self.arch.is_host() => {
                run_command(as_root("cp").arg(&made).arg(self.root.join("package.deb")))?;
                run_command(as_root("chroot").arg(&self.root).args(["dpkg", "--install", "/package.deb"]))?;
            }
            Family::Deb => bail!("a system with packages of Debian's kind is tried on its own architecture alone"),
            Family::Other => {
                run_command(as_root("install").arg(&made).arg(self.root.join("usr/bin/memscope-bpf")))?;
            }
        }
        Ok((name, command))
    }

    /// Removing the package leaves nothing behind.
    fn remove(&self) -> Result<()> {
        match self.family {
            Family::Rpm(database) => self.rpm(database, &["--erase"], "memscope-bpf".into())?,
            Family::Deb => run_command(as_root("chroot").arg(&self.root).args(["dpkg", "--purge", "memscope-bpf"]))?,
            Family::Other => run_command(as_root("rm").arg(self.root.join("usr/bin/memscope-bpf")))?,
        }
        let mut find = program("find");
        let left = output(find.arg(self.root.join("usr")).args(["-name", "*memscope*"]))?;
        ensure!(left.is_empty(), "removing it left {left}");
        Ok(())
    }

    fn rpm(&self, database: &str, verb: &[&str], what: OsString) -> Result<()> {
        let mut rpm = as_root("rpm");
        rpm.arg("--root").arg(&self.root).arg("--dbpath").arg(format!("/{database}"));
        run_command(rpm.args(verb).arg(what))
    }

    /// Runs a command of a shell in the system, on this machine's kernel. The mounts are gone with the namespace.
    fn enter(&self, script: &str) -> Result<String> {
        let enter =
            "mount -t proc proc \"$0/proc\" && mount --rbind /sys \"$0/sys\" && exec chroot \"$0\" sh -c \"$1\"";
        output(as_root("unshare").args(["--mount", "sh", "-c", enter]).arg(&self.root).arg(script))
    }
}

/// By the dynamic loader, which lies at a fixed place.
fn loader(root: &Path) -> Option<(&'static Arch, Libc)> {
    let is_there = |name: &str| {
        ["lib", "lib64", "usr/lib", "usr/lib64"]
            .iter()
            .any(|folder| root.join(folder).join(name).symlink_metadata().is_ok())
    };
    arch::all().iter().find_map(|arch| {
        let glibc = format!("ld-linux-{}.so", arch.name.replace('_', "-"));
        if is_there(&format!("ld-musl-{}.so.1", arch.name)) {
            Some((arch, Libc::Musl))
        } else if is_there(&format!("{glibc}.1")) || is_there(&format!("{glibc}.2")) {
            Some((arch, GLIBC))
        } else {
            None
        }
    })
}

/// By the database of packages.
fn family(root: &Path) -> Family {
    let databases = ["usr/lib/sysimage/rpm", "var/lib/rpm"];
    if let Some(database) = databases.into_iter().find(|folder| root.join(folder).is_dir()) {
        Family::Rpm(database)
    } else if root.join("var/lib/dpkg/status").is_file() {
        Family::Deb
    } else {
        Family::Other
    }
}

/// From the text of `os-release`.
fn pretty_name(text: &str) -> &str {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or("a system without a name", |name| name.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(name: &str, files: &[&str]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("memscope-roots-{}-{name}", std::process::id()));
        for file in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().expect("below the root")).expect("a folder");
            fs::write(file, "").expect("a file");
        }
        root
    }

    /// Make sure that families and C libraries are known by where their files lie.
    #[test]
    fn kinds_of_systems() {
        let kind = |name, files: &[&str]| {
            let root = root_with(name, files);
            let kind = loader(&root).map(|(arch, libc)| (arch.name, libc, family(&root)));
            fs::remove_dir_all(root).expect("removable");
            kind
        };
        let alpine = ["lib/ld-musl-x86_64.so.1", "lib/apk/db/installed"];
        assert_eq!(kind("alpine", &alpine), Some(("x86_64", Libc::Musl, Family::Other)));
        let alma = ["usr/lib/ld-linux-aarch64.so.1", "var/lib/rpm/rpmdb.sqlite"];
        assert_eq!(kind("alma", &alma), Some(("aarch64", GLIBC, Family::Rpm("var/lib/rpm"))));
        let ubuntu = ["usr/lib64/ld-linux-x86-64.so.2", "var/lib/dpkg/status"];
        assert_eq!(kind("ubuntu", &ubuntu), Some(("x86_64", GLIBC, Family::Deb)));
        assert_eq!(kind("nothing", &["lib/ld-linux-riscv64-lp64d.so.1"]), None);
        assert_eq!(pretty_name("NAME=\"A\"\nPRETTY_NAME=\"A Linux 9\"\n"), "A Linux 9");
    }
}
