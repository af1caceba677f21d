//! Ends a trace in order.

use std::ops::ControlFlow;

use super::{
    End, Phase, Results, Summary, files,
    listener::Listener,
    log::Speaker,
    monitor::Monitor,
    react::{LastLook, Loop},
    stream::Stream,
    target::{Child, Target},
    work::Work,
    writer::Written,
};
use crate::{
    analyses::Finding,
    capture::{LookMoment, Note},
    crew::Fault,
    error_chain,
    follow::Follow,
    kernel::KernelError,
    pipeline::Outcome,
    watch::live::Watch,
};

impl Loop {
    /// Ends the trace in order: no more events, all outputs complete, then the probes are removed, and the end of the
    /// program is awaited.
    pub(super) fn finish(mut self, end: End, never_ran: bool) -> Summary {
        let took = self.started.elapsed();
        let (unopened, silenced) = self.stop(&end);
        let Self {
            mut target, stream, mut work, side, monitor, mut urgent, mut faults, handles, speaker, stays, ..
        } = self;
        let enter = |phase| handles.shared.enter(phase, &**speaker.listener());
        let Stream { reader, capture, .. } = stream;
        reader.finish();
        let mut written = write(&mut work, enter);
        // It has seen all frees now.
        let watched = side.watch.map(Watch::finish);
        let fault = if let End::Fault(fault) = &end { Some(fault.clone()) } else { faults.try_recv().ok() };
        if let Some(outcome) = &mut written.outcome {
            note_failures(outcome, fault.as_ref(), &unopened);
            outcome.findings.extend(watched.iter().flatten().cloned().map(Finding::Watched));
        }
        // Continues processes that were stopped in the last moment.
        while let Ok(urgent) = urgent.try_recv() {
            let _ = target.follow.handle(&mut target.kernel, urgent);
        }
        target.report_interpreters();
        let traced_any = target.follow.libraries().found_any() || work.gauge.figures().events > 0;
        if !never_ran && !traced_any && !stays {
            target.report_nothing_traced();
        }
        let Target { kernel, follow, child, .. } = target;
        release(follow, fault.is_none() && silenced.is_ok());
        let has_findings = monitor.is_some() || written.outcome.is_some();
        let failures = report_failures(&written, &speaker);
        let shown = show_last_sample(monitor, &written, &end, &**speaker.listener());
        let is_whole = fault.is_none() && silenced.is_ok() && unopened.is_empty();
        let complete = failures == 0 && shown.is_continue() && has_findings && is_whole;
        if let ControlFlow::Break(failure) = shown {
            speaker.error(format_args!("{failure}"));
        }
        let Written { outcome, capture_error } = written;
        let results = Results {
            end,
            outcome,
            capture,
            capture_error,
            traced_any,
            never_ran,
            files: work.files(took),
            watched,
            silence_error: silenced.err().map(|error| error_chain(&error)),
            complete,
        };
        speaker.listener().results(&results);
        enter(Phase::Detaching);
        let detaching = kernel.detach();
        speaker.debug(format_args!("detached in {detaching:.0?}"));
        Summary { results, program_status: child.and_then(status_of) }
    }

    /// Stops events, and releases waiting processes. Returns the files that could not be opened, and whether the kernel
    /// side is silent.
    fn stop(&mut self, end: &End) -> (Vec<String>, Result<(), KernelError>) {
        self.enter(Phase::Ending);
        report_end(end, &self.speaker);
        // While the processes still exist, and before the notes end.
        if let Some(usage) = self.side.usage.take() {
            usage.finish();
        }
        // While the kernel side still sends threads to the handler, so that one of them can remove it.
        if let Some(watch) = &self.side.watch {
            watch.leave();
        }
        let unopened = self.target.unopened();
        let silenced = self.target.kernel.silence();
        self.target.report_waits();
        // Writing may take a while.
        self.target.follow.let_go();
        self.target.follow.reap();
        self.note_changes();
        self.note_clock();
        if let Some(pools) = &self.side.pools {
            pools.end(&self.speaker);
        }
        if self.side.looker.is_some()
            && let Some(note) = unlooked(end, self.last_look == LastLook::Missed)
        {
            self.stream.note(&note);
        }
        self.stream.note(&Note::End { reason: end.to_string() });
        (unopened, silenced)
    }
}

/// Waits for waiting records, rows, and the part of a database that is not in its file yet.
fn write(work: &mut Work, enter: impl Fn(Phase)) -> Written {
    enter(Phase::Writing);
    if work.is_left_to_analyse() {
        enter(Phase::Analysing);
    }
    let written = work.join();
    enter(Phase::Written);
    written
}

/// Lets go of the processes; `in_order`: nothing of them waits for us.
fn release(follow: Follow, in_order: bool) {
    if in_order {
        follow.end();
    } else {
        follow.abandon();
    }
}

/// Why processes without a look had none.
fn unlooked(end: &End, missed: bool) -> Option<Note> {
    let reason = match end {
        _ if missed => "there was no time for it",
        End::Processes => "the process ended before it was looked at",
        _ => return None,
    };
    Some(Note::NoLook { look: 0, pid: 0, at: LookMoment::End, reason: reason.to_owned() })
}

/// How the program ended. The trace may have ended before it.
fn status_of(mut child: Child) -> Option<u8> {
    child.wait();
    child.status()
}

/// Reports why the trace ends, if the end is not as expected.
fn report_end(end: &End, speaker: &Speaker) {
    if end.is_failure() {
        let hint = if matches!(end, End::Output(_)) { files::hint() } else { String::new() };
        speaker.error(format_args!("{end}{hint}; tracing ends here, the traced program goes on"));
    }
    if *end == End::Size {
        let text = "the files have the size of --max-size: tracing ends here, the traced program goes on";
        speaker.warn(format_args!("{text}"));
    }
}

/// The report names the missing parts.
fn note_failures(outcome: &mut Outcome, fault: Option<&Fault>, unopened: &[String]) {
    if let Some(fault) = fault {
        outcome.end.fault = Some(fault.to_string());
    }
    outcome.end.unopened = unopened.to_vec();
}

/// Shows the figures of the whole trace, if the samples still have a reader.
fn show_last_sample(
    monitor: Option<Monitor>,
    written: &Written,
    end: &End,
    listener: &dyn Listener,
) -> ControlFlow<End> {
    let (Some(monitor), Some(outcome), false) = (monitor, &written.outcome, *end == End::Reader) else {
        return ControlFlow::Continue(());
    };
    match listener.sample(&monitor.last(&outcome.findings, outcome.end.lost)) {
        ControlFlow::Break(End::Reader) => ControlFlow::Continue(()),
        shown => shown,
    }
}

/// Reports outputs that could not be written; returns their number.
fn report_failures(written: &Written, speaker: &Speaker) -> usize {
    let errors = written.outcome.iter().flat_map(|outcome| &outcome.errors).map(|error| error_chain(error));
    let failures = errors.chain(written.capture_error.clone());
    failures.map(|failure| speaker.error(format_args!("{failure}"))).count()
}
