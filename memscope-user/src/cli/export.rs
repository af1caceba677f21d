//! `export`: call stacks for other tools.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use memchr::memchr_iter;

use super::{
    USAGE,
    args::{ExportArgs, ExportStack, LogLevel, WeightBy, What},
    error, input, message,
    offline::captures,
    progress, terminal,
};
use crate::{
    analyses::{ByStackAnalysis, Finding, by_stack::ByStack},
    input::Options,
    os::caller::Caller,
    pipeline::PipelineConfig,
    sinks::{
        folded::{self, Weight, Which},
        folder::FilePlace,
    },
};

/// `export FILE…`.
pub(super) fn run(args: &ExportArgs) -> ExitCode {
    if let Some(reason) = args.output.as_deref().and_then(wrong_extension) {
        error(reason);
        return ExitCode::from(USAGE);
    }
    input::exit(|| export(args))
}

/// A file that another program would take for something else, and fail.
fn wrong_extension(path: &Path) -> Option<String> {
    const FOREIGN: [&str; 25] = [
        "html",
        "htm",
        "svg",
        "png",
        "pdf",
        "json",
        "jsonl",
        "csv",
        "tsv",
        "xlsx",
        "db",
        "sqlite",
        "pb",
        "pprof",
        "prof",
        "gz",
        "zip",
        "zst",
        "pickle",
        "pkl",
        "bin",
        "speedscope",
        "perfetto-trace",
        "pftrace",
        "capture",
    ];
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    FOREIGN.contains(&extension.as_str()).then(|| {
        format!(
            "`{}`: export writes folded stacks, which are no .{extension} file; name it {}, for flamegraph.pl, inferno or \
             speedscope",
            path.display(),
            path.with_extension("folded").display()
        )
    })
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
        return terminal::print(|out| out.write_all(&text)).context("cannot write to stdout");
    };
    let lines = memchr_iter(b'\n', &text).count();
    let owner = Caller::owner()?;
    let write = || FilePlace::reach(path, owner)?.overwrite()?.write_all(&text);
    progress::during("writing", write).with_context(|| format!("cannot write `{}`", path.display()))?;
    let written = format_args!("{lines} stack(s), folded, one a line, written to {}", path.display());
    message(LogLevel::Info, LogLevel::Info, written);
    Ok(())
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
