//! `decompose`: owners of memory, from files.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;

use super::{
    USAGE,
    args::{DecomposeArgs, LogLevel},
    error, input, message, page, progress, terminal,
};
use crate::{
    analyses::{
        Analysis, DecomposeAnalysis, Judged,
        decompose::{BUILTIN, MAX_OWNERS, RuleSet},
    },
    input::{
        Stage,
        annotate::{Annotations, Destination, annotate},
    },
    os::caller::Caller,
    sinks::report::Report,
};

/// `decompose FILE…`.
pub(super) fn run(args: &DecomposeArgs) -> ExitCode {
    if args.print_rules {
        let printed = terminal::print(|out| out.write_all(BUILTIN.as_bytes()));
        return input::exit(|| printed.context("cannot print the rules"));
    }
    let rules = match rules_of_user(args.rules.as_deref()) {
        Ok(rules) => rules,
        Err(code) => return code,
    };
    if args.output_path.is_some() && !matches!(args.files.as_slice(), [file] if !file.is_dir()) {
        error("--output-path takes one dump, to copy its rows");
        return ExitCode::from(USAGE);
    }
    input::exit(|| {
        let copy = match (args.output_path.clone(), args.files.as_slice()) {
            (Some(path), [file]) => Some(Destination::copy(file, path, args.force)?),
            _ => None,
        };
        // Other blocks show the program's phase, so the analysis sees them all.
        let decompose = DecomposeAnalysis::new(Arc::clone(&rules)).only(args.select.blocks.filter(Some(&rules)));
        let wanted = args.output_path.as_deref();
        let (decompose, owners) = if wanted.is_some() {
            let (decompose, owners) = decompose.with_owners();
            (decompose, Some(owners))
        } else {
            (decompose, None)
        };
        let analyses: Vec<Box<dyn Analysis>> = vec![Box::new(Judged::default().freezing(Box::new(decompose)))];
        let outcome = input::read(&args.files, args.select.window(), analyses)?;
        let report = Report { step_hint: false, ..Report::default() };
        input::print(&outcome, report, args.json)?;
        if outcome.findings.is_empty() && !args.json {
            let none = "No blocks were seen, so there are no owners to show.";
            terminal::print_line(none).context("cannot print the report")?;
        }
        page::also(&args.html, &args.files, args.rules.as_deref(), &args.select)?;
        let (Some(path), Some(copy), [file]) = (wanted, copy, args.files.as_slice()) else { return Ok(()) };
        let owners = owners.and_then(|owners| owners.try_recv().ok()).unwrap_or_default();
        if owners.len() >= MAX_OWNERS {
            let text = format_args!("only the first {MAX_OWNERS} blocks to end have their final owner in the copy");
            message(LogLevel::Info, LogLevel::Warning, text);
        }
        let marks = Annotations::owners(owners).handed_to(Caller::owner()?);
        let count = annotate(file, &marks, &copy, &mut progress::of_stage(Stage::Marking))?;
        let text = format_args!("{count} row(s) have owners in {}", path.display());
        message(LogLevel::Info, LogLevel::Info, text);
        Ok(())
    })
}

/// The rules of a command; on a mistake prints it, and returns the exit code.
pub(super) fn rules_of_user(path: Option<&Path>) -> Result<Arc<RuleSet>, ExitCode> {
    rules(path).map_err(|reason| {
        error(reason);
        ExitCode::from(USAGE)
    })
}

/// The user's rules with the built-in ones, or those alone.
pub(super) fn rules(path: Option<&Path>) -> Result<Arc<RuleSet>, String> {
    path.map_or_else(|| Ok(RuleSet::builtin()), RuleSet::read).map(Arc::new)
}
