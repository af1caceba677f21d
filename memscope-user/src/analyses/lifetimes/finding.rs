//! Lifetimes of a pool's blocks.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Confidence, Device, Pool, Stacks};

/// Where one bar of a histogram ends and the next begins, in nanoseconds: 10 µs to 100 s, by factors of ten.
pub const LIMITS_NS: [u64; 8] =
    [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000, 100_000_000_000];

/// Blocks by lifetime. `blocks` is the sum of all other figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Histogram {
    /// Blocks allocated during the trace.
    pub blocks: u64,
    /// Freed blocks: a bar for each interval between the limits, the last without an upper one.
    pub freed: [u64; LIMITS_NS.len() + 1],
    /// Blocks with an unseen end: the pool handed out their address again.
    pub unseen_ends: u64,
    /// Those live at the end.
    pub live_blocks: u64,
}

/// Lifetimes of blocks of similar size, see [`SizeSum`](crate::model::SizeSum).
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SizeLifetimes {
    /// The least size of the class in bytes.
    pub least_bytes: u64,
    /// Its blocks.
    #[serde(flatten)]
    pub histogram: Histogram,
}

/// Lifetimes of blocks allocated at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PlaceLifetimes {
    /// The place; empty where no stack is known.
    pub stacks: Stacks,
    /// Its blocks.
    #[serde(flatten)]
    pub histogram: Histogram,
}

/// Lifetimes of the blocks of one pool of one process on one device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Lifetimes {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// The process was running before the trace: older blocks are not counted.
    pub attached: bool,
    /// Limits between the bars of all histograms.
    pub limits_ns: [u64; LIMITS_NS.len()],
    /// All blocks.
    pub all: Histogram,
    /// By size class, the smallest first.
    pub sizes: Vec<SizeLifetimes>,
    /// By place, that with the most blocks first; empty if no stack is known of any.
    pub places: Vec<PlaceLifetimes>,
    /// Places with fewer blocks that are not in the list.
    pub places_left_out: u64,
    /// The limit of places was reached; blocks of further ones count as without a stack.
    pub places_full: bool,
    /// How sure.
    pub confidence: Confidence,
}

impl Answer for Lifetimes {
    fn subject(&self) -> Subject {
        Subject::pool(self.pid, self.device, self.pool)
    }

    /// Blocks instead of bytes: a histogram of many blocks matters most.
    fn weight_bytes(&self) -> u64 {
        self.all.blocks
    }

    fn write(&self, _: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, out)
    }
}
