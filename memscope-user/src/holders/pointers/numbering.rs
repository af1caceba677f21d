//! Numbers of the pages in memory: a table by GiB, then one by page.

use std::ops::Range;

use super::Pointer;
use crate::holders::source::{ADDRESS_END, Mapping, PAGE};

const GIB_BITS: u32 = 30;
const PAGES_PER_GIB: usize = 1 << (GIB_BITS - PAGE.trailing_zeros());
const WORDS_PER_PAGE: u64 = PAGE / 8;
const WORD_BITS: u32 = WORDS_PER_PAGE.trailing_zeros();
/// Limit of the packing: 32 GiB.
pub(super) const MAX_PAGES: usize = 1 << (32 - WORD_BITS);

/// Consecutive pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) pages: usize,
    /// Number of the first one.
    pub(super) first: u32,
}

/// Number 0 is no page.
#[derive(Debug)]
pub(super) struct Numbering {
    /// For each GiB its index in `slots`; 0 is none.
    by_gib: Vec<u32>,
    slots: Vec<Box<[u32]>>,
    /// By number: addresses.
    pages: Vec<u64>,
    limit: usize,
}

impl Numbering {
    pub(super) fn new(limit: usize) -> Self {
        let gibs = if limit == 0 { 0 } else { (ADDRESS_END >> GIB_BITS) as usize };
        Self { by_gib: vec![0; gibs], slots: Vec::new(), pages: vec![0], limit: limit.min(MAX_PAGES - 1) }
    }

    /// Numbers the pages of a mapping from `start` to `end`; returns the number of pages beyond the limit.
    pub(super) fn add(&mut self, mapping: &Mapping, start: u64, end: u64, runs: &mut Vec<Run>) -> u64 {
        const LONGEST_RUN: usize = 256;
        let is_target = mapping.is_anonymous();
        for address in (start..end).step_by(PAGE as usize) {
            let number = self.pages.len() as u32;
            if self.pages.len() > self.limit {
                return (end - address) / PAGE;
            }
            if is_target && let Some(slot) = self.slot(address) {
                *slot = number;
            }
            self.pages.push(address);
            match runs.last_mut() {
                Some(run) if run.start + run.pages as u64 * PAGE == address && run.pages < LONGEST_RUN => {
                    run.pages += 1;
                }
                _ => runs.push(Run { start: address, pages: 1, first: number }),
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

    /// A pointer to `target`, on page `number`, from word `word` of page `from`.
    #[inline]
    pub(super) const fn pack(number: u32, target: u64, from: u32, word: usize) -> u64 {
        let target = ((number as u64) << WORD_BITS) | (target % PAGE / 8);
        let place = ((from as u64) << WORD_BITS) | word as u64;
        target << 32 | place
    }

    /// The number of a packed pointer's target's page, and the offset there.
    #[inline]
    pub(super) const fn target(packed: u64) -> (u32, u64) {
        let target = packed >> 32;
        ((target >> WORD_BITS) as u32, target % WORDS_PER_PAGE * 8)
    }

    /// Number of pages, the one that is none among them.
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn unpack(&self, packed: u64) -> Pointer {
        let address = |at: u64| self.pages[(at >> WORD_BITS) as usize] + at % WORDS_PER_PAGE * 8;
        Pointer { target: address(packed >> 32), place: address(packed & 0xffff_ffff) }
    }

    /// Packed pointers to `start..end`, which is within one page.
    pub(super) fn keys(&self, start: u64, end: u64) -> Option<Range<u64>> {
        let number = u64::from(self.number(start));
        let first = (number << WORD_BITS) | (start % PAGE / 8);
        let last = (number << WORD_BITS) | ((end - 1) % PAGE / 8);
        (number != 0).then(|| first << 32..(last + 1) << 32)
    }
}
