//! Ends a trace in order.

use std::{io, path::Path, time::Instant};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    unistd::Pid,
};

use super::{
    Child, End, Session,
    tell::{disk_text, tell_nothing_traced},
    watch,
};
use crate::{
    capture::Note,
    cli::{
        RUN_FAILURE,
        args::{LogLevel, TraceArgs},
        disk::Room,
        file_size, message,
        outputs::{self, Selecting},
        progress,
        signals::Signals,
        stat::Monitor,
        terminal,
        writer::Written,
    },
    error_chain,
    watch::live::Watch,
};

impl Session<'_> {
    /// Ends the trace in order: no more events, all outputs complete, then the probes go. Gives the program's exit
    /// status, and whether everything was written.
    pub(super) fn finish(mut self, end: &End, silent: bool) -> (Option<u8>, bool) {
        terminal::clear_status();
        let took = Some(self.started.elapsed());
        if end.is_failure() {
            let hint = if matches!(end, End::Output(_)) { file_size::hint() } else { String::new() };
            crate::cli::error(format_args!("{}{hint}; tracing ends here, the traced program goes on", end.reason()));
        }
        if *end == End::Size {
            let text = "the files have the size of --max-size: tracing ends here, the traced program goes on";
            self.say(LogLevel::Warning, format_args!("{text}"));
        }
        // While the processes are there to be told of, and before the notes end.
        if let Some(usage) = self.usage.take() {
            usage.finish();
        }
        // While the kernel side still sends threads to the handler, so that one of them can take it out.
        if let Some(watch) = &self.watch {
            watch.leave();
        }
        let unopened = self.unopened();
        let silenced = self.kernel.silence();
        self.tell_waits();
        // Writing may take a while.
        self.follow.let_go();
        self.follow.reap();
        self.note_changes();
        self.note_clock();
        self.note(&Note::End { reason: end.reason() });
        self.reader.finish();
        // Records that wait, rows, and what a database has not moved into its file yet.
        let written = progress::during("writing what is left", || self.writer.join());
        // It has seen all frees now.
        let watched = self.watch.take().map(Watch::finish);
        let mut written = written.unwrap_or_else(|_| Written { outcome: None, capture_error: None });
        let fault = if let End::Fault(fault) = end { Some(fault.clone()) } else { self.faults.try_recv().ok() };
        if let (Some(outcome), Some(fault)) = (&mut written.outcome, &fault) {
            outcome.end.fault = Some(fault.to_string());
        }
        if let Some(outcome) = &mut written.outcome {
            outcome.end.unopened.clone_from(&unopened);
        }
        // Whoever was stopped in the last moment goes on.
        while let Ok(urgent) = self.urgent.try_recv() {
            let _ = self.follow.handle(&mut self.kernel, urgent);
        }
        for text in self.follow.take_told() {
            message(self.args.collect.level_of_messages(), LogLevel::Warning, format_args!("{text}"));
        }
        let traced_any = self.follow.libraries().found_any() || self.gauge.figures().events > 0;
        if !silent && !traced_any {
            tell_nothing_traced(self.args.collect.level_of_messages(), &self.user);
        }
        if fault.is_none() && silenced.is_ok() {
            self.follow.end();
        } else {
            self.follow.abandon();
        }
        // Nobody waits for us any more.
        terminal::hurry(false);
        let wanted = (!silent).then_some((&self.selected, traced_any));
        let shown = match self.monitor.take() {
            Some(monitor) => last_sample(self.args, &written, monitor, end),
            None => report(self.args, &written, self.capture.as_deref(), wanted),
        };
        if traced_any && let Some(tree) = &self.tree {
            let disk = self.disk.look(Instant::now(), Room::default());
            let text = disk_text(disk, took.filter(|_| self.args.rotate.is_none()), tree.free_bytes().ok());
            message(self.args.collect.level_of_messages(), LogLevel::Info, format_args!("{text}"));
        }
        let watched = watched.map_or(Ok(()), |text| watch::print(self.args, &text));
        let watched = watched.context("cannot print what was watched");
        let silenced = silenced.context("the probes could not be silenced");
        // One that failed keeps none of the others from being done.
        let failures = [shown.as_ref().err(), watched.as_ref().err(), silenced.as_ref().err()];
        failures.into_iter().flatten().for_each(|failure| crate::cli::error(format_args!("{failure:#}")));
        let complete = fault.is_none() && watched.is_ok() && silenced.is_ok() && shown.is_ok_and(|complete| complete);
        let complete = complete && unopened.is_empty();
        // Outputs are complete: from here on a Ctrl-C may simply end us while the kernel detaches.
        Signals::unblock();
        let detaching = self.kernel.detach();
        message(self.args.collect.level_of_messages(), LogLevel::Debug, format_args!("detached in {detaching:.0?}"));
        let status = match self.child {
            None => None,
            Some(Child { status: Some(status), .. }) => Some(status),
            // The trace ended before the program.
            Some(Child { pid, status: None }) => exit_status(waitpid(pid, None)),
        };
        (status, complete)
    }
}

/// Prints the report, if one is wanted, of what was selected; where nothing was traced, without advice on steps. Gives
/// whether all outputs are complete.
fn report(
    args: &TraceArgs,
    written: &Written,
    capture: Option<&Path>,
    wanted: Option<(&Selecting, bool)>,
) -> Result<bool> {
    let failures = tell_failures(args, written);
    let printed = match (&written.outcome, wanted) {
        (Some(outcome), Some((selected, traced_any))) => {
            let mut collect = args.made_meanwhile();
            collect.analysis.leaks &= traced_any;
            outputs::print_report(&collect, outcome, selected)
        }
        _ => Ok(()),
    };
    if let Some(path) = capture.filter(|_| written.capture_error.is_none()) {
        let level = args.collect.level_of_messages();
        message(level, LogLevel::Info, format_args!("capture {}", path.display()));
        if args.capture_only {
            let text = "nothing else was written: `memscope-bpf replay` makes rows and report of the capture";
            message(level, LogLevel::Info, format_args!("{text}"));
        }
    }
    if written.outcome.is_none() {
        let hint = if capture.is_some() { ": `memscope-bpf replay` makes both of the capture" } else { "" };
        let text = format_args!("there is no report, and rows end early{hint}");
        message(args.collect.level_of_messages(), LogLevel::Error, text);
    }
    printed.context("cannot print the report")?;
    Ok(failures == 0 && written.outcome.is_some())
}

/// Shows the figures of the whole trace, if anybody reads them. Gives whether all outputs are complete.
fn last_sample(args: &TraceArgs, written: &Written, monitor: Monitor, end: &End) -> Result<bool> {
    let failures = tell_failures(args, written);
    if let (Some(outcome), true) = (&written.outcome, *end != End::Reader) {
        let shown = monitor.finish(&outcome.findings, outcome.end.lost);
        shown.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })?;
    }
    Ok(failures == 0)
}

/// Says which outputs could not be written; gives their number.
fn tell_failures(args: &TraceArgs, written: &Written) -> usize {
    let errors = written.outcome.iter().flat_map(|outcome| &outcome.errors).map(|error| error_chain(error));
    let failures = errors.chain(written.capture_error.clone());
    let level = args.collect.level_of_messages();
    failures.map(|failure| message(level, LogLevel::Error, format_args!("{failure}"))).count()
}

/// Exit status of a child of ours if it has ended. Block watch traces its threads from a thread of ours: the stops of those must not be
/// taken from it, so the child is only looked at before.
pub(super) fn reap(pid: Pid) -> Option<u8> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(pid), look) {
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => exit_status(waitpid(pid, None)),
        // Somebody else has taken its status, or nobody keeps it.
        Err(Errno::ECHILD) => Some(RUN_FAILURE),
        _ => None,
    }
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
