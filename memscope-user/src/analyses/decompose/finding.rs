//! The owners of a pool's memory, and the evidence for them.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Confidence, Device, Name, Pool};

/// The evidence for the owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The pool that it is of, or that has a block in it.
    Pool,
    /// The driver's module that asked for it.
    Module,
    /// Where it was allocated.
    Stack,
    /// What happened between its allocation and its end.
    Lifetime,
    /// A label in the dump.
    Label,
    /// What holds it.
    Holder,
    /// It is not known.
    Nothing,
}

impl Source {
    /// All of them, in order.
    pub const ALL: [Self; 7] =
        [Self::Pool, Self::Module, Self::Stack, Self::Lifetime, Self::Label, Self::Holder, Self::Nothing];
}

/// Blocks that one rule has named.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OwnerPart {
    /// As msMemScope spells it: `PTA@weight`; none for host memory without a rule.
    pub owner: Option<Name>,
    /// The component; `unknown` without a rule.
    pub component: Name,
    /// The rule, or why there is none.
    pub rule: Name,
    /// The kind of evidence that the rule uses.
    pub source: Source,
    /// Blocks live at the peak.
    pub peak_blocks: u64,
    /// Their bytes.
    pub peak_bytes: u64,
    /// Blocks live at the end.
    pub end_blocks: u64,
    /// Their bytes.
    pub end_bytes: u64,
    /// Live bytes, averaged over the time of the pool.
    pub mean_bytes: u64,
    /// Blocks ever allocated.
    pub blocks: u64,
}

/// Blocks of which holders and rules say the same.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct HeldPart {
    /// The component by their holders.
    pub held_as: Name,
    /// The component by rules; `unknown` of blocks that were found at the attach.
    pub by_rule: Name,
    /// The one that counts.
    pub taken: Name,
    /// Blocks, live or ended.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
}

/// A label of the owners, with the labels below it.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OwnerNode {
    /// The label.
    pub label: String,
    /// Live bytes at the peak, with those of its children.
    pub peak_bytes: u64,
    /// The same at the end.
    pub end_bytes: u64,
    /// The same on average.
    pub mean_bytes: u64,
    /// Labels behind it, largest at the peak first.
    pub children: Vec<Self>,
}

/// Live memory at one moment.
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

/// The owners of the memory of one pool of one process on one device.
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
    /// Steps that ended: marked ones, or else the optimizer's, as far as stacks show them.
    pub steps: u32,
    /// The pool's first event, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// Its end, or that of the trace.
    pub end_ns: u64,
    /// When the most was live.
    pub peak_ns: u64,
    /// Live bytes then: the sum of the parts.
    pub peak_bytes: u64,
    /// Bytes beyond that by the pool's own figure: blocks from before the trace.
    pub peak_untracked_bytes: u64,
    /// Live bytes at the end.
    pub end_bytes: u64,
    /// The same as for the peak.
    pub end_untracked_bytes: u64,
    /// Live bytes on average; its parts are rounded down each.
    pub mean_bytes: u64,
    /// Live bytes at the peak by evidence, in the order of [`Source::ALL`].
    pub peak_by_source: [u64; 7],
    /// What each rule has named, largest at the peak first.
    pub parts: Vec<OwnerPart>,
    /// Blocks with a holder that shows their purpose, most bytes first: what holders and rules say.
    pub held: Vec<HeldPart>,
    /// `parts` by the labels of owners.
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
