//! Block watch in a live trace: what the options mean for it, and what it says.

use std::io;

use anyhow::{Context as _, Result};

use crate::{
    cli::{
        args::{LogLevel, TraceArgs},
        message, terminal,
    },
    crew::Crew,
    follow::libraries::Libraries,
    kernel::Kernel,
    probes::{
        ProbeSpec,
        watch::{WatchLevels, flags, rows},
    },
    sinks::{
        tree::{OutputTree, ProcessDirs},
        watch::WatchFiles,
    },
    watch::live::{Tap, Watch, WatchOptions},
};

/// What cannot be watched is refused.
pub(super) fn check(args: &TraceArgs) -> Result<(), String> {
    if args.watch.is_none() {
        return Ok(());
    }
    let level = &args.collect.level;
    if level.op || level.kernel { Ok(()) } else { Err("--watch needs --level=op, kernel or both".to_owned()) }
}

/// At which operators blocks are looked at.
pub(super) fn levels(args: &TraceArgs) -> Option<WatchLevels> {
    let level = &args.collect.level;
    args.watch.as_ref().map(|_| WatchLevels { op: level.op, kernel: level.kernel })
}

/// The user's rows, and those of block watch.
pub(super) fn with_rows(args: &TraceArgs, user: &[&'static ProbeSpec]) -> Vec<&'static ProbeSpec> {
    let own = if args.watch.is_some() { rows() } else { Vec::new() };
    user.iter().copied().chain(own).collect()
}

/// Starts it, if blocks are to be watched.
pub(super) fn start(
    args: &TraceArgs,
    kernel: &mut Kernel,
    libraries: &Libraries,
    tree: Option<OutputTree>,
    dirs: ProcessDirs,
    crew: &Crew,
) -> Result<Option<(Watch, Tap)>> {
    let (Some(spec), Some(levels), Some(tree)) = (args.watch.clone(), levels(args), tree) else { return Ok(None) };
    let level = args.collect.level_of_messages();
    let outputs = move |pid| {
        let dir = dirs.of(&tree, pid)?;
        Ok(WatchFiles::new(tree.clone(), dir))
    };
    let tell = move |warns, text: &str| {
        message(level, if warns { LogLevel::Warning } else { LogLevel::Info }, format_args!("{text}"));
    };
    let rows = libraries.rows().iter().map(|(number, spec)| (*number, *spec, flags(spec, levels))).collect();
    let maps = kernel.watch_maps(&spec.start)?;
    let options = WatchOptions { spec, rows, outputs: Box::new(outputs), tell: Box::new(tell) };
    let started = Watch::start(options, Box::new(move || maps.try_clone()), crew);
    started.context("cannot start block watch").map(Some)
}

/// Prints what was found, behind the report.
pub(super) fn print(args: &TraceArgs, text: &str) -> io::Result<()> {
    const TITLE: &str =
        "\nBlock watch (it changes when things happen: what depends on timing may look different without it)";
    // Machines read the report alone.
    if args.collect.json {
        terminal::say_lines(text.as_bytes());
        return Ok(());
    }
    terminal::print(|out| {
        writeln!(out, "{TITLE}")?;
        out.write_all(text.as_bytes())
    })
}
