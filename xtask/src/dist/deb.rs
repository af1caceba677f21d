//! Debian packages, made by dpkg-deb: it is on every Debian, and all it wants is the folder as it is to be installed.

use std::{fs, path::Path};

use anyhow::Result;

use super::contents::{DESCRIPTION, PACKAGE, Places, SUMMARY, Stage, Texts, VERSION, epoch};
use crate::{
    arch::Arch,
    project::{program, run_quietly},
};

const PLACES: Places =
    Places { zsh: "usr/share/zsh/vendor-completions/_memscope-bpf", licences: "usr/share/doc/memscope-bpf/copyright" };

/// File name of a package.
pub(super) fn name(arch: &Arch) -> String {
    format!("{PACKAGE}_{VERSION}_{}.deb", arch.debian)
}

/// Makes the package of a program. The same input gives the same bytes: times are those of the commit.
pub(super) fn pack(arch: &Arch, tool: &Path, texts: &Texts, out: &Path) -> Result<()> {
    let stage = Stage::of(arch, tool, texts, &PLACES, out)?;
    stage.add("DEBIAN/control", control(arch, tool)?.as_bytes(), 0o644)?;
    let mut pack = program("dpkg-deb");
    pack.env("SOURCE_DATE_EPOCH", epoch()?).args(["--root-owner-group", "-Zxz", "--build"]);
    run_quietly(pack.arg(stage.path()).arg(out.join(name(arch))).stdout(std::process::Stdio::null()))?;
    stage.remove()
}

fn control(arch: &Arch, tool: &Path) -> Result<String> {
    let kilobytes = fs::metadata(tool)?.len() / 1024;
    let description = DESCRIPTION.map(|line| format!(" {line}\n")).concat();
    Ok(format!(
        "Package: {PACKAGE}
Version: {VERSION}
Architecture: {}
Maintainer: memscope-bpf maintainers <maintainers@memscope-bpf.invalid>
Depends: libc6 (>= 2.17)
Installed-Size: {kilobytes}
Section: devel
Priority: optional
Description: {SUMMARY}
{description}",
        arch.debian
    ))
}
