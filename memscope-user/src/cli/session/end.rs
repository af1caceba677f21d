//! Ends a trace in order.

use std::{
    io::{self, IsTerminal as _},
    path::Path,
};

use anyhow::{Context as _, Result, anyhow};
use nix::{
    sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    unistd::Pid,
};

use super::{Child, End, Session, tell::library_names, watch};
use crate::{
    capture::Note,
    cli::{
        args::{LogLevel, TraceArgs},
        message,
        outputs::{self, Selecting},
        progress,
        signals::Signals,
        stat::Monitor,
        writer::Written,
    },
    error_chain,
    watch::live::Watch,
};

impl Session<'_> {
    /// Ends the trace in order: no more events, all outputs complete, then the probes go. Gives the program's exit
    /// status, and whether everything was written.
    pub(super) fn finish(mut self, end: &End, silent: bool) -> Result<(Option<u8>, bool)> {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        if let End::Output(error) | End::Kernel(error) = end {
            crate::cli::error(format_args!("{error}; tracing ends here, the traced program goes on"));
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
        // While the kernel side still sends threads to the handler, so that one of them can take it out.
        let watched = self.watch.take().map(Watch::finish);
        self.kernel.silence()?;
        self.follow.reap();
        self.note_changes();
        self.note_clock();
        self.note(&Note::End { reason: end.reason() });
        self.reader.finish();
        // Records that wait, rows, and what a database has not moved into its file yet.
        let written = progress::during("writing what is left", || self.writer.join());
        let written = written.map_err(|_| anyhow!("the writing thread failed"))?;
        // Whoever was stopped in the last moment goes on.
        while let Ok(urgent) = self.urgent.try_recv() {
            let _ = self.follow.handle(&mut self.kernel, urgent);
        }
        self.follow.end();
        let complete = match self.monitor.take() {
            Some(monitor) => last_sample(self.args, &written, monitor, end)?,
            None => report(self.args, &written, self.capture.as_deref(), (!silent).then_some(&self.selected))?,
        };
        if let Some(text) = watched {
            watch::print(self.args, &text).context("cannot print what was watched")?;
        }
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

/// Prints the report, if one is wanted, of what was selected. Gives whether all outputs are complete.
fn report(args: &TraceArgs, written: &Written, capture: Option<&Path>, selected: Option<&Selecting>) -> Result<bool> {
    let failures = tell_failures(args, written);
    if let Some(selected) = selected {
        outputs::print_report(&args.made_meanwhile(), &written.outcome, selected).context("cannot print the report")?;
    }
    if let Some(path) = capture.filter(|_| written.capture_error.is_none()) {
        let level = args.collect.level_of_messages();
        message(level, LogLevel::Info, format_args!("capture {}", path.display()));
        if args.capture_only {
            let text = "nothing else was written: `memscope-bpf replay` makes rows and report of the capture";
            message(level, LogLevel::Info, format_args!("{text}"));
        }
    }
    Ok(failures == 0)
}

/// Shows the figures of the whole trace, if anybody reads them. Gives whether all outputs are complete.
fn last_sample(args: &TraceArgs, written: &Written, monitor: Monitor, end: &End) -> Result<bool> {
    let failures = tell_failures(args, written);
    if *end != End::Reader {
        let shown = monitor.finish(&written.outcome.findings, written.outcome.end.lost);
        shown.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })?;
    }
    Ok(failures == 0)
}

/// Says which outputs could not be written; gives their number.
fn tell_failures(args: &TraceArgs, written: &Written) -> usize {
    let failures = written.outcome.errors.iter().map(|error| error_chain(error)).chain(written.capture_error.clone());
    let level = args.collect.level_of_messages();
    failures.map(|failure| message(level, LogLevel::Error, format_args!("{failure}"))).count()
}

/// Exit status of a child of ours if it has ended. Block watch traces its threads from a thread of ours: the stops of those must not be
/// taken from it, so the child is only looked at before.
pub(super) fn reap(pid: Pid) -> Option<u8> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(pid), look) {
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => exit_status(waitpid(pid, None)),
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
