//! `dist`: what is given out. Programs for both architectures that run from glibc 2.17 on, packages of them, static programs, the BPF
//! objects that are in all of them, and checksums.

mod clean;
mod contents;
mod deb;
mod foreign;
mod licences;
mod rpm;
mod sbom;
mod trial;
mod zig;

pub(crate) use self::{licences::of_all as licences_of_all, zig::package as zig_package};

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};

use self::zig::Libc;
use crate::{
    arch::{self, Arch},
    bpf, build,
    project::{cargo, output, program, root, run as run_command, run_quietly, target, tool},
    setup, standalone,
};

/// Its C library is on every machine that has Ascend drivers (`openEuler`, `Kylin`, `CentOS` 7, Ubuntu, Debian).
const GLIBC: (u32, u32) = (2, 17);
const CHECKSUMS: &str = "SHA256SUMS";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => make(),
        ["--verify", sums] => verify(Path::new(sums)),
        ["--test"] => clean::test(Arch::host()),
        ["--test", ref archives @ ..] => foreign::test(archives),
        _ => bail!("usage: ./x dist [--test [ROOT.tar…] | --verify SHA256SUMS]"),
    }
}

/// Where all of it goes.
fn folder() -> PathBuf {
    target().join("dist")
}

fn make() -> Result<()> {
    setup::to_build()?;
    setup::to_check()?;
    setup::to_pack()?;
    // Pages and completions come from the program itself, of this machine.
    build::run()?;
    let out = folder();
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).with_context(|| format!("failed to make `{}`", out.display()))?;
    let packages = sbom::packages()?;
    sbom::write(&packages, &out)?;
    let licences = licences::text(&packages)?;
    fs::write(out.join(licences::NAME), &licences).with_context(|| format!("failed to write {}", licences::NAME))?;
    let texts = contents::Texts::of(&tool(), &out.join("texts"), licences)?;
    let mut names = Vec::new();
    for arch in arch::all() {
        let object = object(arch, &out)?;
        let built = compile(arch, &object)?;
        ensure_old_enough(&built)?;
        ensure_has(&built, &object)?;
        let (name, static_name) = (format!("memscope-bpf-{}", arch.name), static_name(arch));
        fs::copy(&built, out.join(&name)).with_context(|| format!("failed to copy `{}`", built.display()))?;
        let standalone = out.join(&static_name);
        run_quietly(program(arch.tool("strip")).arg("-o").arg(&standalone).arg(standalone::build(arch)?))?;
        ensure_static(&standalone)?;
        ensure_has(&standalone, &object)?;
        deb::pack(arch, &built, &texts, &out)?;
        rpm::pack(arch, &built, &texts, &out)?;
        names.extend([name, static_name, bpf::name(arch), deb::name(arch), rpm::name(arch)]);
    }
    names.extend([sbom::NAME.to_owned(), licences::NAME.to_owned()]);
    names.sort();
    let _ = fs::remove_dir_all(out.join("texts"));
    let sums = output(program("sha256sum").args(&names).current_dir(&out))?;
    fs::write(out.join(CHECKSUMS), &sums).with_context(|| format!("failed to write {CHECKSUMS}"))?;
    print!("{sums}");
    println!("written: {}; `./x dist --test` installs and uses the package", out.display());
    Ok(())
}

/// File name of the static program.
fn static_name(arch: &Arch) -> String {
    format!("memscope-bpf-{}-static", arch.name)
}

/// The BPF object of an architecture, built twice, in different folders: whoever builds it anywhere gets these bytes.
fn object(arch: &Arch, out: &Path) -> Result<PathBuf> {
    let kept = out.join(bpf::name(arch));
    let first = bpf::build(arch, root())?;
    fs::copy(&first, &kept).with_context(|| format!("failed to copy `{}`", first.display()))?;
    let again = bpf::build(arch, &other_checkout()?)?;
    let same = fs::read(&kept)? == fs::read(&again).with_context(|| format!("failed to read `{}`", again.display()))?;
    ensure!(same, "`{}` and `{}` differ: the BPF object is not reproducible", first.display(), again.display());
    Ok(kept)
}

/// The sources in another folder, with a name of another length.
fn other_checkout() -> Result<PathBuf> {
    let folder = target().join("dist-sources/of-another-folder");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("failed to make `{}`", folder.display()))?;
    let copy = "git ls-files -z | cpio --null --pass-through --make-directories --quiet \"$0\"";
    run_quietly(program("sh").arg("-c").arg(copy).arg(&folder))?;
    Ok(folder)
}

fn compile(arch: &Arch, object: &Path) -> Result<PathBuf> {
    let tools = zig::tools(arch, Libc::Glibc(GLIBC.0, GLIBC.1))?;
    let folder = target().join("dist-build");
    let mut cargo = cargo();
    cargo.env("MEMSCOPE_BPF_OBJECT", object);
    cargo.env(arch.cargo_variable("LINKER"), &tools.cc);
    let c_variable = |name: &str| format!("{name}_{}", arch.target.replace('-', "_"));
    cargo.env(c_variable("CC"), &tools.cc).env(c_variable("AR"), &tools.ar);
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols").env("CARGO_PROFILE_RELEASE_DEBUG", "none");
    cargo.env("RUSTFLAGS", format!("-A linker_messages --remap-path-prefix={}=memscope", root().display()));
    cargo.args(["build", "--release", "--locked", "--package", "memscope-user", "--bin", "memscope-bpf"]);
    run_command(cargo.args(["--target", arch.target, "--target-dir"]).arg(&folder))?;
    Ok(folder.join(arch.target).join("release/memscope-bpf"))
}

/// Make sure that nothing newer of the C library is asked for.
fn ensure_old_enough(program_file: &Path) -> Result<()> {
    let text = output(program("readelf").args(["--wide", "--version-info"]).arg(program_file))?;
    let newest = newest_glibc(&text).context("a program that asks for no version of the C library")?;
    ensure!(newest <= GLIBC, "`{}` needs glibc {}.{}", program_file.display(), newest.0, newest.1);
    Ok(())
}

/// Make sure that it runs without a loader and without libraries.
fn ensure_static(program_file: &Path) -> Result<()> {
    let text = output(program("readelf").args(["--wide", "--segments", "--dynamic"]).arg(program_file))?;
    ensure!(is_static(&text), "`{}` is not static", program_file.display());
    Ok(())
}

/// Whether a program of which readelf says this asks neither for a loader nor for a library.
fn is_static(text: &str) -> bool {
    !text.contains("INTERP") && !text.contains("(NEEDED)")
}

/// Make sure that the BPF object in a program is the one that is given out beside it.
fn ensure_has(program_file: &Path, object: &Path) -> Result<()> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("failed to read `{}`", path.display()));
    let (whole, part) = (read(program_file)?, read(object)?);
    let is_there = !part.is_empty() && whole.windows(part.len()).any(|window| window == part);
    ensure!(is_there, "`{}` has another BPF object in it than `{}`", program_file.display(), object.display());
    Ok(())
}

/// The newest `GLIBC_x.y` in what readelf says.
fn newest_glibc(text: &str) -> Option<(u32, u32)> {
    let versions = text.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let mut numbers = version.split('.').map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max()
}

/// Builds the BPF objects again and holds them against a list of checksums.
fn verify(sums: &Path) -> Result<()> {
    setup::to_build()?;
    setup::to_check()?;
    let sums = root().join(sums);
    let text = fs::read_to_string(&sums).with_context(|| format!("cannot read `{}`", sums.display()))?;
    for arch in arch::all() {
        let name = bpf::name(arch);
        let listed = listed(&text, &name).with_context(|| format!("`{}` does not list {name}", sums.display()))?;
        let built = output(program("sha256sum").arg(bpf::build(arch, root())?))?;
        let found = built.split(' ').next().unwrap_or_default();
        ensure!(found == listed, "{name} is another one: {found} is built from these sources, {listed} was given out");
        println!("{name}: the same as was given out ({listed})");
    }
    Ok(())
}

/// The checksum of a file in a list as `sha256sum` writes it.
fn listed<'a>(sums: &'a str, name: &str) -> Option<&'a str> {
    sums.lines().filter_map(|line| line.split_once("  ")).find(|(_, file)| *file == name).map(|(sum, _)| sum)
}

#[cfg(test)]
mod tests {
    use super::{is_static, listed, newest_glibc};

    /// Make sure that 2.9 is older than 2.17, and that other names are passed over.
    #[test]
    fn versions() {
        let text = "0x0010: Name: GLIBC_2.9 Flags\n0x20: Name: GLIBC_2.17  Flags\n GLIBC_PRIVATE GLIBC_2.3.4\n";
        assert_eq!(newest_glibc(text), Some((2, 17)));
        assert_eq!(newest_glibc("GCC_3.0"), None);
    }

    /// Make sure that a loader and a library show.
    #[test]
    fn static_programs() {
        assert!(is_static("  LOAD 0x000000\n  DYNAMIC 0x0\n 0x000000000000001e (FLAGS) BIND_NOW\n"));
        assert!(!is_static("  INTERP 0x000318\n"));
        assert!(!is_static(" 0x0000000000000001 (NEEDED)  Shared library: [libc.so.6]\n"));
    }

    /// Make sure that a file is not taken for another with the same end of its name.
    #[test]
    fn checksums() {
        let sums = "aa  x-memscope.o\nbb  memscope.o\n";
        assert_eq!(listed(sums, "memscope.o"), Some("bb"));
        assert_eq!(listed(sums, "scope.o"), None);
    }
}
