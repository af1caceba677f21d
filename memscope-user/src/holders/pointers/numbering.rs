//! Numbers of the pages in memory that may be pointed at: a table by GiB, then one by page. The more there are, the more bits of a packed pointer its
//! target takes, and the fewer are left for its place: pages with pointers are numbered by list, and a list that has no numbers left is followed by another
//! one. So a process may have any size.

use std::ops::Range;

use super::{Pointer, list::List};
use crate::holders::source::{ADDRESS_END, Mapping, PAGE};

const GIB_BITS: u32 = 30;
const PAGES_PER_GIB: usize = 1 << (GIB_BITS - PAGE.trailing_zeros());
const WORDS_PER_PAGE: u64 = PAGE / 8;
const WORD_BITS: u32 = WORDS_PER_PAGE.trailing_zeros();
/// As many buckets as fit a processor's cache while they are filled.
const BUCKET_BITS: u32 = 8;
/// 256 GiB: our own tables take 0.8 GiB then.
pub(super) const MAX_PAGES: usize = 1 << 26;
/// A list has numbers for this many pages at most: 32 GiB.
pub(super) const LIST_PAGES: usize = 1 << 23;

/// Consecutive pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) pages: usize,
}

/// Number 0 is no page.
#[derive(Debug)]
pub(super) struct Numbering {
    /// For each GiB its index in `slots`; 0 is none.
    by_gib: Vec<u32>,
    slots: Vec<Box<[u32]>>,
    /// Pages that may be pointed at.
    len: usize,
    /// All pages.
    all: usize,
    limit: usize,
    /// Bits of a packed pointer that say where it is.
    place_bits: u32,
    /// Lower bits of a packed pointer: those above are the number of its bucket.
    bucket_shift: u32,
}

impl Numbering {
    pub(super) fn new(limit: usize) -> Self {
        let gibs = if limit == 0 { 0 } else { (ADDRESS_END >> GIB_BITS) as usize };
        let limit = limit.min(MAX_PAGES - 1);
        Self { by_gib: vec![0; gibs], slots: Vec::new(), len: 0, all: 0, limit, place_bits: 0, bucket_shift: 0 }
    }

    /// Numbers the pages of a mapping from `start` to `end`; returns the number of pages beyond the limit.
    pub(super) fn add(&mut self, mapping: &Mapping, start: u64, end: u64, runs: &mut Vec<Run>) -> u64 {
        const LONGEST_RUN: usize = 256;
        let is_target = mapping.is_anonymous();
        for address in (start..end).step_by(PAGE as usize) {
            if self.all >= self.limit {
                return (end - address) / PAGE;
            }
            self.all += 1;
            let number = self.len as u32 + 1;
            if is_target && let Some(slot) = self.slot(address) {
                *slot = number;
                self.len += 1;
            }
            match runs.last_mut() {
                Some(run) if run.start + run.pages as u64 * PAGE == address && run.pages < LONGEST_RUN => {
                    run.pages += 1;
                }
                _ => runs.push(Run { start: address, pages: 1 }),
            }
        }
        0
    }

    fn slot(&mut self, address: u64) -> Option<&mut u32> {
        let at = self.by_gib.get_mut((address >> GIB_BITS) as usize)?;
        if *at == 0 {
            self.slots.push(vec![0; PAGES_PER_GIB].into());
            *at = self.slots.len() as u32;
        }
        let slot = self.slots.get_mut(*at as usize - 1)?;
        slot.get_mut((address / PAGE) as usize % PAGES_PER_GIB)
    }

    /// The number of the page of an address, if pointers to it are kept.
    #[inline]
    pub(super) fn number(&self, address: u64) -> u32 {
        match self.by_gib.get((address >> GIB_BITS) as usize) {
            None | Some(0) => 0,
            Some(slot) => self.slots[*slot as usize - 1][(address / PAGE) as usize % PAGES_PER_GIB],
        }
    }

    /// All pages are numbered. A list has numbers for `list_pages`, or for as many as there are bits for.
    pub(super) fn finish(&mut self, list_pages: usize) {
        // One more than the largest number has to fit, too: ranges end behind it.
        let page_bits = usize::BITS - (self.len + 1).leading_zeros();
        let wanted = WORD_BITS + list_pages.max(1).ilog2();
        self.place_bits = wanted.min(u64::BITS - WORD_BITS - page_bits);
        self.bucket_shift = self.place_bits + WORD_BITS + page_bits.saturating_sub(BUCKET_BITS);
    }

    /// The bucket of a packed pointer, in its list: all pointers to a page are in one.
    #[inline]
    pub(super) const fn bucket(&self, packed: u64) -> usize {
        (packed >> self.bucket_shift) as usize
    }

    /// Number of buckets of a list.
    pub(super) const fn buckets(&self) -> usize {
        self.bucket(self.pack(self.len as u32, 0, 0)) + 1
    }

    /// A pointer to `target`, on page `number`, from a place by its number in a list.
    #[inline]
    pub(super) const fn pack(&self, number: u32, target: u64, place: u64) -> u64 {
        let target = ((number as u64) << WORD_BITS) | (target % PAGE / 8);
        target << self.place_bits | place
    }

    /// The number of a packed pointer's target's page, and the offset there.
    #[inline]
    pub(super) const fn target(&self, packed: u64) -> (u32, u64) {
        let target = packed >> self.place_bits;
        ((target >> WORD_BITS) as u32, target % WORDS_PER_PAGE * 8)
    }

    /// The number of the page that follows in a list; another list follows one without.
    pub(super) fn next_place(&self, list: &List) -> Option<u64> {
        let number = list.pages.len() as u64;
        (number < 1 << (self.place_bits - WORD_BITS)).then_some(number << WORD_BITS)
    }

    /// Number of pages that may be pointed at, the one that is none among them.
    pub(super) const fn len(&self) -> usize {
        self.len + 1
    }

    /// A pointer of a list to somewhere in `page`.
    pub(super) fn unpack(&self, list: &List, page: u64, packed: u64) -> Pointer {
        let place = packed & ((1 << self.place_bits) - 1);
        let from = list.pages[(place >> WORD_BITS) as usize];
        Pointer { target: page + self.target(packed).1, place: from + place % WORDS_PER_PAGE * 8 }
    }

    /// Packed pointers to `start..end`, which is within one page.
    pub(super) fn keys(&self, start: u64, end: u64) -> Option<Range<u64>> {
        let number = u64::from(self.number(start));
        let first = (number << WORD_BITS) | (start % PAGE / 8);
        let last = (number << WORD_BITS) | ((end - 1) % PAGE / 8);
        (number != 0).then(|| first << self.place_bits..(last + 1) << self.place_bits)
    }
}
