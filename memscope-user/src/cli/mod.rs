//! One file per command, and common parts.

mod agent;
mod annotate;
mod args;
mod ask;
mod compare;
mod daemon;
mod decompose;
mod demo;
mod diff;
mod doctor;
mod explain;
mod export;
mod failures;
mod file_size;
mod fleet;
mod forecast;
mod heap;
mod help;
mod holders;
mod inefficient;
mod input;
mod leaks;
mod manual;
mod messages;
mod offline;
mod page;
mod progress;
mod ranks;
mod report;
mod runs;
mod select;
mod signals;
mod stat;
mod terminal;
mod top;
mod trace;
mod typed;
mod values;
mod whatif;

#[cfg(feature = "fuzzing")]
pub(crate) use select::condition;

use std::{ffi::OsString, process::ExitCode};

use self::{
    args::{Cli, CollectArgs, Command, LogLevel, RunArgs},
    messages::{error, message, usage},
    typed::Refusal,
};
use crate::follow::inherited;

/// Exit status of a failure.
const FAILURE: u8 = 1;
/// Exit status of wrong usage.
const USAGE: u8 = 2;
/// Exit status if what `--fail-on` names was found.
const FOUND: u8 = 3;
/// Exit status of `run` when tracing failed: distinct from the program's.
const RUN_FAILURE: u8 = 125;

/// Runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    inherited::notice_children();
    file_size::outlive_limit();
    messages::report_panics();
    // The hook has reported it.
    std::panic::catch_unwind(run_command_line).unwrap_or(ExitCode::from(FAILURE))
}

fn run_command_line() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    deprecations(&arguments);
    let mut cli = match typed::parse(&arguments) {
        Ok(cli) => cli,
        Err(Refusal::Text(text)) => return usage(text),
        Err(Refusal::Clap(error)) => {
            return messages::of_parser(error);
        }
    };
    if let Some(collect) = cli.collect() {
        warn_of_lists(collect);
    }
    match cli.command.take() {
        Some(command) => of_command(command),
        None => without_a_command(cli),
    }
}

fn of_command(command: Command) -> ExitCode {
    match command {
        Command::Run(run) => trace::run(&run),
        Command::Attach(attach) => trace::attach(&attach.processes.all(), &attach.trace),
        Command::Replay(args) => runs::on(args, |args| &mut args.capture, offline::replay),
        Command::Recover(args) => runs::on(args, |args| &mut args.directory, offline::recover),
        Command::Compare(args) => compare::run(&args),
        Command::Diff(args) => runs::on(args, |args| &mut args.base, diff::run),
        Command::Ranks(args) => runs::on(args, |args| &mut args.files, ranks::run),
        Command::Whatif(args) => runs::on(args, |args| &mut args.replayed.files, whatif::run),
        Command::Advise(args) => runs::on(args, |args| &mut args.replayed.files, whatif::run_advise),
        Command::Forecast(args) => forecast::run(args),
        Command::Inefficient(args) => runs::on(args, |args| &mut args.file, inefficient::run),
        Command::Decompose(args) if args.print_rules => decompose::run(&args),
        Command::Decompose(args) => runs::on(args, |args| &mut args.files, decompose::run),
        Command::Explain(args) => runs::on(args, |args| &mut args.files, explain::run),
        Command::Report(args) => runs::on(args, |args| &mut args.files, page::run),
        Command::Leaks(args) => runs::on(args, |args| &mut args.files, leaks::run),
        Command::Ask(args) => runs::on(args, |ask| &mut ask.args.files, ask::run),
        Command::Stat(args) => stat::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Export(args) => runs::on(args, |args| &mut args.files, export::run),
        Command::Holders(args) => holders::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Daemon(args) => daemon::run(&args),
        Command::DaemonTracer(args) => daemon::trace(args),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Demo(demo) => demo::run(&demo),
        Command::Completions(args) => manual::completions(&args),
        Command::Schema(args) => manual::schema(&args),
        Command::Manual(args) => manual::pages(&args),
        Command::UsageHelper(helper) => crate::usage::helper::serve(helper.library.as_deref()),
    }
}

/// A program or a process alone, and msMemScope's options that stand for commands.
fn without_a_command(cli: Cli) -> ExitCode {
    if cli.load_api_env || cli.unload_api_env {
        let text = format_args!("no environment is needed: `import msmemscope` works as it is; nothing was changed");
        message(LogLevel::Info, LogLevel::Info, text);
        return ExitCode::SUCCESS;
    }
    if cli.compare || cli.input_path.is_some() {
        return match cli.input_path {
            Some(paths) if cli.compare && cli.program.is_empty() && cli.pid.is_empty() => {
                let collect = &cli.trace.collect;
                compare::run_option(&paths, collect.level, collect.output_path(), collect.json)
            }
            Some(_) if cli.compare => usage("--compare traces nothing: leave the program or --pid out"),
            _ => usage("--compare and --input-path=A,B must be used together"),
        };
    }
    match (cli.pid.is_empty(), cli.program.is_empty()) {
        (false, false) => usage("--pid attaches to a running process: a program cannot be given as well"),
        (false, true) => trace::attach(&cli.pid, &cli.trace),
        (true, false) => {
            trace::run(&RunArgs { trace: cli.trace, user: None, mstx_injection: false, program: cli.program })
        }
        (true, true) => usage("what to trace? `memscope-bpf run -- PROG`, or `memscope-bpf --pid PID`; see --help"),
    }
}

/// Words of lists that have no effect.
fn warn_of_lists(collect: &CollectArgs) {
    let warn = |text| message(collect.level_of_messages(), LogLevel::Warning, format_args!("{text}"));
    if collect.events.cleared {
        warn("--events: `none` clears the whole list, so no such rows are written; leave it out to have the others");
    }
    if collect.events.traceback {
        warn(
            "--events: `traceback` has no effect here, a script starts it with `msmemscope.config(events=\"traceback\")`",
        );
    }
    if collect.analysis.cleared {
        warn("--analysis: `none` clears the whole list, so nothing is analysed; leave it out to have the others");
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
                terminal::say(format_args!("[msmemscope] Deprecation: '{old}' is deprecated, use '{new}' instead."));
            }
        }
    }
}
