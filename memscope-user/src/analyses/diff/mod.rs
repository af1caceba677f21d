//! What grew between two moments, of one run or of two? By owner, by place and by size, for each pool of each device.
//!
//! Processes are added up: two runs have no process in common. Addresses in frames, which the kernel chooses for each
//! process, are left out, so that two runs can have equal places; offsets stay.

mod finding;
mod places;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;
mod text;

use std::cmp::Reverse;
use std::hash::Hash;

pub use self::finding::{Diff, DiffSide, LiveChange, OwnerDiff, PlaceDiff, PoolDiff, SizeDiff};
pub(in crate::analyses) use self::places::Places;
pub use self::snapshot::{At, Recorder, Snapshot};
pub use self::table::TABLE;
pub use self::text::write_diff;

use crate::hash::HashMap;
use crate::model::{Device, LiveGroups, LiveSum, Pool};

/// Places listed of each pool, the largest increase first.
const MAX_PLACES: usize = 100;

/// Increases and decreases by device and pool.
#[must_use]
pub fn diff(from: &Snapshot, to: &Snapshot) -> Vec<PoolDiff> {
    let mut places: Vec<(Device, Pool)> = from.pools.keys().chain(to.pools.keys()).copied().collect();
    places.sort_unstable();
    places.dedup();
    let of = |snapshot: &Snapshot, place| snapshot.pools.get(place).cloned().unwrap_or_default();
    let found = places.iter().map(|place| pool_diff(*place, &of(from, place), &of(to, place)));
    found.map(|found| if from.stacks == to.stacks { found } else { totals_only(found) }).collect()
}

/// Only one of two runs has call stacks. Its places and owners are not comparable: both would seem to have grown,
/// unless one side is empty.
fn totals_only(found: PoolDiff) -> PoolDiff {
    if found.change.from.blocks == 0 || found.change.to.blocks == 0 {
        return found;
    }
    PoolDiff { judged: false, owners: Vec::new(), places: Vec::new(), places_left_out: 0, ..found }
}

/// A pool at a moment: all its blocks, and the same in groups.
type Live = (LiveSum, LiveGroups);

fn pool_diff((device, pool): (Device, Pool), (all_from, from): &Live, (all_to, to): &Live) -> PoolDiff {
    let owners = |groups: &LiveGroups| groups.owners.iter().map(|sum| (sum.owner, sum.live)).collect();
    let owners = changed(owners(from), owners(to));
    let places = |groups: &LiveGroups| groups.places.iter().map(|sum| (sum.stacks, sum.live)).collect();
    let mut places = changed(places(from), places(to));
    let sizes = |groups: &LiveGroups| groups.sizes.iter().map(|sum| (sum.least_bytes, sum.live)).collect();
    let sizes = changed(sizes(from), sizes(to));
    if !from.has_stacks() && !to.has_stacks() {
        places.clear();
    }
    let places_left_out = places.len().saturating_sub(MAX_PLACES) as u64;
    places.truncate(MAX_PLACES);
    PoolDiff {
        device,
        pool,
        judged: true,
        change: LiveChange::new(*all_from, *all_to),
        owners: owners.into_iter().map(|(owner, change)| OwnerDiff { owner, change }).collect(),
        places: places.into_iter().map(|(stacks, change)| PlaceDiff { stacks, change }).collect(),
        places_left_out,
        sizes: sizes.into_iter().map(|(least_bytes, change)| SizeDiff { least_bytes, change }).collect(),
        places_full: from.places_full || to.places_full,
    }
}

/// Values that differ between the sides, the largest increase first.
fn changed<K: Copy + Eq + Hash + Ord>(from: Vec<(K, LiveSum)>, to: Vec<(K, LiveSum)>) -> Vec<(K, LiveChange)> {
    let mut both: HashMap<K, (LiveSum, LiveSum)> = HashMap::default();
    for (key, live) in from {
        both.entry(key).or_default().0 = live;
    }
    for (key, live) in to {
        both.entry(key).or_default().1 = live;
    }
    let differing = both.into_iter().filter(|(_, (from, to))| from != to);
    let mut found: Vec<(K, LiveChange)> = differing.map(|(key, (from, to))| (key, LiveChange::new(from, to))).collect();
    found.sort_unstable_by_key(|(key, change)| (Reverse((change.grown_bytes, change.grown_blocks)), *key));
    found
}
