//! `peaks` and `fragmentation`: answers from files that name owners.

use std::process::ExitCode;
use std::sync::Arc;

use super::{USAGE, args::OwnerArgs, decompose::rules, error, input};
use crate::{
    analyses::{Analysis, FragmentationAnalysis, PeaksAnalysis, decompose::RuleSet},
    sinks::report::Report,
};

/// `peaks FILE…`.
pub(super) fn peaks(args: &OwnerArgs) -> ExitCode {
    run(args, |rules| Box::new(PeaksAnalysis::new(rules)), "No blocks were seen, so there is no peak.")
}

/// `fragmentation FILE…`.
pub(super) fn fragmentation(args: &OwnerArgs) -> ExitCode {
    let none = "No memory of pools was seen, so there is nothing to tell of its pieces.";
    run(args, |rules| Box::new(FragmentationAnalysis::new(rules)), none)
}

fn run(args: &OwnerArgs, analysis: impl FnOnce(Arc<RuleSet>) -> Box<dyn Analysis>, none: &str) -> ExitCode {
    let rules = match rules(args.rules.as_deref()) {
        Ok(rules) => rules,
        Err(reason) => {
            error(reason);
            return ExitCode::from(USAGE);
        }
    };
    input::exit(|| {
        let outcome = input::read(&args.files, vec![analysis(rules)])?;
        input::print(&outcome, Report { step_hint: false, ..Report::default() }, args.json)?;
        if outcome.findings.is_empty() && !args.json {
            println!("{none}");
        }
        Ok(())
    })
}
