//! A live trace from beginning to end: `run` and `--pid`.

use std::{
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{MissedTickBehavior, interval},
};

use super::{
    FAILURE, RUN_FAILURE, USAGE,
    args::{CollectMode, LateLibraries, Link, LogLevel, RunArgs, TraceArgs, Transport},
    error, message,
    notices::Notices,
    operators, outputs,
    signals::{self, Caught, Signals},
    stacks,
    writer::{self, Ask, Written},
};
use crate::{
    attach::{
        features::LinkMode,
        follow::{Change, Follow, FollowOptions, expected_libraries},
        guard::Guard,
        kernel::{Kernel, KernelOptions},
        libraries::Libraries,
        mstx_tool::{INJECTION_PATH, MstxTool},
        python::Interpreters,
        spawn::{self, RunAs, SpawnError, Waiting},
        withheld,
    },
    capture::{self, CaptureHeader, LossCount, Note, WriterOptions, note_record},
    error_chain,
    model::Device,
    pipeline::{Pipeline, PipelineConfig},
    probes::{MSTX_TOOL, ProbeSpec},
    ring::{Command, Reader, Urgent, monotonic_ns},
    sinks::{
        Sink,
        gauge::{Gauge, GaugeSink},
    },
    usage::{Options, Sampler, Tell, Trigger},
};

/// Processes are looked after this often.
const TICK: Duration = Duration::from_millis(50);
/// The status line is renewed this often.
const STATUS: Duration = Duration::from_secs(1);
/// Clocks are compared, and losses written into the capture, this often.
const CLOCK: Duration = Duration::from_secs(5);

/// Why a trace ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// Every traced process has ended.
    Processes,
    /// `--duration` is over.
    Duration,
    /// A signal asked for it.
    Signal(Signal),
    /// An output cannot be written any more.
    Output(String),
    /// The kernel side failed.
    Kernel(String),
}

impl End {
    fn reason(&self) -> String {
        match self {
            Self::Processes => "the traced processes ended".to_owned(),
            Self::Duration => "the given time was over".to_owned(),
            Self::Signal(signal) => format!("signal {signal}"),
            Self::Output(error) | Self::Kernel(error) => error.clone(),
        }
    }

    const fn is_failure(&self) -> bool {
        matches!(self, Self::Output(_) | Self::Kernel(_))
    }
}

/// `run`: the exit status is the program's.
pub(super) fn run(args: &RunArgs) -> ExitCode {
    if let Err(reason) = check(&args.trace) {
        error(reason);
        return ExitCode::from(USAGE);
    }
    match try_run(args) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            let status = failure.downcast_ref::<SpawnError>().map_or(RUN_FAILURE, |error| error.exit_status() as u8);
            error(format_args!("{failure:#}"));
            ExitCode::from(status)
        }
    }
}

/// `--pid`.
pub(super) fn attach(pids: &[u32], args: &TraceArgs) -> ExitCode {
    if let Err(reason) = check(args) {
        error(reason);
        return ExitCode::from(USAGE);
    }
    match try_attach(pids, args) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// What this version cannot do is refused, not passed over.
fn check(args: &TraceArgs) -> Result<(), String> {
    outputs::rules(&args.collect)?;
    outputs::refuse_borrowed_rights(args.usage_library.as_deref())?;
    args.probes.specs()?;
    let unavailable =
        [(args.watch.is_some(), "--watch"), (args.collect_mode == CollectMode::Deferred, "--collect-mode=deferred")];
    match unavailable.into_iter().find(|(asked, _)| *asked) {
        Some((_, option)) => Err(format!("{option} is not available in this version; leave it out")),
        None => Ok(()),
    }
}

fn try_run(args: &RunArgs) -> Result<u8> {
    let program = spawn::find_program(&args.program[0])?;
    let run_as = RunAs::choose(args.user.as_deref())?;
    let dump = outputs::open(&args.trace.collect, args.trace.call_stack.unwrap_or_default())?;
    // Both children before any thread.
    let guard = Guard::start().context("cannot start the guard process")?;
    let tool = args.mstx_injection.then(MstxTool::install).transpose()?;
    let mut variables = withheld::variables();
    variables.extend(tool.iter().map(|tool| (INJECTION_PATH.into(), tool.path().into())));
    let child = spawn::prepare(&program, &args.program, run_as.as_ref(), &variables)?;
    let child_pid = child.pid;
    let result = Session::start(&args.trace, guard, dump, LateLibraries::Stop);
    let result = result.and_then(|session| session.run(child, tool.as_ref()));
    if result.is_err() {
        // It has not begun, or is on its own: it must not be left as a zombie in either case.
        let _ = waitpid(child_pid, Some(WaitPidFlag::WNOHANG));
    }
    result
}

fn try_attach(pids: &[u32], args: &TraceArgs) -> Result<u8> {
    for &pid in pids {
        check_target(pid)?;
    }
    let dump = outputs::open(&args.collect, args.call_stack.unwrap_or_default())?;
    let guard = Guard::start().context("cannot start the guard process")?;
    Session::start(args, guard, dump, LateLibraries::Notify)?.attach(pids)
}

/// Says clearly what is wrong with a process id.
fn check_target(pid: u32) -> Result<()> {
    let status = match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => status,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("no process {pid}: it does not exist, or has ended")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot look at process {pid}")),
    };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if let Some(group) = field("Tgid:")
        && group != pid.to_string()
    {
        bail!("{pid} is a thread of process {group}: use --pid {group}");
    }
    if field("State:").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        bail!("process {pid} has ended and only waits for its parent");
    }
    if pid == std::process::id() {
        bail!("{pid} is this tracer itself");
    }
    Ok(())
}

/// Everything of a running trace.
struct Session<'a> {
    args: &'a TraceArgs,
    kernel: Kernel,
    follow: Follow,
    reader: Reader,
    writer: JoinHandle<Written>,
    asks: mpsc::Sender<Ask>,
    urgent: UnboundedReceiver<Urgent>,
    output_errors: UnboundedReceiver<String>,
    gauge: Gauge,
    usage: Option<Sampler>,
    stacks: stacks::Live,
    capture: Option<PathBuf>,
    started: Instant,
    child: Option<Child>,
    waiting_told: bool,
    user: Vec<&'static ProbeSpec>,
}

/// The program that `run` started.
struct Child {
    pid: Pid,
    status: Option<u8>,
}

impl<'a> Session<'a> {
    fn start(args: &'a TraceArgs, guard: Guard, dump: Box<dyn Sink>, late: LateLibraries) -> Result<Self> {
        let wanted_ops = operators::wanted(args);
        let options = KernelOptions {
            ring_bytes: args.ring_size,
            perf: args.transport == Transport::Perf,
            link_mode: args.link.map(|link| match link {
                Link::Multi => LinkMode::Multi,
                Link::Cookie => LinkMode::Cookie,
                Link::Slots => LinkMode::Slots,
            }),
            max_rows: args.max_rows,
            tracefs: args.tracefs,
            objects: wanted_ops.choice.torch(),
            arrays: wanted_ops.accesses,
            stacks: stacks::options(args),
        };
        let mut kernel = Kernel::load(&options)?;
        operators::check(&wanted_ops, kernel.link_mode()).map_err(|reason| anyhow!(reason))?;
        if let Some(text) = operators::untold(&wanted_ops, kernel.link_mode()) {
            message(args.collect.level_of_messages(), LogLevel::Warning, format_args!("{text}"));
        }
        let user = args.probes.specs().map_err(|reason| anyhow!(reason))?;
        let libraries = Libraries::new(&mut kernel, wanted_ops, &user)?;
        if let Some(text) = unserved_text(kernel.link_mode(), libraries.unserved()) {
            message(args.collect.level_of_messages(), LogLevel::Warning, format_args!("{text}"));
        }
        kernel.follow()?;
        let rows = libraries.descriptions();
        let (start_mono_ns, start_real_ns) = clocks();
        let capture = (!args.no_capture).then(|| outputs::capture_path(args.collect.output_path()));
        let mixed_stacks = args.call_stack.is_some_and(|stacks| stacks.mixed);
        let header = CaptureHeader {
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            kernel: kernel_release(),
            start_mono_ns,
            start_real_ns,
            options: std::env::args().collect(),
            rows: rows.clone(),
            mixed_stacks,
        };
        let capture_writer = match &capture {
            Some(path) => {
                let options = WriterOptions { owner: spawn::sudo_ids(), sync: true };
                Some(capture::Writer::create(path, &header, options)?)
            }
            None => None,
        };
        let (gauge_sink, gauge) = GaugeSink::new();
        let rules = outputs::rules(&args.collect).map_err(|reason| anyhow!(reason))?;
        let mut analyses = outputs::analyses(&args.collect, rules.as_ref());
        let owners = outputs::owners(&args.collect, rules.as_ref());
        let dump_filter = outputs::filter(&args.collect);
        let config = PipelineConfig { rows, start_mono_ns, start_real_ns, dump: dump_filter, owners, mixed_stacks };
        let notices = Notices::new(args.collect.level_of_messages());
        let sinks: Vec<Box<dyn Sink>> = vec![dump, Box::new(gauge_sink), Box::new(notices)];
        let trigger = Trigger::default();
        analyses.push(Box::new(trigger.clone()));
        let pipeline = Pipeline::new(config, sinks, analyses);
        let (urgent_sender, urgent) = unbounded_channel();
        let (error_sender, output_errors): (UnboundedSender<String>, _) = unbounded_channel();
        let source = kernel.source(&options)?;
        // Signals are blocked before the first thread starts, so that they reach the loop alone.
        Signals::block()?;
        let (reader, batches) = Reader::start(source, args.ring_size as usize, urgent_sender)?;
        let interpreters = Interpreters::new();
        let (batches, stacks) = stacks::start(args, &kernel, interpreters.layouts(), batches)?;
        let (asks, asked) = mpsc::channel();
        let writer = writer::start(batches, pipeline, capture_writer, error_sender, asked)?;
        let usage = start_usage(args, trigger, &reader)?;
        let how = args.late_libraries.unwrap_or(late);
        let stop = how == LateLibraries::Stop && kernel.features().send_signal;
        let follow_options = FollowOptions { children: !args.no_children, stop };
        let mut follow = Follow::new(follow_options, libraries, guard);
        if let Some(why) = kernel.no_python() {
            let text = format_args!("no Python stacks are taken: {why}");
            message(args.collect.level_of_messages(), LogLevel::Warning, text);
        } else if options.stacks.python_depth.is_some() {
            follow.follow_python(interpreters);
        }
        let notes = reader.first_notes();
        follow.tell(move |note| notes.send(note_record(monotonic_ns(), 0, &note)));
        Ok(Self {
            args,
            kernel,
            follow,
            reader,
            writer,
            asks,
            urgent,
            output_errors,
            gauge,
            usage,
            stacks,
            capture,
            started: Instant::now(),
            child: None,
            waiting_told: false,
            user,
        })
    }

    /// Starts the program and traces it until it, and what it started, has ended.
    fn run(mut self, child: Waiting, tool: Option<&MstxTool>) -> Result<u8> {
        self.expect_libraries()?;
        if let Some(tool) = tool {
            self.follow.expect_mstx_tool(&mut self.kernel, tool.path())?;
        }
        self.follow.start(&mut self.kernel, child.pid.as_raw() as u32)?;
        self.note_changes();
        let failure = child.failure()?;
        self.child = Some(Child { pid: child.pid, status: None });
        child.go()?;
        let failure = std::thread::spawn(move || failure.wait());
        let end = self.trace()?;
        let failed = end.is_failure();
        // The pipe behind it is closed when the program begins, or when the child is gone.
        let never_ran = failure.join().ok().flatten();
        let (status, written) = self.finish(&end, never_ran.is_some())?;
        if let Some(error) = never_ran {
            return Err(error.into());
        }
        let Some(status) = status else { bail!("the program's exit status is not known") };
        Ok(if status == 0 && (failed || !written) { RUN_FAILURE } else { status })
    }

    /// Traces running processes until they end or somebody asks to stop.
    fn attach(mut self, pids: &[u32]) -> Result<u8> {
        for &pid in pids {
            let tell = |change| note(&self.reader, &change_note(change));
            let attached = self.follow.attach(&mut self.kernel, pid, tell);
            attached.with_context(|| format!("cannot attach to process {pid}"))?;
            self.stacks.look_ahead(pid);
        }
        self.note_changes();
        self.tell_libraries();
        if !self.follow.libraries().found_any() {
            let text = format_args!(
                "no Ascend library is mapped by process {} yet (looked for {}); waiting for it",
                list(pids),
                library_names(&self.user)
            );
            self.say(LogLevel::Warning, text);
        }
        let end = self.trace()?;
        let failed = end.is_failure();
        let (_, written) = self.finish(&end, false)?;
        Ok(if failed || !written { FAILURE } else { 0 })
    }

    /// Libraries that the program will probably map are probed before it starts.
    fn expect_libraries(&mut self) -> Result<()> {
        const LOADERS: [&str; 3] =
            ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1"];
        let environment: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let loaders = LOADERS.iter().filter_map(|path| Path::new(path).canonicalize().ok());
        for path in loaders.chain(expected_libraries(&environment, &self.user)) {
            self.follow.expect(&mut self.kernel, &path)?;
        }
        self.tell_libraries();
        Ok(())
    }

    /// The loop: reacts until the trace ends. A duration that the user gave begins here: attaching took its own time.
    fn trace(&mut self) -> Result<End> {
        self.started = Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let signals = {
            let _guard = runtime.enter();
            Signals::new()?
        };
        runtime.block_on(async {
            let mut tick = interval(TICK);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut status = interval(STATUS);
            status.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut clock = interval(CLOCK);
            clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let end = tokio::select! {
                    biased;
                    Some(urgent) = self.urgent.recv() => self.on_urgent(urgent),
                    Some(error) = self.output_errors.recv() => Some(End::Output(error)),
                    caught = signals.next() => self.on_signal(caught?),
                    _ = tick.tick() => self.on_tick(),
                    _ = status.tick() => { self.show_status(); None }
                    _ = clock.tick() => { self.note_clock(); None }
                };
                if let Some(end) = end {
                    return Ok(end);
                }
            }
        })
    }

    fn on_urgent(&mut self, urgent: Urgent) -> Option<End> {
        // While the process waits, or at least is there.
        self.stacks.look_ahead(urgent.pid);
        let handled = self.follow.handle(&mut self.kernel, urgent);
        self.note_changes();
        self.tell_libraries();
        handled.err().map(|error| End::Kernel(error_chain(&error)))
    }

    fn on_signal(&mut self, caught: Caught) -> Option<End> {
        if caught.signal == Signal::SIGCHLD {
            self.wait_for_child();
            return None;
        }
        if caught.signal == Signal::SIGUSR1 {
            // A writer that has ended has said all there is.
            let _ = self.asks.send(Ask::Ledgers);
        }
        match &self.child {
            // Our own signal. A program that waits for it gets it, too; one that does not would be killed by it.
            Some(Child { pid, status: None })
                if caught.signal == Signal::SIGUSR1 && !signals::is_expected(*pid, caught.signal) =>
            {
                None
            }
            Some(Child { pid, status: None }) => {
                // What the terminal sends, the program has got as well.
                if !caught.from_terminal {
                    let _ = kill(*pid, caught.signal);
                }
                None
            }
            _ if matches!(caught.signal, Signal::SIGUSR1 | Signal::SIGUSR2) => None,
            _ => Some(End::Signal(caught.signal)),
        }
    }

    fn on_tick(&mut self) -> Option<End> {
        self.wait_for_child();
        if let Err(error) = self.follow.look_again(&mut self.kernel) {
            return Some(End::Kernel(error_chain(&error)));
        }
        self.tell_interpreters();
        let living = self.follow.reap();
        self.note_changes();
        if self.args.duration.is_some_and(|duration| self.started.elapsed() >= duration) {
            return Some(End::Duration);
        }
        match &self.child {
            Some(Child { status: None, .. }) => None,
            _ if living == 0 => Some(End::Processes),
            Some(_) if !self.waiting_told => {
                self.waiting_told = true;
                self.say(
                    LogLevel::Info,
                    format_args!("the program has ended; {living} process(es) that it started live on and are traced; Ctrl-C ends the trace"),
                );
                None
            }
            _ => None,
        }
    }

    fn wait_for_child(&mut self) {
        let Some(child) = &mut self.child else { return };
        if child.status.is_none() {
            child.status = exit_status(waitpid(child.pid, Some(WaitPidFlag::WNOHANG)));
        }
    }

    fn note(&self, text: &Note) {
        note(&self.reader, text);
    }

    fn note_changes(&mut self) {
        for change in self.follow.take_changes() {
            self.note(&change_note(change));
        }
    }

    fn note_clock(&self) {
        let (mono_ns, real_ns) = clocks();
        self.note(&Note::Clock { mono_ns, real_ns });
        self.note_losses();
    }

    /// The kernel side's counters, so that a recovered trace knows of its losses too.
    fn note_losses(&self) {
        let Ok(misses) = self.kernel.misses() else { return };
        if !misses.is_empty() {
            let by =
                misses.into_iter().map(|(row, miss, count)| LossCount { row, reason: miss as u32, count }).collect();
            self.note(&Note::Losses { by });
        }
    }

    fn tell_interpreters(&mut self) {
        for text in self.follow.take_told() {
            self.say(LogLevel::Warning, format_args!("{text}"));
        }
    }

    fn tell_libraries(&mut self) {
        self.tell_interpreters();
        for library in self.follow.take_added() {
            let path = library.path.display();
            if let Some(error) = &library.error {
                self.say(LogLevel::Warning, format_args!("{path}: {error}"));
            }
            for (symbol, reason) in &library.not_located {
                self.say(LogLevel::Warning, format_args!("{path}: `{symbol}` is not traced: {reason}"));
            }
            for (symbol, (vaddr, evidence)) in library.placed.iter().filter_map(|p| Some((&p.symbol, p.located?))) {
                self.say(LogLevel::Debug, format_args!("{path}: `{symbol}` located at {vaddr:#x} ({evidence})"));
            }
            let stepped = library.placed.iter().filter(|placed| placed.site.cost.is_stepped()).count();
            self.say(
                LogLevel::Debug,
                format_args!("{path}: {} probe(s), {stepped} of them single-stepped", library.placed.len()),
            );
            if let Some(ops) = library.ops {
                let (warns, text) = operators::describe(&library.path, ops, operators::wanted(self.args).accesses);
                self.say(if warns { LogLevel::Warning } else { LogLevel::Debug }, format_args!("{text}"));
            }
        }
    }

    fn say(&self, level: LogLevel, text: std::fmt::Arguments<'_>) {
        message(self.args.collect.level_of_messages(), level, text);
    }

    /// One line on a terminal that is ours: with `run`, only if the program does not write there.
    fn show_status(&self) {
        let stderr = io::stderr();
        let shared = self.child.is_some() && io::stdout().is_terminal();
        let quiet = self.args.no_progress || self.args.collect.level_of_messages() > LogLevel::Info;
        if quiet || shared || !stderr.is_terminal() {
            return;
        }
        let figures = self.gauge.figures();
        let lost = self.kernel.misses().map_or(0, |misses| {
            misses.iter().filter(|(_, miss, _)| *miss == memscope_common::Miss::RingFull).map(|(.., count)| count).sum()
        });
        let devices: Vec<String> = figures
            .live_bytes
            .iter()
            .map(|(device, bytes)| format!("{} {:.1} MiB", device_name(*device), *bytes as f64 / f64::from(1 << 20)))
            .collect();
        eprint!("\r\x1b[K{} events | live: {} | lost: {lost}", figures.events, devices.join(", "));
    }

    /// Ends the trace in order: no more events, all outputs complete, then the probes go. Gives the program's exit
    /// status, and whether everything was written.
    fn finish(mut self, end: &End, silent: bool) -> Result<(Option<u8>, bool)> {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        if let End::Output(error) | End::Kernel(error) = end {
            super::error(format_args!("{error}; tracing ends here, the traced program goes on"));
        }
        if !silent && !self.follow.libraries().found_any() {
            let text = format_args!(
                "no traced process has mapped an Ascend library (looked for {}), so there was nothing to trace",
                library_names(&self.user)
            );
            self.say(LogLevel::Warning, text);
        }
        // While the processes are there to be told of, and before the notes end.
        if let Some(usage) = self.usage.take() {
            usage.finish();
        }
        self.kernel.silence()?;
        self.follow.reap();
        self.note_changes();
        self.note_clock();
        self.note(&Note::End { reason: end.reason() });
        self.reader.finish();
        let written = self.writer.join().map_err(|_| anyhow!("the writing thread failed"))?;
        // Whoever was stopped in the last moment goes on.
        while let Ok(urgent) = self.urgent.try_recv() {
            let _ = self.follow.handle(&mut self.kernel, urgent);
        }
        self.follow.end();
        let complete = report(self.args, &written, self.capture.as_deref(), silent)?;
        // Outputs are complete: from here on a Ctrl-C may simply end us while the kernel detaches.
        Signals::unblock();
        let took = self.kernel.detach();
        message(self.args.collect.level_of_messages(), LogLevel::Debug, format_args!("detached in {took:.0?}"));
        let status = match self.child {
            None => None,
            Some(Child { status: Some(status), .. }) => Some(status),
            // The trace ended before the program.
            Some(Child { pid, status: None }) => exit_status(waitpid(pid, None)),
        };
        Ok((status, complete))
    }
}

/// Starts asking the driver for its figures, unless nobody wants them.
fn start_usage(args: &TraceArgs, trigger: Trigger, reader: &Reader) -> Result<Option<Sampler>> {
    let options =
        Options { interval: args.usage_interval, per_second: args.usage_rate, library: args.usage_library.clone() };
    if options.interval.is_zero() && options.per_second == 0 {
        return Ok(None);
    }
    let (notes, level) = (reader.notes(), args.collect.level_of_messages());
    let send = move |note: &Note| notes.send(note_record(monotonic_ns(), 0, note));
    let tell = move |tell| match tell {
        Tell::Found(what) => message(level, LogLevel::Debug, format_args!("the driver's figures come from {what}")),
        Tell::Absent(why) => message(
            level,
            LogLevel::Debug,
            format_args!("{why}: process_used, device_used and the device's line of the ledger are left out"),
        ),
        Tell::GivenUp(why) => message(
            level,
            LogLevel::Warning,
            format_args!(
                "the driver is not asked for its figures (DCMI) any more: {why}; rows are without process_used and device_used"
            ),
        ),
    };
    let started =
        Sampler::start(options, trigger, send, tell).context("cannot start asking for the driver's figures")?;
    Ok(Some(started))
}

/// Puts a note behind what is in the transport.
fn note(reader: &Reader, note: &Note) {
    reader.send(Command::Note(note_record(monotonic_ns(), 0, note)));
}

fn change_note(change: Change) -> Note {
    match change {
        Change::Started { pid, parent, attached, command, visible_devices } => {
            Note::ProcessStart { pid, parent, attached, command, visible_devices }
        }
        Change::Ended { pid } => Note::ProcessEnd { pid },
    }
}

fn device_name(device: Device) -> String {
    match device {
        Device::Npu(number) => format!("npu {number}"),
        Device::Cpu => "cpu".to_owned(),
        Device::None => "no device".to_owned(),
    }
}

/// Prints the report. Gives whether all outputs are complete.
fn report(args: &TraceArgs, written: &Written, capture: Option<&Path>, silent: bool) -> Result<bool> {
    let level = args.collect.level_of_messages();
    let failures: Vec<String> =
        written.outcome.errors.iter().map(|error| error_chain(error)).chain(written.capture_error.clone()).collect();
    for failure in &failures {
        message(level, LogLevel::Error, format_args!("{failure}"));
    }
    if !silent {
        outputs::print_report(&args.collect, &written.outcome).context("cannot print the report")?;
    }
    if let Some(path) = capture.filter(|_| written.capture_error.is_none()) {
        message(level, LogLevel::Info, format_args!("capture {}", path.display()));
    }
    Ok(failures.is_empty())
}

/// What the user is told of functions that there is no room for.
fn unserved_text(mode: LinkMode, unserved: &[&str]) -> Option<String> {
    let why = match mode {
        LinkMode::Slots => "without attach cookies (Linux 5.15) there is room for few",
        LinkMode::Multi | LinkMode::Cookie => "there is no room",
    };
    let (count, names) = (unserved.len(), unserved.join(", "));
    (count > 0).then(|| format!("{count} function(s) are not probed, as {why}: {names}"))
}

/// Exit status as shells give it; `None` while it runs.
fn exit_status(waited: nix::Result<WaitStatus>) -> Option<u8> {
    const KILLED: u8 = 128;
    match waited {
        Ok(WaitStatus::Exited(_, code)) => Some(code as u8),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(KILLED.wrapping_add(signal as i32 as u8)),
        _ => None,
    }
}

/// `CLOCK_MONOTONIC` and the time since the Unix epoch at the same moment, in nanoseconds: the best of a few tries.
fn clocks() -> (u64, u64) {
    const TRIES: usize = 5;
    let sample = || {
        let before = monotonic_ns();
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let after = monotonic_ns();
        (after - before, u64::midpoint(before, after), real)
    };
    let best = (0..TRIES).map(|_| sample()).min().unwrap_or_default();
    (best.1, best.2)
}

fn kernel_release() -> String {
    nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default()
}

fn list(pids: &[u32]) -> String {
    pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn library_names(user: &[&'static ProbeSpec]) -> String {
    let specs = crate::probes::builtin().chain(user.iter().copied());
    let mut names: Vec<&str> = specs.flat_map(|spec| spec.libraries.iter().copied()).collect();
    names.retain(|name| *name != MSTX_TOOL);
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}
