//! One file per command, plus what they share.

mod args;
mod by_owner;
mod compare;
mod daemon;
mod decompose;
mod demo;
mod diff;
mod doctor;
mod export;
mod heap;
mod inefficient;
mod input;
mod leaks;
mod manual;
mod notices;
mod offline;
mod operators;
mod outputs;
mod progress;
mod select;
mod session;
mod signals;
mod stacks;
mod stat;
mod stdout;
mod values;
mod writer;

use std::{
    ffi::OsString,
    fmt,
    process::ExitCode,
    sync::{Mutex, OnceLock, PoisonError},
};

use clap::Parser as _;

use self::args::{Cli, Command, LogLevel, RunArgs};
use crate::{
    sinks::log::{Level, LogFile},
    usage,
};

/// Exit status of a failure.
const FAILURE: u8 = 1;
/// Exit status of wrong usage.
const USAGE: u8 = 2;
/// Exit status of `run` when tracing failed: not to be taken for the program's.
const RUN_FAILURE: u8 = 125;

/// Runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    deprecations(&arguments);
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    match cli.command {
        Some(Command::Run(run)) => session::run(&run),
        Some(Command::Attach(attach)) => session::attach(&attach.pid, &attach.trace),
        Some(Command::Replay(replay)) => offline::replay(&replay),
        Some(Command::Recover(recover)) => offline::recover(&recover),
        Some(Command::Compare(args)) => compare::run(&args),
        Some(Command::Diff(args)) => diff::run(&args),
        Some(Command::Inefficient(args)) => inefficient::run(&args),
        Some(Command::Decompose(args)) => decompose::run(&args),
        Some(Command::Leaks(leaks)) => leaks::run(&leaks),
        Some(Command::Peaks(args)) => by_owner::peaks(&args),
        Some(Command::Fragmentation(args)) => by_owner::fragmentation(&args),
        Some(Command::Stat(args)) => stat::run(&args),
        Some(Command::Export(export)) => export::run(&export),
        Some(Command::Daemon(args)) => daemon::run(&args),
        Some(Command::DaemonTracer(args)) => daemon::trace(args),
        Some(Command::Doctor(doctor)) => doctor::run(&doctor),
        Some(Command::Demo(demo)) => demo::run(&demo),
        Some(Command::Completions(args)) => manual::completions(&args),
        Some(Command::Manual(args)) => manual::pages(&args),
        Some(Command::UsageHelper(helper)) => usage::helper::serve(helper.library.as_deref()),
        None if cli.compare || cli.input_path.is_some() => match cli.input_path {
            Some(paths) if cli.compare && cli.program.is_empty() && cli.pid.is_empty() => {
                let collect = &cli.trace.collect;
                compare::run_option(&paths, collect.level, collect.output_path(), collect.json)
            }
            Some(_) if cli.compare => usage("--compare traces nothing: leave the program or --pid out"),
            _ => usage("--compare and --input-path=A,B must be used together"),
        },
        None if !cli.pid.is_empty() && !cli.program.is_empty() => {
            usage("--pid attaches to a running process: a program cannot be given as well")
        }
        None if !cli.pid.is_empty() => session::attach(&cli.pid, &cli.trace),
        None if !cli.program.is_empty() => {
            session::run(&RunArgs { trace: cli.trace, user: None, mstx_injection: false, program: cli.program })
        }
        None => usage("what to trace? `memscope-bpf run -- PROG`, or `memscope-bpf --pid PID`; see --help"),
    }
}

/// msMemScope's old spellings, each answered with its own line (contract §1.2).
fn deprecations(arguments: &[OsString]) {
    const PAIRS: [(&str, &str); 6] = [
        ("--input", "--input-path"),
        ("--output", "--output-path"),
        ("--data-format", "--format"),
        ("--level=0", "--level=op"),
        ("--level=1", "--level=kernel"),
        ("--log-level=warn", "--log-level=warning"),
    ];
    let own = arguments.iter().skip(1).take_while(|argument| *argument != "--");
    for argument in own.filter_map(|argument| argument.to_str()) {
        for (old, new) in PAIRS {
            let spelt = argument == old
                || (!old.contains('=') && argument.strip_prefix(old).is_some_and(|rest| rest.starts_with('=')));
            if spelt {
                eprintln!("[msmemscope] Deprecation: '{old}' is deprecated, use '{new}' instead.");
            }
        }
    }
}

/// The log in the output directory, once there is one.
static LOG: OnceLock<Mutex<LogFile>> = OnceLock::new();

/// Says something to the user, if its level is wanted, and to the log.
fn message(wanted: LogLevel, level: LogLevel, text: fmt::Arguments<'_>) {
    let (name, log_level) = match level {
        LogLevel::Debug => ("Debug", Level::Debug),
        LogLevel::Info => ("Info", Level::Info),
        LogLevel::Warning => ("Warning", Level::Warn),
        LogLevel::Error => ("Error", Level::Error),
    };
    if level >= wanted {
        progress::clear();
        eprintln!("[memscope-bpf] {name}: {text}");
    }
    if let Some(log) = LOG.get() {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written is no reason to disturb the trace: the user has the message.
        let _ = log.line(log_level, file!(), line!(), &text.to_string());
    }
}

fn error(text: impl fmt::Display) {
    message(LogLevel::Error, LogLevel::Error, format_args!("{text}"));
}

fn usage(text: impl fmt::Display) -> ExitCode {
    error(text);
    ExitCode::from(USAGE)
}
