//! `leaks`: the leak analyses on files.

use std::process::ExitCode;

use anyhow::Context as _;

use super::{
    FOUND,
    args::{LeaksArgs, ReportKind},
    input, page, report,
};
use crate::{analyses, sinks::report::Report};

/// `leaks FILE…`.
pub(super) fn run(args: &LeaksArgs) -> ExitCode {
    let by_marks = args.mark.is_some();
    let mut analyses = analyses::of_leaks(args.mark.clone(), args.start_index);
    let kind = if args.leak_blocks && args.report == ReportKind::Summary { ReportKind::Details } else { args.report };
    let has_screen = !args.json && kind != ReportKind::Details;
    if !by_marks && (has_screen || !args.fail_on.is_empty()) {
        analyses.extend(analyses::beside_leaks(!args.select.blocks.filter(None).parts_pools()));
    }
    let mut found = false;
    let status = input::exit(|| {
        let outcome = input::read(&args.files, args.select.selection(None), analyses)?;
        let report = Report { step_hint: !by_marks, leak_blocks: args.leak_blocks, ..Report::default() };
        found = report::is_failed(&args.fail_on, &outcome.findings, &outcome.end);
        if args.json {
            input::print(&outcome, report, true)?;
            return page::also(&args.html, &args.files, None, &args.select);
        }
        let report = Report { losses: outcome.replay.is_some(), ..report };
        // Several dumps of a run are one input.
        let file = if let [file] = &args.files[..] { Some(file.as_path()) } else { None };
        report::print_text(kind, report, (&outcome.findings, &outcome.end), file).context("cannot print the report")?;
        page::also(&args.html, &args.files, None, &args.select)
    });
    if found && status == ExitCode::SUCCESS { ExitCode::from(FOUND) } else { status }
}
