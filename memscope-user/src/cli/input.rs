//! Common parts of the commands that read files.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};

use super::{FAILURE, args::LogLevel, error, message, offline, progress, runs::one_capture, terminal};
use crate::{
    analyses::{Analysis, Observer, select::Selection},
    input::{self, Options, Outcome},
    model::Kept,
    overview,
    pipeline::PipelineConfig,
    sinks::report::{self, Report},
};

/// Does the work of a command; prints why it failed.
pub(super) fn exit(work: impl FnOnce() -> Result<()>) -> ExitCode {
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// Shows the selected part of one run to analyses, and reports repairs.
pub(super) fn read(files: &[PathBuf], selection: Selection, analyses: Vec<Box<dyn Analysis>>) -> Result<Outcome> {
    read_with(files, Options { selection, ..Options::default() }, analyses)
}

/// Shows the selected part of one run to observers, and reports repairs.
pub(super) fn observe(files: &[PathBuf], selection: Selection, observers: Vec<Box<dyn Observer>>) -> Result<Outcome> {
    read_with(files, Options { selection, observers, ..Options::default() }, Vec::new())
}

/// As [`read`], with all that can be chosen.
pub(super) fn read_with(files: &[PathBuf], options: Options, analyses: Vec<Box<dyn Analysis>>) -> Result<Outcome> {
    // Results of observers outlive their reading, and two inputs may be compared; a command ends with its process.
    let pipeline = PipelineConfig { kept: Some(Kept::process()), ..options.pipeline };
    let options = Options { pipeline, watcher: progress::watcher(), ..options };
    let outcome = input::run_with(&one_capture(files)?, options, analyses)?;
    warn(&outcome);
    Ok(outcome)
}

/// Reports repairs.
pub(super) fn warn(outcome: &Outcome) {
    for line in outcome.notes.lines() {
        message(LogLevel::Info, LogLevel::Warning, format_args!("{line}"));
    }
    if let Some(replay) = &outcome.replay {
        offline::report_ending(LogLevel::Info, replay);
    }
    if outcome.end.nothing_selected {
        message(LogLevel::Info, LogLevel::Warning, format_args!("{}", overview::NOTHING_SELECTED));
    }
}

/// Prints the findings.
pub(super) fn print(outcome: &Outcome, report: Report, json: bool) -> Result<()> {
    let printed = if json {
        terminal::print_json(|mut out| report::write_json(&outcome.findings, &outcome.end, &mut out))
    } else {
        let report = Report { losses: outcome.replay.is_some(), ..report };
        terminal::print(|mut out| report.write_text(&outcome.findings, &outcome.end, &mut out))
    };
    printed.context("cannot print the report")
}
