//! Evidence of the minutes that have ended.

use std::time::Instant;

use super::Node;
use crate::agent::{
    budget::Level,
    evidence::{Evidence, minutes::Minutes},
    source::Source,
};

impl<S: Source> Node<S> {
    /// Keeps evidence from here on, if the settings ask for it.
    pub(in crate::agent) fn record(&mut self) -> std::io::Result<()> {
        self.evidence = Evidence::new(&self.config.evidence)?;
        Ok(())
    }

    /// `level`: up to this page.
    pub(super) fn keep_evidence(&mut self, minutes: Minutes, level: Level, now_minute: u32, now: Instant) {
        let Some(evidence) = &mut self.evidence else { return };
        evidence.take(minutes, &self.targets, self.last.lost, level.number().into());
        if let Some(message) = evidence.work(now_minute, now) {
            self.speaker.warn(format_args!("{message}"));
        }
    }

    /// The last page, with the minute that has begun, while the texts of stacks are kept.
    pub(in crate::agent) fn finish(&mut self, now: Instant) {
        self.source.end_minute();
        self.otlp.hurry();
        self.page(now);
        if let Some(message) = self.evidence.as_mut().and_then(Evidence::finish) {
            self.speaker.warn(format_args!("{message}"));
        }
    }
}
