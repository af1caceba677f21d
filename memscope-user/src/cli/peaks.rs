//! `peaks`: what was live when usage was highest, from files.

use std::process::ExitCode;

use super::{USAGE, args::PeaksArgs, decompose::rules, error, input};
use crate::{analyses::PeaksAnalysis, sinks::report::Report};

/// `peaks FILE…`.
pub(super) fn run(args: &PeaksArgs) -> ExitCode {
    let rules = match rules(args.rules.as_deref()) {
        Ok(rules) => rules,
        Err(reason) => {
            error(reason);
            return ExitCode::from(USAGE);
        }
    };
    input::exit(|| {
        let outcome = input::read(&args.files, vec![Box::new(PeaksAnalysis::new(rules))])?;
        input::print(&outcome, Report { step_hint: false, ..Report::default() }, args.json)?;
        if outcome.findings.is_empty() && !args.json {
            println!("No blocks were seen, so there is no peak.");
        }
        Ok(())
    })
}
