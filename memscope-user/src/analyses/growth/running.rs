//! Does a place grow, asked while the program runs? By the tests of the verdict at the end.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    MIN_SPAN_NS,
    ages::Ages,
    levels::{Clock, Level},
    verdict::{self, Evidence},
};
use crate::hash::HashMap;
use crate::model::{Block, Device, Pool};

/// Whether the live blocks of a place become more, so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trend {
    /// They rise in every part of the time, and stay.
    Grows,
    /// They have become more; the evidence is too weak.
    Undecided,
    /// They have not become more since the second sixth of the time.
    Steady,
    /// The time is too short.
    NotJudged,
}

/// The time of a process, and frees of its blocks that are older than the trace.
#[derive(Debug)]
pub(in crate::analyses) struct Course {
    clock: Clock,
    last_ns: u64,
    older_frees: HashMap<(Device, Pool), Level>,
}

impl Course {
    /// From its first event on.
    pub(in crate::analyses) fn new(start_ns: u64) -> Self {
        Self { clock: Clock::new(start_ns), last_ns: start_ns, older_frees: HashMap::default() }
    }

    /// Nanoseconds since its first event.
    pub(in crate::analyses) fn elapsed_ns(&self) -> u64 {
        self.clock.elapsed_ns(self.last_ns)
    }

    /// Time has passed.
    pub(in crate::analyses) fn advance(&mut self, time_ns: u64) {
        self.last_ns = self.last_ns.max(time_ns);
        self.clock.advance(time_ns);
    }

    /// A block was freed that may be older than the trace.
    pub(in crate::analyses) fn older_freed(&mut self, device: Device, pool: Pool) {
        self.older_frees.entry((device, pool)).or_default().rise(1, &self.clock);
    }
}

/// The live blocks of one place over time.
#[derive(Debug, Default)]
pub(in crate::analyses) struct Running {
    level: Level,
    ages: Ages,
}

impl Running {
    /// A block comes.
    pub(in crate::analyses) fn rise(&mut self, block: &Block, course: &Course) {
        self.level.rise(1, &course.clock);
        self.ages.comes(block.alloc_time_ns, &course.clock);
    }

    /// A block goes.
    pub(in crate::analyses) fn fall(&mut self, block: &Block, course: &Course) {
        self.level.fall(1, &course.clock);
        self.ages.goes(block.alloc_time_ns, &course.clock);
    }

    /// Age of the oldest live block in nanoseconds, up to a 32nd of the time too high.
    pub(in crate::analyses) fn oldest_ns(&mut self, course: &Course) -> u64 {
        self.ages.oldest_ns(course.last_ns, &course.clock).unwrap_or(0)
    }

    /// Whether it grows, so far.
    pub(in crate::analyses) fn trend(&mut self, (device, pool): (Device, Pool), course: &mut Course) -> Trend {
        let ages = self.ages.quarters(course.last_ns, &course.clock);
        let now = self.level.now();
        let lows = self.level.lows(&course.clock);
        let Some(low_blocks) = verdict::parts(lows) else { return Trend::NotJudged };
        if course.clock.elapsed_ns(course.last_ns) < MIN_SPAN_NS {
            return Trend::NotJudged;
        }
        let Evidence { stays, accumulates, increase } = verdict::weigh(lows, low_blocks, now, ages);
        let older = course.older_frees.get_mut(&(device, pool));
        let older = older.map_or([0; 2], |frees| [1, 3].map(|part| frees.since(part, &course.clock)));
        let rises = [1, 3].map(|part: usize| now.saturating_sub(low_blocks[part]));
        match (stays || accumulates, increase) {
            (true, _) if !verdict::replaces(older, rises) => Trend::Grows,
            (false, 0) => Trend::Steady,
            _ => Trend::Undecided,
        }
    }
}
