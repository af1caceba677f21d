//! Requests that failed in a run that was not asked why: what its capture has of them.

use std::{borrow::Cow, fs, path::Path};

use super::{
    args::{CollectArgs, LogLevel, ReportKind},
    message, progress,
};
use crate::{
    analyses::{Finding, of_failures},
    error_chain,
    input::{self, InputError, Options},
    model::{Kept, RunEnd},
    overview::Overview,
    pipeline::PipelineConfig,
};

/// A larger capture takes longer than one waits for a first screen: some ten seconds.
const MAX_BYTES: u64 = 128 << 20;

/// Findings with those about failed requests, where the first screen or `--fail-on` would have to say that they were not looked at.
pub(super) fn found<'a>(
    args: &CollectArgs,
    (findings, end): (&'a [Finding], &RunEnd),
    capture: Option<&Path>,
) -> Cow<'a, [Finding]> {
    let has_screen = !args.json && args.report() != ReportKind::Details;
    let is_wanted = has_screen || !args.fail_on.is_empty();
    let is_small = |capture: &&Path| fs::metadata(capture).is_ok_and(|file| file.len() <= MAX_BYTES);
    let Some(capture) =
        capture.filter(is_small).filter(|_| is_wanted && Overview::new(findings, end).has_unread_failures())
    else {
        return Cow::Borrowed(findings);
    };
    match read(args, capture) {
        Ok(failures) => findings.iter().cloned().chain(failures).collect(),
        Err(failure) => {
            let text = format_args!("failed requests were not looked at: {}", error_chain(&failure));
            message(args.level_of_messages(), LogLevel::Warning, text);
            Cow::Borrowed(findings)
        }
    }
}

fn read(args: &CollectArgs, capture: &Path) -> Result<Vec<Finding>, InputError> {
    // They are shown beside findings of before.
    let pipeline = PipelineConfig { kept: Some(Kept::process()), ..PipelineConfig::default() };
    let (selection, watcher) = (args.select.selection(None), progress::watcher());
    let options = Options { pipeline, selection, watcher, ..Options::default() };
    Ok(input::run_with(&[capture.to_owned()], options, of_failures())?.findings)
}
