//! How much of a pool's memory is free, and in what pieces.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Confidence, Device, Name, Pool, Stacks};

/// What is free of the memory that a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct FreeSpace {
    /// Bytes of the pool's memory, as far as it is known.
    pub total_bytes: u64,
    /// Handed out.
    pub used_bytes: u64,
    /// Not handed out.
    pub free_bytes: u64,
    /// Largest piece of that.
    pub largest_free_bytes: u64,
    /// Free bytes outside of the largest piece over all free bytes, 0 to 1; 0 if nothing is free.
    pub ratio: f64,
}

/// An interval of time.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct FreeSpaceSample {
    /// Its end, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// At its end.
    pub last: FreeSpace,
    /// When the most bytes within it were free outside of the largest piece.
    pub worst: FreeSpace,
}

/// A block that keeps a mostly empty segment from being given back.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Pin {
    /// Start of the block.
    pub addr: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Number of the block in its process.
    pub allocation_id: u64,
    /// Whose it is.
    pub owner: Option<Name>,
    /// Time since its allocation.
    pub age_ns: u64,
    /// Where it was allocated.
    #[serde(skip_serializing_if = "Stacks::is_empty")]
    pub stacks: Stacks,
}

/// A segment less than half of which is handed out.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PinnedSegment {
    /// Its start.
    pub addr: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of blocks in it.
    pub used_bytes: u64,
    /// The blocks, by address.
    pub blocks: Vec<Pin>,
    /// Blocks that are not told.
    pub blocks_left_out: u64,
}

/// A pool at a moment.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct FreeSpaceMoment {
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// How it is.
    pub space: FreeSpace,
    /// Segments of the pool that are known.
    pub segments: u64,
    /// Mostly empty ones, those with the most free bytes first.
    pub pinned: Vec<PinnedSegment>,
    /// Those that are not told.
    pub pinned_left_out: u64,
    /// What the pool says it holds beyond the known segments: those are older than the trace, or not in the input.
    pub unknown_bytes: u64,
    /// Bytes of the pool's blocks that lie in no known segment; they are in none of the figures.
    pub outside_bytes: u64,
}

/// Whether a pool's free memory is in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PiecesVerdict {
    /// At the worst moment at least a quarter of the pool's memory, and 64 MiB, were free outside of the largest piece.
    Found,
    /// It was less.
    NotFound,
    /// It was less in the segments that are known; more memory of the pool is in segments that are not.
    NotJudged,
}

/// Free bytes outside of the largest free piece, in percent of a pool's memory, from which on a pool counts as fragmented.
const FRAGMENTED_PERCENT: u64 = 25;
/// Less is no trouble, in bytes.
const FRAGMENTED_BYTES: u64 = 64 << 20;

impl FreeSpace {
    /// Free bytes outside of the largest piece.
    #[must_use]
    pub const fn scattered_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.largest_free_bytes)
    }
}

impl FreeSpaceMoment {
    /// The verdict of a pool of which this is the worst moment.
    pub(super) fn verdict(&self) -> PiecesVerdict {
        let (scattered, total) = (self.space.scattered_bytes(), self.space.total_bytes);
        let is_much = u128::from(scattered) * 100 >= u128::from(total) * u128::from(FRAGMENTED_PERCENT);
        if is_much && scattered >= FRAGMENTED_BYTES {
            PiecesVerdict::Found
        } else if self.unknown_bytes > total {
            PiecesVerdict::NotJudged
        } else {
            PiecesVerdict::NotFound
        }
    }
}

/// The free space of one pool of one process on one device.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Fragmentation {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// The process was running before the trace: segments older than that are unknown.
    pub attached: bool,
    /// Whether its free memory is in pieces.
    pub verdict: PiecesVerdict,
    /// When memory of the pool was first seen, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// At the end, or when the exit began, with everything that was live then.
    pub end: FreeSpaceMoment,
    /// When the most bytes were free outside of the largest piece: at most a sixteenth below the most there ever were.
    pub worst: Option<FreeSpaceMoment>,
    /// Over time.
    pub series: Vec<FreeSpaceSample>,
    /// How sure.
    pub confidence: Confidence,
}

/// The moment at which more was scattered. The end is no tear-down: that comes behind it.
pub(super) fn worse<'a>(worst: Option<&'a FreeSpaceMoment>, end: &'a FreeSpaceMoment) -> &'a FreeSpaceMoment {
    worst.filter(|worst| worst.space.scattered_bytes() >= end.space.scattered_bytes()).unwrap_or(end)
}

impl Fragmentation {
    /// The moment that is judged: the worst one.
    #[must_use]
    pub fn judged(&self) -> &FreeSpaceMoment {
        worse(self.worst.as_ref(), &self.end)
    }
}

impl Answer for Fragmentation {
    fn subject(&self) -> Subject {
        Subject::pool(self.pid, self.device, self.pool)
    }

    fn weight_bytes(&self) -> u64 {
        let worst = self.worst.as_ref().map_or(0, |worst| worst.space.total_bytes);
        worst.max(self.end.space.total_bytes)
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, context.clock, out)
    }
}
