//! Where the figures come from. The agent asks through a trait: the one engine there is streams records and keeps books of them in user
//! space; one that adds up in the kernel can take its place.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    books::{Account, Books},
    budget::Level,
    config::Config,
    reader::{PoolReading, Reader},
};
use crate::{
    model::Event,
    os::capabilities,
    session::{
        Analyses, CallStacks, CollectOptions, Control, Events, HolderOptions, LeftOutStacks, Listener, Looks, Message,
        Phase, ProgramCost, Progress, Trace, TraceError, TraceOptions, UsageOptions,
    },
};

/// What the engine itself has taken and lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Records lost so far.
    pub lost: u64,
    /// What the BPF programs took when they were last measured.
    pub programs: Option<ProgramCost>,
}

/// Traces the processes that it is given.
pub trait Source {
    /// A process joins.
    fn join(&self, pid: u32) -> oneshot::Receiver<Result<(), String>>;
    /// A process leaves, as if it had ended.
    fn leave(&self, pid: u32);
    /// The calls of a process about blocks of its pools are passed over.
    fn reduce(&self, pid: u32);
    /// They are traced again.
    fn restore(&self, pid: u32);
    /// How much is traced from here on, of those that are in.
    fn set_level(&self, level: Level);
    /// A minute is over.
    fn minute(&self, minute: u32);
    /// The minute that goes on is the last one: the next account has it.
    fn end_minute(&self);
    /// What is known. What has ended since the last time is in it, and from then on forgotten.
    fn account(&self) -> Account;
    /// What the engine has taken and lost.
    fn spent(&self) -> Spent;
    /// Has the pools of processes read that are not traced, unless it is too soon after the last time.
    fn read_pools(&self, pids: Vec<u32>);
    /// What was read since the last time.
    fn take_readings(&self) -> Vec<PoolReading>;
    /// It traces no longer.
    fn has_ended(&self) -> bool;
    /// Ends; no process is traced from here on. Says why, if it had ended by itself.
    fn end(&mut self) -> Result<(), String>;
}

/// The engine of all traces: records are streamed, and added up here.
pub struct Streaming {
    trace: Option<Trace>,
    control: Control,
    heard: Arc<Heard>,
    reader: Reader,
}

impl Streaming {
    /// Starts it; `say` gets its messages.
    pub fn start(config: &Config, say: Arc<dyn Listener>) -> Result<Self, TraceError> {
        let by_minute = !config.evidence.directory.as_os_str().is_empty();
        let mut books = if by_minute { Books::by_minute() } else { Books::default() };
        if looks(config) != Looks::Never {
            books.expect_holders(LOOK);
        }
        if !config.bundles.directory.as_os_str().is_empty() {
            books.keep_recent(config.bundles.recent_events);
        }
        let books = Mutex::new(books);
        let heard = Arc::new(Heard { books, spent: Mutex::default(), ended: AtomicBool::new(false), say });
        let trace = Trace::start(options(config), Arc::clone(&heard) as Arc<dyn Listener>)?;
        trace.control().leave_out_stacks(left_out_stacks(Level::All));
        let reader = Reader::start().map_err(TraceError::system("cannot start the thread for pools"))?;
        Ok(Self { control: trace.control(), trace: Some(trace), heard, reader })
    }
}

/// A trace that counts, and keeps nothing.
fn options(config: &Config) -> TraceOptions {
    let frames = |frames| (frames > 0).then_some(frames);
    let (c, python) = (frames(config.stacks.native), frames(config.stacks.python));
    let usage = Duration::from_secs_f64(config.metrics.interval_seconds);
    TraceOptions {
        collect: CollectOptions { events: Events::default(), analyses: Analyses::OFF, ..CollectOptions::default() },
        call_stacks: CallStacks { c, python, mixed: false, automatic: c.is_some() && python.is_some() },
        ring_bytes: config.budget.ring_bytes,
        usage: UsageOptions { interval: usage, per_second: 0, library: config.driver_library.clone() },
        holders: HolderOptions { pool: true, looks: looks(config), ..HolderOptions::default() },
        measure_programs: true,
        forget_unused: Some(Duration::from_secs_f64(config.discovery.forget_seconds)),
        ..TraceOptions::joining()
    }
}

/// Blocks have their places by their allocations, so frees never need a stack.
const fn left_out_stacks(level: Level) -> LeftOutStacks {
    match level {
        Level::All => LeftOutStacks::AtFrees,
        Level::NoPython => LeftOutStacks::Python,
        Level::NoStacks | Level::NoBusy | Level::Detached => LeftOutStacks::All,
    }
}

/// A look takes at most half of this.
const LOOK: Duration = Duration::from_secs(20);

/// A bundle says what held the memory.
fn looks(config: &Config) -> Looks {
    let has_bundles = !config.bundles.directory.as_os_str().is_empty();
    if has_bundles && config.bundles.holders { Looks::Failures } else { Looks::Never }
}

impl Source for Streaming {
    fn join(&self, pid: u32) -> oneshot::Receiver<Result<(), String>> {
        self.control.join(pid)
    }

    fn leave(&self, pid: u32) {
        self.control.leave(pid);
    }

    fn reduce(&self, pid: u32) {
        self.control.reduce(pid);
    }

    fn restore(&self, pid: u32) {
        self.control.restore(pid);
    }

    fn set_level(&self, level: Level) {
        self.control.leave_out_stacks(left_out_stacks(level));
    }

    fn minute(&self, minute: u32) {
        self.heard.books().minute(minute);
    }

    fn end_minute(&self) {
        self.heard.books().end_minute();
    }

    fn account(&self) -> Account {
        self.heard.books().take()
    }

    fn spent(&self) -> Spent {
        *self.heard.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_pools(&self, pids: Vec<u32>) {
        self.reader.ask(pids);
    }

    fn take_readings(&self) -> Vec<PoolReading> {
        self.reader.take()
    }

    fn has_ended(&self) -> bool {
        self.heard.ended.load(Ordering::Relaxed)
    }

    fn end(&mut self) -> Result<(), String> {
        let Some(trace) = self.trace.take() else { return Ok(()) };
        trace.stop();
        let summary = trace.wait().map_err(|error| crate::error_chain(&error))?;
        if summary.results.end.is_failure() { Err(summary.results.end.to_string()) } else { Ok(()) }
    }
}

/// Gets what the engine sees.
struct Heard {
    books: Mutex<Books>,
    spent: Mutex<Spent>,
    ended: AtomicBool,
    say: Arc<dyn Listener>,
}

impl Heard {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for Heard {
    fn loaded(&self) {
        // The trace has said it if that cannot be done.
        let _ = capabilities::keep_for_trace();
    }

    fn event(&self, event: &Event) {
        self.books().observe(event);
    }

    fn progress(&self, progress: &Progress) {
        let spent = Spent { lost: progress.lost_records, programs: progress.programs };
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner) = spent;
    }

    fn message(&self, message: &Message<'_>) {
        self.say.message(message);
    }

    fn phase(&self, phase: Phase) {
        if phase >= Phase::Ending {
            self.ended.store(true, Ordering::Relaxed);
        }
    }
}
