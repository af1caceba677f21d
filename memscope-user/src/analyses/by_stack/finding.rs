//! From where memory was allocated.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Device, HeldAs, LiveSum, Pool, Stacks};

/// Memory allocated from one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct StackSum {
    /// The place.
    pub stacks: Stacks,
    /// Live blocks at the end.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Allocated blocks.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
}

/// Blocks that were found at the attach, by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct FoundSum {
    /// Their purpose, by the objects that held them; null where that is not known.
    pub held_as: Option<HeldAs>,
    /// Those live at the end.
    #[serde(flatten)]
    pub live: LiveSum,
}

/// From where one process allocated memory of one pool on one device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ByStack {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// By place, that with the most live bytes first.
    pub sums: Vec<StackSum>,
    /// Blocks from before the attach, which have no place; the largest first.
    pub found: Vec<FoundSum>,
    /// Places with fewer bytes that are not listed.
    pub left_out: u64,
}

impl Answer for ByStack {
    fn subject(&self) -> Subject {
        Subject::pool(self.pid, self.device, self.pool)
    }

    fn weight_bytes(&self) -> u64 {
        self.sums.iter().map(|sum| sum.live_bytes.saturating_add(sum.allocated_bytes)).fold(0, u64::saturating_add)
    }

    fn write(&self, _: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, out)
    }
}
