//! `diff`: what grew between two moments, of one run or of two.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc::Receiver};

use anyhow::{Context as _, Result, bail};

use super::{USAGE, args::DiffArgs, decompose::rules_of_user, error, input, terminal, values::When};
use crate::analyses::diff::{Diff, DiffSide};
use crate::analyses::{
    Observer,
    decompose::RuleSet,
    diff::{Recorder, Snapshot, diff, write_diff},
    select::Selection,
};
use crate::document;

/// `diff A [B]`.
pub(super) fn run(args: &DiffArgs) -> ExitCode {
    if args.other.is_none() && args.from == args.to {
        error("one input needs two moments: give --from, or --to, or a second input");
        return ExitCode::from(USAGE);
    }
    let rules = match rules_of_user(args.rules.as_deref()) {
        Ok(rules) => rules,
        Err(code) => return code,
    };
    input::exit(|| {
        let found = work(args, &rules)?;
        let printed = if args.json {
            terminal::print_json(|mut out| {
                document::write(&found, &mut out)?;
                writeln!(out)
            })
        } else {
            terminal::print(|mut out| write_diff(&found, &mut out))
        };
        printed.context("cannot print the report")
    })
}

fn work(args: &DiffArgs, rules: &Arc<RuleSet>) -> Result<Diff> {
    let base = &args.base.clone().unwrap_or_else(|| PathBuf::from("."));
    let [from, to] = if let Some(other) = &args.other {
        let ([from], [to]) = (read(base, [args.from], args, rules)?, read(other, [args.to], args, rules)?);
        [from, to]
    } else {
        read(base, [args.from, args.to], args, rules)?
    };
    let other = args.other.as_ref().unwrap_or(base);
    Ok(Diff { pools: diff(&from, &to), from: side(base, args.from, &from)?, to: side(other, args.to, &to)? })
}

/// Moments of one input, read once.
fn read<const N: usize>(
    path: &PathBuf,
    moments: [When; N],
    args: &DiffArgs,
    rules: &Arc<RuleSet>,
) -> Result<[Snapshot; N]> {
    let filter = args.blocks.filter(Some(rules));
    let recorder = |when: &When| -> (Box<dyn Observer>, Receiver<Snapshot>) {
        let (recorder, snapshot) = Recorder::new(when.0, Arc::clone(rules));
        (recorder.only(filter.clone()).judging(), snapshot)
    };
    let (recorders, taken): (Vec<_>, Vec<_>) = moments.iter().map(recorder).unzip();
    // The whole run, as moments count from its first event.
    input::observe(std::slice::from_ref(path), Selection::default(), recorders)?;
    let snapshots: Option<Vec<Snapshot>> = taken.iter().map(|snapshot| snapshot.try_recv().ok()).collect();
    let snapshots = snapshots.and_then(|snapshots| snapshots.try_into().ok());
    snapshots.with_context(|| format!("the reader of `{}` is still at work", path.display()))
}

fn side(path: &Path, when: When, snapshot: &Snapshot) -> Result<DiffSide> {
    let Snapshot { length_ns, attached, confidence, .. } = *snapshot;
    if let Some(why) = snapshot.refuses(when.0) {
        bail!("`{}` {why}: there is no moment {when} in it", path.display());
    }
    Ok(DiffSide { input: path.display().to_string(), at: when.to_string(), length_ns, attached, confidence })
}
