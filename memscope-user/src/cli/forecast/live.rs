//! `forecast --pid`: running processes are watched, then the answer is that of a recording of this time.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::ForecastArgs;
use crate::analyses::Observer as _;
use crate::cli::args::{LogLevel, TraceArgs};
use crate::cli::signals::Signals;
use crate::cli::{FAILURE, error, message, messages, terminal, trace};
use crate::model::Event;
use crate::os::capabilities;
use crate::session::text::time;
use crate::session::{
    Analyses, CollectOptions, HolderOptions, Listener, Looks, Message, Phase, Progress, Results, TraceError,
    TraceOptions, Traced,
};
use crate::text::numbers::rounded;
use crate::whatif::forecast::Collector;

/// The driver is asked this often, if it is asked for the limit.
const ASKED: Duration = Duration::from_secs(1);

pub(super) fn run(args: ForecastArgs) -> ExitCode {
    let options = match options(&args) {
        Ok(options) => options,
        Err(failure) => return trace::failed(&failure),
    };
    let (watcher, moments) = Watcher::new(args);
    let watcher = Arc::new(watcher);
    match trace::trace(options, Arc::<Watcher>::clone(&watcher), moments) {
        Ok(summary) => {
            let failed = summary.results.end.is_failure() || watcher.failed.load(Ordering::Relaxed);
            ExitCode::from(if failed { FAILURE } else { 0 })
        }
        Err(failure) => trace::failed(&failure),
    }
}

/// A trace of the pool's figures: without call stacks, analyses and files.
fn options(args: &ForecastArgs) -> Result<TraceOptions, TraceError> {
    let trace = TraceArgs {
        duration: args.duration,
        usage_interval: if args.limit.is_some() { Duration::ZERO } else { ASKED },
        usage_rate: 0,
        usage_library: args.usage_library.clone(),
        no_capture: true,
        no_stacks: true,
        ..TraceArgs::default()
    };
    let options = trace.options(Traced::Processes(args.pid.clone()))?;
    let collect = CollectOptions { analyses: Analyses::OFF, ..options.collect };
    // What the pool held before is read, but not what for: a server that is idle has figures, too.
    let holders = HolderOptions { looks: Looks::Never, purposes: false, ..options.holders };
    Ok(TraceOptions { collect, holders, ..options })
}

/// Listens for `forecast`.
struct Watcher {
    args: ForecastArgs,
    collector: Mutex<Collector>,
    since: Instant,
    moments: UnboundedSender<Phase>,
    /// There is no forecast, or it could not be printed.
    failed: AtomicBool,
}

impl Watcher {
    /// With the phases of the trace for the main thread.
    fn new(args: ForecastArgs) -> (Self, UnboundedReceiver<Phase>) {
        let (moments, came) = unbounded_channel();
        let (collector, _) = Collector::new();
        let (collector, failed) = (Mutex::new(collector), AtomicBool::new(false));
        (Self { args, collector, since: Instant::now(), moments, failed }, came)
    }

    fn collector(&self) -> MutexGuard<'_, Collector> {
        self.collector.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forecast(&self, results: &Results) -> anyhow::Result<()> {
        let Some(outcome) = &results.outcome else { anyhow::bail!("there is no forecast: the trace has failed") };
        let all = self.collector().take(&outcome.end);
        super::print(&self.args, name(&self.args.pid), &all)
    }
}

fn name(pids: &[u32]) -> String {
    let all: Vec<String> = pids.iter().map(u32::to_string).collect();
    format!("{} {}", if all.len() == 1 { "process" } else { "processes" }, all.join(", "))
}

impl Listener for Watcher {
    fn loaded(&self) {
        // So that they reach the main thread's loop alone.
        let _ = Signals::block();
        // The trace has reported a failure of this.
        let _ = capabilities::keep_for_trace();
    }

    fn phase(&self, phase: Phase) {
        match phase {
            Phase::Tracing => {
                terminal::hurry(true);
                let until = self.args.duration.map(|all| format!("for {}, or ", time(all))).unwrap_or_default();
                let name = name(&self.args.pid);
                message(LogLevel::Info, LogLevel::Info, format_args!("watching {name} {until}until Ctrl-C"));
            }
            Phase::Ending => terminal::clear_status(),
            _ => {}
        }
        // The main thread has ended: so does this process.
        let _ = self.moments.send(phase);
    }

    fn message(&self, message: &Message<'_>) {
        messages::show(LogLevel::Info, message.level.into(), message.text);
    }

    fn progress(&self, _: &Progress) {
        if terminal::shows_messages() {
            let held = rounded(self.collector().reserved_bytes().into());
            let seen = time(self.since.elapsed());
            terminal::show_status(format_args!("{seen}: the pool holds {held}; Ctrl-C ends the watch"));
        }
    }

    fn event(&self, event: &Event) {
        self.collector().observe(event);
    }

    fn results(&self, results: &Results) {
        // No process waits for us any more.
        terminal::hurry(false);
        if let Err(failure) = self.forecast(results) {
            error(format_args!("{failure:#}"));
            self.failed.store(true, Ordering::Relaxed);
        }
        if let Some(failure) = &results.silence_error {
            error(format_args!("the probes could not be silenced: {failure}"));
        }
    }
}
