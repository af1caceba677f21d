//! A live trace: options in, events, findings and messages out.
//!
//! ```text
//!  TraceOptions ─▶ Trace::start ─▶ Loop, on a thread of its own
//!                                   ├ Target  kernel side, followed processes, the started program
//!                                   ├ Stream  reader, call stacks, capture
//!                                   ├ Work    pipeline, analyses, sinks, files
//!                                   └ Side    the driver's figures, block watch
//!      Listener ◀── messages, progress, events, samples, results
//! ```
//!
//! Nothing here belongs to the whole process: no signal, no stream, no hook. Signals are blocked in the trace's own threads, and
//! capabilities are dropped there.
//!
//! A trace forks twice: a guard, which frees waiting processes if this process is killed, and the program if it starts one.

mod behind;
#[cfg(test)]
mod books;
mod cost;
mod disk;
mod end;
mod error;
pub(crate) mod files;
mod gauge;
mod heap;
mod history;
mod joining;
mod listener;
mod loaded;
mod log;
mod looks;
mod monitor;
mod notices;
mod operators;
mod options;
pub(crate) mod outputs;
mod pools;
mod react;
mod side;
mod stacks;
mod start;
mod stream;
mod sums;
mod target;
pub(crate) mod text;
mod unused;
mod work;
mod writer;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc},
    thread::{self, JoinHandle},
};

use nix::{
    sys::signal::{SigSet, Signal, kill},
    unistd::Pid,
};
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    oneshot,
};

pub use self::{
    cost::ProgramCost,
    disk::DiskUse,
    error::{Refusal, TraceError},
    gauge::{Figures, Gauge},
    listener::{FilesWritten, Listener, Message, Outputs, Phase, Progress, Results},
    log::RunLog,
    looks::{HolderOptions, Looks},
    options::{
        Analyses, CallStacks, CollectOptions, DEFAULT_STACK_FRAMES, Devices, Events, KernelLimits, LateLibraries,
        OutputOptions, Program, RowLevel, Samples, TraceOptions, Traced, UsageOptions,
    },
    sums::{PoolSums, pool_sums},
};
#[cfg(feature = "cli")]
pub(crate) use self::{
    disk::{Files, until},
    log::Speaker,
    notices::Notices,
    options::DEFAULT_BLOCKS,
    react::every,
};
use self::{react::LOOP, start::Plan};
pub use crate::kernel::LeftOutStacks;
use crate::{
    crew::{self, Fault},
    follow::spawn,
    kernel::{
        features::{Features, NESTED_PIDS, has_nested_pids},
        lacks_object,
        privileges::Rights,
    },
};

/// Why a trace ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Every traced process has ended.
    Processes,
    /// The given time has passed.
    Duration,
    /// The given number of samples was taken.
    Count,
    /// The samples have no reader any more.
    Reader,
    /// The files have the size that they may have.
    Size,
    /// It was asked for, with this reason.
    Asked(String),
    /// An output can no longer be written.
    Output(String),
    /// The kernel side failed.
    Kernel(String),
    /// This tracer failed: a thread of it panicked.
    Fault(Fault),
}

impl End {
    /// Whether this is a failure of the tracer.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        matches!(self, Self::Output(_) | Self::Kernel(_) | Self::Fault(_))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processes => f.write_str("the traced processes ended"),
            Self::Duration => f.write_str("the given time was over"),
            Self::Count => f.write_str("the given number of samples was taken"),
            Self::Reader => f.write_str("the reader of the samples is gone"),
            Self::Size => f.write_str("the files had the size of --max-size"),
            Self::Asked(text) | Self::Output(text) | Self::Kernel(text) => f.write_str(text),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

/// A trace that has ended.
#[derive(Debug)]
pub struct Summary {
    /// Its results.
    pub results: Results,
    /// The program's exit status as shells give it; `None` if no program was started, or another part of this process
    /// took its status.
    pub program_status: Option<u8>,
}

/// Progress of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The current part.
    pub phase: Phase,
    /// Rows, and live bytes of each device, as of the last flush.
    pub figures: Figures,
}

/// A running trace. Dropping it ends the trace, without waiting for that.
///
/// # Examples
///
/// See the [first page](crate).
#[derive(Debug)]
pub struct Trace {
    thread: Option<JoinHandle<Result<Summary, TraceError>>>,
    control: Control,
}

/// Sends requests to a running trace, from any thread.
#[derive(Clone, Debug)]
pub struct Control {
    asks: UnboundedSender<Ask>,
    shared: Arc<Shared>,
}

/// A request to a trace.
#[derive(Debug)]
enum Ask {
    Stop(String),
    Findings,
    Join(u32, oneshot::Sender<Result<(), String>>),
    Leave(u32),
    Reduce(u32, bool),
    LeaveOutStacks(LeftOutStacks),
}

/// State shared by the loop and the handles of the trace.
#[derive(Debug, Default)]
struct Shared {
    phase: Mutex<Option<Phase>>,
    gauge: OnceLock<Gauge>,
    /// The started program, until its end is known.
    program: Mutex<Option<Pid>>,
}

impl Shared {
    fn program(&self) -> MutexGuard<'_, Option<Pid>> {
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase, listener: &dyn Listener) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = Some(phase);
        listener.phase(phase);
    }
}

/// Why this process cannot trace, if so: a build without the BPF object, missing privileges, or a kernel without a
/// needed feature.
#[must_use]
pub fn obstacle() -> Option<String> {
    if lacks_object() {
        return Some("this library was built without its BPF object".to_owned());
    }
    if has_nested_pids() {
        return Some(NESTED_PIDS.to_owned());
    }
    let features = Features::probe();
    let lacks = features.missing();
    if !lacks.is_empty() {
        return Some(format!("this kernel lacks {}", lacks.join(" and ")));
    }
    let missing: Vec<&str> = Rights::look(features, None).missing().iter().map(|missing| missing.name).collect();
    (!missing.is_empty()).then(|| format!("this process lacks {}", missing.join(", ")))
}

/// A moment in the start of a trace that the starting thread takes part in.
enum Step {
    /// The kernel side is loaded; the loop waits until the sender is dropped.
    Loaded(mpsc::SyncSender<()>),
    /// Calls are traced.
    Started,
}

/// The loop's side of the start.
struct Steps(mpsc::Sender<Step>);

impl Steps {
    fn loaded(&self) {
        let (go, wait) = mpsc::sync_channel(0);
        // A starting thread that is gone has nothing to do.
        if self.0.send(Step::Loaded(go)).is_ok() {
            let _ = wait.recv();
        }
    }

    fn started(&self) {
        let _ = self.0.send(Step::Started);
    }
}

impl Trace {
    /// Starts a trace; returns when its probes are placed, and the program, if any, runs.
    ///
    /// # Errors
    ///
    /// Any reason why the trace cannot begin. It leaves no file, no probe and no process behind.
    pub fn start(options: TraceOptions, listener: Arc<dyn Listener>) -> Result<Self, TraceError> {
        options.check()?;
        let program = match &options.traced {
            Traced::Program(Program { command, .. }) => {
                command.first().map(|name| spawn::find_program(name)).transpose()?
            }
            Traced::Processes(pids) => {
                pids.iter().try_for_each(|pid| target::check(*pid))?;
                None
            }
            Traced::Joining => None,
        };
        let plan = Plan::new(&options, listener)?;
        let tree = plan.tree.clone();
        let started = Self::start_loop(options, plan, program);
        started.inspect_err(|_| {
            // The trace was refused.
            if let Some(tree) = &tree {
                tree.discard();
            }
        })
    }

    fn start_loop(options: TraceOptions, plan: Plan, program: Option<PathBuf>) -> Result<Self, TraceError> {
        if let Some(outputs) = plan.outputs() {
            plan.speaker.listener().opened(&outputs).map_err(TraceError::Listener)?;
        }
        let (asks, asked) = unbounded_channel();
        let shared = Arc::new(Shared::default());
        let (steps, came) = mpsc::channel();
        let (tree, speaker) = (plan.tree.clone(), plan.speaker.clone());
        let of_loop = Arc::clone(&shared);
        let work = move || {
            block_signals();
            shared_run(options, plan, program, &of_loop, asked, &Steps(steps)).inspect_err(|_| {
                if let Some(tree) = &tree {
                    tree.discard();
                }
            })
        };
        let spawned = thread::Builder::new().name(LOOP.to_owned()).spawn(work);
        let thread = spawned.map_err(TraceError::system("cannot start a thread"))?;
        loop {
            match came.recv() {
                // Dropped behind the listener.
                Ok(Step::Loaded(_go)) => speaker.listener().loaded(),
                Ok(Step::Started) => break,
                Err(_) => {
                    let why = joined(thread);
                    return Err(why.map_or_else(|why| why, |_| TraceError::Fault("it ended at once".to_owned())));
                }
            }
        }
        Ok(Self { thread: Some(thread), control: Control { asks, shared } })
    }

    /// A handle for other threads, and for listeners.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Asks the trace to end. The program continues.
    pub fn stop(&self) {
        self.control.stop("the trace was asked to end");
    }

    /// Its progress.
    #[must_use]
    pub fn status(&self) -> Status {
        self.control.status()
    }

    /// Waits for the end of the trace, and of the program that it started.
    ///
    /// # Errors
    ///
    /// When the program could not be executed, or the trace failed in a way that left no results.
    pub fn wait(mut self) -> Result<Summary, TraceError> {
        match self.thread.take() {
            Some(thread) => joined(thread),
            None => Err(TraceError::Fault("it was waited for before".to_owned())),
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

impl Control {
    /// Asks the trace to end for a reason, which the capture keeps.
    pub fn stop(&self, reason: &str) {
        // A trace that has ended needs no request.
        let _ = self.asks.send(Ask::Stop(reason.to_owned()));
    }

    /// Sends the findings so far to the listener.
    pub fn ask(&self) {
        let _ = self.asks.send(Ask::Findings);
    }

    /// Has a running process, and its children where they are wanted, join the trace. The answer says why it has not; it is not there
    /// before the probes are.
    #[must_use]
    pub fn join(&self, pid: u32) -> oneshot::Receiver<Result<(), String>> {
        let (answer, answered) = oneshot::channel();
        // Of a trace that has ended no answer comes, which the other end sees.
        let _ = self.asks.send(Ask::Join(pid, answer));
        answered
    }

    /// Has a process leave the trace, as if it had ended. Its children stay.
    pub fn leave(&self, pid: u32) {
        let _ = self.asks.send(Ask::Leave(pid));
    }

    /// Has the calls of a process about single blocks of pools passed over, which are most of its calls: those of the driver, and requests
    /// that fail, are still traced. The blocks that pools have handed out are known no longer.
    pub fn reduce(&self, pid: u32) {
        let _ = self.asks.send(Ask::Reduce(pid, true));
    }

    /// Has all calls of such a process traced again. What its pools hold then is read as that of a process that joins.
    pub fn restore(&self, pid: u32) {
        let _ = self.asks.send(Ask::Reduce(pid, false));
    }

    /// Has call stacks of some kinds left out from here on, of those that the options ask for.
    pub fn leave_out_stacks(&self, which: LeftOutStacks) {
        let _ = self.asks.send(Ask::LeaveOutStacks(which));
    }

    /// The program that the trace started, while it runs.
    #[must_use]
    pub fn program(&self) -> Option<u32> {
        self.shared.program().map(|pid| pid.as_raw().cast_unsigned())
    }

    /// Sends a signal to the program that the trace started. Gives whether it runs.
    #[must_use]
    pub fn signal_program(&self, signal: Signal) -> bool {
        // Locked, so that its number is not another process's meanwhile.
        let program = self.shared.program();
        if let Some(pid) = *program {
            let _ = kill(pid, signal);
        }
        program.is_some()
    }

    /// The progress of the trace.
    #[must_use]
    pub fn status(&self) -> Status {
        let phase = self.shared.phase.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or(Phase::Starting);
        Status { phase, figures: self.shared.gauge.get().map(Gauge::figures).unwrap_or_default() }
    }
}

fn joined(thread: JoinHandle<Result<Summary, TraceError>>) -> Result<Summary, TraceError> {
    thread.join().unwrap_or_else(|panic| Err(TraceError::Fault(crew::panic_text(&*panic).to_owned())))
}

/// The whole trace, on its own thread.
fn shared_run(
    options: TraceOptions,
    plan: Plan,
    program: Option<PathBuf>,
    shared: &Arc<Shared>,
    asked: UnboundedReceiver<Ask>,
    steps: &Steps,
) -> Result<Summary, TraceError> {
    let speaker = plan.speaker.clone();
    let handles = start::Handles { shared: Arc::clone(shared), asked };
    let work = || match (program, options.traced.clone()) {
        (Some(path), Traced::Program(program)) => react::run(options, plan, (&path, &program), handles, steps),
        (_, Traced::Processes(pids)) => react::attach(options, plan, &pids, handles, steps),
        (_, Traced::Joining) => react::attach(options, plan, &[], handles, steps),
        (None, Traced::Program(_)) => Err(TraceError::Options("no program was given".to_owned())),
    };
    let ended = catch_unwind(AssertUnwindSafe(work));
    let ended = ended.unwrap_or_else(|panic| Err(TraceError::Fault(crew::panic_text(&*panic).to_owned())));
    shared.enter(Phase::Ended, &**speaker.listener());
    ended
}

/// Signals are for the process's own threads. A fault of a thread still ends the process.
fn block_signals() {
    let mut signals = SigSet::all();
    for own in [
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGABRT,
        Signal::SIGTRAP,
        Signal::SIGSYS,
    ] {
        signals.remove(own);
    }
    // Without, signals may come here, and are handled as elsewhere.
    let _ = signals.thread_block();
}
