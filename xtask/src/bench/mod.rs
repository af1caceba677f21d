//! `bench`: what tracing costs the target, what the tracer can take, and what the analyses find. Numbers are printed, never
//! asserted.

mod answers;
mod cost;
mod lab;
mod machine;
mod proc;
mod stats;
mod table;
mod throughput;

use std::{fs, process::Command};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    arch::Arch,
    build,
    project::{as_root, is_root, root, run as run_command},
    sim,
};
use lab::Lab;
use table::Table;

/// Where the tables of a full run go, relative to the repository.
const REPORT: &str = "docs/overhead.md";
/// What stands before the tables.
const METHOD: &str = include_str!("method.md");

/// One sub-command.
struct Bench {
    name: &'static str,
    run: Run,
}

/// Measures, in a laboratory.
type Measure = fn(&Lab) -> Result<Vec<Table>>;

/// What it does.
enum Run {
    /// Measures, as root; the tables belong into the report.
    Measure(Measure),
    /// Prints for itself.
    Print(fn() -> Result<()>),
}

impl Run {
    const fn measure(&self) -> Option<Measure> {
        match self {
            Self::Measure(run) => Some(*run),
            Self::Print(_) => None,
        }
    }
}

/// In the order of the report.
const BENCHES: &[Bench] = &[
    Bench { name: "cost", run: Run::Measure(cost::run) },
    Bench { name: "throughput", run: Run::Measure(throughput::run) },
    Bench { name: "leaks", run: Run::Print(answers::leaks) },
    Bench { name: "sizes", run: Run::Print(answers::sizes) },
];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let options = parse(arguments)?;
    let wanted = || BENCHES.iter().filter(|bench| options.wants(bench.name));
    let measures: Vec<_> = wanted().filter_map(|Bench { name, run }| run.measure().map(|run| (*name, run))).collect();
    if !measures.is_empty() {
        measure(&options, &measures)?;
    }
    for bench in wanted() {
        if let Run::Print(run) = bench.run {
            run().with_context(|| format!("bench `{}`", bench.name))?;
        }
    }
    Ok(())
}

fn measure(options: &Options<'_>, measures: &[(&str, Measure)]) -> Result<()> {
    let host = Arch::named(std::env::consts::ARCH)?;
    build::run()?;
    sim::build(host)?;
    if !is_root() {
        // Built by this user, run by root.
        let own = std::env::current_exe().context("this program's path is not known")?;
        let names = measures.iter().map(|(name, _)| name);
        return run_command(as_root(own).arg("bench").args(names).args(options.quick.then_some("--quick")));
    }
    let lab = Lab::new(&sim::folder(host), options.quick)?;
    lab.refuse_strangers()?;
    let mut report = String::from(METHOD);
    report.push_str(&machine::describe(&lab));
    print!("{}", machine::describe(&lab));
    for (name, run) in measures {
        for table in run(&lab).with_context(|| format!("bench `{name}`"))? {
            let text = table.to_string();
            println!("{text}");
            report.push_str(&text);
        }
    }
    if measures.len() == BENCHES.iter().filter(|bench| bench.run.measure().is_some()).count() && !options.quick {
        let path = root().join(REPORT);
        fs::write(&path, report).with_context(|| format!("cannot write {}", path.display()))?;
        println!("written: {REPORT}");
    }
    Ok(())
}

/// What `bench` was asked to do.
#[derive(Debug)]
struct Options<'a> {
    /// Fewer and shorter measurements.
    quick: bool,
    /// Which; none are all.
    names: Vec<&'a str>,
}

impl Options<'_> {
    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.contains(&name)
    }
}

fn parse(arguments: &[String]) -> Result<Options<'_>> {
    let mut options = Options { quick: false, names: Vec::new() };
    for argument in arguments {
        if argument == "--quick" {
            options.quick = true;
        } else if BENCHES.iter().any(|bench| bench.name == argument) {
            options.names.push(argument);
        } else {
            let names: Vec<&str> = BENCHES.iter().map(|bench| bench.name).collect();
            bail!("usage: ./x bench [{}]... [--quick]", names.join("|"));
        }
    }
    Ok(options)
}

/// Runs a program to its end and gives what it printed.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run `{name}`"))?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{name}` failed ({}): {messages}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("`{name}` printed something that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    /// Make sure that a word that is no bench is refused, not taken for "all".
    #[test]
    fn words() {
        let arguments = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line = arguments("cost --quick");
        let options = parse(&line).expect("a good line");
        assert!(options.quick && options.wants("cost") && !options.wants("other"));
        assert!(parse(&[]).expect("a good line").wants("other"));
        let error = parse(&arguments("costs")).expect_err("no such bench").to_string();
        assert!(error.starts_with("usage: ./x bench [cost"), "{error}");
    }
}
