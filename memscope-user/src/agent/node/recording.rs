//! Evidence of the minutes that have ended.

use std::{borrow::Cow, time::Instant};

use super::Node;
use crate::agent::{
    budget::Level,
    evidence::{
        Evidence, StartError,
        minutes::{Minute, Minutes},
    },
    source::Source,
};

impl<S: Source> Node<S> {
    /// Keeps evidence from here on, if the settings ask for it.
    pub(in crate::agent) fn record(&mut self) -> Result<(), StartError> {
        self.evidence = Evidence::new(&self.config.evidence)?;
        Ok(())
    }

    /// `level`: up to this page. `ended`: the minute that has ended before it, if one has.
    pub(super) fn keep_evidence(&mut self, mut minutes: Minutes, ended: Option<u32>, level: Level, now: Instant) {
        let Some(evidence) = &mut self.evidence else { return };
        let mut targets = Cow::Borrowed(&self.targets);
        if let Some(minute) = ended {
            let (pools, of_pools) = self.aside.minute_rows(minute);
            if !pools.is_empty() {
                targets.to_mut().extend(of_pools);
                // Before the end of that minute, which is behind its rows.
                minutes.ready.insert(0, Minute { minute, pools, ..Minute::default() });
            }
        }
        evidence.take(minutes, &targets, self.last.lost, level.number().into());
        let now_minute = self.minute as u32;
        for message in evidence.work(now_minute, now) {
            self.speaker.warn(format_args!("{message}"));
        }
    }

    /// The last page, with the minute that has begun, while the texts of stacks are kept.
    pub(in crate::agent) fn finish(&mut self, now: Instant) {
        self.source.end_minute();
        self.otlp.hurry();
        self.page(now);
        for message in self.evidence.as_mut().map(Evidence::finish).unwrap_or_default() {
            self.speaker.warn(format_args!("{message}"));
        }
    }
}
