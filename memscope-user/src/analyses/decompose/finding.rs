//! Whose the memory of a pool is, and how that is known.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Confidence, Device, Name, Pool};

/// How it is known what a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// All of the pool is for it.
    Pool,
    /// The driver's module that asked for it.
    Module,
    /// Where it was allocated.
    Stack,
    /// What happened between its allocation and its end.
    Lifetime,
    /// The dump says so.
    Label,
    /// It is not known.
    Nothing,
}

impl Source {
    /// All of them, in order.
    pub const ALL: [Self; 6] = [Self::Pool, Self::Module, Self::Stack, Self::Lifetime, Self::Label, Self::Nothing];
}

/// Blocks that one rule has named.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OwnerPart {
    /// As msMemScope spells it: `PTA@weight`; none for host memory that no rule names.
    pub owner: Option<Name>,
    /// What it is for; `unknown` if no rule says.
    pub component: Name,
    /// The rule, or why there is none.
    pub rule: Name,
    /// What the rule goes by.
    pub source: Source,
    /// Blocks that were live at the peak.
    pub peak_blocks: u64,
    /// Their bytes.
    pub peak_bytes: u64,
    /// Blocks that were live at the end.
    pub end_blocks: u64,
    /// Their bytes.
    pub end_bytes: u64,
    /// Live bytes, averaged over the time of the pool.
    pub mean_bytes: u64,
    /// All blocks that were ever allocated.
    pub blocks: u64,
}

/// A label of the owners, with what is below it.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OwnerNode {
    /// The label.
    pub label: String,
    /// Live bytes at the peak, those of its children included.
    pub peak_bytes: u64,
    /// The same at the end.
    pub end_bytes: u64,
    /// The same on average.
    pub mean_bytes: u64,
    /// Labels behind it, largest at the peak first.
    pub children: Vec<Self>,
}

/// What there was at one moment.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OwnerSample {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Highest live bytes of all since the sample before.
    pub highest_bytes: u64,
    /// Live bytes of each component.
    pub bytes: Vec<u64>,
}

/// Components over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OwnerTimeline {
    /// The components, in the order of the samples' numbers.
    pub components: Vec<Name>,
    /// In order of time, evenly spaced but for the last.
    pub samples: Vec<OwnerSample>,
}

/// Whose the memory is of one pool of one process on one device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Decomposition {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// The process was running before the trace.
    pub attached: bool,
    /// Steps that ended: those that were marked, or else the optimizer's, as far as stacks tell.
    pub steps: u32,
    /// The pool's first event, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// Its end, or that of the trace.
    pub end_ns: u64,
    /// When the most was live.
    pub peak_ns: u64,
    /// What was live then: the sum of the parts.
    pub peak_bytes: u64,
    /// What the pool itself says beyond that: blocks from before the trace.
    pub peak_untracked_bytes: u64,
    /// What was live at the end.
    pub end_bytes: u64,
    /// The same as for the peak.
    pub end_untracked_bytes: u64,
    /// Live bytes on average; its parts are rounded down each.
    pub mean_bytes: u64,
    /// Bytes that were live at the peak, by what names them, in the order of [`Source::ALL`].
    pub peak_by_source: [u64; 6],
    /// What each rule has named, largest at the peak first.
    pub parts: Vec<OwnerPart>,
    /// The same by the labels of owners.
    pub tree: Vec<OwnerNode>,
    /// The same over time.
    pub timeline: OwnerTimeline,
    /// How sure.
    pub confidence: Confidence,
}

impl Answer for Decomposition {
    fn subject(&self) -> Subject {
        Subject::pool(self.pid, self.device, self.pool)
    }

    fn weight_bytes(&self) -> u64 {
        self.peak_bytes
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, context.clock, out)
    }
}
