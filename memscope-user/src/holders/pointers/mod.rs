//! All words of the process that point into its own anonymous memory, found in one pass and looked up afterwards.
//!
//! A pointer is kept in eight bytes: page and word of its target, page and word of its place, by numbers of the pages. So a sorted list of them gives the
//! references to an address.

mod list;
mod numbering;
mod scan;
mod unasked;

use std::{cell::RefCell, ops::Range};

use self::{list::List, numbering::Numbering};
use super::source::{PAGE, Source};

pub(super) use self::{
    scan::{Limits, untagged},
    unasked::UnaskedType,
};

/// A word and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pointer {
    /// Its target: without the lowest bits, which are marks in some pointers.
    pub(super) target: u64,
    pub(super) place: u64,
}

/// The result of a pass.
#[derive(Debug)]
pub(super) struct Pointers {
    numbering: Numbering,
    lists: Vec<List>,
    /// Words that may be addresses of a device.
    device: Vec<Pointer>,
    /// Read after the pass, sorted.
    later: RefCell<Vec<Pointer>>,
    /// Starts of pages that look like the head of a block with a mapping of its own by glibc: address and size.
    pub(super) mapped_blocks: Vec<(u64, u64)>,
    /// Places of words with the address of the type that was asked for.
    pub(super) of_type: Vec<u64>,
    pub(super) figures: Figures,
}

/// Cost of the pass, and the memory it has left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) scanned_bytes: u64,
    /// Could not be read: unmapped meanwhile.
    pub(super) unread_bytes: u64,
    /// Swapped out.
    pub(super) swapped_bytes: u64,
    /// Beyond the limits: memory, ...
    pub(super) left_out_bytes: u64,
    /// ... pointers, ...
    pub(super) is_full: bool,
    /// ... or time.
    pub(super) is_late: bool,
}

impl Figures {
    /// Whether a limit was reached.
    pub(super) const fn is_partial(&self) -> bool {
        self.is_full || self.is_late || self.left_out_bytes > 0
    }
}

impl Pointers {
    /// Scans all memory of the process that may hold pointers. `wanted`: requested addresses of a device.
    pub(super) fn of(source: &dyn Source, wanted: &[Range<u64>], limits: Limits<'_>) -> Self {
        scan::run(source, wanted, limits)
    }

    /// Those of no pass.
    pub(super) fn none() -> Self {
        Self {
            numbering: Numbering::new(0),
            lists: Vec::new(),
            device: Vec::new(),
            later: RefCell::default(),
            mapped_blocks: Vec::new(),
            of_type: Vec::new(),
            figures: Figures::default(),
        }
    }

    /// Calls `take` for each word that points to `range`, at most `max` times; returns whether these were all.
    pub(super) fn to(&self, range: Range<u64>, max: usize, mut take: impl FnMut(Pointer)) -> bool {
        let mut room = max;
        let mut from = range.start;
        while from < range.end {
            let end = ((from & !(PAGE - 1)) + PAGE).min(range.end);
            if let Some(keys) = self.numbering.keys(from, end) {
                for list in &self.lists {
                    for packed in list.within(self.numbering.bucket(keys.start), &keys) {
                        let Some(left) = room.checked_sub(1) else { return false };
                        room = left;
                        take(self.numbering.unpack(list, from & !(PAGE - 1), *packed));
                    }
                }
            }
            from = end;
        }
        for sorted in [&self.device, &*self.later.borrow()] {
            let start = sorted.partition_point(|pointer| pointer.target < range.start);
            for pointer in sorted[start..].iter().take_while(|pointer| pointer.target < range.end) {
                let Some(left) = room.checked_sub(1) else { return false };
                room = left;
                take(*pointer);
            }
        }
        true
    }

    /// Adds pointers that were read after the pass. Whether one of them is new.
    pub(super) fn add_later(&self, pointers: Vec<Pointer>) -> bool {
        let mut later = self.later.borrow_mut();
        let before = later.len();
        later.extend(pointers);
        later.sort_unstable();
        later.dedup();
        later.len() > before
    }

    /// All of them, as from [`to`](Self::to).
    pub(super) fn all_to(&self, range: Range<u64>, max: usize) -> Vec<Pointer> {
        let mut found = Vec::new();
        self.to(range, max, |pointer| found.push(pointer));
        found
    }

    /// Words that may be addresses of a device.
    pub(super) fn device(&self) -> &[Pointer] {
        &self.device
    }

    /// Number of pointers.
    pub(super) fn len(&self) -> usize {
        self.lists.iter().map(List::len).sum::<usize>() + self.device.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::image::Image;

    const HEAP: u64 = 0x5555_0000_0000;
    const FAR: u64 = 0x7f00_0000_0000;
    const DEVICE: u64 = 0x12c1_0000_0000;

    /// Two pieces of memory that point at each other, at themselves and at a device, worked out by hand.
    #[test]
    fn who_points_where() {
        let mut image = Image::default();
        image.anonymous(HEAP, 2 * PAGE);
        image.anonymous(FAR, PAGE);
        image.put(HEAP + 8, FAR + 0x10);
        // The lowest bit may be a mark, and so may all three be.
        image.put(HEAP + PAGE, (FAR + 0x10) | 1);
        image.put(FAR, (HEAP + 0x40) - 1);
        // Odd in another way: no pointer.
        image.put(FAR + 8, FAR + 0x12);
        image.put(FAR + 0x20, DEVICE);
        image.put(FAR + 0x28, 0x1234);
        // Into nothing.
        image.put(FAR + 0x30, 0x6000_0000_0000);
        let pointers = Pointers::of(&image, &[], Limits::default());
        let to = |range| {
            let mut found = pointers.all_to(range, 100);
            found.sort_unstable();
            found.iter().map(|pointer| (pointer.target, pointer.place)).collect::<Vec<_>>()
        };
        assert_eq!(to(FAR..FAR + PAGE), [(FAR + 0x10, HEAP + 8), (FAR + 0x10, HEAP + PAGE)]);
        assert_eq!(to(FAR + 0x10..FAR + 0x18).len(), 2);
        assert_eq!(to(FAR + 0x18..FAR + PAGE), []);
        assert_eq!(to(HEAP..HEAP + 2 * PAGE), [(HEAP + 0x40, FAR)]);
        assert_eq!(to(DEVICE..DEVICE + 512), [(DEVICE, FAR + 0x20)]);
        assert_eq!(pointers.len(), 4);
        assert_eq!(pointers.figures.scanned_bytes, 3 * PAGE);
        assert!(!pointers.to(FAR..FAR + PAGE, 1, |_| {}) && pointers.to(FAR..FAR + PAGE, 2, |_| {}));
    }

    /// Of millions of small lists half of the room is kept; one with many items is kept behind them, too.
    #[test]
    fn lists_with_many_items_have_room() {
        const TYPE: u64 = 0x7f10_0000_1000;
        const LISTS: u64 = 70_000;
        let mut image = Image::default();
        image.anonymous(HEAP, 300 * PAGE);
        for (at, items) in (0..).zip((0..LISTS).map(|_| 2).chain([31, 32])) {
            image.put(HEAP + at * 16, TYPE);
            image.put(HEAP + at * 16 + 8, items);
        }
        let limits = Limits { threads: 1, of_type: Some(TYPE), ..Limits::default() };
        let kept = Pointers::of(&image, &[], limits).of_type;
        assert_eq!((kept.len(), kept.last().copied()), ((1 << 16) + 1, Some(HEAP + (LISTS + 1) * 16)));
    }

    /// A large process is read in slices: lists of few pages find the same, and a page without pointers needs no number.
    #[test]
    fn slices_find_the_same() {
        let mut image = Image::default();
        image.anonymous(HEAP, 600 * PAGE);
        image.anonymous(FAR, 40 * PAGE);
        for page in 0..600 {
            // Each second page has two, one of them to the page behind it.
            if page % 2 == 0 {
                image.put(HEAP + page * PAGE + 0x18, FAR + page % 40 * PAGE + 8 * (page % 512));
                image.put(HEAP + page * PAGE + 0xff8, HEAP + (page + 1) * PAGE);
            }
        }
        let found = |list_pages, threads| {
            let limits = Limits { list_pages, threads, ..Limits::default() };
            let pointers = Pointers::of(&image, &[], limits);
            let ranges = [HEAP..HEAP + 600 * PAGE, FAR..FAR + 40 * PAGE];
            let mut all: Vec<Pointer> = ranges.into_iter().flat_map(|range| pointers.all_to(range, 10_000)).collect();
            all.sort_unstable();
            (all, pointers.lists.len())
        };
        let (whole, lists) = found(1 << 23, 1);
        assert_eq!((whole.len(), lists), (600, 1));
        assert!(whole.contains(&Pointer { target: FAR + 8 * PAGE + 8 * 488, place: HEAP + 488 * PAGE + 0x18 }));
        // 300 pages with pointers, in lists of 16.
        let (sliced, lists) = found(16, 1);
        assert_eq!((&sliced, lists), (&whole, 300_usize.div_ceil(16)));
        assert_eq!(found(4, 3).0, whole);
    }

    /// At the limits memory is left out, and counted.
    #[test]
    fn bounds_are_said() {
        // A thread takes 256 pages at once, and the last of three of these is left when both have reached their limit.
        let mut image = Image::default();
        image.anonymous(HEAP, 600 * PAGE);
        (0..600).for_each(|page| image.put(HEAP + page * PAGE, HEAP));
        let few = Pointers::of(&image, &[], Limits { pointers: 100, ..Limits::default() });
        assert!(few.figures.is_full && few.len() < 600);
        let all = Pointers::of(&image, &[], Limits::default());
        assert!(!all.figures.is_full && all.len() == 600);
        let pages = Pointers::of(&image, &[], Limits { pages: 3, ..Limits::default() });
        assert_eq!((pages.figures.left_out_bytes, pages.figures.scanned_bytes), (597 * PAGE, 3 * PAGE));
        // A small mapping behind it is scanned whole, and first.
        image.anonymous(FAR, PAGE);
        image.put(FAR, FAR + 8);
        let pages = Pointers::of(&image, &[], Limits { pages: 3, ..Limits::default() });
        assert_eq!(pages.figures.left_out_bytes, 598 * PAGE);
        assert_eq!(pages.all_to(FAR..FAR + PAGE, 9), [Pointer { target: FAR + 8, place: FAR }]);
    }

    /// A requested address is found anywhere, also outside of the usual ranges of devices.
    #[test]
    fn what_is_asked_for_is_found() {
        let mut image = Image::default();
        image.anonymous(HEAP, PAGE);
        image.put(HEAP + 16, 0xdead_0000);
        let block = 0xdead_0000..0xdead_0200;
        let found =
            |wanted: &[Range<u64>]| Pointers::of(&image, wanted, Limits::default()).all_to(block.clone(), 9).len();
        assert_eq!((found(&[]), found(std::slice::from_ref(&block))), (0, 1));
    }
}
