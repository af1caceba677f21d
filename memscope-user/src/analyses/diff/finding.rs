//! Increases and decreases between two moments.

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::{Confidence, Device, LiveSum, Name, Pool, Stacks};

/// Live blocks at both moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct LiveChange {
    /// At the first.
    pub from: LiveSum,
    /// At the second.
    pub to: LiveSum,
    /// Bytes that became more; negative if they became less.
    pub grown_bytes: i128,
    /// The same of blocks.
    pub grown_blocks: i128,
}

impl LiveChange {
    /// The change from one to the other.
    #[must_use]
    pub fn new(from: LiveSum, to: LiveSum) -> Self {
        let grown = |from: u64, to: u64| i128::from(to) - i128::from(from);
        let (grown_bytes, grown_blocks) = (grown(from.size_bytes, to.size_bytes), grown(from.blocks, to.blocks));
        Self { from, to, grown_bytes, grown_blocks }
    }
}

/// Of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OwnerDiff {
    /// The owner; `None` for host memory without a rule.
    pub owner: Option<Name>,
    /// Its blocks.
    #[serde(flatten)]
    pub change: LiveChange,
}

/// Of one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PlaceDiff {
    /// The place, without the addresses that differ from process to process; empty where no stack is known.
    pub stacks: Stacks,
    /// Its blocks.
    #[serde(flatten)]
    pub change: LiveChange,
}

/// Of blocks of similar size, see [`SizeSum`](crate::model::SizeSum).
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SizeDiff {
    /// The least size of the class in bytes.
    pub least_bytes: u64,
    /// Its blocks.
    #[serde(flatten)]
    pub change: LiveChange,
}

/// Of one pool on one device, all processes together. Each list starts with the largest increase and leaves out
/// unchanged groups; listed and unlisted changes add up to the change of the whole.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PoolDiff {
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// Owners and places were compared; not if just one of two runs has call stacks.
    pub judged: bool,
    /// All blocks.
    #[serde(flatten)]
    pub change: LiveChange,
    /// By owner.
    pub owners: Vec<OwnerDiff>,
    /// By place; empty if no stack is known at either moment.
    pub places: Vec<PlaceDiff>,
    /// Places that grew less, or shrank, and are not listed.
    pub places_left_out: u64,
    /// By size class.
    pub sizes: Vec<SizeDiff>,
    /// The limit of places was reached; blocks of further ones count as without a stack.
    pub places_full: bool,
}

/// One of the two moments.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct DiffSide {
    /// The input.
    pub input: String,
    /// The requested moment: `end`, `peak`, or a time after the run's first event.
    pub at: String,
    /// The time from its first event to its last in nanoseconds.
    pub length_ns: u64,
    /// A process was running before the trace: its older blocks are not counted.
    pub attached: bool,
    /// How sure.
    pub confidence: Confidence,
}

/// Increases and decreases between two moments of one run or of two.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Diff {
    /// The first.
    pub from: DiffSide,
    /// The second.
    pub to: DiffSide,
    /// By device and pool.
    pub pools: Vec<PoolDiff>,
}
