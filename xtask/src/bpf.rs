//! `bpf`: the objects that memscope-user's build script would make, for packagers who build without bpf-linker.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    arch::{self, Arch},
    project::{BPF_OBJECT, cargo, output, program, root, run as run_command, target, tools},
    setup,
};

const TARGET: &str = "bpfel-unknown-none";

pub(crate) fn run() -> Result<()> {
    setup::to_build()?;
    setup::to_check()?;
    let folder = target().join("bpf");
    fs::create_dir_all(&folder).with_context(|| format!("failed to make `{}`", folder.display()))?;
    for arch in arch::all() {
        let object = build(arch, root())?;
        let to = folder.join(name(arch));
        fs::copy(&object, &to).with_context(|| format!("failed to copy `{}`", object.display()))?;
    }
    let mut names: Vec<_> = arch::all().iter().map(name).collect();
    names.sort();
    print!("{}", output(program("sha256sum").args(names).current_dir(folder))?);
    Ok(())
}

/// File name of an object.
pub(crate) fn name(arch: &Arch) -> String {
    format!("memscope-{}.bpf.o", arch.name)
}

/// An empty file in place of the object: for lints, documentation and tests, which do not load it. All use the same
/// one: cargo builds the library again for another.
pub(crate) fn stand_in() -> Result<PathBuf> {
    let file = target().join("stand-in.bpf.o");
    if !file.is_file() {
        fs::create_dir_all(target()).with_context(|| format!("failed to make `{}`", target().display()))?;
        fs::write(&file, []).with_context(|| format!("failed to write `{}`", file.display()))?;
    }
    Ok(file)
}

/// The object inside the program that was built last.
pub(crate) fn of_program() -> Result<PathBuf> {
    let built = fs::read_dir(target().join("release/build")).context("the program is not built")?;
    let objects = built.flatten().map(|entry| entry.path().join("out/memscope.bpf.o"));
    let newest = objects.filter_map(|object| Some((fs::metadata(&object).ok()?.modified().ok()?, object))).max();
    newest.map(|(_, object)| object).context("the program is not built")
}

/// From the sources in that folder, by the build script: one recipe, hence the same bytes as inside the program.
pub(crate) fn build(arch: &Arch, sources: &Path) -> Result<PathBuf> {
    let mut check = cargo();
    check.current_dir(sources).env("CARGO_TARGET_DIR", target());
    // In another folder are no tools.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(tools().join("bin")).chain(std::env::split_paths(&path));
    check.env("PATH", std::env::join_paths(path).context("PATH cannot be extended")?);
    check.env_remove(BPF_OBJECT);
    check.args(["check", "--locked", "--quiet", "--package", "memscope-user", "--target", arch.target]);
    check.args(["--message-format", "json"]);
    let messages = output(&mut check)?;
    out_dir(&messages)
        .map(|out| Path::new(&out).join("memscope.bpf.o"))
        .context("cargo did not report the BPF object of memscope-user's build script")
}

/// Where a build script of memscope-user put its files, from cargo's messages.
fn out_dir(messages: &str) -> Option<String> {
    messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()).find_map(|message| {
        let ours = message["reason"] == "build-script-executed"
            && message["package_id"].as_str().is_some_and(|id| id.contains("/memscope-user#"));
        if ours { message["out_dir"].as_str().map(str::to_owned) } else { None }
    })
}

/// Clippy on the BPF crate, as it is for this machine. It needs no linker, but `core` is built from source.
pub(crate) fn lint() -> Result<()> {
    let mut clippy = cargo();
    clippy.env("RUSTC_BOOTSTRAP", "1");
    // Of all crates: aya-ebpf has a layout of registers for each architecture too.
    clippy.env("CARGO_ENCODED_RUSTFLAGS", format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH));
    clippy.args(["clippy", "--locked", "--quiet", "--package", "memscope-ebpf", "--bins"]);
    clippy.args(["--target", TARGET, "-Zbuild-std=core", "--target-dir"]).arg(target().join("bpf-lint"));
    run_command(clippy.args(["--", "-D", "warnings"]))
}

#[cfg(test)]
mod tests {
    use super::out_dir;

    /// Make sure that the object is looked for where our build script ran, not where another's did.
    #[test]
    fn finds_our_build_script() {
        let messages = r#"
{"reason":"build-script-executed","package_id":"registry+x#libc@0.2.1","out_dir":"/t/libc"}
not json
{"reason":"compiler-artifact","package_id":"path+file:///r/memscope-user#0.1.0"}
{"reason":"build-script-executed","package_id":"path+file:///r/memscope-user#0.1.0","out_dir":"/t/ours"}
"#;
        assert_eq!(out_dir(messages).as_deref(), Some("/t/ours"));
        assert_eq!(out_dir(""), None);
    }
}
