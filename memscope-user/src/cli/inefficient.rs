//! `inefficient`: blocks held longer than they are used, and the marks for them in the rows.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

use super::{
    args::{InefficientArgs, LogLevel},
    input, message, progress, terminal,
};
use crate::{
    analyses::{Analysis, InefficientAnalysis, InefficientRules, Kind as _, inefficient::Inefficient},
    input::{
        Format, Stage,
        annotate::{Annotations, Destination, annotate},
    },
    os::caller::Caller,
    sinks::report::Report,
};

/// `inefficient FILE`.
pub(super) fn run(args: &InefficientArgs) -> ExitCode {
    let rules = InefficientRules {
        min_size_bytes: args.mem_size,
        idle_threshold: args.idle_threshold,
        kinds: args.kinds.unwrap_or_default().0,
    };
    let file = args.file.as_deref().unwrap_or(Path::new("."));
    input::exit(|| {
        // Asked before the work, which may take minutes.
        let has_rows = file.is_file() && crate::input::format(file)? != Format::Capture;
        let to = match (has_rows, args.in_place) {
            (false, _) => None,
            (true, true) => Some(Destination::InPlace),
            (true, false) => Some(Destination::copy(file, destination(args, file), args.force)?),
        };
        // Other blocks' events decide how one is used, so the analysis sees them all.
        let inefficient = InefficientAnalysis::new(rules).only(args.select.blocks.filter(None));
        let analyses: Vec<Box<dyn Analysis>> = vec![inefficient.judging()];
        let outcome = input::read(&[file.to_owned()], args.select.window(), analyses)?;
        let report = Report { step_hint: false, ..Report::default() };
        input::print(&outcome, report, args.json)?;
        let found: Vec<_> = outcome.findings.iter().filter_map(Inefficient::of).collect();
        if found.is_empty() && !args.json {
            let text = "Inefficient use was not judged: no block of PyTorch's or ATB's pools was recorded.";
            terminal::print_line(text).context("cannot print the report")?;
        }
        // Nothing to mark otherwise: rows are in dumps, one by one.
        let Some(to) = to else { return Ok(()) };
        if args.in_place && found.iter().all(|found| found.blocks.is_empty()) {
            let text = format_args!("nothing to mark: {} is as it was", file.display());
            message(LogLevel::Info, LogLevel::Info, text);
            return Ok(());
        }
        let marks = Annotations::of(found).handed_to(Caller::owner()?);
        let count = annotate(file, &marks, &to, &mut progress::of_stage(Stage::Marking))?;
        let path = match &to {
            Destination::New(path) | Destination::Replace(path) => path,
            Destination::InPlace => file,
        };
        message(LogLevel::Info, LogLevel::Info, format_args!("marked {count} row(s) in {}", path.display()));
        Ok(())
    })
}

/// A folder of its own beside the dump: viewers insist on the file's name.
fn destination(args: &InefficientArgs, file: &Path) -> PathBuf {
    args.output_path.clone().unwrap_or_else(|| {
        let folder = file.parent().map(PathBuf::from).unwrap_or_default();
        folder.join("inefficient").join(file.file_name().unwrap_or_default())
    })
}
