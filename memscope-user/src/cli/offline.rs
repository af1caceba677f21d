//! `replay` and `recover`: the outputs of a capture, again or for the first time.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};

use super::{
    FAILURE, USAGE,
    args::{CollectArgs, CollectMode, LogLevel, RecoverArgs, ReplayArgs},
    error, message,
    notices::Notices,
    outputs::{self, Chosen},
    progress,
    values::CallStacks,
};
use crate::{
    attach::spawn::sudo_ids,
    error_chain,
    input::{Progress, Stage},
    pipeline::{self, PipelineConfig, ReplayReport},
    sinks::Sink,
};

const EXTENSION: &str = "capture";

/// `replay CAPTURE`.
pub(super) fn replay(args: &ReplayArgs) -> ExitCode {
    finish(&args.collect, || replay_one(&args.capture, &args.collect))
}

/// `recover DIR`.
pub(super) fn recover(args: &RecoverArgs) -> ExitCode {
    let mut collect = args.collect.clone();
    collect.output_path.get_or_insert_with(|| args.directory.join("recovered"));
    finish(&collect, || {
        let captures = captures(&args.directory)?;
        if captures.is_empty() {
            let directory = args.directory.display();
            bail!("no capture (*.{EXTENSION}) in `{directory}`; was the trace made with --no-capture?");
        }
        for capture in captures {
            message(
                collect.level_of_messages(),
                LogLevel::Info,
                format_args!("recovering {} into {}", capture.display(), collect.output_path().display()),
            );
            replay_one(&capture, &collect)?;
        }
        Ok(())
    })
}

fn finish(collect: &CollectArgs, work: impl FnOnce() -> Result<()>) -> ExitCode {
    if let Err(reason) = outputs::check(collect) {
        error(reason);
        return ExitCode::from(USAGE);
    }
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// Captures in a directory, oldest name first.
pub(super) fn captures(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read directory `{}`", directory.display()))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
        .collect();
    found.sort();
    Ok(found)
}

fn replay_one(capture: &Path, collect: &CollectArgs) -> Result<()> {
    let rules = outputs::rules(collect).map_err(anyhow::Error::msg)?;
    let Chosen { analyses, selected } = outputs::analyses(collect, rules.as_ref());
    let owners = outputs::owners(collect, rules.as_ref());
    let config = PipelineConfig { dump: outputs::filter(collect), owners, ..PipelineConfig::default() };
    let notices = Notices::new(collect.level_of_messages());
    let settings = outputs::config(collect, CallStacks::default(), CollectMode::default());
    let sinks: Vec<Box<dyn Sink>> = vec![
        outputs::dump(collect, settings, sudo_ids(), crate::sinks::tree::ProcessDirs::default())?,
        Box::new(notices),
    ];
    let mut watcher = progress::watcher().unwrap_or_else(|| Box::new(|_| {}));
    let total = fs::metadata(capture).map_or(0, |file| file.len());
    let mut tell = |done| watcher(Progress { stage: Stage::Reading, done, total });
    let report = pipeline::replay(capture, config, sinks, analyses, &mut tell);
    // The report comes next, and may go to the same terminal.
    progress::clear();
    let report = report.with_context(|| format!("cannot replay `{}`", capture.display()))?;
    tell_ending(collect.level_of_messages(), &report);
    let failures: Vec<String> = report.outcome.errors.iter().map(|error| error_chain(error)).collect();
    if !failures.is_empty() {
        bail!(failures.join("; "));
    }
    outputs::print_report(collect, &report.outcome, &selected).context("cannot print the report")
}

/// Says how a capture ends, if not as it should.
pub(super) fn tell_ending(wanted: LogLevel, report: &ReplayReport) {
    if let Some(text) = report.ending_text() {
        message(wanted, LogLevel::Warning, format_args!("{text}"));
    }
}
