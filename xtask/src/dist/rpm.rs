//! RPM packages, for openEuler, Kylin and their relatives, made by rpmbuild from the folder as it is to be installed. Nothing is compiled
//! by it, so packages of both architectures are made on either.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use super::contents::{DESCRIPTION, PACKAGE, Places, SUMMARY, Stage, Texts, VERSION, epoch};
use crate::{
    arch::Arch,
    project::{output, program, run_quietly},
};

const PLACES: Places =
    Places { zsh: "usr/share/zsh/site-functions/_memscope-bpf", licences: "usr/share/licenses/memscope-bpf/LICENSES" };
const RELEASE: &str = "1";
const NEEDS: &str = "glibc >= 2.17";
/// What rpmbuild would do to the files, or would say of this machine. The payload is one that rpm of all these systems unpacks.
const SETTINGS: [&str; 7] = [
    "debug_package %{nil}",
    "__os_install_post %{nil}",
    "_build_id_links none",
    "_buildhost localhost",
    "use_source_date_epoch_as_buildtime 1",
    "clamp_mtime_to_source_date_epoch 1",
    "_binary_payload w9.gzdio",
];

/// File name of a package.
pub(super) fn name(arch: &Arch) -> String {
    format!("{PACKAGE}-{VERSION}-{RELEASE}.{}.rpm", arch.name)
}

/// Makes the package of a program. The same input gives the same bytes: times are those of the commit.
pub(super) fn pack(arch: &Arch, tool: &Path, texts: &Texts, out: &Path) -> Result<()> {
    let stage = Stage::of(arch, tool, texts, &PLACES, out)?;
    let work = out.join(format!("rpm-{}", arch.name));
    fs::create_dir_all(&work).with_context(|| format!("failed to make `{}`", work.display()))?;
    let spec = work.join("memscope-bpf.spec");
    let (folders, mut files) = (stage.folders()?, stage.files()?);
    fs::write(&spec, text(&stage, &folders, &files))
        .with_context(|| format!("failed to write `{}`", spec.display()))?;
    let mut pack = program("rpmbuild");
    pack.env("SOURCE_DATE_EPOCH", epoch()?).args(["-bb", "--quiet", "--target", &format!("{}-linux", arch.name)]);
    for setting in SETTINGS {
        pack.args(["--define", setting]);
    }
    pack.arg("--define").arg(format!("_topdir {}", work.display()));
    pack.arg("--define").arg(format!("_rpmdir {}", out.display()));
    pack.args(["--define", &format!("_rpmfilename {}", name(arch))]);
    run_quietly(pack.arg(&spec))?;
    files.extend(folders);
    files.sort();
    check(&out.join(name(arch)), &files)?;
    fs::remove_dir_all(&work).with_context(|| format!("failed to remove `{}`", work.display()))?;
    stage.remove()
}

/// The specification. Libraries are not looked for: of the C library, the version is known, and there is no other.
/// A folder that the package does not have would be left when it is removed.
fn text(stage: &Stage, folders: &[String], files: &[String]) -> String {
    let (files, description) = (files.join("\n"), DESCRIPTION.join("\n"));
    let folders = folders.iter().fold(String::new(), |list, folder| list + "%dir " + folder + "\n");
    format!(
        "Name: {PACKAGE}
Version: {VERSION}
Release: {RELEASE}
Summary: {SUMMARY}
License: (MIT OR Apache-2.0) AND (MIT OR GPL-2.0-only)
AutoReqProv: no
Requires: {NEEDS}

%description
{description}

%install
cp -a \"{}/.\" \"%{{buildroot}}\"

%files
%defattr(-,root,root)
{folders}{files}
",
        stage.path().display()
    )
}

/// Make sure that rpm reads it, and finds all files and folders in it, of root, and nothing that it needs but the C library.
fn check(package: &Path, files: &[String]) -> Result<()> {
    let query = |what: &[&str]| output(program("rpm").args(["--query", "--package"]).args(what).arg(package));
    let found = query(&["--queryformat", "[%{FILENAMES} %{FILEUSERNAME}\n]"])?;
    let expected = files.join(" root\n") + " root\n";
    ensure!(found == expected, "`{}` has other files: {found}", package.display());
    let needs = query(&["--requires"])?;
    let foreign: Vec<&str> = needs.lines().filter(|line| !line.starts_with("rpmlib(")).collect();
    ensure!(foreign == [NEEDS], "`{}` needs {foreign:?}", package.display());
    Ok(())
}
