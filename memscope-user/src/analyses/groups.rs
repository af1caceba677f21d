//! Live blocks in groups, now and at a marked moment.
//!
//! A mark costs only a number: a group saves its value at the last mark when it first changes after it. So a new
//! maximum is O(1), and so is every change of a group, however many groups and blocks there are.

use std::collections::BTreeMap;
use std::hash::Hash;

use crate::hash::HashMap;
use crate::model::{Block, LiveGroups, LiveSum, Name, OwnerSum, PlaceSum, SizeSum, Stacks};

/// Most different places in all [`Groups`] of an analysis, of about 100 bytes each.
const MAX_PLACES: usize = 1 << 20;

/// Room for places, shared by the groups of an analysis.
#[derive(Debug)]
pub(super) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(MAX_PLACES)
    }
}

/// Whether a block is allocated or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is live from here on.
    Comes,
    /// It is not any more.
    Goes,
}

/// Sum of blocks. Sizes come from the program: the sum of two may exceed their type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    blocks: u64,
    size_bytes: u128,
}

impl Sum {
    fn change(&mut self, size_bytes: u64, change: Change) {
        let bytes = u128::from(size_bytes);
        match change {
            Change::Comes => {
                self.blocks += 1;
                self.size_bytes += bytes;
            }
            Change::Goes => {
                self.blocks = self.blocks.saturating_sub(1);
                self.size_bytes = self.size_bytes.saturating_sub(bytes);
            }
        }
    }

    fn live(self) -> LiveSum {
        LiveSum { blocks: self.blocks, size_bytes: u64::try_from(self.size_bytes).unwrap_or(u64::MAX) }
    }
}

/// A sum now, and at the last mark if it has changed since.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    now: Sum,
    marked: Sum,
    /// The mark that `marked` is of; before any later one nothing has changed.
    mark: u64,
}

impl Counter {
    fn change(&mut self, mark: u64, size_bytes: u64, change: Change) {
        if self.mark != mark {
            (self.marked, self.mark) = (self.now, mark);
        }
        self.now.change(size_bytes, change);
    }

    /// Changes only the value at the last mark.
    fn change_marked(&mut self, mark: u64, size_bytes: u64, change: Change) {
        if self.mark != mark {
            (self.marked, self.mark) = (self.now, mark);
        }
        self.marked.change(size_bytes, change);
    }

    const fn at_mark(&self, mark: u64) -> Sum {
        if self.mark == mark { self.marked } else { self.now }
    }
}

/// Live blocks by owner, place and size.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Number of the last mark, from 1; 0 before.
    mark: u64,
    all: Counter,
    owners: HashMap<Option<Name>, Counter>,
    places: HashMap<Stacks, Counter>,
    /// By the power of two that a size is at least, counted from 1; 0 is no bytes.
    sizes: BTreeMap<u32, Counter>,
    places_full: bool,
}

impl Groups {
    /// A block of an owner is allocated or freed. Its free has to name the same owner, place and size.
    pub(super) fn change(&mut self, owner: Option<Name>, block: &Block, change: Change, room: &mut Room) {
        self.count(owner, (block.stacks, block.size_bytes), change, room);
    }

    /// The same, by place and size in bytes.
    pub(super) fn count(
        &mut self,
        owner: Option<Name>,
        (stacks, size_bytes): (Stacks, u64),
        change: Change,
        room: &mut Room,
    ) {
        let mark = self.mark;
        let place = self.place(stacks, room);
        self.all.change(mark, size_bytes, change);
        self.owners.entry(owner).or_default().change(mark, size_bytes, change);
        self.places.entry(place).or_default().change(mark, size_bytes, change);
        self.sizes.entry(size_class(size_bytes)).or_default().change(mark, size_bytes, change);
    }

    /// A block of the marked moment has another owner than it was counted under.
    pub(super) fn rename(&mut self, (from, to): (Option<Name>, Option<Name>), size_bytes: u64) {
        let mark = self.mark;
        self.owners.entry(from).or_default().change_marked(mark, size_bytes, Change::Goes);
        self.owners.entry(to).or_default().change_marked(mark, size_bytes, Change::Comes);
    }

    /// A block that seemed to have ended was live at the marked moment.
    pub(super) fn join(&mut self, owner: Option<Name>, block: &Block, room: &mut Room) {
        let (mark, size_bytes) = (self.mark, block.size_bytes);
        let place = self.place(block.stacks, room);
        let class = size_class(size_bytes);
        let counters = [
            &mut self.all,
            self.owners.entry(owner).or_default(),
            self.places.entry(place).or_default(),
            self.sizes.entry(class).or_default(),
        ];
        for counter in counters {
            counter.change_marked(mark, size_bytes, Change::Comes);
        }
    }

    /// From here on this moment is the marked one.
    pub(super) const fn mark(&mut self) {
        self.mark += 1;
    }

    /// Bytes of all live blocks.
    pub(super) const fn live_bytes(&self) -> u128 {
        self.all.now.size_bytes
    }

    /// All blocks of the marked moment; zero if none was marked.
    pub(super) fn sum(&self) -> LiveSum {
        self.all.at_mark(self.mark).live()
    }

    /// The groups of the marked moment.
    pub(super) fn live_groups(&self) -> LiveGroups {
        let by_size = |live: &LiveSum| std::cmp::Reverse((live.size_bytes, live.blocks));
        let mut owners = self.live(&self.owners, |owner, live| OwnerSum { owner, live });
        owners.sort_unstable_by_key(|sum| (by_size(&sum.live), sum.owner));
        let mut places = self.live(&self.places, |stacks, live| PlaceSum { stacks, live });
        places.sort_unstable_by_key(|sum| (by_size(&sum.live), sum.stacks));
        let least_bytes = |class: u32| class.checked_sub(1).map_or(0, |power| 1 << power);
        let sizes = self.live(&self.sizes, |class, live| SizeSum { least_bytes: least_bytes(class), live });
        LiveGroups { owners, places, sizes, places_full: self.places_full }
    }

    /// The same with the `most` places that have the most bytes, empty if no stack is known; and the number of other
    /// places.
    pub(super) fn largest(&self, most: usize) -> (LiveGroups, u64) {
        let mut groups = self.live_groups();
        if !groups.has_stacks() {
            groups.places.clear();
        }
        let left_out = groups.places.len().saturating_sub(most) as u64;
        groups.places.truncate(most);
        (groups, left_out)
    }

    /// Gives back the room that its places took.
    pub(super) fn leave(&self, room: &mut Room) {
        room.0 += self.places.len() - usize::from(self.places.contains_key(&Stacks::default()));
    }

    /// The place to count at. A place that found no room never finds any later, so blocks go where they came.
    fn place(&mut self, stacks: Stacks, room: &mut Room) -> Stacks {
        if stacks.is_empty() || self.places.contains_key(&stacks) {
            return stacks;
        }
        if self.places_full || room.0 == 0 {
            self.places_full = true;
            return Stacks::default();
        }
        room.0 -= 1;
        stacks
    }

    fn live<'a, K: Copy + Eq + Hash + 'a, T>(
        &self,
        groups: impl IntoIterator<Item = (&'a K, &'a Counter)>,
        make: impl Fn(K, LiveSum) -> T,
    ) -> Vec<T> {
        let sums = groups.into_iter().map(|(key, counter)| (*key, counter.at_mark(self.mark)));
        sums.filter(|(_, sum)| sum.blocks > 0).map(|(key, sum)| make(key, sum.live())).collect()
    }
}

/// 0 for no bytes, else one more than the power of two that a size is at least.
const fn size_class(size_bytes: u64) -> u32 {
    u64::BITS - size_bytes.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::Script;
    use crate::backend::ascend::pools;
    use crate::model::{Device, EventKind};

    fn blocks(script: &Script) -> Vec<Block> {
        let block = |event: &crate::model::Event| match &event.kind {
            EventKind::Alloc(alloc) => alloc.block,
            other => panic!("no allocation: {other:?}"),
        };
        script.events().iter().map(block).collect()
    }

    /// Each power of two begins a class.
    #[test]
    fn sizes_have_classes() {
        let mut script = Script::new(1, Device::Npu(0));
        for (at, size) in [0, 1, 2, 3, 4, 1023, 1024, 1 << 63].into_iter().enumerate() {
            script.alloc(pools::HAL, at as u64, size);
        }
        let (mut groups, mut room) = (Groups::default(), Room::default());
        for block in blocks(&script) {
            groups.change(None, &block, Change::Comes, &mut room);
        }
        assert_eq!(groups.sum(), LiveSum::default());
        groups.mark();
        let live = groups.live_groups().sizes;
        let sizes: Vec<_> = live.iter().map(|sum| (sum.least_bytes, sum.live.blocks, sum.live.size_bytes)).collect();
        let expected =
            [(0, 1, 0), (1, 1, 1), (2, 2, 5), (4, 1, 4), (512, 1, 1023), (1024, 1, 1024), (1 << 63, 1, 1 << 63)];
        assert_eq!(sizes, expected);
        assert_eq!(groups.sum(), LiveSum { blocks: 8, size_bytes: (1 << 63) + 2057 });
    }

    /// Places beyond the limit count as one, and the sums still agree; freed blocks leave nothing behind.
    #[test]
    fn places_beyond_the_room_count_as_none() {
        let mut script = Script::new(1, Device::Npu(0));
        for (at, function) in ["f", "g", "h", "f"].into_iter().enumerate() {
            script.stacks(&[], &[function]).alloc(pools::HAL, at as u64, 10 << at);
        }
        let blocks = blocks(&script);
        let (mut groups, mut room) = (Groups::default(), Room(1));
        for block in &blocks {
            groups.change(None, block, Change::Comes, &mut room);
        }
        let places = |groups: &mut Groups| -> Vec<_> {
            groups.mark();
            let function = |sum: &PlaceSum| (sum.stacks.native.map(|stack| stack.texts()[0]), sum.live.size_bytes);
            groups.live_groups().places.iter().map(function).collect()
        };
        assert_eq!(places(&mut groups), [(Some("f"), 90), (None, 60)]);
        assert!(groups.live_groups().places_full);
        for block in &blocks {
            groups.change(None, block, Change::Goes, &mut room);
        }
        assert_eq!((places(&mut groups), groups.sum()), (vec![], LiveSum::default()));
        groups.leave(&mut room);
        assert_eq!(room.0, 1);
    }
}
