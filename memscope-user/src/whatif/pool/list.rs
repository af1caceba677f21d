//! Free blocks in their order.

use std::collections::BTreeMap;

use super::block::Id;

/// Bins of each power of two, as a power: sizes of one bin differ by a sixteenth at most.
const PARTS: u32 = 4;
/// Bins that any sizes can have.
const MAX_BINS: usize = 64 << PARTS;
/// More blocks of a bin are kept in a tree.
const FEW: usize = 128;

/// Size and address: the order of free blocks.
type Key = (u64, u64);

/// Free blocks, smallest first; of equal ones the one at the lowest address.
///
/// A replay spends most of its time here. So blocks of about one size are in a bin, which mostly has few of them, and bits say which bins have
/// any: a search passes over the others.
#[derive(Debug, Default)]
pub(super) struct FreeList {
    bins: Vec<Bin>,
    used: [u64; MAX_BINS / 64],
}

/// Free blocks of about one size.
#[derive(Debug, Default)]
struct Bin {
    /// In their order.
    few: Vec<(Key, Id)>,
    /// All of them, once they are too many to be moved.
    many: BTreeMap<Key, Id>,
}

/// Compared as one number, which takes no branch: processors guess those wrong here.
const fn number((size, addr): Key) -> u128 {
    (size as u128) << 64 | addr as u128
}

/// Larger sizes are never of a lower bin.
const fn bin_of(size: u64) -> usize {
    let units = size >> 9;
    if units < 1 << PARTS {
        return units as usize;
    }
    let power = units.ilog2() - PARTS;
    ((power as usize) << PARTS) + (units >> power) as usize
}

impl Bin {
    fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_empty()
    }

    /// Place of the first of the few that is not less.
    fn place(&self, key: Key) -> usize {
        self.few.partition_point(|(known, _)| number(*known) < number(key))
    }

    fn insert(&mut self, key: Key, id: Id) {
        if !self.many.is_empty() {
            self.many.insert(key, id);
            return;
        }
        let at = self.place(key);
        self.few.insert(at, (key, id));
        if self.few.len() > FEW {
            self.many.extend(self.few.drain(..));
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Id> {
        if !self.many.is_empty() {
            return self.many.remove(key);
        }
        let at = self.place(*key);
        self.few.get(at).filter(|(known, _)| known == key)?;
        Some(self.few.remove(at).1)
    }

    /// Sizes and blocks, from the first one on that is not less.
    fn from(&self, key: Key) -> impl Iterator<Item = (u64, Id)> {
        let few = self.few[self.place(key)..].iter().map(|((size, _), id)| (*size, *id));
        few.chain(self.many.range(key..).map(|((size, _), id)| (*size, *id)))
    }
}

impl FreeList {
    pub(super) fn insert(&mut self, key: Key, id: Id) {
        let bin = bin_of(key.0);
        if bin >= self.bins.len() {
            self.bins.resize_with(bin + 1, Bin::default);
        }
        self.bins[bin].insert(key, id);
        self.used[bin / 64] |= 1 << (bin % 64);
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Id> {
        let index = bin_of(key.0);
        let bin = self.bins.get_mut(index)?;
        let id = bin.remove(key)?;
        if bin.is_empty() {
            self.used[index / 64] &= !(1 << (index % 64));
        }
        Some(id)
    }

    /// For tests.
    #[cfg(test)]
    pub(super) fn get(&self, key: &Key) -> Option<&Id> {
        let bin = self.bins.get(bin_of(key.0))?;
        bin.few.iter().find(|(known, _)| known == key).map(|(_, id)| id).or_else(|| bin.many.get(key))
    }

    /// Sizes and blocks in their order, from this size on.
    pub(super) fn from(&self, size: u64) -> impl Iterator<Item = (u64, Id)> {
        let bins = std::iter::successors(self.next_used(bin_of(size)), |bin| self.next_used(bin + 1));
        bins.flat_map(move |bin| self.bins[bin].from((size, 0)))
    }

    /// The first bin with blocks, from this one on.
    fn next_used(&self, bin: usize) -> Option<usize> {
        let mut word = bin / 64;
        let mut bits = *self.used.get(word)? & u64::MAX << (bin % 64);
        while bits == 0 {
            word += 1;
            bits = *self.used.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(list: &FreeList, size: u64) -> Vec<(u64, Id)> {
        list.from(size).collect()
    }

    /// Bins hold these sizes in 512 bytes: each of 0 to 31 its own, 32 and 33 one, 62 and 63 one; 64 to 67 one.
    #[test]
    fn bins_of_sizes() {
        let bins = [0, 1, 15, 16, 31, 32, 33, 34, 62, 63, 64, 67, 68].map(|units| bin_of(units << 9));
        assert_eq!(bins, [0, 1, 15, 16, 31, 32, 32, 33, 47, 47, 48, 48, 49]);
        assert_eq!((bin_of(511), bin_of(1023)), (0, 1));
        assert!(bin_of(u64::MAX) < MAX_BINS);
    }

    /// Sizes decide, then addresses; bins between are passed over. A block that is not there is none.
    #[test]
    fn blocks_in_their_order() {
        let mut list = FreeList::default();
        assert_eq!((listed(&list, 0), list.remove(&(512, 7))), (vec![], None));
        let [small, large] = [512, 40 << 30];
        for (size, addr, id) in [(large, 5, 1), (small, 9, 2), (small, 4, 3), (17_000, 1, 4), (16_900, 6, 5)] {
            list.insert((size, addr), id);
        }
        assert_eq!(listed(&list, 0), [(small, 3), (small, 2), (16_900, 5), (17_000, 4), (large, 1)]);
        assert_eq!(listed(&list, 513), [(16_900, 5), (17_000, 4), (large, 1)]);
        assert_eq!((listed(&list, 16_901), listed(&list, large + 1)), (vec![(17_000, 4), (large, 1)], vec![]));
        assert_eq!(
            (list.remove(&(small, 5)), list.remove(&(small, 4)), list.remove(&(16_900, 6))),
            (None, Some(3), Some(5))
        );
        assert_eq!(listed(&list, 0), [(small, 2), (17_000, 4), (large, 1)]);
        assert_eq!((list.remove(&(large, 5)), listed(&list, 17_001)), (Some(1), vec![]));
    }

    /// A thousand blocks of one bin are in their order, too, while they come and while they go.
    #[test]
    fn many_blocks_of_a_size() {
        let mut list = FreeList::default();
        // 7 has no common divisor with 1000: each address once, out of order.
        let addr = |index: u64| index * 7 % 1000;
        for index in 0..1000 {
            list.insert((4096, addr(index)), addr(index) as Id);
            list.insert((4096 + addr(index), 1 << 40), 5000 + addr(index) as Id);
        }
        assert_eq!(listed(&list, 0).len(), 2000);
        for index in 0..990 {
            assert_eq!(list.remove(&(4096, addr(index))), Some(addr(index) as Id));
            assert_eq!(list.remove(&(4096 + addr(index), 1 << 40)), Some(5000 + addr(index) as Id));
        }
        // 990 to 999 times 7, less thousands: 930, 937 … 993.
        let left: Vec<u64> = (0..10).map(|index| 930 + 7 * index).collect();
        let same = left.iter().map(|addr| (4096, *addr as Id));
        let other = left.iter().map(|addr| (4096 + addr, 5000 + *addr as Id));
        assert_eq!(listed(&list, 0), same.chain(other).collect::<Vec<_>>());
    }
}
