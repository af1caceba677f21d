//! Kernels and userland from Debian packages, in `.cache/vm`.
//!
//! apt is given folders of its own: this machine's lists, sources and packages stay as they are. Only the address of
//! the mirror is taken from them, and apt's way to reach it.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::kernel::Kernel;
use crate::{
    arch::{self, Arch},
    project::{output, program, root, run, run_quietly},
};

/// From package `debian-archive-keyring`, which every Debian has.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Releases, and what their Python's packages and the library that its `ctypes` wants are called.
const RELEASES: [(&str, &str, &str); 3] =
    [("bullseye", "python3.9", "libffi7"), ("bookworm", "python3.11", "libffi8"), ("trixie", "python3.13", "libffi8")];
/// `forktree.sh` is a bash script; threads that end load libgcc; `ldconfig` is in libc-bin; `operators` is C++; Python reads XML and archives.
const USERLAND: [&str; 9] =
    ["busybox-static", "bash", "libtinfo6", "libc6", "libc-bin", "libgcc-s1", "libstdc++6", "libexpat1", "zlib1g"];
/// File systems that are modules, and that tests need.
const OVERLAY: [&str; 2] = ["overlay.ko", "overlay.ko.xz"];

fn cache() -> PathBuf {
    root().join(".cache/vm")
}

/// Files of a kernel.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) image: PathBuf,
    /// The module of overlay file systems; all else that the tests need is built in.
    pub(super) overlay: PathBuf,
}

/// A kernel's files.
pub(super) fn kernel(kernel: &Kernel) -> Result<Files> {
    let folder = cache().join("kernels").join(&kernel.name);
    if !folder.is_dir() {
        Apt::ready()?.unpack_kernel(kernel, &folder)?;
    }
    let again = || format!("`{}` is not whole; remove it to fetch it again", folder.display());
    let only = |parent: &Path| -> Result<PathBuf> {
        let entry = fs::read_dir(parent).with_context(again)?.next().with_context(again)?;
        Ok(entry.with_context(again)?.path())
    };
    let images = fs::read_dir(folder.join("boot")).with_context(again)?;
    let image = images
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")))
        .with_context(again)?;
    // Newer releases have it below `usr`.
    let modules = [folder.join("lib/modules"), folder.join("usr/lib/modules")];
    let modules = modules.iter().find(|modules| modules.is_dir()).with_context(again)?;
    let overlays = only(modules)?.join("kernel/fs/overlayfs");
    let overlay =
        OVERLAY.map(|name| overlays.join(name)).into_iter().find(|file| file.is_file()).with_context(again)?;
    Ok(Files { image, overlay })
}

/// What guests have besides a kernel and what is ours.
#[derive(Debug)]
pub(super) struct Userland {
    /// Shell, libc, loader, Python.
    pub(super) folder: PathBuf,
    /// Name of the interpreter.
    pub(super) python: &'static str,
}

/// Of this machine's own release: the simulated libraries are linked with its libc.
pub(super) fn userland(arch: &Arch) -> Result<Userland> {
    let (release, python, ffi) = own_release()?;
    let mut names: Vec<String> = USERLAND.into_iter().chain([ffi]).map(str::to_owned).collect();
    names.extend([format!("{python}-minimal"), format!("lib{python}-minimal"), format!("lib{python}-stdlib")]);
    // Tests preload these.
    let tcmalloc = if release == "trixie" { "libtcmalloc-minimal4t64" } else { "libtcmalloc-minimal4" };
    names.extend(["libjemalloc2", tcmalloc].map(str::to_owned));
    // Named after what is in it: a folder that was made with fewer packages is not taken for whole.
    let folder = cache().join("userland").join(format!("{}-{}", arch.name, names.join("-")));
    if !folder.is_dir() {
        let packages: Vec<_> = names.iter().map(|package| format!("{package}:{}/{release}", arch.debian)).collect();
        Apt::ready()?.unpack(&packages, &folder)?;
    }
    Ok(Userland { folder, python })
}

/// A folder with packages of a release, for this machine's processor, as they are when nothing has configured them.
pub(crate) fn unpacked(name: &str, packages: &[&str], release: &str) -> Result<PathBuf> {
    let folder = cache().join("unpacked").join(name);
    if !folder.is_dir() {
        let arch = Arch::host();
        let packages: Vec<String> =
            packages.iter().map(|package| format!("{package}:{}/{release}", arch.debian)).collect();
        Apt::ready()?.unpack(&packages, &folder)?;
    }
    Ok(folder)
}

fn own_release() -> Result<(&'static str, &'static str, &'static str)> {
    let text = fs::read_to_string("/etc/os-release").context("failed to read `/etc/os-release`")?;
    let release = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or_default();
    let known = RELEASES.map(|(release, ..)| release).join(", ");
    RELEASES
        .into_iter()
        .find(|row| row.0 == release)
        .with_context(|| format!("virtual machines are built from Debian packages; this machine is not one of {known}"))
}

/// apt with folders of its own.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// With its lists of packages, which are fetched once.
    fn ready() -> Result<Self> {
        let apt = Self { folder: cache().join("apt") };
        let lists = apt.folder.join("lists");
        let complete = apt.folder.join("complete");
        let settings = apt.settings();
        // They have its path: one that was moved is made again.
        if fs::read_to_string(&complete).is_ok_and(|what| what == settings) {
            return Ok(apt);
        }
        for folder in [lists.join("partial"), apt.folder.join("archives/partial")] {
            fs::create_dir_all(&folder).with_context(|| format!("failed to make `{}`", folder.display()))?;
        }
        let sites = output(program("apt-get").args(["indextargets", "--format", "$(RELEASE) $(REPO_URI)"]))?;
        write(&apt.folder.join("apt.conf"), &settings)?;
        write(&apt.folder.join("sources.list"), &sources(&sites, own_release()?.0)?)?;
        // A release that the mirror has dropped is missed only when one of its kernels is asked for.
        if let Err(error) = run(apt.command("apt-get").args(["update", "-qq"])) {
            eprintln!("{error:#}");
        }
        write(&complete, &settings)?;
        Ok(apt)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = program(name);
        command.arg("-c").arg(self.folder.join("apt.conf"));
        command
    }

    fn settings(&self) -> String {
        let folder = self.folder.display();
        let mut text = format!(
            "Dir::State \"{folder}\";
Dir::State::lists \"{folder}/lists\";
Dir::State::status \"/dev/null\";
Dir::Cache \"{folder}\";
Dir::Etc::sourcelist \"{folder}/sources.list\";
Dir::Etc::sourceparts \"/dev/null\";
Dir::Etc::preferences \"/dev/null\";
Dir::Etc::preferencesparts \"/dev/null\";
APT::Sandbox::User \"root\";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";
Acquire::Languages \"none\";
"
        );
        for arch in arch::all() {
            let _ = writeln!(text, "APT::Architectures:: \"{}\";", arch.debian);
        }
        text
    }

    /// The newest kernel of a series that the mirror still has the package of: of old releases it may list more.
    fn unpack_kernel(&self, kernel: &Kernel, folder: &Path) -> Result<()> {
        let mut missing = None;
        for package in self.kernel_packages(kernel)? {
            match self.unpack(&[package], folder) {
                Ok(()) => return Ok(()),
                Err(error) => eprintln!("{:#}", missing.insert(error)),
            }
        }
        Err(missing.with_context(|| format!("the mirror has no kernel {} ({})", kernel.series, kernel.release))?)
    }

    /// Packages of a series' kernels, the newest first. Their versions are part of their names, so these are read from what the
    /// metapackage of the release depends on.
    fn kernel_packages(&self, kernel: &Kernel) -> Result<Vec<String>> {
        let meta = kernel.package();
        let versions = output(self.command("apt-cache").args(["show", &meta]))
            .with_context(|| format!("the mirror has no `{meta}`"))?;
        let images = images(&versions, kernel.series);
        Ok(images.map(|package| format!("{package}:{}", kernel.arch.debian)).collect())
    }

    /// Downloads packages and unpacks them into a folder that then appears complete.
    fn unpack(&self, packages: &[String], folder: &Path) -> Result<()> {
        let mut partial = folder.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let _ = fs::remove_dir_all(&partial);
        let archives = partial.join("archives");
        fs::create_dir_all(&archives).with_context(|| format!("failed to make `{}`", archives.display()))?;
        run(self.command("apt-get").args(["download", "-qq"]).args(packages).current_dir(&archives))?;
        for archive in fs::read_dir(&archives).context("failed to list what was downloaded")? {
            let archive = archive.context("failed to list what was downloaded")?.path();
            run_quietly(program("dpkg-deb").arg("--extract").arg(archive).arg(&partial))?;
        }
        fs::remove_dir_all(&archives).context("failed to remove what was downloaded")?;
        fs::rename(&partial, folder).with_context(|| format!("failed to make `{}`", folder.display()))
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("failed to write `{}`", file.display()))
}

/// Sources for all releases, from the lines `RELEASE URI` of this machine's.
fn sources(sites: &str, own_release: &str) -> Result<String> {
    let find = |release: &str| sites.lines().find_map(|line| line.strip_prefix(release)?.strip_prefix(' '));
    let main = find(own_release).with_context(|| format!("this machine's apt has no source for `{own_release}`"))?;
    let security = find(&format!("{own_release}-security"));
    let mut text = String::new();
    for (release, ..) in RELEASES {
        let _ = writeln!(text, "deb [signed-by={KEYRING}] {main} {release} main");
        if let Some(security) = security {
            let _ = writeln!(text, "deb [signed-by={KEYRING}] {security} {release}-security main");
        }
    }
    Ok(text)
}

/// The `linux-image-…` that each paragraph of that series depends on; apt lists the newest first.
fn images(paragraphs: &str, series: &str) -> impl Iterator<Item = String> {
    let of_series = format!("Version: {series}.");
    let is_of_series = move |paragraph: &&str| paragraph.lines().any(|line| line.starts_with(&of_series));
    paragraphs.split("\n\n").filter(is_of_series).filter_map(|paragraph| {
        let depends = paragraph.lines().find_map(|line| line.strip_prefix("Depends: "))?;
        depends.split([',', ' ']).find(|word| word.starts_with("linux-image-")).map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Make sure that both mirrors are found, and used for each release.
    #[test]
    fn mirrors() {
        let sites =
            "bookworm-updates http://m/d/\nbookworm http://m/d/\nbookworm-security http://m/s/\nnode http://n/\n";
        let sources = sources(sites, "bookworm").expect("both are there");
        assert_eq!(sources.lines().count(), 6, "{sources}");
        assert!(sources.contains("http://m/d/ bullseye main") && sources.contains("http://m/s/ trixie-security main"));
        super::sources(sites, "trixie").expect_err("not this machine's");
    }

    /// Make sure that series are kept apart (6.1 is not 6.12), and that the newest of one comes first.
    #[test]
    fn series() {
        let paragraphs = "\
Package: linux-image-cloud-amd64
Version: 6.12.107-1
Depends: linux-image-6.12.107+deb13-cloud-amd64 (= 6.12.107-1)

Package: linux-image-cloud-amd64
Version: 6.1.192-2
Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)

Package: linux-image-cloud-amd64
Version: 6.1.176-1
Depends: linux-image-6.1.0-50-cloud-amd64 (= 6.1.176-1)
";
        let images = |series| images(paragraphs, series).collect::<Vec<_>>();
        assert_eq!(images("6.1"), ["linux-image-6.1.0-56-cloud-amd64", "linux-image-6.1.0-50-cloud-amd64"]);
        assert_eq!(images("6.12"), ["linux-image-6.12.107+deb13-cloud-amd64"]);
        assert!(images("5.10").is_empty());
    }
}
