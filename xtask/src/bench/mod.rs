//! `bench`: what tracing costs the target, what the tracer can take, and what the analyses find. Numbers are printed, never
//! asserted.

mod agent;
mod answers;
mod big;
mod cost;
mod holders;
mod kernel;
mod lab;
mod loads;
mod machine;
mod overload;
mod proc;
mod python;
mod scale;
mod soak;
mod stats;
mod table;
mod throughput;
mod watch;

use std::{fs, path::Path};

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
    /// Where its tables are in the report; none if it prints for itself.
    part: Option<&'static str>,
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

/// Takes so long that it runs only when it is asked for.
const SOAK: &str = "soak";
const SOAK_MINUTES: u64 = 20;
/// Needs another build, so it runs only when it is asked for.
const BESIDE: &str = "beside";

/// This build and another one, measured in turn.
fn beside(lab: &Lab) -> Result<Vec<Table>> {
    let other = lab.other.clone().context("`bench beside` needs another build of memscope-bpf: --with PROGRAM")?;
    ensure!(other.is_file(), "--with {}: no such program", other.display());
    let other = lab.with(other);
    // The short one first: an error in it comes before the long one.
    let throughput = throughput::beside([&other, lab])?;
    Ok(vec![cost::beside([&other, lab])?, throughput])
}

/// Parts of the report, which are measured apart.
const COSTS: &str = "# What tracing costs";
const FILTERED: &str = "# Processes that are filtered out";
const MANY: &str = "# Many probes, many processes";
const BIG: &str = "# Big processes";
const LONG: &str = "# Soak";
const OVERLOAD: &str = "# More events than are analysed";
const SCRIPTS: &str = "# Scripts";
const WATCH: &str = "# Block watch";
const LOADS: &str = "# Holds and stops";
const AGENT: &str = "# The node agent";
const COMPARED: &str = "# Beside an earlier build";

/// In the order of the report.
const BENCHES: &[Bench] = &[
    Bench { name: "cost", part: Some(COSTS), run: Run::Measure(cost::run) },
    Bench { name: "throughput", part: Some(COSTS), run: Run::Measure(throughput::run) },
    Bench { name: "filtered", part: Some(FILTERED), run: Run::Measure(cost::filtered) },
    Bench { name: "scale", part: Some(MANY), run: Run::Measure(scale::run) },
    Bench { name: "big", part: Some(BIG), run: Run::Measure(big::run) },
    Bench { name: "overload", part: Some(OVERLOAD), run: Run::Measure(overload::run) },
    Bench { name: SOAK, part: Some(LONG), run: Run::Measure(soak::run) },
    Bench { name: "python", part: Some(SCRIPTS), run: Run::Measure(python::run) },
    Bench { name: "watch", part: Some(WATCH), run: Run::Measure(watch::run) },
    Bench { name: "loads", part: Some(LOADS), run: Run::Measure(loads::run) },
    Bench { name: "agent", part: Some(AGENT), run: Run::Measure(agent::run) },
    Bench { name: BESIDE, part: Some(COMPARED), run: Run::Measure(beside) },
    Bench { name: "leaks", part: None, run: Run::Print(answers::leaks) },
    Bench { name: "sizes", part: None, run: Run::Print(answers::sizes) },
    Bench { name: "holders", part: None, run: Run::Print(holders::run) },
    Bench { name: "report", part: None, run: Run::Print(answers::report) },
    Bench { name: "whatif", part: None, run: Run::Print(answers::whatif) },
];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let options = parse(arguments)?;
    let wanted = || BENCHES.iter().filter(|bench| options.wants(bench.name));
    let measures: Vec<_> =
        wanted().filter_map(|Bench { name, run, .. }| run.measure().map(|run| (*name, run))).collect();
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
    let host = Arch::host();
    build::run()?;
    sim::build(host)?;
    if !is_root() {
        // Built by this user, run by root.
        let own = std::env::current_exe().context("this program's path is not known")?;
        let names = measures.iter().map(|(name, _)| name);
        let minutes = ["--minutes".to_owned(), options.minutes.to_string()];
        let mut again = as_root(own);
        again.arg("bench").args(names).args(options.quick.then_some("--quick")).args(minutes);
        if let Some(other) = options.other {
            again.arg("--with").arg(other);
        }
        return run_command(&mut again);
    }
    let mut lab = Lab::new(&sim::folder(host), options.quick, if options.quick { 1 } else { options.minutes })?;
    lab.other = options.other.map(std::path::absolute).transpose().context("--with")?;
    lab.refuse_strangers()?;
    let about = machine::describe(&lab);
    print!("{about}");
    let mut found: Vec<(&str, String)> = Vec::new();
    for (name, run) in measures {
        let mut text = String::new();
        for table in run(&lab).with_context(|| format!("bench `{name}`"))? {
            println!("{table}");
            text.push_str(&table.to_string());
        }
        found.push((name, text));
    }
    if options.quick {
        return Ok(());
    }
    let mut report = Report::parse(&fs::read_to_string(root().join(REPORT)).unwrap_or_default());
    let mut parts: Vec<&str> = BENCHES.iter().filter_map(|bench| bench.part).collect();
    parts.dedup();
    for part in parts {
        let of_part = BENCHES.iter().filter(|bench| bench.part == Some(part));
        let tables = of_part.map(|bench| found.iter().find(|(name, _)| *name == bench.name).map(|(_, text)| &**text));
        // Of one machine at one time, or as it was.
        if let Some(tables) = tables.collect::<Option<Vec<_>>>() {
            let method = if part == COSTS { METHOD } else { "" };
            report.replace(part, &format!("\n{method}{about}{}", tables.concat()));
            println!("written: {REPORT}, {part}");
        }
    }
    fs::write(root().join(REPORT), report.text()).with_context(|| format!("cannot write {REPORT}"))
}

/// The report by its parts: heading, and what follows.
struct Report(Vec<(String, String)>);

impl Report {
    fn parse(text: &str) -> Self {
        let mut parts: Vec<(String, String)> = Vec::new();
        for line in text.lines() {
            match parts.last_mut() {
                _ if line.starts_with("# ") => parts.push((line.to_owned(), String::new())),
                Some((_, text)) => {
                    text.push_str(line);
                    text.push('\n');
                }
                None => {}
            }
        }
        Self(parts)
    }

    fn replace(&mut self, heading: &str, text: &str) {
        match self.0.iter_mut().find(|(known, _)| known == heading) {
            Some((_, old)) => text.clone_into(old),
            None => self.0.push((heading.to_owned(), text.to_owned())),
        }
    }

    fn text(&self) -> String {
        let parts = self.0.iter().map(|(heading, text)| format!("{heading}\n{}", text.trim_end()));
        parts.collect::<Vec<_>>().join("\n\n") + "\n"
    }
}

/// What `bench` was asked to do.
#[derive(Debug)]
struct Options<'a> {
    /// Fewer and shorter measurements.
    quick: bool,
    /// How long the soak takes.
    minutes: u64,
    /// Another build.
    other: Option<&'a Path>,
    /// Which; none are all but the soak and what needs another build.
    names: Vec<&'a str>,
}

impl Options<'_> {
    fn wants(&self, name: &str) -> bool {
        (self.names.is_empty() && ![SOAK, BESIDE].contains(&name)) || self.names.contains(&name)
    }
}

fn parse(arguments: &[String]) -> Result<Options<'_>> {
    let mut options = Options { quick: false, minutes: SOAK_MINUTES, other: None, names: Vec::new() };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--quick" {
            options.quick = true;
        } else if argument == "--minutes"
            && let Some(minutes) = arguments.next().and_then(|text| text.parse().ok()).filter(|minutes| *minutes > 0)
        {
            options.minutes = minutes;
        } else if argument == "--with"
            && let Some(other) = arguments.next()
        {
            options.other = Some(Path::new(other));
        } else if BENCHES.iter().any(|bench| bench.name == argument) {
            options.names.push(argument);
        } else {
            let names: Vec<&str> = BENCHES.iter().map(|bench| bench.name).collect();
            bail!("usage: ./x bench [{}]... [--quick] [--minutes N] [--with PROGRAM]", names.join("|"));
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Report, parse};

    /// Make sure that no part of the report is lost when another is measured, and that a new one is added.
    #[test]
    fn parts_of_the_report() {
        let text = "# What\n\n## Table\n| 1 |\n\n# Soak\n\n| 2 |\n";
        let mut report = Report::parse(text);
        assert_eq!(report.text(), text);
        report.replace("# Soak", "\n| 3 |\n");
        report.replace("# New", "\n| 4 |\n");
        assert_eq!(report.text(), "# What\n\n## Table\n| 1 |\n\n# Soak\n\n| 3 |\n\n# New\n\n| 4 |\n");
    }

    /// Make sure that a word that is no bench is refused, not taken for "all".
    #[test]
    fn words() {
        let arguments = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line = arguments("cost --quick");
        let options = parse(&line).expect("a good line");
        assert!(options.quick && options.wants("cost") && !options.wants("other"));
        let all = parse(&[]).expect("a good line");
        assert!(all.wants("other") && !all.wants("soak") && !all.wants("beside") && all.minutes == 20);
        let line = arguments("beside --with old/memscope-bpf");
        let beside = parse(&line).expect("a good line");
        assert!(beside.wants("beside") && beside.other == Some(Path::new("old/memscope-bpf")));
        let line = arguments("soak --minutes 3");
        let soak = parse(&line).expect("a good line");
        assert!(soak.wants("soak") && soak.minutes == 3);
        parse(&arguments("soak --minutes 0")).expect_err("no time");
        let error = parse(&arguments("costs")).expect_err("no such bench").to_string();
        assert!(error.starts_with("usage: ./x bench [cost"), "{error}");
    }
}
