//! Holders of live blocks.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Device, HolderPath, LiveSum, LookedAt, PlaceLook, Pool, Stacks};

/// Blocks of a place, and what held them.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct HeldPlace {
    /// The pool, or the driver.
    pub pool: Pool,
    /// Size of each block in bytes, where no call stack names the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub each_bytes: Option<u64>,
    /// Where the blocks were allocated.
    #[serde(skip_serializing_if = "Stacks::is_empty")]
    pub stacks: Stacks,
    /// Live blocks of the place when it was looked at.
    pub live: LiveSum,
    /// Blocks that were looked at.
    pub looked_at_blocks: u64,
    /// Their holders, the surest first, then those with the most blocks. A block may have several.
    pub holders: Vec<HolderPath>,
    /// Of these blocks those that only Python objects refer to which refer to each other: garbage that is not collected yet.
    pub garbage_blocks: u64,
    /// Of these blocks those without a holder.
    pub unknown_blocks: u64,
    /// Why memory of the process was left out: holders may be missing. Absent if none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// What held the blocks of a process on a device, as read out of its host memory.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct HeldBy {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// When it was looked at.
    pub looked_at: LookedAt,
    /// The same, nanoseconds since the Unix epoch; 0 if it was not.
    pub time_ns: u64,
    /// When the process ended; absent if it lives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_end_ns: Option<u64>,
    /// Why it was not looked at; absent if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_looked_for: Option<String>,
    /// Places that seem to grow, then those with the most memory.
    pub places: Vec<HeldPlace>,
}

/// Which blocks: device, pool, stacks, and the size of each where there are no stacks.
pub(crate) type PlaceKey = (Device, Pool, Stacks, Option<u64>);

impl HeldPlace {
    pub(super) fn of(place: &PlaceLook) -> Self {
        let PlaceLook { block, live, looked_at_blocks, holders, garbage_blocks, unknown_blocks, left_out, .. } =
            place.clone();
        let (pool, each_bytes, stacks) = (block.pool, block.size_of_place(), block.stacks);
        Self { pool, each_bytes, stacks, live, looked_at_blocks, holders, garbage_blocks, unknown_blocks, left_out }
    }

    /// Whether a smaller part of the blocks has a sure holder, or any, than of another look at the place.
    pub(super) fn is_less_sure(&self, other: &Self) -> bool {
        let most = |place: &Self, sure: bool| {
            let holders = place.holders.iter().filter(|holder| holder.is_sure || !sure);
            holders.map(|holder| u128::from(holder.blocks)).max().unwrap_or(0)
        };
        let [own, others] = [self, other].map(|place| u128::from(place.looked_at_blocks));
        let shares = |sure: bool| (most(self, sure) * others, most(other, sure) * own);
        let ((sure, sure_other), (any, any_other)) = (shares(true), shares(false));
        sure < sure_other || (sure == sure_other && any < any_other)
    }

    pub(super) fn key(&self) -> (Pool, Stacks, Option<u64>) {
        (self.pool, self.stacks, self.each_bytes)
    }
}

impl HeldBy {
    pub(super) const fn new(pid: u32, device: Device, looked_at: LookedAt, time_ns: u64) -> Self {
        Self { pid, device, looked_at, time_ns, process_end_ns: None, not_looked_for: None, places: Vec::new() }
    }

    fn place(&self, (device, pool, stacks, each_bytes): PlaceKey) -> Option<&HeldPlace> {
        self.places.iter().find(|place| self.device == device && place.key() == (pool, stacks, each_bytes))
    }
}

/// The finding about a place, and the place in it; without the place in any the one that says why it was not looked at. `at_failure`: when
/// a request had failed is preferred.
pub(crate) fn place_of<'a>(
    found: impl Iterator<Item = &'a HeldBy> + Clone,
    key: PlaceKey,
    at_failure: bool,
) -> Option<(&'a HeldBy, Option<&'a HeldPlace>)> {
    let with_place = found.clone().filter_map(|found| Some((found, found.place(key)?)));
    let best = with_place.max_by_key(|(found, _)| (found.looked_at == LookedAt::FailedRequest) == at_failure);
    if let Some((found, place)) = best {
        return Some((found, Some(place)));
    }
    let without = found.into_iter().find(|found| found.device == key.0 && found.not_looked_for.is_some());
    without.map(|found| (found, None))
}

impl Answer for HeldBy {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, self.device)
    }

    fn weight_bytes(&self) -> u64 {
        self.places.iter().map(|place| place.live.size_bytes).fold(0, u64::saturating_add)
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, context.clock, context.report.place_lines, out)
    }
}
