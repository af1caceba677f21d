//! `leaks`: the leak analyses on files.

use std::process::ExitCode;

use super::{args::LeaksArgs, input};
use crate::{
    analyses::{
        Analysis, ByStackAnalysis, FluctuationAnalysis, GrowthAnalysis, HeldAnalysis, MarkLeaksAnalysis,
        StepLeaksAnalysis,
    },
    sinks::report::Report,
};

/// `leaks FILE…`.
pub(super) fn run(args: &LeaksArgs) -> ExitCode {
    let by_marks = args.mark.is_some();
    let analyses: Vec<Box<dyn Analysis>> = match &args.mark {
        Some(text) => vec![Box::new(MarkLeaksAnalysis::new(text.clone(), args.start_index))],
        None => vec![
            Box::new(StepLeaksAnalysis::default()),
            Box::new(FluctuationAnalysis::default()),
            Box::new(GrowthAnalysis::default()),
            Box::new(HeldAnalysis::default()),
            Box::new(ByStackAnalysis::default()),
        ],
    };
    input::exit(|| {
        let outcome = input::read(&args.files, args.select.selection(None), analyses)?;
        let report = Report { step_hint: !by_marks, ..Report::default() };
        input::print(&outcome, report, args.json)
    })
}
