//! `fuzz`: libFuzzer on everything that reads bytes of others (`memscope-user/src/fuzzing/`).
//!
//! libFuzzer is that of the installed clang, and code is counted by rustc's own LLVM: no nightly compiler, and no package of
//! cargo's. Dependencies are those that `build` has compiled.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    apt, bpf,
    project::{cargo, output, program, root, run as run_command, target},
    setup,
};

/// Names the target for the program.
const TARGET: &str = "MEMSCOPE_FUZZ";
/// Seconds for each target when nothing is said.
const SECONDS: u32 = 60;
/// The same inputs are made up in each run, as far as time goes.
const SEED: &str = "-seed=1";
const USAGE: &str = "usage: ./x fuzz [TARGET] [--seconds N] [--keep]";

#[derive(Debug, PartialEq, Eq)]
struct Options<'a> {
    target: Option<&'a str>,
    seconds: u32,
    keep: bool,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let Options { target, seconds, keep } = parse(arguments)?;
    let all = targets()?;
    let chosen: Vec<&String> = all.iter().filter(|name| target.is_none_or(|wanted| wanted == *name)).collect();
    ensure!(!chosen.is_empty(), "{} is none of {}", target.unwrap_or_default(), all.join(" "));
    let fuzzer = build()?;
    for name in chosen {
        let found = folder(name);
        fs::create_dir_all(&found).with_context(|| format!("failed to make `{}`", found.display()))?;
        let mut command = on(&fuzzer, name);
        command.arg(format!("-max_total_time={seconds}")).args([&found, &corpus(name)]);
        run_command(&mut command).with_context(|| repeat(name))?;
        if keep {
            // Only what reaches code that nothing in there reaches.
            run_command(on(&fuzzer, name).arg("-merge=1").args([corpus(name), found]))?;
        }
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<Options<'_>> {
    let mut options = Options { target: None, seconds: SECONDS, keep: false };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--keep" => options.keep = true,
            "--seconds" => options.seconds = arguments.next().and_then(|text| text.parse().ok()).context(USAGE)?,
            name if options.target.is_none() && !name.starts_with('-') => options.target = Some(name),
            _ => bail!(USAGE),
        }
    }
    Ok(options)
}

/// Their names: those of the corpora, which a test holds against the program's own list.
fn targets() -> Result<Vec<String>> {
    let corpora = root().join("fuzz/corpus");
    let entries = fs::read_dir(&corpora).with_context(|| format!("no folder `{}`", corpora.display()))?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn corpus(name: &str) -> PathBuf {
    root().join("fuzz/corpus").join(name)
}

/// What was found here, and failures.
fn folder(name: &str) -> PathBuf {
    target().join("fuzz").join(name)
}

fn repeat(name: &str) -> String {
    let place = target().join("fuzz");
    format!(
        "the input is in `{}`; put it into fuzz/corpus/{name}, and `./x unit corpora_are_read` reads it again",
        place.display()
    )
}

/// The fuzzer on a target.
fn on(fuzzer: &Path, name: &str) -> Command {
    let mut command = program(fuzzer);
    command.env(TARGET, name).arg(SEED);
    command.arg(format!("-artifact_prefix={}/{name}-", target().join("fuzz").display()));
    command.args(["-timeout=20", "-rss_limit_mb=2048", "-max_len=16384", "-print_final_stats=0"]);
    command
}

/// Builds the fuzzer.
fn build() -> Result<PathBuf> {
    let runtime = runtime()?;
    let folder = target().join("fuzz");
    fs::create_dir_all(&folder).with_context(|| format!("failed to make `{}`", folder.display()))?;
    let mut cargo = cargo();
    cargo.env("RUSTC_WORKSPACE_WRAPPER", root().join("fuzz/rustc")).env(bpf::OBJECT, bpf::stand_in()?);
    cargo.args(["rustc", "--release", "--locked", "--quiet", "--package", "memscope-fuzz", "--"]);
    cargo.arg(format!("-Clink-arg={}", runtime.display())).arg("-Clink-arg=-lstdc++");
    run_command(&mut cargo)?;
    Ok(target().join("release/memscope-fuzz"))
}

/// libFuzzer with its `main`. Debian has it apart from the compiler.
fn runtime() -> Result<PathBuf> {
    setup::second_compiler()?;
    let name = format!("-print-file-name=libclang_rt.fuzzer-{}.a", std::env::consts::ARCH);
    let look = || -> Result<PathBuf> { Ok(PathBuf::from(output(program("clang").arg(&name))?.trim())) };
    if !look()?.is_absolute() {
        let version = output(program("clang").arg("-dumpversion"))?;
        let major = version.split('.').next().unwrap_or_default().trim();
        apt::install(&[&format!("libclang-rt-{major}-dev")])?;
    }
    let found = look()?;
    ensure!(found.is_absolute(), "clang has no libFuzzer here: libclang_rt.fuzzer of its compiler-rt is missing");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options in any order, and nothing that is taken for a target by mistake.
    #[test]
    fn options() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line = words("--seconds 5 csv --keep");
        assert_eq!(parse(&line).expect("a good line"), Options { target: Some("csv"), seconds: 5, keep: true });
        assert_eq!(parse(&[]).expect("no line"), Options { target: None, seconds: 60, keep: false });
        for wrong in ["csv elf", "--seconds", "--seconds x", "-csv"] {
            assert_eq!(parse(&words(wrong)).expect_err(wrong).to_string(), USAGE);
        }
    }
}
