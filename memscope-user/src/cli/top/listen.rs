//! What the trace says, kept for the screen, or printed at once.

use std::{
    io::{self, Write as _},
    ops::ControlFlow,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
    analyses::{LiveUse, decompose::RuleSet, live_use::Moment, sample::Sample},
    cli::{args::LogLevel, messages, signals::Signals, terminal},
    model::Event,
    os::capabilities,
    printable,
    session::{End, Listener, Message, Phase, Results},
    top::{self, Recent, State},
};

/// Messages that are kept while the terminal is a screen.
const MAX_MESSAGES: usize = 50;
/// Columns of text where there is no terminal.
const TEXT_COLUMNS: u16 = 100;

/// How moments are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// On the screen.
    Screen,
    /// As the screen would be, as text.
    Text,
    /// CSV.
    Csv,
    /// One JSON object to a line.
    Json,
}

/// What the threads of the trace and the screen share.
#[derive(Debug)]
pub(super) struct Shared {
    seen: Mutex<Seen>,
    over: AtomicBool,
    failed: AtomicBool,
    writing: AtomicBool,
}

#[derive(Debug)]
struct Seen {
    live: LiveUse,
    /// Of the screen alone.
    recent: Option<Recent>,
    moment: Option<Moment>,
    lost: u64,
    ended: bool,
    /// The last message, if it is new.
    message: Option<String>,
    messages: Vec<(LogLevel, String)>,
    /// What became of a report.
    written: Option<String>,
    /// An explanation, in lines.
    explained: Option<Vec<String>>,
}

impl Shared {
    fn new(style: Style) -> Self {
        let seen = Seen {
            live: LiveUse::new(Arc::new(RuleSet::builtin())),
            recent: (style == Style::Screen).then(Recent::default),
            moment: None,
            lost: 0,
            ended: false,
            message: None,
            messages: Vec::new(),
            written: None,
            explained: None,
        };
        let [over, failed, writing] = [(); 3].map(|()| AtomicBool::new(false));
        Self { seen: Mutex::new(seen), over, failed, writing }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The screen has nothing more to wait for.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Something could not be shown.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Brings the state of the screen up to date.
    pub(super) fn update(&self, state: &mut State, paused: bool) {
        let mut seen = self.seen();
        if let Some(message) = seen.message.take() {
            state.say(message);
        }
        if seen.ended {
            state.end();
        }
        if !paused && let Some(moment) = seen.moment.take() {
            drop(seen);
            state.take(moment);
        }
    }

    /// Events of the last minutes, and how many records were lost.
    pub(super) fn recent(&self) -> (Recent, u64) {
        let seen = self.seen();
        (seen.recent.clone().unwrap_or_default(), seen.lost)
    }

    /// Gives whether none is being written.
    pub(super) fn begin_writing(&self) -> bool {
        !self.writing.swap(true, Ordering::Relaxed)
    }

    /// What became of the report.
    pub(super) fn end_writing(&self, text: String) {
        self.seen().written = Some(text);
        self.writing.store(false, Ordering::Relaxed);
    }

    /// What became of a report, once.
    pub(super) fn written(&self) -> Option<String> {
        self.seen().written.take()
    }

    /// An explanation is there.
    pub(super) fn end_explaining(&self, lines: Vec<String>) {
        self.seen().explained = Some(lines);
        self.writing.store(false, Ordering::Relaxed);
    }

    /// An explanation, once.
    pub(super) fn explained(&self) -> Option<Vec<String>> {
        self.seen().explained.take()
    }

    /// Says what there was no place for on the screen.
    pub(super) fn say_the_rest(&self) {
        let kept = std::mem::take(&mut self.seen().messages);
        for (level, text) in kept {
            messages::show(LogLevel::Warning, level, format_args!("{text}"));
        }
    }
}

/// Listens for `top`.
#[derive(Debug)]
pub(super) struct Watcher {
    style: Style,
    level: LogLevel,
    pub(super) shared: Arc<Shared>,
    header: AtomicBool,
    moments: UnboundedSender<Phase>,
}

impl Watcher {
    /// With the phases of the trace for who waits for its end.
    pub(super) fn new(style: Style, quiet: bool) -> (Self, UnboundedReceiver<Phase>) {
        let (moments, came) = unbounded_channel();
        let level = if quiet { LogLevel::Error } else { LogLevel::Info };
        let header = AtomicBool::new(true);
        (Self { style, level, shared: Arc::new(Shared::new(style)), header, moments }, came)
    }

    fn print(&self, moment: Moment) -> io::Result<()> {
        let mut text = Vec::new();
        match self.style {
            Style::Screen => {}
            Style::Text => {
                let mut state = State::default();
                state.take(moment);
                text.extend(top::text(&state, TEXT_COLUMNS).into_bytes());
            }
            Style::Csv => {
                if self.header.swap(false, Ordering::Relaxed) {
                    writeln!(text, "{}", top::CSV_HEADER)?;
                }
                top::write_csv(&moment, &mut text)?;
            }
            Style::Json => {
                crate::document::write(&moment, &mut text)?;
                writeln!(text)?;
            }
        }
        let style = if self.style == Style::Json { printable::Style::Json } else { printable::Style::Text };
        terminal::print_as(style, None, |out| out.write_all(&text))
    }
}

impl Listener for Watcher {
    fn loaded(&self) {
        // So that they reach the thread that waits for them alone.
        let _ = Signals::block();
        let _ = capabilities::keep_for_trace();
    }

    fn phase(&self, phase: Phase) {
        if phase == Phase::Tracing && self.style != Style::Screen {
            terminal::hurry(true);
        }
        // The main thread has ended: so does this process.
        let _ = self.moments.send(phase);
    }

    fn message(&self, message: &Message<'_>) {
        let level: LogLevel = message.level.into();
        if self.style != Style::Screen {
            return messages::show(self.level, level, message.text);
        }
        if level < LogLevel::Warning.max(self.level) {
            return;
        }
        let mut seen = self.shared.seen();
        let text = message.text.to_string();
        seen.message = Some(text.clone());
        if seen.messages.len() < MAX_MESSAGES {
            seen.messages.push((level, text));
        }
    }

    fn event(&self, event: &Event) {
        let mut seen = self.shared.seen();
        seen.live.observe(event);
        if let Some(recent) = &mut seen.recent {
            recent.take(event);
        }
    }

    fn sample(&self, sample: &Sample) -> ControlFlow<End> {
        let mut seen = self.shared.seen();
        seen.lost = sample.lost;
        let moment = seen.live.look(sample.clone());
        if self.style == Style::Screen {
            // The last one of a trace that ended by itself has everything but the processes' own figures.
            seen.moment = Some(moment);
            return ControlFlow::Continue(());
        }
        drop(seen);
        match self.print(moment) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ControlFlow::Break(End::Reader),
            Err(error) => ControlFlow::Break(End::Output(format!("cannot print the samples: {error}"))),
        }
    }

    fn results(&self, _: &Results) {
        terminal::hurry(false);
        self.shared.seen().ended = true;
        // The texts of call stacks go with the run.
        self.shared.over.store(true, Ordering::Relaxed);
    }
}
