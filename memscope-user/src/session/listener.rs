//! Receives the messages and results of a running trace.

use std::{fmt, ops::ControlFlow, panic::Location, path::PathBuf, sync::Arc, time::Duration};

use super::{End, cost::ProgramCost, disk::DiskUse, error::Refusal, gauge::Figures, log::RunLog};
use crate::{
    analyses::{Finding, sample::Sample, watched::Watched},
    model::Event,
    pipeline::Outcome,
    sinks::{log::Level, tree::OutputTree},
};

/// Gets the events and findings of a trace. Every method has a default that does nothing.
///
/// Methods are called by several threads of the trace, and the traced program may wait for the next one: they should be short.
pub trait Listener: Send + Sync {
    /// The output folder is open. Called by the thread that starts the trace; an error gives the trace up.
    ///
    /// # Errors
    ///
    /// The listener's own reason.
    fn opened(&self, outputs: &Outputs<'_>) -> Result<(), Refusal> {
        let _ = outputs;
        Ok(())
    }

    /// The kernel side is loaded. Called by the thread that starts the trace, before any probe is placed.
    fn loaded(&self) {}

    /// All probes are placed in the running processes. An error gives the trace up.
    ///
    /// # Errors
    ///
    /// The listener's own reason.
    fn attached(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// The trace has come to this.
    fn phase(&self, phase: Phase) {
        let _ = phase;
    }

    /// A message for the user.
    fn message(&self, message: &Message<'_>) {
        let _ = message;
    }

    /// Progress of the trace; once a second.
    fn progress(&self, progress: &Progress) {
        let _ = progress;
    }

    /// Whether to call [`Listener::event`].
    fn wants_events(&self) -> bool {
        true
    }

    /// An event, in time order.
    fn event(&self, event: &Event) {
        let _ = event;
    }

    /// A sample, where the options ask for samples. `Break` ends the trace.
    fn sample(&self, sample: &Sample) -> ControlFlow<End> {
        let _ = sample;
        ControlFlow::Continue(())
    }

    /// Findings so far, after `Control::ask`.
    fn findings_so_far(&self, findings: &[Finding]) {
        let _ = findings;
    }

    /// The trace has ended, and its outputs are complete as far as they could be written. Probes are still to be removed.
    fn results(&self, results: &Results) {
        let _ = results;
    }
}

/// Listens to nothing.
impl Listener for () {
    fn wants_events(&self) -> bool {
        false
    }
}

/// Where outputs go.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    /// The folder.
    pub tree: &'a OutputTree,
    /// The log file in it.
    pub log: &'a Arc<RunLog>,
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Its severity.
    pub level: Level,
    /// The place in the source that sends it.
    pub place: &'static Location<'static>,
    /// The text, on one line.
    pub text: fmt::Arguments<'a>,
}

/// The parts of a trace, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Probes are being placed.
    Starting,
    /// Calls are traced.
    Tracing,
    /// Calls are no longer traced.
    Ending,
    /// The rest is written.
    Writing,
    /// More came than was analysed at once, and is read from the capture now, which is whole. A process that ends here
    /// leaves the rest to `replay`. Most traces have no such phase.
    Analysing,
    /// All is written.
    Written,
    /// Outputs are complete; probes are being removed.
    Detaching,
    /// Nothing is left of the trace.
    Ended,
}

/// Progress of a trace.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Rows, and live bytes of each device.
    pub figures: Figures,
    /// Records that the transport had no room for.
    pub lost_records: u64,
    /// Size and growth of the files.
    pub disk: DiskUse,
    /// What the BPF programs took when they were last measured, where the options ask for that and the kernel allows it.
    pub programs: Option<ProgramCost>,
}

/// What came of a trace.
#[derive(Debug)]
pub struct Results {
    /// Why it ended.
    pub end: End,
    /// Findings and losses; `None` if the part that makes them failed.
    pub outcome: Option<Outcome>,
    /// The capture, if one was wanted.
    pub capture: Option<PathBuf>,
    /// The capture could not be finished.
    pub capture_error: Option<String>,
    /// A process had a library of ours, or an event came.
    pub traced_any: bool,
    /// The program could not be executed, so there is nothing to report.
    pub never_ran: bool,
    /// Contents of the files; `None` without output.
    pub files: Option<FilesWritten>,
    /// What block watch found, by process; also among the findings.
    pub watched: Option<Vec<Watched>>,
    /// The probes could not be silenced.
    pub silence_error: Option<String>,
    /// Everything was traced and written as it should be.
    pub complete: bool,
}

/// Files of a trace that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesWritten {
    /// Their bytes.
    pub disk: DiskUse,
    /// Duration of the trace; `None` if the oldest rows were removed.
    pub took: Option<Duration>,
    /// Free bytes on the disk, if known.
    pub free_bytes: Option<u64>,
}
