//! `replay` and `recover`: the outputs of a capture, again or for the first time.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};

use super::{
    FAILURE, FOUND, USAGE,
    args::{CollectArgs, LogLevel, RecoverArgs, ReplayArgs},
    error, message, messages, page, progress, report, terminal,
};
use crate::{
    capture::Reader,
    error_chain,
    input::{Progress, Stage},
    pipeline::{self, Audience, PipelineConfig, ReplayReport},
    session::{
        CallStacks, Files, Notices,
        outputs::{self, Chosen},
    },
    sinks::{
        StackCells,
        tree::{OutputTree, ProcessDirs},
    },
};

const EXTENSION: &str = "capture";

/// Message of a replay that cannot write the requested launches.
const NO_LAUNCHES: &str = "the capture holds no kernel launches: give --level=kernel to the trace that makes it, too";

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
        let mut found = false;
        for capture in captures {
            message(
                collect.level_of_messages(),
                LogLevel::Info,
                format_args!("recovering {} into {}", capture.display(), collect.output_path().display()),
            );
            found |= replay_one(&capture, &collect)?;
        }
        Ok(found)
    })
}

/// `work` gives whether what `--fail-on` names was found.
fn finish(collect: &CollectArgs, work: impl FnOnce() -> Result<bool>) -> ExitCode {
    if let Err(reason) = collect.options().check() {
        error(reason);
        return ExitCode::from(USAGE);
    }
    match work() {
        Ok(true) => ExitCode::from(FOUND),
        Ok(false) => ExitCode::SUCCESS,
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

/// The output folder of a trace stands for its capture, if it has one alone; else for its dumps.
pub(super) fn one_capture(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let [folder] = given else { return Ok(given.to_vec()) };
    if !folder.is_dir() {
        return Ok(given.to_vec());
    }
    match captures(folder)?.as_slice() {
        [capture] => Ok(vec![capture.clone()]),
        [] => Ok(given.to_vec()),
        several => {
            bail!("`{}` has {} captures, each of a run of its own: give one of them", folder.display(), several.len())
        }
    }
}

fn replay_one(capture: &Path, collect: &CollectArgs) -> Result<bool> {
    let total = fs::metadata(capture).map_or(0, |file| file.len());
    let reader = Reader::open(capture).with_context(|| format!("cannot replay `{}`", capture.display()))?;
    outputs_of(reader, capture, total, collect)
}

/// The outputs of a capture in this program; `name` is for messages.
pub(super) fn replay_bytes(capture: &[u8], name: &str, collect: &CollectArgs) -> ExitCode {
    finish(collect, || {
        let reader = Reader::new(capture, Path::new(name)).with_context(|| format!("cannot replay {name}"))?;
        outputs_of(reader, Path::new(name), capture.len() as u64, collect)
    })
}

fn outputs_of<R: Read>(reader: Reader<R>, capture: &Path, total: u64, collect: &CollectArgs) -> Result<bool> {
    // That of the demo is in this program.
    let file = capture.is_file().then_some(capture);
    let (options, mut output) = (collect.options(), collect.output()?);
    let collected = reader.header().collected.as_ref();
    if collect.stacks.is_none() && collected.is_some_and(|collected| collected.automatic_stacks) {
        output.stacks = StackCells::Absent;
    }
    let rules = outputs::rules(&options).map_err(anyhow::Error::msg)?;
    let Chosen { analyses, selected } = outputs::analyses(&options, rules.as_ref());
    let owners = outputs::owners(&options, rules.as_ref());
    let config = PipelineConfig {
        dump: outputs::filter(&options),
        owners,
        rows_of_options: Some(outputs::row_bits(&options, true)),
        demand: Some(outputs::demand(&options, rules.as_ref())),
        ..PipelineConfig::default()
    };
    let speaker = messages::speaker(collect.level_of_messages());
    let notices = Notices::new(speaker.clone());
    let settings = outputs::config(&options, &output, CallStacks::default(), false);
    let tree = OutputTree::open(&output.directory, output.owner)?;
    let dump = outputs::dump(&output, settings, &tree, ProcessDirs::default(), Files::default(), speaker);
    let audience = Audience { sinks: vec![dump], readers: vec![Box::new(notices)], ..Audience::of(analyses) };
    let mut watcher = progress::watcher().unwrap_or_else(|| Box::new(|_| {}));
    let mut report = |done| watcher(Progress { stage: Stage::Reading, done, total });
    let replayed = pipeline::replay_from(reader, config, audience, &mut report);
    // The report comes next, and may go to the same terminal.
    terminal::clear_status();
    // A file that is no capture leaves no output.
    let replayed = replayed.inspect_err(|_| tree.discard());
    let replayed = replayed.with_context(|| format!("cannot replay `{}`", capture.display()))?;
    report_ending(collect.level_of_messages(), &replayed);
    if !replayed.has_launches && outputs::filter(&options).launch {
        message(collect.level_of_messages(), LogLevel::Warning, format_args!("{NO_LAUNCHES}"));
    }
    let failures: Vec<String> = replayed.outcome.errors.iter().map(|error| error_chain(error)).collect();
    if !failures.is_empty() {
        bail!(failures.join("; "));
    }
    report::print(collect, &replayed.outcome, selected.selected_none(), file).context("cannot print the report")?;
    page::of_capture(&collect.html, capture, collect.decompose_rules.as_deref(), &collect.select)?;
    Ok(report::is_failed(&collect.fail_on, &replayed.outcome.findings, &replayed.outcome.end))
}

/// Reports the way a capture ends, if unexpected.
pub(super) fn report_ending(wanted: LogLevel, report: &ReplayReport) {
    if let Some(text) = report.ending_text() {
        message(wanted, LogLevel::Warning, format_args!("{text}"));
    }
}
