//! `top`: the live screen, of a trace that keeps no files.

mod listen;
mod report;
pub(super) mod terminal;

use std::{io, process::ExitCode, sync::Arc, thread, time::Duration};

use self::{
    listen::{Shared, Style, Watcher},
    terminal::{Key, Terminal},
};
use super::{FAILURE, USAGE, args::TopArgs, heap, messages, signals::Signals, terminal::shows_output, trace};
use crate::{
    session::{Phase, Samples, Trace, TraceError, TraceOptions, Traced},
    top::{self, Action, State, View},
};

/// The screen is drawn at most this often, and keys are looked for.
const ROUND: Duration = Duration::from_millis(250);

/// Shows what running processes hold, until a key, a signal, or the end of the samples.
pub(super) fn run(args: &TopArgs) -> ExitCode {
    let style = style(args);
    if style == Style::Screen && !(shows_output() && terminal::has_keys()) {
        messages::error("top needs a terminal: use --once, --csv or --json, or `stat`");
        return ExitCode::from(USAGE);
    }
    let samples = &args.samples;
    let options = match args.trace().options(Traced::Processes(samples.processes.all())) {
        Ok(options) => options,
        Err(failure) => return trace::failed(&failure),
    };
    let count = if args.once { Some(1) } else { samples.count };
    let options = TraceOptions { samples: Some(Samples { interval: samples.interval, count }), ..options };
    match watch(options, style, samples.quiet) {
        Ok(status) => status,
        Err(failure) => trace::failed(&failure),
    }
}

fn style(args: &TopArgs) -> Style {
    match (args.csv, args.samples.json, args.once) {
        (true, ..) => Style::Csv,
        (_, true, _) => Style::Json,
        (.., true) => Style::Text,
        _ => Style::Screen,
    }
}

/// Starts the trace, shows it, and waits for its end.
fn watch(options: TraceOptions, style: Style, quiet: bool) -> Result<ExitCode, TraceError> {
    heap::keep_little();
    options.check()?;
    let (watcher, mut moments) = Watcher::new(style, quiet);
    let shared = Arc::clone(&watcher.shared);
    let trace = Trace::start(options, Arc::new(watcher))?;
    let control = trace.control();
    let heeding = thread::spawn(move || {
        if let Err(failure) = trace::heed_signals(&control, &mut moments) {
            messages::error(format_args!("signals cannot be read: {failure}"));
            control.stop("signals cannot be read");
        }
        moments
    });
    if style == Style::Screen
        && let Err(failure) = show(&shared)
    {
        messages::error(format_args!("the screen cannot be shown: {failure}"));
        shared.fail();
    }
    if style == Style::Screen {
        trace.stop();
    }
    shared.say_the_rest();
    if let Ok(mut moments) = heeding.join() {
        while moments.blocking_recv().is_some_and(|phase| phase < Phase::Detaching) {}
    }
    Signals::unblock();
    let failed = trace.wait()?.results.end.is_failure() || shared.has_failed();
    Ok(ExitCode::from(if failed { FAILURE } else { 0 }))
}

/// Draws and takes keys, until the user quits or the trace was asked to end.
fn show(shared: &Arc<Shared>) -> io::Result<()> {
    let mut terminal = Terminal::open()?;
    let (mut state, mut view) = (State::default(), View::default());
    while !shared.is_over() {
        shared.update(&mut state, view.is_paused());
        if let Some(text) = shared.written() {
            view.note(text);
        }
        if let Some(lines) = shared.explained() {
            view.explain(lines);
        }
        terminal.draw(&state, &view)?;
        match Terminal::key(ROUND)? {
            Some(Key::Interrupt) => break,
            Some(Key::Input(input)) => match view.key(input, &state) {
                Action::Quit => break,
                Action::Report => {
                    view.note("writing the report of the last minutes".to_owned());
                    report::start(shared);
                }
                Action::Explain => match top::chosen(&state, &view) {
                    Some((pid, name, about)) => {
                        view.note(format!("reading the last minutes of {name}"));
                        report::explain(shared, (pid, name, about));
                    }
                    None => view.note("no place is chosen".to_owned()),
                },
                Action::Draw => {}
            },
            None => {}
        }
    }
    Ok(())
}
