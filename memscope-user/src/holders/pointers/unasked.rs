//! Words that no path asks for: most of the words of a program in Python lead to numbers and texts, which hold nothing, and to the heads of
//! objects in the collector's lists. They are left out as soon as their targets are known, which is most of the memory that a pass takes.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use super::numbering::Numbering;
use crate::{hash::HashMap, holders::source::PAGE};

/// Objects begin at multiples of this.
const SLOT: u64 = 16;
const SLOTS_PER_PAGE: u64 = PAGE / SLOT;
/// Words of marks.
const WORDS_PER_PAGE: usize = (SLOTS_PER_PAGE / u64::BITS as u64) as usize;
/// Counts of references of objects that live for good: the lower half (`Include/refcount.h`, 3.12 to 3.14).
const FOR_GOOD: u32 = 0xc000_0000;

/// Whether a word counts references: what is larger may be the address of the next free object, in a heap at low addresses too.
fn is_count(word: u64) -> bool {
    const MOST: u64 = 1 << 20;
    const ADDRESSES: std::ops::Range<u64> = 1 << 32..1 << 48;
    (1..MOST).contains(&word) || (word as u32 >= FOR_GOOD && !ADDRESSES.contains(&word))
}

/// A type, and what lies in front of the word with its address: the start of an object of numbers or of text, or the head of one that the collector
/// knows.
pub(in crate::holders) type UnaskedType = (u64, u64);

/// Words of marks that are made together, where there is any.
const PIECE: usize = 1 << 11;

/// Marks on one page, which other threads do not see yet: each of those would wait for the word.
#[derive(Debug, Default)]
pub(super) struct PageMarks {
    words: [u64; WORDS_PER_PAGE],
}

/// Marks of places that are not asked for, by the pages in memory.
#[derive(Debug)]
pub(super) struct Unasked<'a> {
    /// By address: what lies in front of the word with it.
    types: HashMap<u64, u64>,
    numbering: &'a Numbering,
    marks: Vec<OnceLock<Box<[AtomicU64; PIECE]>>>,
}

impl<'a> Unasked<'a> {
    pub(super) fn new(types: &[UnaskedType], numbering: &'a Numbering) -> Self {
        let words = if types.is_empty() { 0 } else { numbering.len() * WORDS_PER_PAGE };
        Self {
            types: types.iter().copied().collect(),
            numbering,
            marks: (0..words.div_ceil(PIECE)).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Marks the place that a word at `place` shows, if it is a type's address, and returns whether it is; `before` is the word in front of it. Marks on
    /// the page of the word itself come into `own`: most do.
    #[inline]
    pub(super) fn note(&self, place: u64, word: u64, before: u64, own: &mut PageMarks) -> bool {
        let Some(front) = self.types.get(&word) else { return false };
        if place % SLOT == 8 && is_count(before) {
            let start = place.wrapping_sub(*front);
            if start / PAGE == place / PAGE {
                own.words[Self::word_of(0, start)] |= Self::bit_of(start);
            } else {
                self.mark(start, Self::bit_of(start));
            }
        }
        true
    }

    /// Adds the marks of the page at `page`.
    pub(super) fn add(&self, page: u64, own: &PageMarks) {
        for (start, bits) in (page..).step_by((SLOT * u64::from(u64::BITS)) as usize).zip(own.words) {
            if bits != 0 {
                self.mark(start, bits);
            }
        }
    }

    /// `bits` of the word of marks of `start`.
    #[inline]
    fn mark(&self, start: u64, bits: u64) {
        let number = self.numbering.number(start);
        let word = Self::word_of(number, start);
        if number != 0
            && let Some(piece) = self.marks.get(word / PIECE)
        {
            let marks = piece.get_or_init(|| Box::new([const { AtomicU64::new(0) }; PIECE]));
            marks[word % PIECE].fetch_or(bits, Ordering::Relaxed);
        }
    }

    const fn word_of(number: u32, start: u64) -> usize {
        let slot = number as u64 * SLOTS_PER_PAGE + start % PAGE / SLOT;
        (slot / u64::BITS as u64) as usize
    }

    const fn bit_of(start: u64) -> u64 {
        1 << (start % PAGE / SLOT % u64::BITS as u64)
    }

    #[inline]
    pub(super) fn is_marked(&self, packed: u64) -> bool {
        let (number, offset) = self.numbering.target(packed);
        let word = Self::word_of(number, offset);
        let Some(marks) = self.marks.get(word / PIECE).and_then(OnceLock::get) else { return false };
        // Without a branch between the two: no processor foresees which it is.
        (offset % SLOT == 0) & (marks[word % PIECE].load(Ordering::Relaxed) & Self::bit_of(offset) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::{
        image::Image,
        pointers::{Limits, Pointers},
    };

    const HEAP: u64 = 0x5555_0000_0000;
    const TEXT: u64 = 0x7f00_0000_1000;
    const LIST: u64 = 0x7f00_0000_2000;
    const TYPES: [UnaskedType; 2] = [(TEXT, 8), (LIST, 24)];

    /// The pointers that are kept, by their places, of those at the end of the first page.
    fn kept(words: &[(u64, u64)], to: &[u64]) -> Vec<u64> {
        let mut image = Image::default();
        image.anonymous(HEAP, 2 * PAGE);
        for (offset, word) in words {
            image.put(HEAP + offset, *word);
        }
        let places = (HEAP + 0xf00..).step_by(8).zip(to);
        for (place, target) in places.clone() {
            image.put(place, HEAP + target);
        }
        let pointers = Pointers::of(&image, &[], Limits { unasked: &TYPES, ..Limits::default() });
        let is_kept =
            |place: u64| pointers.all_to(HEAP..HEAP + 2 * PAGE, 100).iter().any(|pointer| pointer.place == place);
        places.filter(|(place, _)| is_kept(*place)).map(|(_, target)| *target).collect()
    }

    /// A text at 0x40 is asked for inside alone; a list at 0x110 is, but the collector's words in front of it are not.
    #[test]
    fn numbers_and_heads_are_left_out() {
        let words = [(0x40, 3), (0x48, TEXT), (0x110, 1), (0x118, LIST)];
        assert_eq!(kept(&words, &[0x40, 0x48, 0x50, 0x100, 0x110, 0x118]), [0x48, 0x50, 0x110, 0x118]);
        // The head is on the page before that of the object.
        assert_eq!(kept(&[(PAGE, 1), (PAGE + 8, LIST)], &[PAGE - 16, PAGE]), [PAGE]);
        // An object that lives for good, by CPython 3.12 and by 3.14 with marks in the upper half.
        assert_eq!(kept(&[(0x40, 0xffff_ffff), (0x48, TEXT)], &[0x40]), [0; 0]);
        assert_eq!(kept(&[(0x40, 5 << 48 | 0xc000_0000), (0x48, TEXT)], &[0x40]), [0; 0]);
    }

    /// A freed text has the address of the next free place in front of its type, and the items of a list may have a type among them.
    #[test]
    fn what_is_no_object_is_kept() {
        assert_eq!(kept(&[(0x40, HEAP + 0x80), (0x48, TEXT)], &[0x40]), [0x40]);
        assert_eq!(kept(&[(0x40, 0x3a00_0440), (0x48, TEXT)], &[0x40]), [0x40]);
        assert_eq!(kept(&[(0x48, TEXT)], &[0x40]), [0x40]);
        assert_eq!(kept(&[(0x40, 3), (0x50, TEXT)], &[0x40]), [0x40]);
        // An object begins at a multiple of sixteen.
        assert_eq!(kept(&[(0x48, 3), (0x50, TEXT)], &[0x48, 0x40]), [0x48, 0x40]);
    }
}
