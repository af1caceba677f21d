//! `leaks`: the leak analyses on files.

use std::process::ExitCode;

use super::{args::LeaksArgs, input, page};
use crate::{analyses, sinks::report::Report};

/// `leaks FILE…`.
pub(super) fn run(args: &LeaksArgs) -> ExitCode {
    let by_marks = args.mark.is_some();
    let analyses = analyses::of_leaks(args.mark.clone(), args.start_index);
    input::exit(|| {
        let outcome = input::read(&args.files, args.select.selection(None), analyses)?;
        let report = Report { step_hint: !by_marks, leak_blocks: args.leak_blocks, ..Report::default() };
        input::print(&outcome, report, args.json)?;
        page::also(&args.html, &args.files, None, &args.select)
    })
}
