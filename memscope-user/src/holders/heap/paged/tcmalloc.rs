//! tcmalloc (gperftools 2.7 and later): pages are described by spans.
//!
//! ```text
//! u64 first page, u64 pages, pointers next, previous, first free piece, u32: 16 pieces not free, 8 class, 2 place
//! ```
//!
//! Free pieces are in lists, each piece with the next one in its first word: those of spans, those of threads
//! (`ThreadCache`, which begin with an array of lists), and those between the two (pairs of a first and a last piece in
//! the library's data).

use std::ops::Range;

use super::{Extent, Layout, Pieces, extent_of, tree, tree::Shape};
use crate::{
    hash::HashSet,
    holders::{memory::Memory, pointers::Pointers, source::ADDRESS_END},
};

/// Sizes of pages that it can be built for.
const PAGE_BITS: [u32; 6] = [13, 12, 14, 15, 16, 18];
/// Most pages of a span.
const MAX_PAGES: u64 = 1 << 28;
/// Most classes, and their largest size.
const MAX_CLASSES: usize = 128;
const LARGEST: u32 = 256 << 10;
const FEWEST_CLASSES: usize = 40;
/// Most pieces of a span: its count has 16 bits.
const MAX_PIECES: u64 = 1 << 16;
/// Most pieces in lists of threads and in those of the middle.
const MAX_CACHED: usize = 1 << 21;
/// Most pieces moved at once.
const MAX_MOVED: usize = 1 << 16;
/// Most threads.
const MAX_THREADS: u32 = 1 << 16;
/// A thread's list: pointer, u32 length, others.
const LIST_BYTES: u64 = 32;
/// Where the next thread is named in one, behind its lists.
const NEXT_AFTER: Range<u64> = 80 * LIST_BYTES..MAX_CLASSES as u64 * LIST_BYTES + 256;

/// Shapes of its tree (`TCMalloc_PageMap2`).
fn shapes() -> impl Iterator<Item = Shape> {
    PAGE_BITS.into_iter().map(|page_bits| {
        let number = 48 - page_bits;
        Shape { page_bits, bits: [number / 2, 0, number.div_ceil(2)], element_bytes: 8 }
    })
}

/// Variables that it exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Threads {
    /// The first cache of a thread.
    pub(super) first: u64,
    /// How many there are.
    pub(super) count: u64,
}

#[derive(Debug)]
pub(super) struct Tcmalloc {
    page_bits: u32,
    /// Bytes of the pieces of each class.
    classes: Vec<u64>,
    /// Of the library.
    data: Range<u64>,
    threads: Threads,
}

impl Tcmalloc {
    /// What to try.
    pub(super) fn all(memory: &Memory<'_>, data: &Range<u64>, threads: Threads) -> Vec<(Self, Shape)> {
        let Some(classes) = classes(memory, data) else { return Vec::new() };
        let all = shapes().map(|shape| {
            let (page_bits, classes) = (shape.page_bits, classes.clone());
            (Self { page_bits, classes, data: data.clone(), threads }, shape)
        });
        all.collect()
    }

    /// The words of the span that begins with `page`.
    fn words(&self, memory: &Memory<'_>, page: u64, span: u64) -> Option<[u64; 6]> {
        if !span.is_multiple_of(8) || span >= ADDRESS_END {
            return None;
        }
        let words = memory.words(span, 6)?;
        let &[first, count, next, previous, objects, bits] = &words[..] else { return None };
        let is_span = first == page >> self.page_bits && (1..=MAX_PAGES).contains(&count);
        is_span.then_some([first, count, next, previous, objects, bits])
    }

    /// Whether an element describes the span that begins with a page. `None`: of no such span.
    pub(super) fn fits(&self, memory: &Memory<'_>, page: u64, span: u64) -> Option<bool> {
        self.words(memory, page, span).map(|_| self.extent(memory, page, span).is_some())
    }

    /// Bytes of the pieces of a span; 0: it is one block.
    fn piece(&self, bits: u64) -> Option<u64> {
        self.classes.get((bits >> 16 & 0xff) as usize).copied()
    }

    /// The caches of all threads. `None` if their chain is not whole.
    fn caches(&self, memory: &Memory<'_>) -> Option<Vec<u64>> {
        let count = memory.half(self.threads.count).filter(|count| *count <= MAX_THREADS)?;
        let first = memory.word(self.threads.first)?;
        let mut caches = Vec::new();
        let mut at = first;
        let mut next_at = None;
        while at != 0 && caches.len() < count as usize {
            caches.push(at);
            if caches.len() == count as usize {
                break;
            }
            next_at = next_at.or_else(|| next_at_of(memory, first));
            at = memory.word(at.checked_add(next_at?)?)?;
        }
        (caches.len() == count as usize).then_some(caches)
    }

    /// Adds the pieces of the lists of a thread; returns how many of its lists are as long as they say, and how many
    /// there are.
    fn add_lists(&self, memory: &Memory<'_>, chains: &Chains<'_>, cache: u64, cached: &mut HashSet<u64>) -> (u64, u64) {
        let (mut whole, mut all) = (0, 0);
        for (class, piece) in (0..).zip(&self.classes).skip(1).filter(|(_, piece)| chains.are_wanted(**piece)) {
            let list = cache.wrapping_add(class * LIST_BYTES);
            let Some((first, length)) = memory.word(list).zip(memory.half(list.wrapping_add(8))) else { continue };
            if length == 0 || first == 0 {
                continue;
            }
            let room = (length as usize).min(MAX_CACHED.saturating_sub(cached.len()));
            let found = chains.follow(first, *piece, room);
            all += 1;
            whole += u64::from(found.len() == length as usize);
            cached.extend(found);
        }
        (whole, all)
    }

    /// Adds what lies between the lists of threads and of spans.
    fn add_middle(&self, memory: &Memory<'_>, chains: &Chains<'_>, cached: &mut HashSet<u64>) {
        let mut before = (0, 0);
        for (place, word) in tree::present_words(memory, self.data.clone()) {
            let (place_before, first) = std::mem::replace(&mut before, (place, word));
            if first == 0 || word == 0 || place_before + 8 != place || cached.len() >= MAX_CACHED {
                continue;
            }
            let Some(piece) = chains.piece_at(first).filter(|piece| chains.piece_at(word) == Some(*piece)) else {
                continue;
            };
            let found = if chains.are_wanted(piece) { chains.follow(first, piece, MAX_MOVED) } else { Vec::new() };
            // What was taken away since has another end.
            if found.last() == Some(&word) {
                cached.extend(found);
            }
        }
    }
}

/// Lists of free pieces.
#[derive(Debug)]
struct Chains<'a> {
    memory: &'a Memory<'a>,
    extents: &'a [Extent],
    /// Pieces of this size alone.
    wanted: Option<u64>,
}

impl Chains<'_> {
    fn are_wanted(&self, piece: u64) -> bool {
        self.wanted.is_none_or(|wanted| wanted == piece)
    }

    /// The size of the piece that begins there.
    fn piece_at(&self, address: u64) -> Option<u64> {
        let extent = extent_of(self.extents, address).filter(|extent| extent.piece != 0 && !extent.is_free)?;
        (extent.start_of(address) == Some(address)).then_some(extent.piece)
    }

    /// The pieces of a list, as far as they are of one size.
    fn follow(&self, first: u64, piece: u64, most: usize) -> Vec<u64> {
        let mut found = Vec::new();
        let mut at = first;
        while at != 0 && found.len() < most && self.piece_at(at) == Some(piece) {
            found.push(at);
            at = self.memory.word(at).unwrap_or(0);
        }
        found
    }
}

impl Layout for Tcmalloc {
    fn extent(&self, memory: &Memory<'_>, page: u64, element: u64) -> Option<Extent> {
        const FREE: [u64; 2] = [1, 2];
        let [_, count, .., bits] = self.words(memory, page, element)?;
        let end = page.checked_add(count << self.page_bits)?;
        let place = bits >> 24 & 3;
        let is_free = FREE.contains(&place);
        let piece = if is_free { 0 } else { self.piece(bits)? };
        let fits = end <= ADDRESS_END && piece <= end - page && (piece == 0 || (end - page) / piece < MAX_PIECES);
        (fits && (is_free || place == 0)).then_some(Extent {
            start: page,
            end,
            first: page,
            piece,
            used: end - page,
            description: element,
            is_free,
        })
    }

    fn free_pieces(&self, memory: &Memory<'_>, extent: &Extent) -> Option<Pieces> {
        let [.., objects, bits] = self.words(memory, extent.start, extent.description)?;
        let mut free = HashSet::default();
        let mut at = objects;
        let is_own = |piece: u64| extent.start_of(piece) == Some(piece);
        while at != 0 && is_own(at) && (free.len() as u64) < extent.pieces() && free.insert(at) {
            at = memory.word(at)?;
        }
        let are_counted = extent.pieces().checked_sub(bits & 0xffff) == Some(free.len() as u64);
        Some(Pieces { free, are_counted })
    }

    fn learn(&mut self, memory: &Memory<'_>, _pointers: &Pointers, extents: &[Extent]) -> bool {
        self.cached(memory, extents, None).is_some()
    }

    fn cached(&self, memory: &Memory<'_>, extents: &[Extent], piece: Option<u64>) -> Option<HashSet<u64>> {
        let chains = Chains { memory, extents, wanted: piece };
        let mut cached = HashSet::default();
        let (mut whole, mut all) = (0, 0);
        for cache in self.caches(memory)? {
            let of_thread = self.add_lists(memory, &chains, cache, &mut cached);
            (whole, all) = (whole + of_thread.0, all + of_thread.1);
        }
        self.add_middle(memory, &chains, &mut cached);
        // Lists of threads that run change meanwhile.
        (whole * 2 >= all).then_some(cached)
    }
}

/// Where a thread's cache names the next one: that names the first one as the one before it.
fn next_at_of(memory: &Memory<'_>, first: u64) -> Option<u64> {
    let mut offsets = NEXT_AFTER.step_by(8);
    offsets.find(|at| {
        let next = memory.word(first.wrapping_add(*at)).filter(|next| *next != 0 && next.is_multiple_of(8));
        let back = next.and_then(|next| memory.word(next.checked_add(at + 8)?));
        back == Some(first) && memory.word(first.wrapping_add(at + 8)) == Some(0)
    })
}

/// The sizes of the classes (`class_to_size_`): they begin with 0, 8, 16, grow, and end with the largest; behind
/// it there are zeros.
fn classes(memory: &Memory<'_>, data: &Range<u64>) -> Option<Vec<u64>> {
    let halves: Vec<(u64, u32)> = tree::present_words(memory, data.clone())
        .flat_map(|(place, word)| [(place, word as u32), (place + 4, (word >> 32) as u32)])
        .collect();
    let begins = halves.windows(3).enumerate().filter(|(_, three)| three.iter().map(|it| it.1).eq([0, 8, 16]));
    let mut found = begins.filter_map(|(at, three)| {
        let rest = halves[at..].iter().zip((three[0].0..).step_by(4)).take(MAX_CLASSES);
        let sizes: Vec<u32> =
            rest.map_while(|((place, size), expected)| (*place == expected).then_some(*size)).collect();
        let last = sizes.iter().position(|size| *size == LARGEST)?;
        let grow = sizes[..=last].windows(2).all(|two| two[0] < two[1] && two[1].is_multiple_of(8));
        (grow && last >= FEWEST_CLASSES).then(|| sizes[..=last].iter().map(|size| u64::from(*size)).collect())
    });
    found.next()
}
