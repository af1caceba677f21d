//! `ranks`: which rank of a job differs.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::{USAGE, args::RanksArgs, error, input, terminal};
use crate::analyses::{
    Observer,
    ranks::{LEAST_RANKS, Recorder, Run, compare, write_ranks},
    select::Selection,
};
use crate::document;

/// `ranks A B C …`.
pub(super) fn run(args: &RanksArgs) -> ExitCode {
    if args.files.len() < LEAST_RANKS {
        error(format_args!(
            "{} input(s) have no median: give one of each rank, {LEAST_RANKS} at least; `diff A B` compares two",
            args.files.len()
        ));
        return ExitCode::from(USAGE);
    }
    input::exit(|| {
        let runs = args.files.iter().map(|path| read(path)).collect::<Result<Vec<Run>>>()?;
        let inputs: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
        let found = compare(&inputs, &runs);
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

fn read(path: &Path) -> Result<Run> {
    let (recorder, run) = Recorder::new();
    let recorder: Box<dyn Observer> = Box::new(recorder);
    input::observe(&[path.to_owned()], Selection::default(), vec![recorder])?;
    run.try_recv().with_context(|| format!("the reader of `{}` is still at work", path.display()))
}
