//! The loop of a trace: reacts until the trace ends.

use std::{
    ops::ControlFlow,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::wait::{WaitPidFlag, waitpid},
    unistd::getpgrp,
};
use tokio::{
    io::unix::AsyncFd,
    sync::{mpsc::UnboundedReceiver, oneshot},
    time::{self, Interval, MissedTickBehavior, interval},
};

use super::{
    Ask, End, Phase, Steps, Summary, TraceError,
    cost::Meter,
    heap,
    listener::Progress,
    log::Speaker,
    monitor::Monitor,
    options::{Program, TraceOptions},
    side::Side,
    start::{Handles, Plan},
    stream::Stream,
    target::{Child, Target, change_note},
    text,
    unused::{Turn, Unused},
    work::Work,
};
use crate::{
    analyses::Finding,
    capture::LookMoment,
    crew::{self, Fault, Post},
    error_chain,
    follow::{
        guard::Guard,
        mstx_tool::{INJECTION_PATH, MstxTool},
        spawn::{self, Waiting},
    },
    os::secure_env,
    ring::Urgent,
    text::numbers::counted,
};

/// Poll interval while a process waits for us.
const TICK: Duration = Duration::from_millis(100);
/// Idle poll interval: urgent records and ended processes wake the loop.
const RARE_TICK: Duration = Duration::from_millis(500);
/// Interval of progress reports.
const STATUS: Duration = Duration::from_secs(1);
/// Interval of comparing clocks, and of writing losses into the capture.
const CLOCK: Duration = Duration::from_secs(5);

/// Longest wait for the last look at who holds blocks.
const LAST_LOOK: Duration = Duration::from_secs(15);

/// Name of the loop's thread.
pub(super) const LOOP: &str = "memscope-bpf";

/// A running trace.
pub(super) struct Loop {
    pub(super) target: Target,
    pub(super) stream: Stream,
    pub(super) work: Work,
    pub(super) side: Side,
    pub(super) duration: Option<Duration>,
    pub(super) monitor: Option<Monitor>,
    pub(super) urgent: UnboundedReceiver<Urgent>,
    pub(super) faults: UnboundedReceiver<Fault>,
    pub(super) post: Post,
    pub(super) handles: Handles,
    pub(super) started: Instant,
    /// The trace does not end with the last process.
    pub(super) stays: bool,
    /// As [`TraceOptions::forget_unused`].
    pub(super) forget_unused: Option<Duration>,
    pub(super) meter: Option<Meter>,
    pub(super) waiting_reported: bool,
    pub(super) last_look: LastLook,
    pub(super) speaker: Speaker,
}

/// Starts the program and traces it until it and its children have ended.
pub(super) fn run(
    options: TraceOptions,
    plan: Plan,
    (path, program): (&Path, &Program),
    handles: Handles,
    steps: &Steps,
) -> Result<Summary, TraceError> {
    // Both children before any further thread.
    let guard = Guard::start().map_err(TraceError::system("cannot start the guard process"))?;
    let tool = program.mstx_injection.then(MstxTool::install).transpose()?;
    let mut variables = secure_env::variables();
    variables.extend(tool.iter().map(|tool| (INJECTION_PATH.into(), tool.path().into())));
    let child = spawn::prepare(path, &program.command, program.run_as.as_ref(), &variables)?;
    let pid = child.pid;
    let result = Loop::start(options, plan, guard, Some(getpgrp()), (handles, steps));
    let run = |session: Loop| {
        let run = catch_unwind(AssertUnwindSafe(|| session.run(child, tool.as_ref(), steps)));
        run.unwrap_or_else(|panic| {
            // Its status is no longer available, but our parent waits for it.
            let _ = waitpid(pid, None);
            Err(TraceError::Fault(crew::panic_text(&*panic).to_owned()))
        })
    };
    let result = result.and_then(run);
    if result.is_err() {
        // It has not begun, or is on its own: it must not be left as a zombie in either case.
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    }
    result
}

/// Traces running processes until they end or the trace is asked to stop.
pub(super) fn attach(
    options: TraceOptions,
    plan: Plan,
    pids: &[u32],
    handles: Handles,
    steps: &Steps,
) -> Result<Summary, TraceError> {
    let guard = Guard::start().map_err(TraceError::system("cannot start the guard process"))?;
    Loop::start(options, plan, guard, None, (handles, steps))?.attach(pids, steps)
}

impl Loop {
    fn run(mut self, child: Waiting, tool: Option<&MstxTool>, steps: &Steps) -> Result<Summary, TraceError> {
        self.target.expect_libraries(child.program(), tool)?;
        self.target.follow.start(&mut self.target.kernel, child.pid.as_raw() as u32)?;
        self.note_changes();
        let failure = child.failure().map_err(TraceError::system("cannot see whether the program is executed"))?;
        let tree = self.work.tree.clone();
        let wait = move || {
            let never_ran = failure.wait();
            if let (None, Some(tree)) = (&never_ran, tree) {
                tree.keep();
            }
            never_ran
        };
        let failure = thread::Builder::new().spawn(wait).map_err(TraceError::system("cannot start a thread"))?;
        self.target.child = Some(Child::new(child.pid, std::sync::Arc::clone(&self.handles.shared)));
        child.go()?;
        self.enter(Phase::Tracing);
        steps.started();
        let end = self.trace();
        // The pipe behind it is closed when the program begins, or when the child is gone.
        let never_ran = failure.join().ok().flatten();
        let summary = self.finish(end, never_ran.is_some());
        never_ran.map_or(Ok(summary), |error| Err(error.into()))
    }

    fn attach(mut self, pids: &[u32], steps: &Steps) -> Result<Summary, TraceError> {
        for &pid in pids {
            self.add(pid).map_err(|source| TraceError::Attach { pid, source })?;
            self.target.refuse_denied(pid)?;
            self.stream.stacks.look_ahead(pid);
        }
        self.target.leave_others()?;
        self.note_changes();
        self.target.report_libraries();
        self.speaker.listener().attached().map_err(TraceError::Listener)?;
        if let Some(tree) = &self.work.tree {
            tree.keep();
        }
        if !self.stays && !self.target.follow.libraries().found_any() {
            let pids = text::list(pids);
            self.speaker.warn(format_args!("no Ascend library is mapped by process {pids} yet; waiting for one"));
            self.target.report_names();
        }
        self.enter(Phase::Tracing);
        steps.started();
        let end = self.trace();
        Ok(self.finish(end, false))
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.handles.shared.enter(phase, &**self.speaker.listener());
    }

    /// Traces until the trace ends, and ends it in order after any failure: outputs are completed, and no process stays
    /// stopped.
    fn trace(&mut self) -> End {
        let reacted = catch_unwind(AssertUnwindSafe(|| self.react()));
        match reacted {
            Ok(Ok(end)) => end,
            Ok(Err(failure)) => End::Kernel(error_chain(&failure)),
            Err(panic) => {
                let text = crew::panic_text(&*panic).to_owned();
                End::Fault(Fault { thread: LOOP.to_owned(), text })
            }
        }
    }

    /// Reacts until the trace ends. A duration that the user gave begins here: attaching took its own time.
    fn react(&mut self) -> std::io::Result<End> {
        // Files read to place the probes are no longer needed.
        heap::give_back();
        self.started = Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let ended = self.target.follow.ended();
            // SAFETY: `OwnedFd` owns its descriptor for as long as it lives.
            let ended = ended.map(|ended| unsafe { AsyncFd::register(ended) }).transpose()?;
            let [mut status, mut clock] = [STATUS, CLOCK].map(every);
            let mut tick = time::Instant::now();
            // Its first tick is at once, when there is nothing to sample yet.
            let mut sample = every(self.monitor.as_ref().map_or(CLOCK, Monitor::interval));
            sample.tick().await;
            let mut unused = Unused::new(self.forget_unused.map(every));
            let mut ending: Option<Ending> = None;
            loop {
                tick = tick.min(time::Instant::now() + self.until_tick());
                let end = tokio::select! {
                    biased;
                    Some(fault) = self.faults.recv() => Some(End::Fault(fault)),
                    Some(urgent) = self.urgent.recv() => self.on_urgent(urgent),
                    Some(error) = self.work.output_errors.recv() => Some(End::Output(error)),
                    Some(ask) = self.handles.asked.recv() => self.on_ask(ask),
                    () = time::sleep_until(tick) => {
                        tick = time::Instant::now() + RARE_TICK;
                        self.on_tick()
                    }
                    () = readable(ended.as_ref()) => self.on_tick(),
                    Some(findings) = self.work.answers.recv() => self.show_sample(&findings),
                    _ = sample.tick() => self.take_sample(),
                    _ = status.tick() => self.on_status(),
                    _ = clock.tick() => { self.note_clock(); None }
                    turn = unused.next() => self.on_unused(turn, &mut unused),
                    in_time = Ending::wait(&mut ending) => {
                        if !in_time {
                            self.last_look = LastLook::Missed;
                        }
                        ending.take().map(|ending| ending.end)
                    }
                };
                let Some(end) = end else { continue };
                match self.last_look(&end) {
                    Some(was_taken) if ending.is_none() => ending = Some(Ending::new(end, was_taken)),
                    _ => return Ok(end),
                }
            }
        })
    }

    /// The trace is to end while its processes live: the last moment to look at who holds their blocks. `None` where that was done, or
    /// is not wanted.
    fn last_look(&mut self, end: &End) -> Option<oneshot::Receiver<()>> {
        let lives_on = matches!(end, End::Duration | End::Asked(_) | End::Size);
        // Samples end at once: the last one is shown.
        let looks = self.side.looker.as_ref().is_some_and(|looker| looker.looks_at(LookMoment::End));
        let is_wanted = looks && self.monitor.is_none();
        if !is_wanted || !lives_on || self.last_look != LastLook::ToCome {
            return None;
        }
        self.last_look = LastLook::Begun;
        // It is over, and is not to come again at each tick.
        self.duration = None;
        Some(self.work.ask_for_look(LookMoment::End))
    }

    fn on_ask(&mut self, ask: Ask) -> Option<End> {
        match ask {
            Ask::Stop(reason) => return Some(End::Asked(reason)),
            Ask::Findings => self.work.ask_for_listener(),
            Ask::Join(pid, answer) => {
                // Whoever has asked may have gone.
                let _ = answer.send(self.join(pid));
            }
            Ask::Leave(pid) => self.leave(pid),
            Ask::Reduce(pid, is_reduced) => self.reduce(pid, is_reduced),
            Ask::LeaveOutStacks(which) => self.leave_out_stacks(which),
        }
        None
    }

    /// Asks for findings; they are shown when they come.
    fn take_sample(&mut self) -> Option<End> {
        let monitor = self.monitor.as_mut()?;
        if monitor.only_last_is_left() {
            return Some(End::Count);
        }
        if monitor.begin() {
            self.work.ask_for_sample();
        }
        None
    }

    fn show_sample(&mut self, findings: &[Finding]) -> Option<End> {
        let lost = self.target.lost();
        let sample = self.monitor.as_mut()?.take(findings, lost);
        match self.speaker.listener().sample(&sample) {
            ControlFlow::Continue(()) => None,
            ControlFlow::Break(end) => Some(end),
        }
    }

    fn on_urgent(&mut self, urgent: Urgent) -> Option<End> {
        // While the process waits, or at least is there.
        self.stream.stacks.look_ahead(urgent.pid);
        let Target { follow, kernel, .. } = &mut self.target;
        let handled = follow.handle(kernel, urgent).and_then(|()| self.target.leave_others());
        self.note_changes();
        self.target.report_libraries();
        handled.err().map(|error| End::Kernel(error_chain(&error)))
    }

    /// Reports progress, and ends the trace when its files have reached their limit.
    fn on_status(&mut self) -> Option<End> {
        let disk = self.work.look_at_disk(&self.speaker);
        let figures = self.work.gauge.figures();
        let programs = self.meter.as_mut().and_then(|meter| meter.second(&self.target.kernel));
        let progress = Progress { figures, lost_records: self.target.lost(), disk, programs };
        self.speaker.listener().progress(&progress);
        if self.side.looker.as_ref().is_some_and(|looker| looker.begins(LookMoment::Running)) {
            drop(self.work.ask_for_look(LookMoment::Running));
        }
        self.work.is_full(disk).then_some(End::Size)
    }

    /// Longest sleep of the loop.
    fn until_tick(&self) -> Duration {
        let left = self.duration.map(|duration| duration.saturating_sub(self.started.elapsed()));
        let hurried = self.target.follow.is_waiting() || self.target.only_user.is_some();
        left.unwrap_or(RARE_TICK).min(if hurried { TICK } else { RARE_TICK })
    }

    /// Gives back what no process uses any more.
    fn on_unused(&mut self, turn: Turn, unused: &mut Unused) -> Option<End> {
        let Target { follow, kernel, .. } = &mut self.target;
        let done = match turn {
            Turn::Begin => follow.all_traced(kernel).map(|pids| unused.look(pids)),
            Turn::Mapped(mapped) => {
                let forgotten = follow.forget_unused(kernel, &mapped, self.stream.stacks.files());
                heap::give_back();
                forgotten.map(|files| self.stream.stacks.forget(&files))
            }
        };
        done.err().map(|error| End::Kernel(error_chain(&error)))
    }

    fn on_tick(&mut self) -> Option<End> {
        self.post.round();
        self.target.look_at_child();
        let Target { follow, kernel, .. } = &mut self.target;
        if let Err(error) = follow.look_again(kernel).and_then(|()| self.target.leave_others()) {
            return Some(End::Kernel(error_chain(&error)));
        }
        self.target.report_interpreters();
        let living = self.target.follow.reap();
        self.note_changes();
        if self.duration.is_some_and(|duration| self.started.elapsed() >= duration) {
            return Some(End::Duration);
        }
        let Target { follow, kernel, child, .. } = &mut self.target;
        match child {
            Some(child) if !child.has_ended() => None,
            _ if self.stays => None,
            _ if living == 0 => match follow.expects_more(kernel) {
                Ok(more) => (!more).then_some(End::Processes),
                Err(error) => Some(End::Kernel(error_chain(&error))),
            },
            Some(_) if !self.waiting_reported => {
                self.waiting_reported = true;
                self.speaker.info(format_args!(
                    "the program has ended; still traced: {} that it started; Ctrl-C ends the trace",
                    counted(living as u64, "process")
                ));
                None
            }
            _ => None,
        }
    }

    pub(super) fn note_changes(&mut self) {
        for change in self.target.follow.take_changes() {
            if let Some(monitor) = &mut self.monitor {
                monitor.changed(&change);
            }
            self.stream.note(&change_note(change));
        }
    }

    pub(super) fn note_clock(&mut self) {
        self.stream.note_clock();
        if let Some(losses) = self.target.losses() {
            self.stream.note(&losses);
        }
    }
}

/// The look at who holds blocks before the trace ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastLook {
    /// It has not begun.
    ToCome,
    /// It has begun.
    Begun,
    /// It took too long.
    Missed,
}

/// A trace that ends once the last look was taken.
struct Ending {
    end: End,
    was_taken: oneshot::Receiver<()>,
    until: time::Instant,
}

impl Ending {
    fn new(end: End, was_taken: oneshot::Receiver<()>) -> Self {
        Self { end, was_taken, until: time::Instant::now() + LAST_LOOK }
    }

    /// Waits for that, and gives whether it came in time; waits for ever if none is to end.
    async fn wait(ending: &mut Option<Self>) -> bool {
        match ending {
            // The answer is that the sender is gone.
            Some(ending) => time::timeout_at(ending.until, &mut ending.was_taken).await.is_ok(),
            None => std::future::pending().await,
        }
    }
}

/// Waits until a process has ended, if the kernel reports that.
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

/// Ticks in this period, the first at once; behind a late one the next comes a whole period later.
pub(crate) fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
