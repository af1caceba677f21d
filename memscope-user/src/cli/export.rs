//! `export`: call stacks and tables for other tools.

#[cfg(feature = "parquet")]
mod tables;

use std::{fmt, io::Write as _, path::Path, process::ExitCode, sync::Arc};

use anyhow::{Context as _, Result, bail};
use memchr::memchr_iter;

use super::{
    USAGE,
    args::{ExportArgs, ExportAt, ExportFormat, ExportStack, LogLevel, WeightBy, What},
    error, input, message, progress, terminal,
};
use crate::{
    analyses::{ByStackAnalysis, Judged, Kind as _, by_stack::ByStack, decompose::RuleSet},
    input::Options,
    model::Pool,
    os::caller::Caller,
    pipeline::PipelineConfig,
    report::{self, Reducer, export::At},
    sinks::{
        folded::{self, Weight, Which},
        folder::FilePlace,
    },
    text::numbers::rounded,
};

/// `export FILE…`.
pub(super) fn run(args: &ExportArgs) -> ExitCode {
    if args.format == ExportFormat::Folded
        && let Some(reason) = args.output.as_deref().and_then(wrong_extension)
    {
        error(reason);
        return ExitCode::from(USAGE);
    }
    input::exit(|| match args.format {
        ExportFormat::Folded => export(args),
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet => tables::write(args),
        _ => profile(args),
    })
}

/// Profiles that other viewers read.
fn profile(args: &ExportArgs) -> Result<()> {
    if args.format != ExportFormat::Speedscope && args.output.is_none() {
        bail!("it is no text for stdout: give a file with -o");
    }
    let rules = Arc::new(RuleSet::builtin());
    let (reducer, made) = Reducer::naming(Arc::clone(&rules));
    let pipeline = PipelineConfig { mixed_stacks: args.stack == ExportStack::Mixed, ..PipelineConfig::default() };
    let selection = args.select.selection(Some(&rules));
    let options = Options { pipeline, selection, observers: vec![reducer], ..Options::default() };
    input::read_with(&args.files, options, Vec::new())?;
    let run = made.try_recv().unwrap_or_default();
    if run.views.is_empty() {
        bail!("there is nothing to export");
    }
    let at = match args.at {
        Some(ExportAt::Oom) => At::OutOfMemory,
        Some(ExportAt::End) => At::End,
        None if args.format == ExportFormat::Snapshot && At::OutOfMemory.is_in(&run) => At::OutOfMemory,
        None if args.format == ExportFormat::Snapshot => At::End,
        Some(ExportAt::Peak) | None => At::Peak,
    };
    if !at.is_in(&run) {
        bail!("no request failed for want of memory: --at peak and --at end are there");
    }
    let bytes = match args.format {
        ExportFormat::Pprof => report::export::pprof::write(&run, at, args.select.text().as_deref()),
        ExportFormat::Snapshot => report::export::snapshot::write(&run, at)?,
        ExportFormat::Perfetto => report::export::perfetto::write(&run),
        _ => {
            let mut out = Vec::new();
            report::export::speedscope::write(&run, &mut out)?;
            out
        }
    };
    save(&bytes, args.output.as_deref(), format_args!("{}", rounded(bytes.len() as u128)))?;
    if args.format == ExportFormat::Perfetto {
        // Each layer has its own tracks: nothing is added up.
        return Ok(());
    }
    let left_out: Vec<&str> = report::export::left_out(&run).into_iter().map(Pool::event_type).collect();
    if let [first, ..] = left_out[..] {
        let text = format_args!("not in it, as each byte counts once: {}; --filter layer={first}", left_out.join(", "));
        message(LogLevel::Info, LogLevel::Info, text);
    }
    Ok(())
}

/// Writes to the file, or to stdout.
fn save(bytes: &[u8], path: Option<&Path>, what: fmt::Arguments<'_>) -> Result<()> {
    let Some(path) = path else {
        let json = bytes.first() == Some(&b'{');
        let written = if json {
            terminal::print_json(|out| out.write_all(bytes))
        } else {
            terminal::print(|out| out.write_all(bytes))
        };
        return written.context("cannot write to stdout");
    };
    let owner = Caller::owner()?;
    let write = || FilePlace::reach(path, owner)?.overwrite()?.write_all(bytes);
    progress::during("writing", write).with_context(|| format!("cannot write `{}`", path.display()))?;
    message(LogLevel::Info, LogLevel::Info, format_args!("{what} written to {}", path.display()));
    Ok(())
}

/// An extension that another program would take for another format, and fail.
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
    let config = PipelineConfig { mixed_stacks: args.stack == ExportStack::Mixed, ..PipelineConfig::default() };
    let options = Options { pipeline: config, selection: args.select.selection(None), ..Options::default() };
    // Each byte once: without segments of pools.
    let by_stack = Judged::leaks(vec![Box::new(ByStackAnalysis::new(usize::MAX))]);
    let outcome = input::read_with(&args.files, options, vec![Box::new(by_stack)])?;
    let found: Vec<&ByStack> = outcome.findings.iter().filter_map(ByStack::of).collect();
    if found.is_empty() {
        if outcome.end.nothing_selected {
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
    progress::during("putting the lines together", || folded::write(&found, (which, args.lines), weight, &mut text))
        .context("cannot put the lines together")?;
    let lines = memchr_iter(b'\n', &text).count();
    save(&text, args.output.as_deref(), format_args!("{lines} stack(s), folded, one a line,"))
}
