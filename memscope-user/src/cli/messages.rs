//! Messages for the user: one line on stderr, and in the log of the run.

use std::{
    fmt::{self, Display},
    panic::Location,
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use clap::error::{ContextKind, ContextValue};

use super::{FAILURE, USAGE, args::LogLevel, terminal};
use crate::{
    crew,
    printable::OneLine,
    session::{Listener, Message, RunLog, Speaker},
    sinks::log::Level,
};

/// The log in the output directory, once there is one.
static LOG: OnceLock<Arc<RunLog>> = OnceLock::new();

/// From now on messages go into this log, too.
pub(super) fn log_into(log: &Arc<RunLog>) {
    // The first one is the run's.
    let _ = LOG.set(Arc::clone(log));
}

/// Shows a message to the user, if its level is wanted, and logs it.
#[track_caller]
pub(super) fn message(wanted: LogLevel, level: LogLevel, text: fmt::Arguments<'_>) {
    show(wanted, level, text);
    log(level.into(), Location::caller(), text);
}

/// Shows a message on the terminal alone, if its level is wanted.
pub(super) fn show(wanted: LogLevel, level: LogLevel, text: fmt::Arguments<'_>) {
    let name = match level {
        LogLevel::Debug => "Debug",
        LogLevel::Info => "Info",
        LogLevel::Warning => "Warning",
        LogLevel::Error => "Error",
    };
    if level >= wanted {
        terminal::say(format_args!("[memscope-bpf] {name}: {text}"));
    }
}

/// Shows messages of the library on the terminal, where there is no log.
pub(super) fn speaker(wanted: LogLevel) -> Speaker {
    Speaker::new(listener(wanted))
}

/// The same, for a trace that keeps nothing.
pub(super) fn listener(wanted: LogLevel) -> Arc<dyn Listener> {
    Arc::new(Shown(wanted))
}

/// Messages of this level and above are shown.
struct Shown(LogLevel);

impl Listener for Shown {
    fn wants_events(&self) -> bool {
        false
    }

    fn message(&self, message: &Message<'_>) {
        show(self.0, message.level.into(), message.text);
    }
}

/// Writes into the log alone.
fn log(level: Level, place: &Location<'_>, text: fmt::Arguments<'_>) {
    if let Some(log) = LOG.get() {
        log.line(level, place, text);
    }
}

/// Shows a failure.
#[track_caller]
pub(super) fn error(text: impl Display) {
    message(LogLevel::Error, LogLevel::Error, format_args!("{text}"));
}

/// Shows a mistake in the command line.
#[track_caller]
pub(super) fn usage(text: impl Display) -> ExitCode {
    error(text);
    ExitCode::from(USAGE)
}

/// From now on a panic is a message like others, and is not repeated if it cannot be shown.
pub(super) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if crew::is_quiet() {
            return;
        }
        let here = Location::caller();
        let place = panic.location().unwrap_or(here);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let text = crew::panic_text(panic.payload());
        let message = format!("internal error in thread `{name}` at {place}: {text}; please report this line");
        terminal::say(format_args!("[memscope-bpf] Error: {message}"));
        log(Level::Error, place, format_args!("{message}"));
    }));
}

/// Shows the parser's answer: a mistake in the command line, or the requested help.
pub(super) fn of_parser(error: clap::Error) -> ExitCode {
    let is_wrong = error.use_stderr();
    let text = parser_text(error);
    if is_wrong {
        terminal::say_lines(text.as_bytes());
        return ExitCode::from(USAGE);
    }
    match terminal::print(|out| out.write_all(text.as_bytes())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            self::error(format_args!("cannot print the help: {failure}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// The parser repeats arguments and puts its own lines around them: theirs are escaped, its are not.
fn parser_text(mut error: clap::Error) -> String {
    let clean: Vec<(ContextKind, ContextValue)> =
        error.context().filter_map(|(kind, value)| Some((kind, clean(value)?))).collect();
    for (kind, value) in clean {
        error.insert(kind, value);
    }
    let text = error.render().to_string();
    // The reason that our own parser of a value gives, which may repeat it.
    match std::error::Error::source(&error).map(ToString::to_string) {
        Some(why) if !why.is_empty() => text.replacen(&why, &OneLine(&why).to_string(), 1),
        _ => text,
    }
}

/// Values that may repeat an argument, each on one line.
fn clean(value: &ContextValue) -> Option<ContextValue> {
    let one_line = |text: &dyn Display| OneLine(text).to_string();
    match value {
        ContextValue::String(text) => Some(ContextValue::String(one_line(text))),
        ContextValue::Strings(texts) => Some(ContextValue::Strings(texts.iter().map(|text| one_line(text)).collect())),
        ContextValue::StyledStrs(texts) => {
            Some(ContextValue::StyledStrs(texts.iter().map(|text| one_line(text).into()).collect()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::Cli;

    /// No argument, whatever its contents, makes a line of the parser's answer.
    #[test]
    fn arguments_forge_no_line() {
        const FORGED: &str = "x\n\nerror: forged\x1b[31m\u{202e}";
        let lines = [
            vec!["memscope-bpf", "doctor", FORGED],
            vec!["memscope-bpf", "doctor", "--pid", FORGED],
            vec!["memscope-bpf", "run", "--device", FORGED, "--", "true"],
            vec!["memscope-bpf", "run", "--format", FORGED, "--", "true"],
            vec!["memscope-bpf", "run", "--level", FORGED, "--", "true"],
            vec!["memscope-bpf", "run", "--log-level", FORGED, "--", "true"],
            vec!["memscope-bpf", "run", "--duration", FORGED, "--", "true"],
            vec!["memscope-bpf", "run", "--steps", FORGED, "--", "true"],
            vec!["memscope-bpf", "run", "--x\n\nerror: forged", "--", "true"],
        ];
        for line in lines {
            let error = Cli::try_parse_from(&line).expect_err("refused");
            let text = parser_text(error);
            let errors = text.lines().filter(|line| line.starts_with("error:")).count();
            assert_eq!(errors, 1, "{line:?}: {text:?}");
            assert!(text.contains("forged"), "{text}");
        }
    }
}
