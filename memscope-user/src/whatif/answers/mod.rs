//! Questions to a recording, and the certainty of each figure.

mod advise;
mod ask;
#[cfg(test)]
mod tests;
mod text;

pub use self::advise::{Advice, Advices, Wishes, advise};
pub use self::ask::{Question, Shown, ask};
pub use self::text::{write_advices, write_what_if};

use schemars::JsonSchema;
use serde::Serialize;

use super::bounds::Bounds;
use super::changes::Scaled;
use super::check::SelfCheck;
use super::device::Calls;
use super::early::FreedEarly;
use super::least::Least;
use super::requests::{CallTimes, Gaps};

/// How sure the figures of an answer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sure {
    /// The model reproduces the recording to the event, and no unknown fact matters.
    Exact,
    /// The same, but streams or addresses decide: figures are the range of several replays.
    Range,
    /// The model does not reproduce the recording, or the requests differ from those of the recording.
    Estimate,
}

/// The range of a figure over several replays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Span {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
}

impl Span {
    const fn of(value: u64) -> Self {
        Self { least: value, most: value }
    }

    fn with(self, value: u64) -> Self {
        Self { least: self.least.min(value), most: self.most.max(value) }
    }

    /// Whether it is one figure.
    #[must_use]
    pub const fn is_one(self) -> bool {
        self.least == self.most
    }
}

/// Whether a run fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// In every replay.
    Yes,
    /// In some.
    Depends,
    /// In none.
    No,
}

/// Where a replay parts from the recording.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Part {
    /// The request fails, though it did not in the recording; otherwise the reverse.
    pub fails: bool,
    /// Number of the request, from 1.
    pub request: u64,
    /// About when it was made, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The last step or mark of the program before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// Device.
    pub device: u32,
    /// Bytes asked for.
    pub asked_bytes: u64,
    /// Bytes that the pool holds then.
    pub reserved_bytes: u64,
    /// The program's part of them.
    pub allocated_bytes: u64,
    /// And these are free.
    pub free_bytes: u64,
    /// The largest free piece.
    pub largest_free_bytes: u64,
    /// Bytes that the device has left.
    pub device_free_bytes: u64,
    /// Call stack of the request, innermost frame first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<String>,
}

/// Figures of one device under one setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct DeviceAnswer {
    /// Device.
    pub device: u32,
    /// The most that the pool held.
    pub reserved_peak_bytes: Span,
    /// The same where blocks that other streams use come back as in the recording; absent without such blocks, and where that replay parts
    /// from the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_peak_as_recorded_bytes: Option<u64>,
    /// Peak of the program's part of it.
    pub allocated_peak_bytes: Span,
    /// Memory that the pool held and the program did not use, at the peak.
    pub idle_at_peak_bytes: Span,
    /// The most that the process had of the device.
    pub device_peak_bytes: Span,
    /// Number of times that the whole cache was given back, with a synchronisation of the device.
    pub retries: Span,
    /// Driver calls.
    pub driver_calls: Span,
    /// Driver calls by kind, in the replay that is most like the recording.
    pub calls: Calls,
    /// About how long those take that make memory, by what such calls took in the recording. Unknown where it has too few of their kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub making_ns: Option<u64>,
}

/// Results of a run under one setting.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Answer {
    /// The settings, as the environment has them.
    pub settings: String,
    /// How sure.
    pub sure: Sure,
    /// Why they are not replayed: the allocator refuses them, for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Notes about them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Whether the run fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits: Option<Fit>,
    /// The request at which it parts from the recording: figures are of the time before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// Figures by device.
    pub devices: Vec<DeviceAnswer>,
    /// The least memory on which the run fits, by device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub least: Vec<Least>,
    /// Replays that the ranges are of.
    pub replays: u32,
}

/// The answer about one process.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ProcessAnswer {
    /// Process.
    pub pid: u32,
    /// The self-check.
    pub check: SelfCheck,
    /// What driver calls took in the recording.
    pub call_times: CallTimes,
    /// Facts missing in the recording.
    pub gaps: Gaps,
    /// Requests that got a block.
    pub requests: u64,
    /// Those of them with a block that streams still used when it was freed.
    pub used_by_streams: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Memory of the process outside of the pool at most, by device.
    pub others_peak_bytes: Vec<u64>,
    /// Under the recorded settings.
    pub recorded: Answer,
    /// Under the requested ones.
    pub answers: Vec<Answer>,
    /// Bounds by device.
    pub bounds: Vec<Bounds>,
    /// Number of times that the cache is emptied besides, as asked for.
    pub emptied: u64,
    /// Requests are those of another batch size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaled: Option<Scaled>,
    /// Blocks are freed right behind their last use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed_early: Option<FreedEarly>,
}

/// Answers of `whatif`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct WhatIf {
    /// The file.
    pub input: String,
    /// Bytes of a device that the processes have, as asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// What others hold of that, as asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve_bytes: Option<u64>,
    /// Fraction of it that the process may have, as requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// Conditions of requests that were left out.
    pub without: u64,
    /// By process.
    pub processes: Vec<ProcessAnswer>,
}
