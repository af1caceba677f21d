//! What the live screen shows, as values.

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::{
    growth::{Site, Trend},
    sample::{Change, Sample},
};
use crate::model::{Device, HolderPath, Name, Pool};

/// A sample, with owners and places.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Moment {
    /// Devices, processes and pools.
    #[serde(flatten)]
    pub sample: Sample,
    /// Names of the processes.
    pub names: Vec<ProcessName>,
    /// Live blocks by owner, those with the most bytes first. Layers nest: bytes of different pools are never added up.
    pub owners: Vec<OwnerUse>,
    /// The same by place.
    pub places: Vec<PlaceUse>,
    /// There were more places than can be kept: the others are one place of their pool, without a stack.
    pub places_full: bool,
}

/// A process's program.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ProcessName {
    /// Process.
    pub pid: u32,
    /// Short name of its program.
    pub command: String,
}

/// Live blocks of one owner.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct OwnerUse {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// The owner as known while blocks live; `None` where no rule names it.
    pub owner: Option<Name>,
    /// Live blocks.
    pub blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Highest live bytes so far.
    pub peak_bytes: u64,
    /// How the live bytes have changed lately.
    pub change: Option<Change>,
}

/// Live blocks of one place.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct PlaceUse {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// The place.
    pub site: Site,
    /// Live blocks.
    pub blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Highest live bytes so far.
    pub peak_bytes: u64,
    /// Age of the oldest live block in nanoseconds, up to a 32nd of the time since the first event more; where there are blocks from
    /// before the attach, the time since the first event: they are older.
    pub oldest_ns: u64,
    /// Whether its live blocks become more, as far as is known now.
    pub trend: Trend,
    /// How the live bytes have changed lately.
    pub change: Option<Change>,
    /// What held its blocks at the last look; `None` before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<PlaceHolders>,
    /// Live bytes of the last minute, the oldest first.
    #[serde(skip)]
    pub recent: Vec<u64>,
}

/// What held the blocks of a place.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PlaceHolders {
    /// When the program's memory was read, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Blocks that were looked at, and were still live when that was done.
    pub looked_at_blocks: u64,
    /// Holders, the sure ones first, those of most blocks first.
    pub holders: Vec<HolderPath>,
    /// As on the screen, a line each.
    pub lines: Vec<String>,
}
