//! `peaks` and `fragmentation`: answers from files that name owners.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};

use super::{USAGE, args::OwnerArgs, decompose::rules_of_user, error, input, terminal};
use crate::{
    analyses::{FragmentationAnalysis, PeaksAnalysis, decompose::RuleSet},
    input::Outcome,
    session::outputs::check_pools,
    sinks::report::Report,
};

/// `peaks FILE…`.
pub(super) fn peaks(args: &OwnerArgs) -> ExitCode {
    let none = "No blocks were seen, so there is no peak.";
    run(args, none, |rules| {
        let selection = args.select.selection(Some(&rules));
        input::read(&args.files, selection, vec![Box::new(PeaksAnalysis::new(rules))])
    })
}

/// `fragmentation FILE…`.
pub(super) fn fragmentation(args: &OwnerArgs) -> ExitCode {
    let filter = args.select.blocks.filter(None);
    if let Err(reason) = check_pools(&filter) {
        error(reason);
        return ExitCode::from(USAGE);
    }
    let none = "No memory of pools was seen, so there is nothing to tell of its pieces.";
    run(args, none, |rules| {
        // The driver's blocks, too, have to be seen: they are what pools have pieces of.
        let analysis = Box::new(FragmentationAnalysis::new(rules).only(filter));
        input::read(&args.files, args.select.window(), vec![analysis])
    })
}

fn run(args: &OwnerArgs, none: &str, read: impl FnOnce(Arc<RuleSet>) -> Result<Outcome>) -> ExitCode {
    let rules = match rules_of_user(args.rules.as_deref()) {
        Ok(rules) => rules,
        Err(code) => return code,
    };
    input::exit(|| {
        let outcome = read(rules)?;
        input::print(&outcome, Report { step_hint: false, ..Report::default() }, args.json)?;
        if outcome.findings.is_empty() && !args.json {
            terminal::print_line(none).context("cannot print the report")?;
        }
        Ok(())
    })
}
