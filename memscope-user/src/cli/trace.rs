//! `run`, `attach`, and the parts they share with `stat` and the daemon: options to the library, its messages to the
//! terminal.

use std::{
    io,
    ops::ControlFlow,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{sys::signal::Signal, unistd::Pid};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    FAILURE, FOUND, RUN_FAILURE, USAGE,
    args::{CollectArgs, LogLevel, RunArgs, TraceArgs},
    error, failures, heap, message, messages, page,
    progress::Spinner,
    report,
    signals::{self, Caught, Signals},
    stat::Screen,
    terminal,
};
use crate::{
    analyses::{
        Finding,
        sample::Sample,
        watched::{self, Watched},
    },
    error_chain,
    follow::spawn::{RunAs, SpawnError},
    os::capabilities,
    session::{
        Control, DiskUse, End, Listener, Message, Outputs, Phase, Program, Progress, Refusal, Results, Summary, Trace,
        TraceError, TraceOptions, Traced,
        text::{mebibytes, size, time},
        until,
    },
    sinks::tree::OutputTree,
};

/// `run`: the exit status is the program's.
pub(super) fn run(args: &RunArgs) -> ExitCode {
    let command = args.program.clone();
    let program = Program { command, run_as: None, mstx_injection: args.mstx_injection };
    let mut options = match args.trace.writing(Traced::Program(program)) {
        Ok(options) => options,
        Err(failure) => return failed_to_run(&failure),
    };
    match run_as(args) {
        Ok(user) => {
            if let Traced::Program(program) = &mut options.traced {
                program.run_as = user;
            }
        }
        Err(failure) => return failed_to_run(&failure.into()),
    }
    let (console, moments) = Console::new(&args.trace);
    let console = Arc::new(Console { runs_program: true, ..console });
    match trace(options, Arc::<Console>::clone(&console), moments) {
        Ok(Summary { program_status: Some(0), results })
            if results.end.is_failure() || !console.is_complete(&results) =>
        {
            ExitCode::from(RUN_FAILURE)
        }
        Ok(Summary { program_status: Some(0), .. }) if console.found.load(Ordering::Relaxed) => ExitCode::from(FOUND),
        Ok(Summary { program_status: Some(status), .. }) => ExitCode::from(status),
        Ok(Summary { program_status: None, .. }) => {
            error("the program's exit status is not known");
            ExitCode::from(RUN_FAILURE)
        }
        Err(failure) => failed_to_run(&failure),
    }
}

/// The user that the program runs as.
fn run_as(args: &RunArgs) -> Result<Option<RunAs>, SpawnError> {
    let run_as = RunAs::choose(args.user.as_deref()).map_err(SpawnError::from)?;
    if let Some(text) = run_as.as_ref().and_then(RunAs::warning) {
        message(args.trace.collect.level_of_messages(), LogLevel::Warning, format_args!("{text}"));
    }
    Ok(run_as)
}

fn failed_to_run(failure: &TraceError) -> ExitCode {
    let status = match failure {
        TraceError::Options(_) => USAGE,
        TraceError::Spawn(error) => error.exit_status() as u8,
        _ => RUN_FAILURE,
    };
    error(error_chain(failure));
    ExitCode::from(status)
}

/// `--pid`.
pub(super) fn attach(pids: &[u32], args: &TraceArgs) -> ExitCode {
    let (console, moments) = Console::new(args);
    match args.writing(Traced::Processes(pids.to_vec())) {
        Ok(options) => attach_with(options, console, moments),
        Err(failure) => failed(&failure),
    }
}

/// Traces running processes.
pub(super) fn attach_with(options: TraceOptions, console: Console, moments: UnboundedReceiver<Phase>) -> ExitCode {
    match attach_for(options, console, moments) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => failed(&failure),
    }
}

/// Shows why running processes are not traced.
pub(super) fn failed(failure: &TraceError) -> ExitCode {
    error(error_chain(failure));
    ExitCode::from(if matches!(failure, TraceError::Options(_)) { USAGE } else { FAILURE })
}

/// Traces running processes for a caller that reports failures itself. Gives the exit status.
pub(super) fn attach_for(
    options: TraceOptions,
    console: Console,
    moments: UnboundedReceiver<Phase>,
) -> Result<u8, TraceError> {
    let console = Arc::new(console);
    let Summary { results, .. } = trace(options, Arc::<Console>::clone(&console), moments)?;
    let failed = results.end.is_failure() || !console.is_complete(&results);
    Ok(match (failed, console.found.load(Ordering::Relaxed)) {
        (true, _) => FAILURE,
        (false, true) => FOUND,
        (false, false) => 0,
    })
}

/// Traces until the end, and passes signals on.
pub(super) fn trace(
    options: TraceOptions,
    listener: Arc<dyn Listener>,
    mut moments: UnboundedReceiver<Phase>,
) -> Result<Summary, TraceError> {
    heap::keep_little();
    options.check()?;
    let trace = Trace::start(options, listener)?;
    if let Err(failure) = heed_signals(&trace.control(), &mut moments) {
        error(format_args!("signals cannot be read: {failure}"));
        trace.stop();
    }
    // Outputs are complete then, or `replay` makes them of the capture: from here on a Ctrl-C may simply end us, and the kernel
    // detaches.
    while moments.blocking_recv().is_some_and(|phase| phase < Phase::Detaching && phase != Phase::Analysing) {}
    Signals::unblock();
    trace.wait()
}

/// Handles signals until the trace ends. Later ones stay pending until they are unblocked.
pub(super) fn heed_signals(control: &Control, moments: &mut UnboundedReceiver<Phase>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::new()?;
        loop {
            tokio::select! {
                biased;
                phase = moments.recv() => if phase.is_none_or(|phase| phase >= Phase::Ending) {
                    return Ok(());
                },
                caught = signals.next() => if on_signal(control, caught?) {
                    return Ok(());
                },
            }
        }
    })
}

/// Gives whether the trace was asked to end.
fn on_signal(control: &Control, caught: Caught) -> bool {
    let Caught { signal, from_terminal } = caught;
    if signal == Signal::SIGCHLD {
        return false;
    }
    if signal == Signal::SIGUSR1 {
        control.ask();
    }
    let program = control.program().map(|pid| Pid::from_raw(pid.cast_signed()));
    match program {
        // Our own signal. A program that waits for it gets it, too; one that does not would be killed by it.
        Some(pid) if signal == Signal::SIGUSR1 && !signals::is_expected(pid, signal) => return false,
        // The program has got signals of the terminal as well.
        Some(_) if from_terminal || control.signal_program(signal) => return false,
        _ if matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) => return false,
        _ => {}
    }
    control.stop(&format!("signal {signal}"));
    true
}

/// Checks the folder of outputs before any process is traced.
type OnOpened = Box<dyn Fn(&OutputTree) -> Result<(), Refusal> + Send + Sync>;
/// Is called when all probes are there.
type OnAttached = Box<dyn Fn() -> Result<(), Refusal> + Send + Sync>;

/// Shows a trace's messages on the terminal.
pub(super) struct Console {
    /// What to print, and how.
    collect: CollectArgs,
    /// Only the capture is written.
    capture_only: bool,
    no_progress: bool,
    runs_program: bool,
    /// Shows samples, and no report at the end.
    pub(super) screen: Option<Mutex<Screen>>,
    pub(super) on_opened: Option<OnOpened>,
    pub(super) on_attached: Option<OnAttached>,
    moments: UnboundedSender<Phase>,
    writing: Mutex<Option<Spinner>>,
    /// A part could not be printed.
    failed: AtomicBool,
    /// What `--fail-on` names was found.
    found: AtomicBool,
}

impl Console {
    /// For these options, with the phases of the trace for the main thread.
    pub(super) fn new(args: &TraceArgs) -> (Self, UnboundedReceiver<Phase>) {
        let (moments, came) = unbounded_channel();
        let console = Self {
            collect: args.made_meanwhile(),
            capture_only: args.capture_only,
            no_progress: args.no_progress,
            runs_program: false,
            screen: None,
            on_opened: None,
            on_attached: None,
            moments,
            writing: Mutex::new(None),
            failed: AtomicBool::new(false),
            found: AtomicBool::new(false),
        };
        (console, came)
    }

    fn level(&self) -> LogLevel {
        self.collect.level_of_messages()
    }

    fn is_complete(&self, results: &Results) -> bool {
        results.complete && !self.failed.load(Ordering::Relaxed)
    }

    /// Prints the report, if one is wanted; where nothing was traced, without advice on steps.
    fn report(&self, results: &Results) -> io::Result<()> {
        let printed = match &results.outcome {
            Some(outcome) if !results.never_ran => {
                let mut collect = self.collect.clone();
                if !results.traced_any {
                    collect.analysis.chosen = collect.analysis.chosen.without("leaks");
                }
                let capture = results.capture.as_deref();
                let whole = capture.filter(|_| results.capture_error.is_none());
                let findings = failures::found(&collect, (&outcome.findings, &outcome.end), whole);
                let found = report::is_failed(&collect.fail_on, &findings, &outcome.end);
                self.found.store(found, Ordering::Relaxed);
                report::print(&collect, (&findings, &outcome.end), capture)
            }
            _ => Ok(()),
        };
        let capture = results.capture.as_deref();
        if let Some(path) = capture.filter(|_| results.capture_error.is_none()) {
            message(self.level(), LogLevel::Info, format_args!("capture {}", path.display()));
            if self.capture_only {
                let text = "nothing else was written: `memscope-bpf replay` makes rows and report of the capture";
                message(self.level(), LogLevel::Info, format_args!("{text}"));
            }
        }
        if results.outcome.is_none() {
            let hint = if capture.is_some() { ": `memscope-bpf replay` makes both of the capture" } else { "" };
            let text = format_args!("there is no report, and rows end early{hint}");
            message(self.level(), LogLevel::Error, text);
        }
        printed
    }

    /// Writes the page of the capture, if one is wanted.
    fn page(&self, results: &Results) -> anyhow::Result<()> {
        let collect = &self.collect;
        match results.capture.as_deref().filter(|_| results.capture_error.is_none()) {
            Some(capture) => {
                page::of_capture(&collect.html, capture, collect.decompose_rules.as_deref(), &collect.select)
            }
            None if collect.html.html.is_none() => Ok(()),
            None => anyhow::bail!("--html makes the page of the capture, and there is none"),
        }
    }

    /// Prints what block watch found, behind the report.
    fn print_watched(&self, found: &[Watched]) -> io::Result<()> {
        const TITLE: &str =
            "\nBlock watch (it changes when things happen: what depends on timing may look different without it)";
        // Machines read the report alone.
        if self.collect.json {
            let mut text = Vec::new();
            watched::write(found, &mut text)?;
            terminal::say_lines(&text);
            return Ok(());
        }
        terminal::print(|out| {
            writeln!(out, "{TITLE}")?;
            watched::write(found, out)
        })
    }
}

impl Listener for Console {
    fn opened(&self, outputs: &Outputs<'_>) -> Result<(), Refusal> {
        messages::log_into(outputs.log);
        if self.collect.output_path.is_none() {
            let folder = terminal::from_here(outputs.tree.path());
            message(self.level(), LogLevel::Info, format_args!("this run's folder: {}", folder.display()));
        }
        self.on_opened.as_ref().map_or(Ok(()), |on_opened| on_opened(outputs.tree))
    }

    fn loaded(&self) {
        // So that they reach the main thread's loop alone.
        let _ = Signals::block();
        // The trace has reported a failure of this.
        let _ = capabilities::keep_for_trace();
    }

    fn attached(&self) -> Result<(), Refusal> {
        self.on_attached.as_ref().map_or(Ok(()), |on_attached| on_attached())
    }

    fn phase(&self, phase: Phase) {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        match phase {
            Phase::Tracing => terminal::hurry(true),
            Phase::Ending => terminal::clear_status(),
            Phase::Writing => *writing = Some(Spinner::start("writing what is left")),
            Phase::Analysing => *writing = Some(Spinner::start("analysing what is left")),
            Phase::Written => *writing = None,
            Phase::Starting | Phase::Detaching | Phase::Ended => {}
        }
        drop(writing);
        // The main thread has ended: so does this process.
        let _ = self.moments.send(phase);
    }

    fn message(&self, message: &Message<'_>) {
        messages::show(self.level(), message.level.into(), message.text);
    }

    /// One line on our own terminal: with `run`, only if the program does not write there.
    fn progress(&self, progress: &Progress) {
        let shared = self.runs_program && terminal::shows_output();
        let quiet = self.no_progress || self.capture_only || self.level() > LogLevel::Info;
        if quiet || shared || !terminal::shows_messages() {
            return;
        }
        let Progress { figures, lost_records, disk, .. } = progress;
        let devices: Vec<String> = figures
            .live_bytes
            .iter()
            .map(|(device, bytes)| format!("{} {:.1} MiB", device.name_or("no device"), mebibytes(*bytes)))
            .collect();
        let live = if devices.is_empty() { "nothing".to_owned() } else { devices.join(", ") };
        terminal::show_status(format_args!(
            "{} events | live: {} | disk: {:.1} MiB, {:.1} MiB/s{} | lost: {lost_records}",
            figures.events,
            live,
            mebibytes(disk.size_bytes),
            mebibytes(disk.bytes_per_second),
            disk.until_full.map(|left| format!(", full in {}", time(left))).unwrap_or_default()
        ));
    }

    fn wants_events(&self) -> bool {
        false
    }

    fn sample(&self, sample: &Sample) -> ControlFlow<End> {
        let Some(screen) = &self.screen else { return ControlFlow::Continue(()) };
        if sample.last {
            terminal::hurry(false);
        }
        match screen.lock().unwrap_or_else(PoisonError::into_inner).show(sample) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ControlFlow::Break(End::Reader),
            Err(error) => ControlFlow::Break(End::Output(format!("cannot print the samples: {error}"))),
        }
    }

    fn findings_so_far(&self, findings: &[Finding]) {
        // Without a reader of messages they are not missed.
        let _ = report::print_ledgers(findings, self.capture_only);
    }

    fn results(&self, results: &Results) {
        // No process waits for us any more.
        terminal::hurry(false);
        let shown = if self.screen.is_some() { Ok(()) } else { self.report(results) };
        if let Err(failure) = self.page(results) {
            error(format_args!("{failure:#}"));
            self.failed.store(true, Ordering::Relaxed);
        }
        if results.traced_any
            && let Some(files) = results.files
        {
            let text = disk_text(files.disk, files.took, files.free_bytes);
            message(self.level(), LogLevel::Info, format_args!("{text}"));
        }
        let watched = results.watched.as_deref().map_or(Ok(()), |found| self.print_watched(found));
        // A failure does not prevent the others.
        for (what, result) in [("cannot print the report", shown), ("cannot print what was watched", watched)] {
            if let Err(failure) = result {
                error(format_args!("{what}: {failure}"));
                self.failed.store(true, Ordering::Relaxed);
            }
        }
        if let Some(failure) = &results.silence_error {
            error(format_args!("the probes could not be silenced: {failure}"));
        }
    }
}

/// Written bytes, rate, and the time until the disk is full. For rotating files only their size: the oldest are gone.
fn disk_text(disk: DiskUse, took: Option<Duration>, free_bytes: Option<u64>) -> String {
    let Some(took) = took else { return format!("the files that stay have {}", size(disk.size_bytes)) };
    let rate = disk.size_bytes as f64 / took.as_secs_f64().max(1e-3);
    let room = free_bytes.map(|free| match until(free, rate) {
        Some(left) => format!("; {} are free: enough for {} at this rate", size(free), time(left)),
        None => format!("; {} are free", size(free)),
    });
    let rate = mebibytes(rate as u64);
    format!("wrote {}, {rate:.1} MiB/s{}", size(disk.size_bytes), room.unwrap_or_default())
}
