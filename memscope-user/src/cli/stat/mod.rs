//! `stat`: how memory is used, sample by sample, while programs run.

mod screen;

use std::{process::ExitCode, sync::Mutex};

pub(super) use self::screen::Screen;
use self::screen::Style;
use super::{
    args::{LogLevel, StatArgs, TraceArgs},
    trace::{self, Console},
};
use crate::session::{Samples, TraceOptions, Traced};

/// Samples until the processes end, the user stops it, or the number is reached.
pub(super) fn run(args: &StatArgs) -> ExitCode {
    let trace = trace_args(args);
    let style = match (args.csv, args.json) {
        (true, _) => Style::Csv,
        (_, true) => Style::Json,
        _ => Style::Text,
    };
    let options = match trace.options(Traced::Processes(args.processes.all())) {
        Ok(options) => options,
        Err(failure) => return trace::failed(&failure),
    };
    let samples = Some(Samples { interval: args.interval, count: args.count });
    let (mut console, moments) = Console::new(&trace);
    console.screen = Some(Mutex::new(Screen::new(style)));
    trace::attach_with(TraceOptions { samples, ..options }, console, moments)
}

/// A trace that counts and keeps nothing.
fn trace_args(args: &StatArgs) -> TraceArgs {
    let mut trace = TraceArgs {
        probes: args.probes.clone(),
        no_children: args.no_children,
        usage_interval: args.interval,
        usage_rate: 0,
        usage_library: args.usage_library.clone(),
        no_capture: true,
        no_stacks: true,
        no_progress: true,
        ..TraceArgs::default()
    };
    trace.collect.log_level = args.quiet.then_some(LogLevel::Error);
    trace
}
