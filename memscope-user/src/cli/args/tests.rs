use clap::CommandFactory as _;

use super::{collect::Format, *};
use crate::cli::values::Steps;

fn parse(line: &str) -> Cli {
    Cli::try_parse_from(line.split(' ')).expect("valid")
}

#[test]
fn definition_is_consistent() {
    Cli::command().debug_assert();
}

/// A command without options of its own begins with those of a trace.
#[test]
fn defaults_of_a_trace() {
    let trace = TraceArgs::default();
    assert_eq!((trace.ring_size, trace.usage_rate, trace.no_capture), (64 << 20, 10, false));
    assert!(trace.collect.analysis.chosen.questions.has("leaks"));
}

#[test]
fn options_behind_the_program_are_ours_unless_dashes_stand_between() {
    let cli = parse("memscope-bpf python x.py --steps=1");
    assert_eq!((cli.program.len(), cli.trace.collect.steps), (2, Some(Steps(vec![1]))));
    let cli = parse("memscope-bpf --format db -- python x.py --steps=1");
    assert_eq!((cli.program.len(), cli.trace.collect.format), (3, Format::Db));
}

#[test]
fn run_leaves_the_programs_options_alone() {
    let Some(Command::Run(run)) = parse("memscope-bpf run --quiet python x.py --steps=1").command else {
        panic!("not run")
    };
    assert_eq!(run.program.len(), 3);
    assert!(run.trace.collect.quiet);
}

/// Each command that runs for a time takes it by either word.
#[test]
fn a_time_has_one_option_everywhere() {
    let time_of = |line: &str| match parse(line).command {
        Some(Command::Attach(args)) => args.trace.duration,
        Some(Command::Holders(args)) => Some(args.duration),
        Some(Command::Forecast(args)) => args.duration,
        Some(Command::Agent(args)) => match args.command {
            Some(AgentCommand::Capture(args)) => Some(args.duration),
            _ => None,
        },
        _ => None,
    };
    for command in ["attach", "holders --growing", "forecast", "agent capture"] {
        for option in ["--duration", "--for", "-d"] {
            let line = format!("memscope-bpf {command} --pid 7 {option} 5s");
            assert_eq!(time_of(&line), Some(Duration::from_secs(5)), "{line}");
        }
    }
}

#[test]
fn explicit_level_wins_in_any_order() {
    assert_eq!(parse("memscope-bpf -v --log-level error x").trace.collect.level_of_messages(), LogLevel::Error);
    assert_eq!(parse("memscope-bpf -q -v x").trace.collect.level_of_messages(), LogLevel::Debug);
    assert_eq!(parse("memscope-bpf x").trace.collect.level_of_messages(), LogLevel::Info);
}
