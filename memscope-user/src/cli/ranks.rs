//! `ranks`: which rank of a job differs.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use super::{USAGE, args::RanksArgs, error, input, terminal};
use crate::analyses::{
    Observer,
    ranks::{LEAST_RANKS, Part, Recorded, Recorder, compare, write_ranks},
    select::Selection,
};
use crate::document;
use crate::text::numbers::counted;

/// `ranks A B C …`, or `ranks RUN`.
pub(super) fn run(args: &RanksArgs) -> ExitCode {
    let part = if args.each_process || args.files.len() == 1 { Part::Process } else { Part::Whole };
    if part == Part::Whole && args.files.len() < LEAST_RANKS {
        error(format_args!(
            "{} inputs have no median: give one of each rank, {LEAST_RANKS} at least, or --each-process; `diff A B` compares two",
            args.files.len()
        ));
        return ExitCode::from(USAGE);
    }
    input::exit(|| {
        let mut ranks = Vec::new();
        for path in &args.files {
            let of_input = read(path, part)?;
            ranks.extend(of_input.into_iter().map(|rank| (path.display().to_string(), rank)));
        }
        ensure!(
            ranks.len() >= LEAST_RANKS,
            "{} with memory of a device: a median needs {LEAST_RANKS} ranks at least",
            counted(ranks.len() as u64, "process")
        );
        let found = compare(ranks);
        let printed = if args.json {
            terminal::print_json(|mut out| {
                document::write(&found, &mut out)?;
                writeln!(out)
            })
        } else {
            terminal::print(|mut out| write_ranks(&found, &mut out))
        };
        printed.context("cannot print the report")
    })
}

fn read(path: &Path, part: Part) -> Result<Vec<Recorded>> {
    let (recorder, run) = Recorder::new(part);
    let recorder: Box<dyn Observer> = Box::new(recorder);
    input::observe(&[path.to_owned()], Selection::default(), vec![recorder])?;
    run.try_recv().with_context(|| format!("the reader of `{}` is still at work", path.display()))
}
