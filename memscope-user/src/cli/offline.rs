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
    error, failures, message, messages, page, progress, report,
    runs::{self, captures, one_capture},
    terminal,
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
    sinks::{StackCells, tree::ProcessDirs},
};

/// Message of a replay that cannot write the requested launches.
const NO_LAUNCHES: &str = "the capture holds no kernel launches: give --level=kernel to the trace that makes it, too";

/// `replay [CAPTURE]`.
pub(super) fn replay(args: &ReplayArgs) -> ExitCode {
    let given = args.capture.clone().unwrap_or_else(|| PathBuf::from("."));
    finish(&args.collect, || match one_capture(&[given])?.as_slice() {
        [capture] if !capture.is_dir() => replay_one(capture, &args.collect),
        others => bail!(no_capture(&others[0])),
    })
}

fn no_capture(folder: &Path) -> String {
    format!("no capture (*.capture) in `{}`; was the trace made with --no-capture?", folder.display())
}

/// `recover [DIR]`.
pub(super) fn recover(args: &RecoverArgs) -> ExitCode {
    let given = args.directory.clone().unwrap_or_else(|| PathBuf::from("."));
    let is_file = given.is_file();
    let directory = if is_file { given.parent().unwrap_or(Path::new("")).to_owned() } else { given.clone() };
    let mut collect = args.collect.clone();
    collect.output_path.get_or_insert_with(|| directory.join("recovered"));
    finish(&collect, || {
        let captures = if is_file { vec![given] } else { captures(&directory)? };
        if captures.is_empty() {
            bail!(no_capture(&directory));
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

fn replay_one(capture: &Path, collect: &CollectArgs) -> Result<bool> {
    let total = fs::metadata(capture).map_or(0, |file| file.len());
    let reader = Reader::open(capture).with_context(|| format!("cannot replay `{}`", capture.display()))?;
    outputs_of(reader, (capture, runs::folder_of_replay()), total, collect)
}

/// The outputs of a capture in this program; `name` is for messages.
pub(super) fn replay_bytes(capture: &[u8], name: &str, collect: &CollectArgs) -> ExitCode {
    finish(collect, || {
        let reader = Reader::new(capture, Path::new(name)).with_context(|| format!("cannot replay {name}"))?;
        outputs_of(reader, (Path::new(name), runs::folder_for("demo")), capture.len() as u64, collect)
    })
}

/// `folder` is for the outputs, if no other is given.
fn outputs_of<R: Read>(
    reader: Reader<R>,
    (capture, folder): (&Path, PathBuf),
    total: u64,
    collect: &CollectArgs,
) -> Result<bool> {
    // That of the demo is in this program.
    let file = capture.is_file().then_some(capture);
    let (options, mut output) = (collect.options(), collect.output_or(folder)?);
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
    let tree = outputs::open_tree(&output)?;
    tree.path().clone_into(&mut output.directory);
    let settings = outputs::config(&options, &output, CallStacks::default(), false);
    let dump = outputs::dump(&output, settings, &tree, ProcessDirs::default(), Files::default(), speaker);
    let audience = Audience { sinks: vec![dump], readers: vec![Box::new(notices)], ..Audience::of(analyses) };
    let mut watcher = progress::watcher().unwrap_or_else(|| Box::new(|_| {}));
    let mut report = |done| watcher(Progress { stage: Stage::Reading, done, total });
    let replayed = pipeline::replay_from(reader, config, audience, &mut report);
    // The report comes next, and may go to the same terminal.
    terminal::clear_status();
    // A file that is no capture leaves no output.
    let replayed = replayed.inspect_err(|_| tree.discard());
    let mut replayed = replayed.with_context(|| format!("cannot replay `{}`", capture.display()))?;
    replayed.outcome.end.nothing_selected = selected.selected_none();
    report_ending(collect.level_of_messages(), &replayed);
    if !replayed.has_launches && outputs::filter(&options).launch {
        message(collect.level_of_messages(), LogLevel::Warning, format_args!("{NO_LAUNCHES}"));
    }
    let failures: Vec<String> = replayed.outcome.errors.iter().map(|error| error_chain(error)).collect();
    if !failures.is_empty() {
        bail!(failures.join("; "));
    }
    let end = &replayed.outcome.end;
    let findings = failures::found(collect, (&replayed.outcome.findings, end), file);
    report::print(collect, (&findings, end), file).context("cannot print the report")?;
    page::of_capture(&collect.html, capture, collect.decompose_rules.as_deref(), &collect.select)?;
    Ok(report::is_failed(&collect.fail_on, &findings, end))
}

/// Reports the way a capture ends, if unexpected.
pub(super) fn report_ending(wanted: LogLevel, report: &ReplayReport) {
    if let Some(text) = report.ending_text() {
        message(wanted, LogLevel::Warning, format_args!("{text}"));
    }
}
