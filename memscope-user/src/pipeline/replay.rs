//! A capture through the pipeline: the outputs again, or for the first time if the tracer was killed.

use std::io::Read;
use std::path::Path;

use super::{Audience, Outcome, Pipeline, PipelineConfig};
use crate::capture::{CaptureError, CaptureHeader, Ending, Reader};
use crate::probes::{CallKind, LaunchCall};

/// The results of a replay.
#[derive(Debug)]
pub struct ReplayReport {
    /// The capture's header.
    pub header: CaptureHeader,
    /// How the file ends: whole, torn or damaged.
    pub ending: Ending,
    /// Findings, losses, and why the trace ended.
    pub outcome: Outcome,
    /// The trace saw launches, if there were any.
    pub has_launches: bool,
}

impl ReplayReport {
    /// Whether the capture holds the trace to its end.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.outcome.end_reason.is_some() && matches!(self.ending, Ending::Complete { .. })
    }

    /// How the capture ends, if not as it should.
    #[must_use]
    pub fn ending_text(&self) -> Option<String> {
        match self.ending {
            Ending::Complete { .. } if self.is_complete() => None,
            Ending::Complete { .. } => Some(
                "the capture ends between two chunks: its tracer was killed; up to there it is complete".to_owned(),
            ),
            Ending::Truncated { at_offset, .. } => Some(format!(
                "the capture is torn at byte {at_offset}: its tracer was killed, or the disk was full; up to there it is complete"
            )),
            Ending::Corrupt { at_offset, what, .. } => {
                Some(format!("the capture is damaged at byte {at_offset} ({what}); what follows was not used"))
            }
        }
    }
}

/// Feeds a capture to a pipeline. Rows and clocks come from the capture, everything else from `config`.
///
/// A torn capture is no error: everything up to the tear is used, and the report has its place. Nor is an output that
/// fails: the outcome names it. `progress` gets the number of bytes used of the file, after each chunk.
pub fn replay(
    path: &Path,
    config: PipelineConfig,
    audience: Audience,
    progress: &mut dyn FnMut(u64),
) -> Result<ReplayReport, CaptureError> {
    replay_from(Reader::open(path)?, config, audience, progress)
}

/// The same for an open capture.
pub fn replay_from<R: Read>(
    mut reader: Reader<R>,
    config: PipelineConfig,
    audience: Audience,
    progress: &mut dyn FnMut(u64),
) -> Result<ReplayReport, CaptureError> {
    let header = reader.header().clone();
    let config = PipelineConfig {
        rows: header.rows.clone(),
        start_mono_ns: header.start_mono_ns,
        start_real_ns: header.start_real_ns,
        mixed_stacks: header.mixed_stacks || config.mixed_stacks,
        deferred: header.deferred || config.deferred,
        uncounted_launches: header.uncounted_launches || config.uncounted_launches,
        collected: header.collected.clone().or(config.collected),
        ..config
    };
    let mut pipeline = Pipeline::new(config, audience);
    let mut errors = Vec::new();
    while let Some(chunk) = reader.next_chunk()? {
        errors.extend(pipeline.feed(chunk).err());
        progress(reader.offset());
    }
    let ending = reader.ending().unwrap_or(Ending::Complete { good_chunks: 0 });
    let has_launches = pipeline.has_row(CallKind::Launch(LaunchCall::Launch));
    let mut outcome = pipeline.finish(&[]);
    outcome.errors.splice(..0, errors);
    Ok(ReplayReport { header, ending, outcome, has_launches })
}
