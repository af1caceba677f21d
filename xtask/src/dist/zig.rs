//! A C compiler for old C libraries: Zig brings the symbols of each version of glibc, for every architecture.
//!
//! A static program would run everywhere, too, but could not load the driver's management library (DCMI), nor ask other
//! sources for users than files.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    arch::Arch,
    project::{program, run as run_command, tools as own_tools},
};

/// From the Python package index, which has it for all usual machines.
const VERSION: &str = "0.17.1";

/// As pip names it.
pub(crate) fn package() -> String {
    format!("ziglang=={VERSION}")
}

/// A C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Libc {
    /// From this version on.
    Glibc(u32, u32),
    Musl,
}

impl Libc {
    /// The target of such programs, as Zig names it.
    pub(super) fn target(self, arch: &Arch) -> String {
        match self {
            Self::Glibc(major, minor) => format!("{}-linux-gnu.{major}.{minor}", arch.name),
            Self::Musl => format!("{}-linux-musl", arch.name),
        }
    }
}

/// Programs that are called like the GNU toolchain's.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) cc: PathBuf,
    pub(super) cxx: PathBuf,
    pub(super) ar: PathBuf,
}

/// Tools for programs with this C library.
pub(super) fn tools(arch: &Arch, libc: Libc) -> Result<Tools> {
    let zig = zig()?;
    let folder = own_tools().join("zig-tools");
    fs::create_dir_all(&folder).with_context(|| format!("failed to make `{}`", folder.display()))?;
    let target = libc.target(arch);
    let tool = |name: &str| folder.join(format!("{target}-{name}"));
    let tools = Tools { cc: tool("cc"), cxx: tool("c++"), ar: folder.join("ar") };
    script(&tools.cc, &compiler_script(&zig, "cc", &target))?;
    script(&tools.cxx, &compiler_script(&zig, "c++", &target))?;
    script(&tools.ar, &format!("#!/bin/sh\nexec '{}' ar \"$@\"\n", zig.display()))?;
    Ok(tools)
}

/// Rust unwinds by libgcc, for which Zig has libunwind; it names the target itself, and knows no workaround for Cortex-A53. Its C++ library
/// is always static, and its linker hides no library.
fn compiler_script(zig: &Path, name: &str, target: &str) -> String {
    format!(
        "#!/bin/bash
words=()
for word in \"$@\"; do
    case \"$word\" in
    -dumpmachine) echo {target}; exit ;;
    -lgcc_s) words+=(-lunwind) ;;
    -lgcc | --target=* | -Wl,--fix-cortex-a53-843419 | -static-libgcc | -static-libstdc++ | -Wl,--exclude-libs,*) ;;
    *) words+=(\"$word\") ;;
    esac
done
exec '{}' {name} -target {target} \"${{words[@]}}\"
",
        zig.display()
    )
}

fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("failed to write `{}`", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("failed to make `{}` executable", path.display()))
}

/// Zig itself, fetched once.
fn zig() -> Result<PathBuf> {
    let folder = own_tools().join(format!("zig-{VERSION}"));
    let zig = folder.join("ziglang/zig");
    if !zig.is_file() {
        let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--target"];
        run_command(program("python3").args(pip).arg(&folder).arg(package()))
            .context("Zig could not be fetched; `./x dist` needs python3 with pip, and the package index")?;
    }
    Ok(zig)
}
