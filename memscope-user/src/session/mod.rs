//! A live trace from beginning to end: `run` and `--pid`, and what `stat` shares with them.

mod end;
mod start;
mod tell;
mod watch;

use std::{
    io,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::{Pid, getpgrp},
};
use tokio::{
    io::unix::AsyncFd,
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
    time::{self, Interval, MissedTickBehavior, interval},
};

use self::{
    end::reap,
    tell::{change_note, list, note, tell_names},
};
use super::{
    FAILURE, RUN_FAILURE, USAGE,
    args::{LogLevel, RunArgs, TraceArgs},
    disk::{Disk, DiskUse, Files, Room},
    error, heap, message,
    notices::Notices,
    outputs::{self, Chosen, Selecting},
    signals::{self, Caught, Signals},
    stacks,
    stat::Monitor,
    terminal,
    writer::{Ask, Written},
};
use crate::{
    analyses::{Analysis, Finding, decompose::RuleSet},
    crew::{self, Fault, Post},
    error_chain,
    follow::{
        Follow, expected_libraries,
        guard::Guard,
        mstx_tool::{INJECTION_PATH, MstxTool},
        spawn::{self, RunAs, SpawnError, Waiting},
    },
    kernel::{Kernel, KernelError},
    os::secure_env,
    pipeline::{Demand, DumpFilter},
    probes::ProbeSpec,
    ring::{Reader, Urgent},
    sinks::{
        Sink,
        gauge::Gauge,
        tree::{OutputTree, ProcessDirs},
    },
    usage::{Sampler, Trigger},
    watch::live::Watch,
};

/// Processes are looked after this often while one waits for it.
const TICK: Duration = Duration::from_millis(100);
/// The same while none does: what is urgent wakes us, and so does the end of a process.
const RARE_TICK: Duration = Duration::from_millis(500);
/// The status line is renewed this often.
const STATUS: Duration = Duration::from_secs(1);
/// Clocks are compared, and losses written into the capture, this often.
const CLOCK: Duration = Duration::from_secs(5);

/// What the thread that reacts is called among the others of a trace.
const LOOP: &str = "memscope-bpf";

/// Why a trace ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// Every traced process has ended.
    Processes,
    /// `--duration` is over.
    Duration,
    /// `--count` samples were taken.
    Count,
    /// Nobody reads the samples any more.
    Reader,
    /// The files have the size of `--max-size`.
    Size,
    /// A signal asked for it.
    Signal(Signal),
    /// An output cannot be written any more.
    Output(String),
    /// The kernel side failed.
    Kernel(String),
    /// This tracer failed: a thread of it panicked.
    Fault(Fault),
}

impl End {
    fn reason(&self) -> String {
        match self {
            Self::Processes => "the traced processes ended".to_owned(),
            Self::Duration => "the given time was over".to_owned(),
            Self::Count => "the given number of samples was taken".to_owned(),
            Self::Reader => "nobody reads the samples any more".to_owned(),
            Self::Size => "the files had the size of --max-size".to_owned(),
            Self::Signal(signal) => format!("signal {signal}"),
            Self::Output(error) | Self::Kernel(error) => error.clone(),
            Self::Fault(fault) => fault.to_string(),
        }
    }

    const fn is_failure(&self) -> bool {
        matches!(self, Self::Output(_) | Self::Kernel(_) | Self::Fault(_))
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
    attach_with(pids, args, || Plan::of_trace(args))
}

/// Traces running processes for what the plan makes of them.
pub(super) fn attach_with(pids: &[u32], args: &TraceArgs, plan: impl FnOnce() -> Result<Plan>) -> ExitCode {
    if let Err(reason) = check(args) {
        error(reason);
        return ExitCode::from(USAGE);
    }
    match try_attach(pids, args, plan, || Ok(())) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// Traces a running process for somebody who is told when all that it does from then on is seen.
pub(super) fn attach_for(
    pid: u32,
    args: &TraceArgs,
    plan: impl FnOnce() -> Result<Plan>,
    attached: impl FnOnce() -> Result<()>,
) -> Result<u8> {
    check(args).map_err(anyhow::Error::msg)?;
    try_attach(&[pid], args, plan, attached)
}

/// What this version cannot do is refused, not passed over.
fn check(args: &TraceArgs) -> Result<(), String> {
    outputs::check(&args.collect)?;
    outputs::refuse_borrowed_rights(args.usage_library.as_deref())?;
    args.probes.specs()?;
    watch::check(args)
}

fn try_run(args: &RunArgs) -> Result<u8> {
    heap::keep_little();
    let program = spawn::find_program(&args.program[0])?;
    let run_as = RunAs::choose(args.user.as_deref())?;
    if let Some(text) = run_as.as_ref().and_then(RunAs::warning) {
        message(args.trace.collect.level_of_messages(), LogLevel::Warning, format_args!("{text}"));
    }
    let plan = Plan::of_trace(&args.trace)?;
    let tree = plan.tree.clone();
    let result = start_program(args, &program, run_as.as_ref(), plan);
    result.inspect_err(|_| discard(tree.as_ref()))
}

fn start_program(args: &RunArgs, program: &Path, run_as: Option<&RunAs>, plan: Plan) -> Result<u8> {
    // Both children before any thread.
    let guard = Guard::start().context("cannot start the guard process")?;
    let tool = args.mstx_injection.then(MstxTool::install).transpose()?;
    let mut variables = secure_env::variables();
    variables.extend(tool.iter().map(|tool| (INJECTION_PATH.into(), tool.path().into())));
    let child = spawn::prepare(program, &args.program, run_as, &variables)?;
    let child_pid = child.pid;
    let result = Session::start(&args.trace, guard, plan, Some(getpgrp()));
    let run = |session: Session<'_>| {
        let run = catch_unwind(AssertUnwindSafe(|| session.run(child, tool.as_ref())));
        run.unwrap_or_else(|panic| {
            // Its end is not known to us any more, but whoever started us waits for it.
            let _ = waitpid(child_pid, None);
            Err(anyhow!("the trace could not be ended in order: {}", crew::panic_text(&*panic)))
        })
    };
    let result = result.and_then(run);
    if result.is_err() {
        // It has not begun, or is on its own: it must not be left as a zombie in either case.
        let _ = waitpid(child_pid, Some(WaitPidFlag::WNOHANG));
    }
    result
}

fn try_attach(
    pids: &[u32],
    args: &TraceArgs,
    plan: impl FnOnce() -> Result<Plan>,
    attached: impl FnOnce() -> Result<()>,
) -> Result<u8> {
    heap::keep_little();
    for &pid in pids {
        check_target(pid)?;
    }
    let plan = plan()?;
    let tree = plan.tree.clone();
    let begin = || {
        let guard = Guard::start().context("cannot start the guard process")?;
        Session::start(args, guard, plan, None)?.attach(pids, attached)
    };
    begin().inspect_err(|_| discard(tree.as_ref()))
}

/// Removes the outputs of a trace that has not begun.
fn discard(tree: Option<&OutputTree>) {
    if let Some(tree) = tree {
        tree.discard();
    }
}

/// Waits until a process has ended, where the kernel tells.
async fn readable(ended: Option<&AsyncFd<OwnedFd>>) {
    match ended {
        Some(ended) => {
            if let Ok(mut ready) = ended.readable().await {
                ready.clear_ready();
            }
        }
        None => std::future::pending().await,
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
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

/// What a session makes of what it sees.
pub(super) struct Plan {
    /// Who gets the rows.
    pub(super) sinks: Vec<Box<dyn Sink>>,
    /// Who gets all events.
    pub(super) analyses: Vec<Box<dyn Analysis>>,
    /// Which rows there are.
    pub(super) dump: DumpFilter,
    /// By which rules rows have owners.
    pub(super) owners: Option<Arc<RuleSet>>,
    /// Where outputs go.
    pub(super) tree: Option<OutputTree>,
    /// Whether everything is kept as it came.
    pub(super) capture: bool,
    /// Makes what scripts ask for.
    pub(super) demand: Option<Demand>,
    /// Has the driver asked for its figures when memory changes.
    pub(super) trigger: Trigger,
    /// Whether the analyses were shown any block.
    pub(super) selected: Selecting,
    /// Shows samples while it runs, and no report at the end.
    pub(super) monitor: Option<Monitor>,
    /// Directories of processes, for all who write into them.
    pub(super) dirs: ProcessDirs,
    /// What it writes.
    pub(super) files: Files,
}

impl Plan {
    /// A trace as the options have it.
    pub(super) fn of_trace(args: &TraceArgs) -> Result<Self> {
        let collect = &args.made_meanwhile();
        let rules = outputs::rules(collect).map_err(anyhow::Error::msg)?;
        let dirs = ProcessDirs::default();
        let files = Files::default();
        let (dump, tree) = outputs::open(args, dirs.clone(), files.clone())?;
        let trigger = Trigger::default();
        let Chosen { mut analyses, mut selected } = outputs::analyses(collect, rules.as_ref());
        if args.capture_only {
            (analyses, selected) = (Vec::new(), Selecting::ALL);
        }
        analyses.push(Box::new(trigger.clone()));
        Ok(Self {
            sinks: vec![dump, Box::new(Notices::new(collect.level_of_messages()))],
            analyses,
            dump: outputs::filter(collect),
            owners: outputs::owners(collect, rules.as_ref()),
            demand: (!args.capture_only).then(|| outputs::demand(collect, rules.as_ref())),
            tree: Some(tree),
            capture: !args.no_capture,
            trigger,
            selected,
            monitor: None,
            dirs,
            files,
        })
    }
}

/// Everything of a running trace.
struct Session<'a> {
    args: &'a TraceArgs,
    kernel: Kernel,
    follow: Follow,
    reader: Reader,
    writer: JoinHandle<Written>,
    asks: mpsc::Sender<Ask>,
    answer: UnboundedSender<Vec<Finding>>,
    answers: UnboundedReceiver<Vec<Finding>>,
    selected: Selecting,
    monitor: Option<Monitor>,
    urgent: UnboundedReceiver<Urgent>,
    output_errors: UnboundedReceiver<String>,
    faults: UnboundedReceiver<Fault>,
    post: Post,
    gauge: Gauge,
    disk: Disk,
    usage: Option<Sampler>,
    watch: Option<Watch>,
    stacks: stacks::Live,
    tree: Option<OutputTree>,
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

impl Session<'_> {
    /// Starts the program and traces it until it, and what it started, has ended.
    fn run(mut self, child: Waiting, tool: Option<&MstxTool>) -> Result<u8> {
        self.expect_libraries(child.program())?;
        if let Some(tool) = tool {
            self.follow.expect_mstx_tool(&mut self.kernel, tool.path())?;
        }
        self.follow.start(&mut self.kernel, child.pid.as_raw() as u32)?;
        self.note_changes();
        let failure = child.failure()?;
        let tree = self.tree.clone();
        let wait = move || {
            let never_ran = failure.wait();
            if let (None, Some(tree)) = (&never_ran, tree) {
                tree.keep();
            }
            never_ran
        };
        let failure = thread::Builder::new().spawn(wait).context("cannot start a thread")?;
        self.child = Some(Child { pid: child.pid, status: None });
        child.go()?;
        let end = self.trace();
        let failed = end.is_failure();
        // The pipe behind it is closed when the program begins, or when the child is gone.
        let never_ran = failure.join().ok().flatten();
        let (status, written) = self.finish(&end, never_ran.is_some());
        if let Some(error) = never_ran {
            return Err(error.into());
        }
        let Some(status) = status else { bail!("the program's exit status is not known") };
        Ok(if status == 0 && (failed || !written) { RUN_FAILURE } else { status })
    }

    /// Traces running processes until they end or somebody asks to stop; `attached` is called when all probes are there.
    fn attach(mut self, pids: &[u32], attached: impl FnOnce() -> Result<()>) -> Result<u8> {
        for &pid in pids {
            let tell = |change| {
                if let Some(monitor) = &mut self.monitor {
                    monitor.changed(&change);
                }
                note(&self.reader, &change_note(change));
            };
            let joined = self.follow.attach(&mut self.kernel, pid, tell);
            joined.with_context(|| format!("cannot attach to process {pid}"))?;
            self.refuse_denied(pid)?;
            self.stacks.look_ahead(pid);
        }
        self.leave_others()?;
        self.note_changes();
        self.tell_libraries();
        attached()?;
        if let Some(tree) = &self.tree {
            tree.keep();
        }
        if !self.follow.libraries().found_any() {
            let text = format_args!("no Ascend library is mapped by process {} yet; waiting for one", list(pids));
            self.say(LogLevel::Warning, text);
            tell_names(self.args.collect.level_of_messages(), &self.user);
        }
        let end = self.trace();
        let failed = end.is_failure();
        let (_, written) = self.finish(&end, false);
        Ok(if failed || !written { FAILURE } else { 0 })
    }

    /// A trace that cannot see what it was started for does not start.
    fn refuse_denied(&self, pid: u32) -> Result<()> {
        match self.follow.libraries().denied().next() {
            None => Ok(()),
            Some(library) => {
                let error = library.error.as_deref().unwrap_or_default();
                bail!("cannot attach to process {pid}: {}: {error}; run with sudo", library.path.display())
            }
        }
    }

    /// Files of the processes that could not be opened, which are reported.
    fn unopened(&self) -> Vec<String> {
        let files: Vec<_> =
            self.follow.libraries().denied().map(|library| library.path.display().to_string()).collect();
        if !files.is_empty() {
            let text = format_args!(
                "{} file(s) of traced processes may not be opened: calls in them are missing",
                files.len()
            );
            self.say(LogLevel::Error, text);
        }
        files
    }

    /// Libraries that the program will probably map are probed before it starts.
    fn expect_libraries(&mut self, program: &Path) -> Result<()> {
        const LOADERS: [&str; 3] =
            ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1"];
        let environment = secure_env::program_environment();
        let loaders = LOADERS.iter().filter_map(|path| Path::new(path).canonicalize().ok());
        for path in loaders.chain(expected_libraries(&environment, &self.user)) {
            self.follow.expect(&mut self.kernel, &path)?;
        }
        let pairs = environment.iter().map(|(name, value)| format!("{name}={value}\0"));
        self.follow.expect_program(&mut self.kernel, program, pairs.collect::<String>().as_bytes())?;
        self.tell_libraries();
        Ok(())
    }

    /// Traces until the trace ends, and ends it in order whatever goes wrong: outputs are to be completed, and nobody is to stay stopped.
    fn trace(&mut self) -> End {
        let reacted = catch_unwind(AssertUnwindSafe(|| self.react()));
        match reacted {
            Ok(Ok(end)) => end,
            Ok(Err(failure)) => End::Kernel(format!("{failure:#}")),
            Err(panic) => {
                let text = crew::panic_text(&*panic).to_owned();
                End::Fault(Fault { thread: LOOP.to_owned(), text })
            }
        }
    }

    /// The loop: reacts until the trace ends. A duration that the user gave begins here: attaching took its own time.
    fn react(&mut self) -> Result<End> {
        // What was read to place the probes is not needed any more.
        heap::give_back();
        self.started = Instant::now();
        terminal::hurry(true);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let signals = {
            let _guard = runtime.enter();
            Signals::new()?
        };
        runtime.block_on(async {
            let ended = self.follow.ended();
            // SAFETY: `OwnedFd` owns its descriptor for as long as it lives.
            let ended = ended.map(|ended| unsafe { AsyncFd::register(ended) }).transpose()?;
            let [mut status, mut clock] = [STATUS, CLOCK].map(every);
            let mut tick = time::Instant::now();
            // Its first tick is at once, when there is nothing to sample yet.
            let mut sample = every(self.monitor.as_ref().map_or(CLOCK, Monitor::interval));
            sample.tick().await;
            loop {
                tick = tick.min(time::Instant::now() + self.until_tick());
                let end = tokio::select! {
                    biased;
                    Some(fault) = self.faults.recv() => Some(End::Fault(fault)),
                    Some(urgent) = self.urgent.recv() => self.on_urgent(urgent),
                    Some(error) = self.output_errors.recv() => Some(End::Output(error)),
                    caught = signals.next() => self.on_signal(caught?),
                    () = time::sleep_until(tick) => {
                        tick = time::Instant::now() + RARE_TICK;
                        self.on_tick()
                    }
                    () = readable(ended.as_ref()) => self.on_tick(),
                    Some(findings) = self.answers.recv() => self.show_sample(&findings),
                    _ = sample.tick() => self.take_sample(),
                    _ = status.tick() => self.on_status(),
                    _ = clock.tick() => { self.note_clock(); None }
                };
                if let Some(end) = end {
                    return Ok(end);
                }
            }
        })
    }

    /// Asks for what is known; it is shown when it comes.
    fn take_sample(&mut self) -> Option<End> {
        let monitor = self.monitor.as_mut()?;
        if monitor.only_last_is_left() {
            return Some(End::Count);
        }
        if monitor.begin() {
            // A writer that has ended has told why.
            let _ = self.asks.send(Ask::Now(self.answer.clone()));
        }
        None
    }

    fn show_sample(&mut self, findings: &[Finding]) -> Option<End> {
        let lost = self.lost();
        match self.monitor.as_mut()?.show(findings, lost) {
            Ok(()) => None,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Some(End::Reader),
            Err(error) => Some(End::Output(format!("cannot print the samples: {error}"))),
        }
    }

    fn on_urgent(&mut self, urgent: Urgent) -> Option<End> {
        // While the process waits, or at least is there.
        self.stacks.look_ahead(urgent.pid);
        let handled = self.follow.handle(&mut self.kernel, urgent).and_then(|()| self.leave_others());
        self.note_changes();
        self.tell_libraries();
        handled.err().map(|error| End::Kernel(error_chain(&error)))
    }

    fn on_signal(&mut self, caught: Caught) -> Option<End> {
        if caught.signal == Signal::SIGCHLD {
            self.wait_for_child();
            // Threads that block watch stops send it, too.
            let has_ended = self.child.as_ref().is_some_and(|child| child.status.is_some());
            return if has_ended { self.on_tick() } else { None };
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

    /// Shows the figures, and ends the trace when its files are as large as they may be.
    fn on_status(&mut self) -> Option<End> {
        let disk = self.look_at_disk();
        self.show_status(disk);
        let most = self.args.max_size.filter(|_| self.args.rotate.is_none());
        most.filter(|most| disk.size_bytes >= *most).map(|_| End::Size)
    }

    /// Looks at the files, and warns once when the disk is about to be full.
    fn look_at_disk(&mut self) -> DiskUse {
        let free_bytes = self.tree.as_ref().and_then(|tree| tree.free_bytes().ok());
        let disk = self.disk.look(Instant::now(), Room { free_bytes, max_bytes: self.args.max_size });
        if let Some(left) = self.disk.warning(disk) {
            let free = tell::size(free_bytes.unwrap_or(0));
            let text = format_args!(
                "the disk is full in {} at this rate ({free} free): --max-size ends the trace before, --stacks=table and \
                 --capture-only write less",
                tell::time(left)
            );
            self.say(LogLevel::Warning, text);
        }
        disk
    }

    /// How long nobody has to be looked after.
    fn until_tick(&self) -> Duration {
        let left = self.args.duration.map(|duration| duration.saturating_sub(self.started.elapsed()));
        let hurried = self.follow.is_waiting() || self.args.only_user.is_some();
        left.unwrap_or(RARE_TICK).min(if hurried { TICK } else { RARE_TICK })
    }

    fn on_tick(&mut self) -> Option<End> {
        self.post.round();
        self.wait_for_child();
        if let Err(error) = self.follow.look_again(&mut self.kernel).and_then(|()| self.leave_others()) {
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
            _ if living == 0 => match self.follow.expects_more(&mut self.kernel) {
                Ok(more) => (!more).then_some(End::Processes),
                Err(error) => Some(End::Kernel(error_chain(&error))),
            },
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

    /// Takes processes out that have other rights by now, where that is wanted.
    fn leave_others(&mut self) -> Result<(), KernelError> {
        self.args.only_user.map_or(Ok(()), |uid| self.follow.leave_others(&mut self.kernel, uid))
    }

    fn wait_for_child(&mut self) {
        let Some(child) = &mut self.child else { return };
        if child.status.is_none() {
            child.status = reap(child.pid);
        }
    }
}
