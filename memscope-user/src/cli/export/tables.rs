//! `export --format parquet`: tables of a run, in a folder.

use std::{fs::File, io, path::Path, sync::Arc};

use anyhow::{Context as _, Result, bail};

use super::super::{
    args::{ExportArgs, ExportStack, LogLevel},
    input, message,
};
use crate::{
    analyses::decompose::RuleSet,
    explain,
    input::Options,
    os::caller::Caller,
    pipeline::PipelineConfig,
    report::export::parquet::{self, Files, NAMES, Written},
    sinks::folder::FilePlace,
};

pub(super) fn write(args: &ExportArgs) -> Result<()> {
    let Some(folder) = &args.output else { bail!("Parquet is several files: give a folder with -o") };
    let rules = Arc::new(RuleSet::builtin());
    let about = about(args);
    let cannot = || format!("cannot write into `{}`", folder.display());
    let [events, blocks, python, native, findings] = files(folder).with_context(cannot)?;
    let files = Files { events, blocks, python, native };
    let (observer, written) = parquet::observer(files, Arc::clone(&rules), &about).with_context(cannot)?;
    let pipeline = PipelineConfig { mixed_stacks: args.stack == ExportStack::Mixed, ..PipelineConfig::default() };
    let selection = args.select.selection(Some(&rules));
    let options = Options { pipeline, selection, observers: vec![observer], ..Options::default() };
    let outcome = input::read_with(&args.files, options, explain::analyses(&rules))?;
    let Written { events, blocks } = written.recv().context("the tables were not finished")?.with_context(cannot)?;
    parquet::write_findings(findings, &outcome.findings, &about).with_context(cannot)?;
    let what = format_args!("{events} events, {blocks} blocks written to {}", folder.display());
    message(LogLevel::Info, LogLevel::Info, what);
    Ok(())
}

/// Kept in each file.
fn about(args: &ExportArgs) -> Vec<(String, String)> {
    let part = args.select.text().map(|part| ("part", part));
    let about = [("program", format!("memscope-bpf {}", env!("CARGO_PKG_VERSION")))].into_iter().chain(part);
    about.map(|(key, value)| (format!("memscope.{key}"), value)).collect()
}

fn files(folder: &Path) -> Result<[File; 5]> {
    let owner = Caller::owner()?;
    let first = FilePlace::reach(&folder.join(NAMES[0]), owner)?;
    let open = |name: &str| -> io::Result<File> { first.sibling(name)?.overwrite() };
    let [events, blocks, python, native, findings] = NAMES.map(open);
    Ok([events?, blocks?, python?, native?, findings?])
}
