//! `fuzz`: libFuzzer on everything that reads bytes of others (`memscope-user/src/fuzzing/`).
//!
//! libFuzzer is that of the installed clang, and code is counted by rustc's own LLVM: no nightly compiler, and no package of
//! cargo's. Dependencies are those that `build` has compiled.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::{
    apt, bpf,
    project::{BPF_OBJECT, cargo, output, program, root, run as run_command, target},
    setup,
};

/// Names the target for the program.
const TARGET: &str = "MEMSCOPE_FUZZ";
/// Seconds for each target when nothing is said.
const SECONDS: u32 = 60;
/// The same inputs are made up in each run with the same seed, as far as time goes.
const SEED: u32 = 1;
const USAGE: &str = "usage: ./x fuzz [TARGET] [--seconds N] [--seed N] [--keep]";
/// Lines that are shown of a target that fails.
const SHOWN_LINES: usize = 60;

#[derive(Debug, PartialEq, Eq)]
struct Options<'a> {
    target: Option<&'a str>,
    seconds: u32,
    seed: u32,
    keep: bool,
}

/// A target's run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Figures {
    inputs: u64,
    added: u64,
}

/// As many targets at a time as there are processors; a row for each when it ends.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let options = parse(arguments)?;
    let all = targets()?;
    let chosen: Vec<&String> = all.iter().filter(|name| options.target.is_none_or(|wanted| wanted == *name)).collect();
    ensure!(!chosen.is_empty(), "{} is none of {}", options.target.unwrap_or_default(), all.join(" "));
    let fuzzer = build()?;
    println!("| target | seed | seconds | inputs | with new code |\n|---|--:|--:|--:|--:|");
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(name) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Figures { inputs, added } = slice(&fuzzer, name, &options)?;
            println!("| {name} | {} | {} | {inputs} | {added} |", options.seed, options.seconds);
        }
        Ok(())
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(chosen.len());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| anyhow!("a worker has panicked"))?)
    })
}

fn slice(fuzzer: &Path, name: &str, options: &Options<'_>) -> Result<Figures> {
    let found = folder(name);
    fs::create_dir_all(&found).with_context(|| format!("failed to make `{}`", found.display()))?;
    let mut command = on(fuzzer, name);
    command.arg(format!("-seed={}", options.seed)).arg(format!("-max_total_time={}", options.seconds));
    let said = command.args([&found, &corpus(name)]).output().context("the fuzzer does not start")?;
    let text = String::from_utf8_lossy(&said.stderr);
    if !said.status.success() {
        let lines: Vec<&str> = text.lines().collect();
        bail!("{name}: {}\n{}", repeat(name), lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n"));
    }
    if options.keep {
        // Only what reaches code that nothing in there reaches.
        run_command(on(fuzzer, name).arg("-merge=1").args([corpus(name), found]))?;
    }
    Ok(figures(&text))
}

/// From libFuzzer's last lines, such as `stat::number_of_executed_units: 1234`.
fn figures(text: &str) -> Figures {
    let of = |key: &str| text.lines().rev().find_map(|line| line.strip_prefix(key)?.trim().parse().ok()).unwrap_or(0);
    Figures { inputs: of("stat::number_of_executed_units:"), added: of("stat::new_units_added:") }
}

fn parse(arguments: &[String]) -> Result<Options<'_>> {
    let mut options = Options { target: None, seconds: SECONDS, seed: SEED, keep: false };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--keep" => options.keep = true,
            "--seconds" => options.seconds = arguments.next().and_then(|text| text.parse().ok()).context(USAGE)?,
            "--seed" => options.seed = arguments.next().and_then(|text| text.parse().ok()).context(USAGE)?,
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
    command.env(TARGET, name);
    command.arg(format!("-artifact_prefix={}/{name}-", target().join("fuzz").display()));
    command.args(["-timeout=20", "-rss_limit_mb=2048", "-max_len=16384", "-print_final_stats=1"]);
    command
}

/// Builds the fuzzer.
fn build() -> Result<PathBuf> {
    let runtime = runtime()?;
    let folder = target().join("fuzz");
    fs::create_dir_all(&folder).with_context(|| format!("failed to make `{}`", folder.display()))?;
    let mut cargo = cargo();
    cargo.env("RUSTC_WORKSPACE_WRAPPER", root().join("fuzz/rustc")).env(BPF_OBJECT, bpf::stand_in()?);
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

    /// Lines that libFuzzer ends with.
    #[test]
    fn figures_of_a_run() {
        let text = "#9 DONE cov: 1\nDone 9 runs in 2 second(s)\nstat::number_of_executed_units: 9\nstat::average_exec_per_sec:     4\n\
            stat::new_units_added:          3\n";
        assert_eq!(figures(text), Figures { inputs: 9, added: 3 });
    }

    /// Options in any order, and nothing that is taken for a target by mistake.
    #[test]
    fn options() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line = words("--seconds 5 csv --keep --seed 7");
        assert_eq!(
            parse(&line).expect("a good line"),
            Options { target: Some("csv"), seconds: 5, seed: 7, keep: true }
        );
        assert_eq!(parse(&[]).expect("no line"), Options { target: None, seconds: 60, seed: 1, keep: false });
        for wrong in ["csv elf", "--seconds", "--seconds x", "--seed -1", "-csv"] {
            assert_eq!(parse(&words(wrong)).expect_err(wrong).to_string(), USAGE);
        }
    }
}
