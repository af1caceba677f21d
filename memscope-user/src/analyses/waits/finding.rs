//! Memory of a pool that waits for streams.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Confidence, Device, Pool, Stacks};

/// Blocks, and how long they waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct WaitSum {
    /// Blocks that were freed while a stream used them.
    pub blocks: u64,
    /// The most bytes that waited at once.
    pub most_bytes: u64,
    /// Bytes that waited when the pool was largest for the first time, ...
    pub pool_peak_bytes: u64,
    /// ... and their blocks.
    pub pool_peak_blocks: u64,
    /// The longest wait in nanoseconds, among those with a seen end.
    pub longest_ns: u64,
    /// Blocks that wait at the end.
    pub open_blocks: u64,
}

/// Blocks allocated at one place, and used by another stream since one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PlaceWaits {
    /// The place; empty where no stack is known.
    pub stacks: Stacks,
    /// The last call of `record_stream` for these blocks; empty where none was recorded, as in dumps.
    pub record_stream: Stacks,
    /// Its blocks.
    #[serde(flatten)]
    pub sum: WaitSum,
}

/// Memory of a pool of one process on one device that waits for streams: freed by the program, and not yet given out again.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Waits {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// The most that the pool held, in bytes.
    pub reserved_peak_bytes: u64,
    /// When it held that for the first time, nanoseconds since the Unix epoch.
    pub reserved_peak_time_ns: u64,
    /// All blocks.
    #[serde(flatten)]
    pub all: WaitSum,
    /// By place, that with the most bytes at the pool's peak first, then by the most that waited at once.
    pub places: Vec<PlaceWaits>,
    /// Places with less that are not in the list.
    pub places_left_out: u64,
    /// The limit of places or of blocks was reached: the places have less than all blocks.
    pub places_full: bool,
    /// How sure.
    pub confidence: Confidence,
}

impl Waits {
    /// Whether what waited was a twentieth of the pool at its peak.
    #[must_use]
    pub const fn is_large(&self) -> bool {
        self.all.pool_peak_bytes >= self.reserved_peak_bytes.div_ceil(20) && self.all.pool_peak_bytes > 0
    }
}

impl Answer for Waits {
    fn subject(&self) -> Subject {
        Subject::pool(self.pid, self.device, self.pool)
    }

    fn weight_bytes(&self) -> u64 {
        self.all.pool_peak_bytes
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, context.clock, out)
    }
}
