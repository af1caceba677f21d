//! `stat`: how memory is used, sample by sample, while programs run.

mod screen;

use std::{process::ExitCode, sync::Mutex};

pub(super) use self::screen::Screen;
use self::screen::Style;
use super::{
    args::StatArgs,
    trace::{self, Console},
};
use crate::session::{HolderOptions, Looks, Samples, TraceOptions, Traced};

/// Samples until the processes end, the user stops it, or the number is reached.
pub(super) fn run(args: &StatArgs) -> ExitCode {
    let StatArgs { samples, csv } = args;
    let trace = samples.trace(true);
    let style = match (*csv, samples.json) {
        (true, _) => Style::Csv,
        (_, true) => Style::Json,
        _ => Style::Text,
    };
    let options = match trace.options(Traced::Processes(samples.processes.all())) {
        Ok(options) => options,
        Err(failure) => return trace::failed(&failure),
    };
    let samples = Some(Samples { interval: samples.interval, count: samples.count });
    let (mut console, moments) = Console::new(&trace);
    console.screen = Some(Mutex::new(Screen::new(style)));
    // Samples have figures of no block.
    let holders = HolderOptions { looks: Looks::Never, ..options.holders };
    trace::attach_with(TraceOptions { samples, holders, ..options }, console, moments)
}
