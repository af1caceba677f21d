//! One pool of one process on one device.

use std::collections::BTreeMap;

use super::curve::{Curve, Points};
use crate::{
    hash::HashMap,
    model::{Alloc, Block, Device, Free, FreeCause, Pool, Stack, Stacks, UnknownFree},
    session::PoolSums,
};

/// The pool that figures are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesKey {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
}

/// Upper bounds of the classes of sizes; one more class is beyond them.
pub const SIZE_BOUNDS: [u64; 11] =
    [512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 2 << 20, 8 << 20, 32 << 20, 128 << 20, 512 << 20, 2 << 30];
/// Minutes that are kept apart by age: a bit more than six hours.
const MAX_MINUTES: usize = 400;
/// Places that hold less are not suspected.
const LEAST_BYTES: u64 = 1 << 20;
const MINUTE_NS: u64 = 60_000_000_000;

/// Where blocks were allocated: a call stack, or a size where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The stack.
    pub stacks: Stacks,
    /// The size in bytes, where there is no stack; else 0.
    pub size_bytes: u64,
}

impl Place {
    /// The same place, with its stacks kept elsewhere.
    pub(super) fn moved(self, moved: impl FnMut(Stack) -> Stack) -> Self {
        Self { stacks: self.stacks.map(moved), ..self }
    }

    /// Where a block was allocated.
    pub(super) fn of(block: &Block) -> Self {
        let size_bytes = if block.stacks.is_empty() { block.size_bytes } else { 0 };
        Self { stacks: block.stacks, size_bytes }
    }
}

/// Live blocks of a place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlaceSum {
    /// Live blocks.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    points: Points,
}

/// The account.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Blocks allocated.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Blocks freed, those among them that were allocated since the attach.
    pub frees: u64,
    /// Their bytes.
    pub freed_bytes: u64,
    /// Frees of blocks that are older than the trace, or were never seen.
    pub older_frees: u64,
    /// Requests that failed for good, for want of memory.
    pub out_of_memory: u64,
    /// Requests that failed for want of memory, and succeeded at a further attempt.
    pub recovered: u64,
    /// Requests that were refused for another reason.
    pub refused: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// What the pool itself says it has handed out, where it says so.
    pub used_bytes: Option<u64>,
    /// What it says it holds from the driver.
    pub reserved_bytes: Option<u64>,
    /// What it says is handed out, or waits for a stream.
    pub active_bytes: Option<u64>,
    /// Allocations by size: one more than there are [`SIZE_BOUNDS`].
    pub sizes: [u64; SIZE_BOUNDS.len() + 1],
    /// Live bytes by the minute of their allocation, since the Unix epoch.
    ages: BTreeMap<u32, u64>,
    by_place: HashMap<Place, PlaceSum>,
    /// A place found no room: no new one is kept apart from here on, so that blocks go where they came.
    places_full: bool,
    points: Points,
    curve: Curve,
    /// It is of a pool that is not traced: sums alone are known, as they were read.
    is_read: bool,
}

impl Series {
    /// A block comes. Gives how many new places there are.
    pub(super) fn alloc(&mut self, alloc: &Alloc, has_room: bool) -> usize {
        let block = &alloc.block;
        if alloc.restored && block.found {
            self.older_frees = self.older_frees.saturating_sub(1);
        } else if alloc.restored {
            // The free did not happen.
            self.frees = self.frees.saturating_sub(1);
            self.freed_bytes = self.freed_bytes.saturating_sub(block.size_bytes);
        } else if !block.found {
            self.allocations += 1;
            self.allocated_bytes = self.allocated_bytes.saturating_add(block.size_bytes);
            let class = SIZE_BOUNDS.iter().position(|bound| block.size_bytes <= *bound).unwrap_or(SIZE_BOUNDS.len());
            self.sizes[class] += 1;
        }
        self.live_blocks += 1;
        self.live_bytes = self.live_bytes.saturating_add(block.size_bytes);
        self.reported(alloc.used_bytes, alloc.total_bytes);
        let age = self.age(block);
        let of_minute = self.ages.entry(age).or_default();
        *of_minute = of_minute.saturating_add(block.size_bytes);
        self.shorten_ages();
        self.place_comes(block, has_room)
    }

    fn place_comes(&mut self, block: &Block, has_room: bool) -> usize {
        let place = Place::of(block);
        let known = self.by_place.contains_key(&place);
        if !known && (self.places_full || !has_room) {
            self.places_full = true;
            return 0;
        }
        let sum = self.by_place.entry(place).or_default();
        sum.live_blocks += 1;
        sum.live_bytes = sum.live_bytes.saturating_add(block.size_bytes);
        usize::from(!known)
    }

    /// A block goes. Gives how many places hold nothing any more.
    pub(super) fn free(&mut self, free: &Free) -> usize {
        let block = &free.block;
        if block.found {
            self.older_frees += 1;
        } else {
            self.frees += 1;
            self.freed_bytes = self.freed_bytes.saturating_add(block.size_bytes);
        }
        self.live_blocks = self.live_blocks.saturating_sub(1);
        self.live_bytes = self.live_bytes.saturating_sub(block.size_bytes);
        if free.cause == FreeCause::Program {
            self.reported(free.used_bytes, free.total_bytes);
        }
        let age = self.age(block);
        if let Some(of_minute) = self.ages.get_mut(&age) {
            *of_minute = of_minute.saturating_sub(block.size_bytes);
            if *of_minute == 0 {
                self.ages.remove(&age);
            }
        }
        self.place_goes(block)
    }

    fn place_goes(&mut self, block: &Block) -> usize {
        let place = Place::of(block);
        let Some(sum) = self.by_place.get_mut(&place) else { return 0 };
        sum.live_blocks = sum.live_blocks.saturating_sub(1);
        sum.live_bytes = sum.live_bytes.saturating_sub(block.size_bytes);
        if sum.live_blocks > 0 || self.places_full {
            return 0;
        }
        self.by_place.remove(&place);
        1
    }

    pub(super) fn unknown_free(&mut self, free: &UnknownFree) {
        if free.refused {
            self.older_frees = self.older_frees.saturating_sub(1);
            return;
        }
        self.older_frees += 1;
        if let (Some(used), Some(size)) = (&mut self.used_bytes, free.size_bytes) {
            *used = used.saturating_sub(size);
        }
    }

    /// What the pool says of itself. One that does not say what it holds says nothing of what it has handed out either.
    pub(super) fn reported(&mut self, used_bytes: u64, total_bytes: Option<u64>) {
        if let Some(total_bytes) = total_bytes {
            (self.used_bytes, self.reserved_bytes) = (Some(used_bytes), Some(total_bytes));
            self.curve.reported(total_bytes, used_bytes);
        }
    }

    /// The pool's sums were read.
    pub(super) fn read(&mut self, sums: &PoolSums) {
        self.is_read = true;
        (self.live_blocks, self.live_bytes) = (sums.live_blocks, sums.live_bytes);
        self.reported(sums.used_bytes, Some(sums.reserved_bytes));
    }

    /// A minute is over. `free_bytes`: what the driver has free on the device.
    pub(super) fn minute(&mut self, minute: u32, free_bytes: Option<u64>) {
        self.points.add(minute, self.live_bytes);
        if let (Some(reserved), Some(used)) = (self.reserved_bytes, self.used_bytes) {
            self.curve.minute(minute, [reserved, used], free_bytes);
        }
        for sum in self.by_place.values_mut() {
            if sum.live_bytes >= LEAST_BYTES || !sum.points.is_empty() {
                sum.points.add(minute, sum.live_bytes);
            }
        }
    }

    /// The minute that a block is counted at.
    fn age(&self, block: &Block) -> u32 {
        let minute = u32::try_from(block.alloc_time_ns / MINUTE_NS).unwrap_or(u32::MAX);
        let oldest = self.ages.first_key_value().map_or(0, |(oldest, _)| *oldest);
        if self.ages.len() >= MAX_MINUTES { minute.max(oldest) } else { minute }
    }

    /// The oldest minutes become one.
    fn shorten_ages(&mut self) {
        while self.ages.len() > MAX_MINUTES {
            let Some((_, bytes)) = self.ages.pop_first() else { return };
            if let Some(mut oldest) = self.ages.first_entry() {
                *oldest.get_mut() = oldest.get().saturating_add(bytes);
            }
        }
    }

    /// Whether the ages of blocks are known.
    pub(super) const fn has_ages(&self) -> bool {
        !self.is_read
    }

    /// Live bytes that are older than this many minutes, to the minute.
    #[must_use]
    pub fn older_bytes(&self, minutes: u32, now_minute: u32) -> u64 {
        let last = now_minute.saturating_sub(minutes);
        self.ages.range(..=last).fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// What the pool says it has handed out beyond all blocks that are known by place: from before the attach, without room, or not seen.
    /// Where the pool says nothing, what of the blocks seen is in no place.
    #[must_use]
    pub fn untracked_bytes(&self) -> u64 {
        let in_places = self.by_place.values().fold(0, |sum: u64, place| sum.saturating_add(place.live_bytes));
        self.used_bytes.unwrap_or(self.live_bytes).saturating_sub(in_places)
    }

    /// How the live bytes have grown, in bytes a second, if they were observed for ten minutes.
    #[must_use]
    pub fn growth(&self) -> Option<f64> {
        self.points.slope()
    }

    /// Seconds until the pool holds what the device has: earliest, middle, latest of the 90 % interval, as of the last minute. `None`: it does
    /// not grow, was watched for too short a time, or the driver's figures are not known.
    #[must_use]
    pub fn seconds_left(&self) -> Option<[Option<f64>; 3]> {
        self.curve.seconds_left()
    }

    /// Places that have grown, the fastest first.
    #[must_use]
    pub fn growing_places(&self, most: usize) -> Vec<(Place, f64)> {
        let growing = self.by_place.iter().filter_map(|(place, sum)| Some((*place, sum.points.slope()?)));
        let mut growing: Vec<(Place, f64)> = growing.filter(|(_, slope)| *slope > 0.0).collect();
        growing.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        growing.truncate(most);
        growing
    }

    /// The places that hold most, the largest first.
    #[must_use]
    pub fn largest_places(&self, most: usize) -> Vec<(Place, PlaceSum)> {
        let mut places: Vec<(Place, &PlaceSum)> = self.by_place.iter().map(|(place, sum)| (*place, sum)).collect();
        places.sort_by(|one, other| other.1.live_bytes.cmp(&one.1.live_bytes).then_with(|| one.0.cmp(&other.0)));
        places.into_iter().take(most).map(|(place, sum)| (place, sum.clone())).collect()
    }

    /// The place that holds most, with its bytes.
    #[must_use]
    pub fn largest_place(&self) -> Option<(Place, u64)> {
        let live = self.by_place.iter().filter(|(_, sum)| sum.live_bytes > 0);
        let largest = live.max_by_key(|(place, sum)| (sum.live_bytes, std::cmp::Reverse(**place)));
        largest.map(|(place, sum)| (*place, sum.live_bytes))
    }

    /// Changes all places. Those that become one count together; gives how many there are less.
    pub(super) fn change_places(&mut self, mut change: impl FnMut(Place) -> Place) -> usize {
        let before = self.by_place.len();
        for (place, sum) in std::mem::take(&mut self.by_place) {
            let of_place = self.by_place.entry(change(place)).or_default();
            of_place.live_blocks += sum.live_blocks;
            of_place.live_bytes = of_place.live_bytes.saturating_add(sum.live_bytes);
            if of_place.points.is_empty() {
                of_place.points = sum.points;
            }
        }
        before - self.by_place.len()
    }

    /// Where a block was allocated, if that place is kept apart.
    pub(super) fn place_of(&self, block: &Block) -> Option<Place> {
        let place = Place::of(block);
        self.by_place.contains_key(&place).then_some(place)
    }

    /// The places that are kept apart, with what they hold.
    pub(super) fn by_place(&self) -> impl Iterator<Item = (&Place, &PlaceSum)> {
        self.by_place.iter()
    }

    /// Places that are kept apart.
    #[must_use]
    pub fn places(&self) -> usize {
        self.by_place.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analyses::script::Script,
        backend::ascend::pools,
        model::{Event, EventKind},
    };

    fn observe(series: &mut Series, event: &Event, has_room: bool) {
        match &event.kind {
            EventKind::Alloc(alloc) => {
                series.alloc(alloc, has_room);
            }
            EventKind::Free(free) => {
                series.free(free);
            }
            EventKind::UnknownFree(free) => series.unknown_free(free),
            other => panic!("neither comes nor goes: {other:?}"),
        }
    }

    fn script() -> Script {
        Script::new(7, Device::Npu(0))
    }

    fn series(script: &Script) -> Series {
        let mut series = Series::default();
        script.events().iter().for_each(|event| observe(&mut series, event, true));
        series
    }

    /// A size falls into the first class with a bound that it does not exceed.
    #[test]
    fn sizes_have_classes() {
        let mut script = script();
        for (number, size) in [1, 512, 513, 1 << 20, (1 << 20) + 1, 3 << 30].into_iter().enumerate() {
            script.alloc(pools::HAL, 0x1000 * (number as u64 + 1), size);
        }
        assert_eq!(series(&script).sizes, [2, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1]);
    }

    /// The pool's own total counts, whatever is seen of it: the difference shrinks as older blocks are freed.
    #[test]
    fn what_is_not_seen_is_the_difference() {
        let mut script = script();
        script.reported(Some((1100, 4096))).alloc(pools::PTA, 0x1000, 100);
        let held = series(&script);
        assert_eq!((held.used_bytes, held.reserved_bytes), (Some(1100), Some(4096)));
        assert_eq!((held.live_bytes, held.untracked_bytes()), (100, 1000));
        script.reported(Some((600, 4096))).free(pools::PTA, 0x1000);
        assert_eq!((series(&script).live_bytes, series(&script).untracked_bytes()), (0, 600));
    }

    /// Without room for places the totals are whole, and the difference says what is in no place.
    #[test]
    fn totals_do_not_need_places() {
        let mut script = script();
        script.alloc(pools::HAL, 0x1000, 100).alloc(pools::HAL, 0x2000, 50).alloc(pools::HAL, 0x3000, 100);
        script.free(pools::HAL, 0x2000).alloc(pools::HAL, 0x4000, 7);
        let mut series = Series::default();
        for (number, event) in script.events().iter().enumerate() {
            observe(&mut series, event, number < 1);
        }
        assert_eq!((series.live_bytes, series.places(), series.untracked_bytes()), (207, 1, 7));
    }

    /// Places are sizes where there are no stacks; the one that holds most is first.
    #[test]
    fn places_are_ordered() {
        let mut script = script();
        script.alloc(pools::HAL, 0x1000, 100).alloc(pools::HAL, 0x2000, 300).alloc(pools::HAL, 0x3000, 100);
        let largest = series(&script).largest_places(5);
        let sums: Vec<_> = largest.iter().map(|(place, sum)| (place.size_bytes, sum.live_blocks)).collect();
        assert_eq!(sums, [(300, 1), (100, 2)]);
        assert_eq!(series(&script).largest_places(1).len(), 1);
    }

    fn block_of(minute: u64, size_bytes: u64) -> (Alloc, Free) {
        let mut script = script();
        script.alloc(pools::HAL, 0x1000, size_bytes).free(pools::HAL, 0x1000);
        let [alloc, free] = script.events() else { panic!("two events") };
        let (EventKind::Alloc(mut alloc), EventKind::Free(mut free)) = (alloc.kind.clone(), free.kind.clone()) else {
            panic!("comes and goes")
        };
        alloc.block.alloc_time_ns = minute * MINUTE_NS;
        free.block.alloc_time_ns = minute * MINUTE_NS;
        (alloc, free)
    }

    /// Bytes of each age, after one of the blocks is gone.
    #[test]
    fn survivors_by_age() {
        let mut series = Series::default();
        for minute in [100, 110, 119, 120] {
            series.alloc(&block_of(minute, minute).0, true);
        }
        let older = |series: &Series| [1, 10, 20, 60].map(|minutes| series.older_bytes(minutes, 120));
        assert_eq!(older(&series), [100 + 110 + 119, 100 + 110, 100, 0]);
        series.free(&block_of(110, 110).1);
        assert_eq!(older(&series), [100 + 119, 100, 100, 0]);
    }

    /// After more minutes than are kept apart the oldest are one, and no byte is lost.
    #[test]
    fn minutes_are_bounded() {
        let mut series = Series::default();
        let minutes = 0..MAX_MINUTES as u64 + 50;
        for minute in minutes.clone() {
            series.alloc(&block_of(minute, 10).0, true);
        }
        assert_eq!(series.ages.len(), MAX_MINUTES);
        assert_eq!(series.older_bytes(0, 10_000), series.live_bytes);
        for minute in minutes {
            series.free(&block_of(minute, 10).1);
        }
        assert_eq!((series.live_bytes, series.older_bytes(0, 10_000)), (0, 0));
    }

    /// One MiB a minute, with a jump that goes away: the slope is that of the growth. A flat place is none that grows.
    #[test]
    fn growth_is_the_median_slope() {
        let mut series = Series::default();
        series.alloc(&block_of(0, 5 << 20).0, true);
        for minute in 0..30_u64 {
            series.alloc(&block_of(minute, 1 << 20).0, true);
            series.minute(minute as u32, None);
            if minute == 8 {
                assert_eq!(series.growth(), None, "nine points say nothing");
            }
        }
        let slope = f64::from(1 << 20) / 60.0;
        assert!((series.growth().expect("a slope") - slope).abs() < 1e-6);
        let growing = series.growing_places(5);
        assert_eq!(growing.len(), 1, "{growing:?}");
        assert_eq!(growing[0].0.size_bytes, 1 << 20);
        assert!((growing[0].1 - slope).abs() < 1e-6);
        for minute in 30..55_u64 {
            series.minute(minute as u32, None);
        }
        assert!(series.growth().expect("a slope") < slope);
    }
}
