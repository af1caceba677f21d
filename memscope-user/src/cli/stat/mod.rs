//! `stat`: how memory is used, sample by sample, while programs run.

#[path = "../../session/history.rs"]
mod history;
#[path = "../../session/monitor.rs"]
mod monitor;
mod screen;

use std::process::ExitCode;

pub(super) use self::monitor::Monitor;
use self::screen::{Screen, Style};
use super::{
    args::{LogLevel, StatArgs, TraceArgs},
    disk::Files,
    notices::Notices,
    outputs::Selecting,
    session::{self, Plan},
};
use crate::{
    analyses::{DeviceUseAnalysis, FragmentationAnalysis, HeldAnalysis},
    pipeline::DumpFilter,
    usage::Trigger,
};

/// Samples until the processes end, somebody asks to stop, or there are enough.
pub(super) fn run(args: &StatArgs) -> ExitCode {
    let trace = trace_args(args);
    let style = match (args.csv, args.json) {
        (true, _) => Style::Csv,
        (_, true) => Style::Json,
        _ => Style::Text,
    };
    session::attach_with(&args.pid, &trace, || {
        Ok(Plan {
            sinks: vec![Box::new(Notices::new(trace.collect.level_of_messages()))],
            analyses: vec![
                Box::new(HeldAnalysis::default()),
                Box::new(FragmentationAnalysis::default()),
                Box::new(DeviceUseAnalysis::default()),
            ],
            dump: DumpFilter::default(),
            owners: None,
            demand: None,
            tree: None,
            capture: false,
            // Nothing pulls it, so the driver is asked for all devices, also for those on which nothing happens.
            trigger: Trigger::default(),
            selected: Selecting::ALL,
            monitor: Some(Monitor::new(args.interval, args.count, Screen::new(style))),
            dirs: crate::sinks::tree::ProcessDirs::default(),
            files: Files::default(),
        })
    })
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
        no_progress: true,
        ..TraceArgs::default()
    };
    trace.collect.log_level = args.quiet.then_some(LogLevel::Error);
    trace
}
