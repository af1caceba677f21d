//! `decompose`: whose the memory is, from files.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use super::{USAGE, args::DecomposeArgs, error, input};
use crate::{
    analyses::{
        Analysis, DecomposeAnalysis,
        decompose::{BUILTIN, RuleSet},
    },
    sinks::report::Report,
};

/// `decompose FILE…`.
pub(super) fn run(args: &DecomposeArgs) -> ExitCode {
    if args.print_rules {
        let printed = std::io::stdout().lock().write_all(BUILTIN.as_bytes());
        return input::exit(|| printed.map_err(Into::into));
    }
    let rules = match rules(args.rules.as_deref()) {
        Ok(rules) => rules,
        Err(reason) => {
            error(reason);
            return ExitCode::from(USAGE);
        }
    };
    input::exit(|| {
        let analyses: Vec<Box<dyn Analysis>> = vec![Box::new(DecomposeAnalysis::new(rules))];
        let outcome = input::read(&args.files, analyses)?;
        let report = Report { step_hint: false, ..Report::default() };
        input::print(&outcome, report, args.json)?;
        if outcome.findings.is_empty() && !args.json {
            println!("No blocks were seen, so there is nothing to tell the owners of.");
        }
        Ok(())
    })
}

/// The user's rules with the built-in ones, or those alone.
pub(super) fn rules(path: Option<&Path>) -> Result<Arc<RuleSet>, String> {
    path.map_or_else(|| Ok(RuleSet::builtin()), RuleSet::read).map(Arc::new)
}
