//! Free memory of a pool, and its pieces.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Confidence, Device, Name, Pool, Stacks};

/// Free part of a pool's memory.
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
    /// Free bytes of segments without any block, if the pool gives these back to the driver before a request fails.
    pub returnable_bytes: u64,
    /// Free bytes of the other segments, without their largest piece.
    pub scattered_bytes: u64,
    /// Scattered over all free bytes, 0 to 1; 0 if nothing is free.
    pub ratio: f64,
}

/// An interval of time.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct FreeSpaceSample {
    /// Its end, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// At its end.
    pub last: FreeSpace,
    /// When the most bytes within it were scattered.
    pub worst: FreeSpace,
}

/// A block that pins a mostly empty segment: it cannot be given back.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Pin {
    /// Start of the block.
    pub addr: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Number of the block in its process.
    pub allocation_id: u64,
    /// Its owner.
    pub owner: Option<Name>,
    /// Time since its allocation.
    pub age_ns: u64,
    /// Where it was allocated.
    #[serde(skip_serializing_if = "Stacks::is_empty")]
    pub stacks: Stacks,
}

/// A segment with less than half of it handed out.
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
    /// Blocks that are not listed.
    pub blocks_left_out: u64,
}

/// A pool at a moment.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct FreeSpaceMoment {
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Free memory then.
    pub space: FreeSpace,
    /// Known segments of the pool.
    pub segments: u64,
    /// Mostly empty segments, the one with the most free bytes first.
    pub pinned: Vec<PinnedSegment>,
    /// Mostly empty segments that are not listed.
    pub pinned_left_out: u64,
    /// Bytes beyond the known segments by the pool's own figure: in segments older than the trace, or not in the input.
    pub unknown_bytes: u64,
    /// Bytes of the pool's blocks outside of known segments; not part of the other figures.
    pub outside_bytes: u64,
}

/// The blocks of one place that pin mostly empty segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinning {
    /// Where they were allocated.
    pub stacks: Stacks,
    /// Their owner.
    pub owner: Option<Name>,
    /// Their number.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
    /// Time since the oldest was allocated.
    pub age_ns: u64,
    /// Segments with more bytes of theirs than of another place.
    pub segments: u64,
    /// Free bytes in those segments.
    pub free_bytes: u64,
}

/// Whether a pool's free memory is in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PiecesVerdict {
    /// At the worst moment at least a quarter of the pool's memory, and 64 MiB, were scattered: free in segments with
    /// blocks, outside of their largest piece.
    Found,
    /// It was less.
    NotFound,
    /// It was less in the known segments; more of the pool's memory is in unknown ones.
    NotJudged,
}

/// A pool is fragmented from this percentage of its memory on: scattered bytes.
const FRAGMENTED_PERCENT: u64 = 25;
/// Less is no trouble, in bytes.
const FRAGMENTED_BYTES: u64 = 64 << 20;

impl FreeSpace {
    /// Largest free piece that the pool cannot give back.
    #[must_use]
    pub const fn largest_kept_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.returnable_bytes).saturating_sub(self.scattered_bytes)
    }
}

impl FreeSpaceMoment {
    /// The places of the listed blocks that pin mostly empty segments, the one that keeps most free bytes first. A segment
    /// counts at one place: the one with most bytes in it.
    #[must_use]
    pub fn pinning(&self) -> Vec<Pinning> {
        let mut places: BTreeMap<(Stacks, Option<Name>), Pinning> = BTreeMap::new();
        for segment in &self.pinned {
            let mut bytes: BTreeMap<(Stacks, Option<Name>), u64> = BTreeMap::new();
            for &Pin { stacks, owner, size_bytes, age_ns, .. } in &segment.blocks {
                let in_segment = bytes.entry((stacks, owner)).or_default();
                *in_segment = in_segment.saturating_add(size_bytes);
                let none = Pinning { stacks, owner, blocks: 0, size_bytes: 0, age_ns: 0, segments: 0, free_bytes: 0 };
                let place = places.entry((stacks, owner)).or_insert(none);
                place.blocks += 1;
                place.size_bytes = place.size_bytes.saturating_add(size_bytes);
                place.age_ns = place.age_ns.max(age_ns);
            }
            let most = bytes.into_iter().max_by_key(|(_, size_bytes)| *size_bytes);
            if let Some(place) = most.and_then(|(place, _)| places.get_mut(&place)) {
                place.segments += 1;
                let free_bytes = segment.size_bytes.saturating_sub(segment.used_bytes);
                place.free_bytes = place.free_bytes.saturating_add(free_bytes);
            }
        }
        let mut places: Vec<Pinning> = places.into_values().collect();
        places.sort_by_key(|place| (Reverse(place.free_bytes), Reverse(place.blocks), place.stacks));
        places
    }

    /// The verdict of a pool with this worst moment.
    pub(super) fn verdict(&self) -> PiecesVerdict {
        let (scattered, total) = (self.space.scattered_bytes, self.space.total_bytes);
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
    /// The process was running before the trace: older segments are unknown.
    pub attached: bool,
    /// Whether its free memory is in pieces.
    pub verdict: PiecesVerdict,
    /// When memory of the pool was first seen, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// At the end, or when the exit began, with all that was live then.
    pub end: FreeSpaceMoment,
    /// When the most bytes were scattered: at most a sixteenth below the most ever.
    pub worst: Option<FreeSpaceMoment>,
    /// Over time.
    pub series: Vec<FreeSpaceSample>,
    /// How sure.
    pub confidence: Confidence,
}

/// The moment with more scattered memory. The end is no tear-down: that comes later.
pub(super) fn worse<'a>(worst: Option<&'a FreeSpaceMoment>, end: &'a FreeSpaceMoment) -> &'a FreeSpaceMoment {
    worst.filter(|worst| worst.space.scattered_bytes >= end.space.scattered_bytes).unwrap_or(end)
}

impl Fragmentation {
    /// The judged moment: the worst one.
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
