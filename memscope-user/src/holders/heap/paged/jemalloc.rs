//! jemalloc 5: pages are described by extents (`extent_t`, from 5.3 on `edata_t`).
//!
//! ```text
//! u64 bits, pointer start, u64 size and a number, five words, and of a slab: a bit for each piece, 1 is free
//! bits: 12 arena, 1 slab, …, state (2, from 5.3 on 3), 8 size class, free pieces, …
//! ```

use super::{Extent, Layout, Pieces, caches::Caches, tree::Shape};
use crate::{
    hash::HashSet,
    holders::{memory::Memory, pointers::Pointers, source::ADDRESS_END},
};

/// Least alignment of a description: below it are marks.
const ALIGNMENT: u64 = 64;
/// A leaf keeps the size class above the address.
const ADDRESS_BITS: u64 = (1 << 48) - 1;
const SLAB: u64 = 1 << 12;
/// Where the size class is in the bits, and the width of the state in front of it: 5.3, 5.1 and 5.2, 5.0.
const CLASSES: [(u32, u32); 3] = [(20, 3), (18, 2), (17, 2)];
/// Size classes there can be; a higher number is none.
const MAX_CLASSES: u64 = 235;
/// Where a slab has its bits.
const BITMAP: u64 = 64;
/// Most pieces of a slab: with pages of 64 KiB.
const MAX_PIECES: u64 = 1 << 13;
/// Sizes of pages that it is built for; of addresses.
const PAGE_BITS: [u32; 3] = [12, 16, 14];

/// Shapes of its tree, by the bits of a page and of an address (`rtree_levels`).
pub(super) fn shapes() -> impl Iterator<Item = Shape> {
    let two = PAGE_BITS.map(|page_bits| {
        let number = 48 - page_bits;
        Shape { page_bits, bits: [number / 2, 0, number / 2 + number % 2], element_bytes: 8 }
    });
    // For addresses of 57 bits; an element does not have room for its marks then.
    let three = PAGE_BITS.map(|page_bits| {
        let (part, rest) = ((57 - page_bits) / 3, (57 - page_bits) % 3);
        Shape { page_bits, bits: [part, part + rest / 2, part + rest - rest / 2], element_bytes: 16 }
    });
    two.into_iter().chain(three)
}

/// How its descriptions are laid out, as far as versions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptions {
    class_shift: u32,
    state_bits: u32,
    page_bits: u32,
}

impl Descriptions {
    /// What to try with pages of a size.
    pub(super) fn all(page_bits: u32) -> [Self; 3] {
        CLASSES.map(|(class_shift, state_bits)| Self { class_shift, state_bits, page_bits })
    }

    /// From 5.3 on.
    pub(super) const fn are_new(self) -> bool {
        self.state_bits == 3
    }

    const fn class(self, bits: u64) -> u64 {
        bits >> self.class_shift & 0xff
    }

    const fn is_active(self, bits: u64) -> bool {
        bits >> (self.class_shift - self.state_bits) & ((1 << self.state_bits) - 1) == 0
    }

    /// Free pieces of a slab, by its own count.
    const fn free(self, bits: u64) -> u64 {
        // One bit more than for the pieces of the smallest class, of 8 bytes.
        bits >> (self.class_shift + 8) & ((1 << (self.page_bits - 2)) - 1)
    }

    /// The words of a description of the extent that begins with `page`.
    fn words(self, memory: &Memory<'_>, page: u64, element: u64) -> Option<(u64, [u64; 3])> {
        let description = element & ADDRESS_BITS & !(ALIGNMENT - 1);
        let words = memory.words(description, 3)?;
        let &[bits, start, size] = &words[..] else { return None };
        let inside = (1 << self.page_bits) - 1;
        let size = size & !inside;
        let is_extent = start & !inside == page && size != 0 && size < ADDRESS_END - page;
        is_extent.then_some((description, [bits, start, size]))
    }

    /// Whether an element describes the extent that begins with a page, by the size that its class gives it. `None`: it
    /// is of no extent in use.
    pub(super) fn fits(self, memory: &Memory<'_>, page: u64, element: u64) -> Option<bool> {
        let (_, [bits, _, size]) = self.words(memory, page, element)?;
        let (class, page_bytes) = (self.class(bits), 1 << self.page_bits);
        if !self.is_active(bits) {
            return None;
        }
        if class >= MAX_CLASSES {
            return Some(false);
        }
        let bytes = class_bytes(class);
        if bits & SLAB == 0 {
            // A page more lets a block begin at any line of the cache.
            return Some([bytes, bytes + page_bytes].contains(&size));
        }
        // The fewest pages that are full of pieces.
        let step = page_bytes >> bytes.trailing_zeros().min(self.page_bits);
        Some(size == bytes * step && self.free(bits) <= size / bytes)
    }
}

/// Bytes of a size class: 8, steps of 16 up to 64, then four for each power of two.
fn class_bytes(class: u64) -> u64 {
    match class {
        0 => 8,
        1..5 => class * 16,
        _ => {
            let (group, step) = ((class - 5) / 4, (class - 5) % 4 + 1);
            (64 << group.min(56)) + (step << (4 + group.min(56)))
        }
    }
}

#[derive(Debug)]
pub(super) struct Jemalloc {
    descriptions: Descriptions,
    caches: Caches,
}

impl Jemalloc {
    pub(super) fn new(descriptions: Descriptions) -> Self {
        Self { descriptions, caches: Caches::default() }
    }
}

impl Layout for Jemalloc {
    fn extent(&self, memory: &Memory<'_>, page: u64, element: u64) -> Option<Extent> {
        let layout = self.descriptions;
        let (description, [bits, first, size]) = layout.words(memory, page, element)?;
        let end = page + size;
        let class = layout.class(bits);
        let is_free = !layout.is_active(bits) || class >= MAX_CLASSES;
        let piece = if is_free || bits & SLAB == 0 { 0 } else { class_bytes(class) };
        if piece > size || (piece != 0 && size / piece > MAX_PIECES) {
            return None;
        }
        let used = if is_free || piece != 0 { size } else { class_bytes(class).min(end - first) };
        let first = if is_free || piece != 0 { page } else { first };
        Some(Extent { start: page, end, first, piece, used, description, is_free })
    }

    fn free_pieces(&self, memory: &Memory<'_>, extent: &Extent) -> Option<Pieces> {
        let count = extent.pieces().min(MAX_PIECES);
        let words = memory.words(extent.description + BITMAP, count.div_ceil(64) as usize)?;
        let is_free = |at: &u64| words.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 == 1);
        let free: HashSet<u64> = (0..count).filter(is_free).map(|at| extent.start + at * extent.piece).collect();
        let bits = memory.word(extent.description)?;
        let are_counted = self.descriptions.free(bits) == free.len() as u64
            && words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() == free.len() as u64;
        Some(Pieces { free, are_counted })
    }

    fn learn(&mut self, memory: &Memory<'_>, pointers: &Pointers, extents: &[Extent]) -> bool {
        self.caches = Caches::find(memory, pointers, extents, self.descriptions.are_new());
        !self.caches.is_empty()
    }

    fn cached(&self, memory: &Memory<'_>, extents: &[Extent], _piece: Option<u64>) -> Option<HashSet<u64>> {
        Some(self.caches.read(memory, extents))
    }
}
