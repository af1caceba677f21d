//! What the commands that read files share.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};

use super::{FAILURE, args::LogLevel, error, message, offline};
use crate::{
    analyses::Analysis,
    input::{self, Outcome},
    pipeline::PipelineConfig,
    sinks::report::{self, Report},
};

/// Does the work of a command; says why it failed.
pub(super) fn exit(work: impl FnOnce() -> Result<()>) -> ExitCode {
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// Reads the files of one run, and tells what had to be repaired.
pub(super) fn read(files: &[PathBuf], analyses: Vec<Box<dyn Analysis>>) -> Result<Outcome> {
    read_with(files, PipelineConfig::default(), analyses)
}

/// As [`read`]; how a capture is replayed is in `config`.
pub(super) fn read_with(
    files: &[PathBuf],
    config: PipelineConfig,
    analyses: Vec<Box<dyn Analysis>>,
) -> Result<Outcome> {
    let outcome = input::run_with(files, config, analyses)?;
    warn(&outcome);
    Ok(outcome)
}

/// Tells what had to be repaired.
pub(super) fn warn(outcome: &Outcome) {
    for line in outcome.notes.lines() {
        message(LogLevel::Info, LogLevel::Warning, format_args!("{line}"));
    }
    if let Some(replay) = &outcome.replay {
        offline::tell_ending(LogLevel::Info, replay);
    }
}

/// Prints the findings.
pub(super) fn print(outcome: &Outcome, report: Report, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let printed = if json {
        report::write_json(&outcome.findings, &outcome.end, &mut out)
    } else {
        let report = Report { losses: outcome.replay.is_some(), ..report };
        report.write_text(&outcome.findings, &outcome.end, &mut out)
    };
    printed.context("cannot print the report")
}
