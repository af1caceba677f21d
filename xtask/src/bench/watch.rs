//! `bench watch`: what an operator takes while a block is watched.

use std::process::Command;

use anyhow::{Context as _, Result};

use super::{lab::Lab, stats::Spread, table::Table};
use crate::project::silent_output;

/// How a program is run.
struct Way {
    name: &'static str,
    /// Bytes of the watched block.
    size_bytes: u32,
    /// Options of the tracer; none: no tracer.
    options: Option<&'static [&'static str]>,
}

const SMALL: u32 = 4 << 10;
const LARGE: u32 = 1 << 20;
const SUMS: &[&str] = &["--watch=start,end"];
const CONTENTS: &[&str] = &["--watch=start,end,full-content"];

/// The operator that watching begins with does not come.
const NEVER: &[&str] = &["--watch=never,end"];

const WAYS: [Way; 7] = [
    Way { name: "untraced", size_bytes: SMALL, options: None },
    Way { name: "traced, nothing is watched", size_bytes: SMALL, options: Some(&[]) },
    Way { name: "before the watch begins", size_bytes: SMALL, options: Some(NEVER) },
    Way { name: "checksums of 4 KiB", size_bytes: SMALL, options: Some(SUMS) },
    Way { name: "contents of 4 KiB", size_bytes: SMALL, options: Some(CONTENTS) },
    Way { name: "checksums of 1 MiB", size_bytes: LARGE, options: Some(SUMS) },
    Way { name: "contents of 1 MiB", size_bytes: LARGE, options: Some(CONTENTS) },
];

pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    let mut found: Vec<Vec<f64>> = WAYS.iter().map(|_| Vec::new()).collect();
    for _ in 0..lab.repetitions {
        for (way, found) in WAYS.iter().zip(&mut found) {
            found.push(way.operator_ns(lab)?);
        }
    }
    let note = "µs by the clock from one operation of ATB to the next, which launches one kernel; the device is idle. With a watch \
                each waits for the device and is looked at on both sides. *Ratio* is to the same program traced without a watch.";
    let mut table = Table::new("Block watch", note, &["way", "operator", "ratio"]);
    let unwatched = found[1].clone();
    for (way, found) in WAYS.iter().zip(&found) {
        let ratios = found.iter().zip(&unwatched).map(|(ns, unwatched)| ns / unwatched);
        table.row([
            way.name.to_owned(),
            Spread::of(found.iter().map(|ns| ns / 1000.0)).to_string(),
            Spread::of(ratios).to_string(),
        ]);
    }
    Ok(vec![table])
}

impl Way {
    /// Nanoseconds from one operation to the next.
    fn operator_ns(&self, lab: &Lab) -> Result<f64> {
        let program = lab.program("watch").display().to_string();
        let rounds = lab.pick("20", "200").to_owned();
        let mut words = vec![program, "--rounds".into(), rounds, "--size".into(), self.size_bytes.to_string()];
        if self.options.is_none_or(<[_]>::is_empty) {
            // It would wait for a watch.
            words.extend(["--warm".into(), "50".into()]);
        }
        let mut command = match self.options {
            None => {
                let mut command = lab.command(&words[0]);
                command.args(&words[1..]);
                command
            }
            Some(options) => {
                let mut command = lab.tracer("run", options)?;
                command.arg("--").args(&words);
                command
            }
        };
        said_ns(&mut command)
    }
}

fn said_ns(command: &mut Command) -> Result<f64> {
    let said = silent_output(command)?;
    let line = said.lines().find_map(|line| line.strip_prefix("operator: ")?.strip_suffix(" ns"));
    line.and_then(|number| number.parse().ok()).with_context(|| format!("the program did not say what it took: {said}"))
}
