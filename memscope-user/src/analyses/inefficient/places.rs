//! Places of blocks that were held too long, and what of them was idle at the peak.

use std::cmp::Reverse;

use super::{InefficientKind, InefficientPlace};
use crate::hash::HashMap;
use crate::model::{Block, Device, LiveSum, Pool, Stacks};

/// Places of all processes; blocks of further ones are in the sums alone.
const MAX_PLACES: usize = 64 << 10;
/// Places of one finding.
const MAX_LISTED: usize = 512;

/// A place: pool, call stacks, size where there are none.
type Place = (Pool, Stacks, Option<u64>);

/// Blocks held too long, by place.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<(u32, Device, Place), Sum>);

#[derive(Debug, Default)]
struct Sum {
    kinds: [bool; 3],
    blocks: u64,
    size_bytes: u64,
    wasted_byte_seconds: f64,
}

impl Places {
    /// Adds a block.
    pub(super) fn add(&mut self, pid: u32, block: &Block, kinds: &[InefficientKind], wasted_byte_seconds: f64) {
        let key = (pid, block.device, (block.pool, block.stacks, block.size_of_place()));
        if self.0.len() >= MAX_PLACES && !self.0.contains_key(&key) {
            return;
        }
        let sum = self.0.entry(key).or_default();
        for kind in kinds {
            sum.kinds[*kind as usize] = true;
        }
        sum.blocks += 1;
        sum.size_bytes = sum.size_bytes.saturating_add(block.size_bytes);
        sum.wasted_byte_seconds += wasted_byte_seconds;
    }

    /// The places of a process on a device, the largest waste first.
    pub(super) fn take(&mut self, pid: u32, device: Device) -> Vec<InefficientPlace> {
        let taken = self.0.extract_if(|(of, on, _), _| (*of, *on) == (pid, device));
        let mut places: Vec<InefficientPlace> = taken
            .map(|((_, _, (pool, stacks, each_bytes)), sum)| InefficientPlace {
                pool,
                kinds: InefficientKind::ALL.into_iter().filter(|kind| sum.kinds[*kind as usize]).collect(),
                blocks: sum.blocks,
                size_bytes: sum.size_bytes,
                each_bytes,
                wasted_byte_seconds: sum.wasted_byte_seconds,
                stacks,
            })
            .collect();
        places.sort_by(|one, other| {
            let order = other.wasted_byte_seconds.total_cmp(&one.wasted_byte_seconds);
            order.then_with(|| (Reverse(one.size_bytes), one.stacks).cmp(&(Reverse(other.size_bytes), other.stacks)))
        });
        places.truncate(MAX_LISTED);
        places
    }
}

/// The peak so far of each pool of a process, and the blocks that were idle then.
#[derive(Debug, Default)]
pub(super) struct Peaks(HashMap<(Device, Pool), Peak>);

#[derive(Debug, Default)]
struct Peak {
    used_bytes: u64,
    time_ns: u64,
    idle: LiveSum,
}

impl Peaks {
    /// The pool of a block holds so much.
    pub(super) fn holds(&mut self, block: &Block, used_bytes: u64, time_ns: u64) {
        let peak = self.0.entry((block.device, block.pool)).or_default();
        if used_bytes > peak.used_bytes {
            *peak = Peak { used_bytes, time_ns, idle: LiveSum::default() };
        }
    }

    /// A block had no use from one moment to another, which is now: a later peak does not have it. `counted` is the peak
    /// that it was counted at, since times without use overlap.
    pub(super) fn idle(&mut self, block: &Block, (from_ns, to_ns): (u64, u64), counted: &mut Option<u64>) {
        let Some(peak) = self.0.get_mut(&(block.device, block.pool)) else { return };
        if (from_ns..to_ns).contains(&peak.time_ns) && *counted != Some(peak.time_ns) {
            *counted = Some(peak.time_ns);
            peak.idle.add(block.size_bytes);
        }
    }

    /// By device.
    pub(super) fn idle_at_peak(&self) -> impl Iterator<Item = (Device, LiveSum)> {
        self.0.iter().map(|((device, _), peak)| (*device, peak.idle))
    }
}
