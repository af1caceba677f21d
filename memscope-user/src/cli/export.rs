//! `export`: call stacks for other tools.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};

use super::{
    args::{ExportArgs, ExportStack, WeightBy, What},
    input,
    offline::captures,
    progress, stdout,
};
use crate::{
    analyses::ByStackAnalysis,
    input::Options,
    model::{ByStack, Finding},
    pipeline::PipelineConfig,
    sinks::folded::{self, Weight, Which},
};

/// `export FILE…`.
pub(super) fn run(args: &ExportArgs) -> ExitCode {
    input::exit(|| export(args))
}

fn export(args: &ExportArgs) -> Result<()> {
    let files = files(&args.files)?;
    let config = PipelineConfig { mixed_stacks: args.stack == ExportStack::Mixed, ..PipelineConfig::default() };
    let options = Options { pipeline: config, selection: args.select.selection(None), ..Options::default() };
    let outcome = input::read_with(&files, options, vec![Box::new(ByStackAnalysis::new(usize::MAX))])?;
    let found: Vec<&ByStack> = outcome
        .findings
        .iter()
        .filter_map(|finding| if let Finding::ByStack(found) = finding { Some(found) } else { None })
        .collect();
    if found.is_empty() {
        if outcome.nothing_selected {
            bail!("there is nothing to export");
        }
        bail!("there are no call stacks of allocations in it: trace with --call-stack=c,python");
    }
    let weight = Weight { bytes: args.weight == WeightBy::Bytes, live: args.what == What::Live };
    let which = match args.stack {
        ExportStack::Auto => Which::Best,
        ExportStack::C => Which::Native,
        ExportStack::Python => Which::Python,
        ExportStack::Mixed => Which::Mixed,
    };
    let mut text = Vec::new();
    progress::during("putting the lines together", || folded::write(&found, which, weight, &mut text))
        .context("cannot put the lines together")?;
    let Some(path) = &args.output else {
        return stdout::print(|out| out.write_all(&text)).context("cannot write to stdout");
    };
    progress::during("writing", || fs::write(path, text)).with_context(|| format!("cannot write `{}`", path.display()))
}

/// The output folder of a trace stands for its capture, if it has one alone; else for its dumps.
fn files(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
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
