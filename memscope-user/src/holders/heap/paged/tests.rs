//! What is said of the blocks of two small processes, worked out by hand, and what is refused.

use super::{
    sample::{
        self, BINS, BLOCK, DATA, DESCRIPTIONS, FREE_SPAN, GONE, HEAP, LARGE, LEAF, MIDDLE, PIECE, SLAB, SPAN, STACKS,
    },
    *,
};
use crate::holders::{heap::Heap, image::Image, pointers::Limits, source::PAGE};

/// The blocks of addresses: start, size, and whether they are free.
fn blocks(image: &Image, addresses: &[u64]) -> Vec<Option<(u64, u64, bool)>> {
    let memory = Memory::new(image);
    let pointers = Pointers::of(image, &[], Limits::default());
    let heap = Heap::new(&memory, &pointers, None);
    assert_eq!(heap.unknown(), None);
    let found = addresses.iter().map(|address| heap.block(*address));
    found.map(|block| block.map(|block| (block.start, block.size, block.is_free))).collect()
}

fn is_refused(image: &Image) -> bool {
    let memory = Memory::new(image);
    let pointers = Pointers::of(image, &[], Limits::default());
    Heap::new(&memory, &pointers, None).unknown().is_some()
}

#[test]
fn blocks_of_jemalloc() {
    let image = sample::jemalloc();
    let piece = |at: u64, is_free| Some((HEAP + at * PIECE, PIECE, is_free));
    let of = |address: u64| blocks(&image, &[address])[0];
    assert_eq!((of(HEAP), of(HEAP + 47)), (piece(0, false), piece(0, false)));
    // By its slab, and by the cache of a thread; what was taken from there is in use.
    assert_eq!((of(HEAP + 48), of(HEAP + 96), of(HEAP + 144)), (piece(1, true), piece(2, true), piece(3, false)));
    // The last one of the slab crosses no page; the next slab begins behind it.
    assert_eq!(of(HEAP + SLAB - 1), piece(255, false));
    assert_eq!(of(HEAP + SLAB), Some((HEAP + SLAB, PIECE, false)));
    // Pages in the middle of a block have no element.
    assert_eq!(of(LARGE + 2 * PAGE), Some((LARGE, 4 * PAGE, false)));
    // Stacks hold nothing.
    assert_eq!(of(STACKS + 8), Some((STACKS, 4 * PAGE, true)));
    assert_eq!(of(GONE + PAGE), Some((GONE, 4 * PAGE, true)));
    // Descriptions are in no block.
    assert_eq!((of(GONE + 4 * PAGE), of(DESCRIPTIONS)), (None, None));
}

/// The starts of blocks are known without the caches of threads; a free piece counts as in use.
#[test]
fn starts_of_blocks() {
    let of = |image: &Image, addresses: &[u64]| -> Vec<Option<(u64, u64)>> {
        let (memory, none) = (Memory::new(image), Pointers::none());
        let heap = Heap::of_starts(&memory, &none).expect("an allocator");
        addresses.iter().map(|address| heap.at_start(*address).map(|block| (block.start, block.size))).collect()
    };
    let last = HEAP + 255 * PIECE;
    // On the second page of its slab, and on the third; inside of a piece; a block, inside of it, given back, and none.
    let jemalloc = [HEAP + 86 * PIECE, last, last + 8, LARGE, LARGE + PAGE, GONE, DESCRIPTIONS];
    assert_eq!(
        of(&sample::jemalloc(), &jemalloc),
        [Some((HEAP + 86 * PIECE, PIECE)), Some((last, PIECE)), None, Some((LARGE, 4 * PAGE)), None, None, None]
    );
    let tcmalloc = [HEAP + PIECE, HEAP + 169 * PIECE, HEAP + 170 * PIECE, BLOCK, BLOCK + SPAN, FREE_SPAN];
    assert_eq!(
        of(&sample::tcmalloc(), &tcmalloc),
        [Some((HEAP + PIECE, PIECE)), Some((HEAP + 169 * PIECE, PIECE)), None, Some((BLOCK, 2 * SPAN)), None, None]
    );
}

/// Slabs that are just being given back, as 5.3 marks them: by the bits of 5.0 they are in use, and their sizes do not fit. Four of fourteen extents
/// are such.
#[test]
fn slabs_of_jemalloc_in_transition() {
    const IN_TRANSITION: u64 = 0x2e82_3000;
    let mut image = sample::jemalloc();
    for at in 0..4 {
        let (page, description) = (GONE + (4 + at) * PAGE, DESCRIPTIONS + PAGE + at * 128);
        for (word, value) in (0..).step_by(8).zip([IN_TRANSITION, page, PAGE]) {
            image.put(description + word, value);
        }
        image.put(LEAF + (page >> 12 & 0x3ffff) * 8, 0x18 << 48 | description | 5);
    }
    assert_eq!(
        blocks(&image, &[HEAP, GONE + 5 * PAGE]),
        [Some((HEAP, PIECE, false)), Some((GONE + 5 * PAGE, PAGE, true))]
    );
}

/// With pages of 64 KiB the stacks of a cache are a piece of a slab, and bins for pieces that no cache takes have no room, at the start of the stacks.
#[test]
fn caches_with_large_pages() {
    let mut image = sample::jemalloc();
    let description = DESCRIPTIONS + 9 * 128;
    image.put(description, 1 << 12 | 36 << 20);
    for bin in (BINS + 24 * 24..).step_by(24).take(5) {
        image.put(bin, STACKS);
        image.put(bin + 16, (STACKS & 0xffff) << 32);
    }
    let piece = |at: u64, is_free| Some((HEAP + at * PIECE, PIECE, is_free));
    assert_eq!(blocks(&image, &[HEAP + 96, HEAP + 144]), [piece(2, true), piece(3, false)]);
}

#[test]
fn blocks_of_tcmalloc() {
    let image = sample::tcmalloc();
    let piece = |at: u64, is_free| Some((HEAP + at * PIECE, PIECE, is_free));
    let found = blocks(&image, &[0, 1, 2, 3, 4, 5, 6, 169].map(|at| HEAP + at * PIECE + 8));
    // 170 pieces of 48 bytes are 32 bytes less than a page.
    let free = [false, true, true, true, true, true, false, false];
    assert_eq!(
        found,
        [0, 1, 2, 3, 4, 5, 6, 169].into_iter().zip(free).map(|(at, free)| piece(at, free)).collect::<Vec<_>>()
    );
    let of = |address: u64| blocks(&image, &[address])[0];
    assert_eq!((of(HEAP + 170 * PIECE), of(HEAP + SPAN)), (None, Some((HEAP + SPAN, PIECE, false))));
    assert_eq!(of(BLOCK + SPAN + 8), Some((BLOCK, 2 * SPAN, false)));
    assert_eq!(of(FREE_SPAN), Some((FREE_SPAN, 2 * SPAN, true)));
}

/// Which blocks are free is that of the moment.
#[test]
fn what_is_freed_later() {
    let sixth = HEAP + 6 * PIECE;
    let free = |image: &Image| {
        let memory = Memory::new(image);
        let pointers = Pointers::of(image, &[], Limits::default());
        let heap = Heap::new(&memory, &pointers, None);
        let mut free: Vec<u64> = heap.free_now(&[HEAP, HEAP + PIECE, HEAP + 2 * PIECE, sixth]).into_iter().collect();
        free.sort_unstable();
        free
    };
    // The bits of the slab, and the list of the span; their counts.
    let of_jemalloc = [(DESCRIPTIONS + 64, 1 << 1 | 1 << 6), (DESCRIPTIONS, 1 << 12 | 3 << 20 | 2 << 28)];
    let of_tcmalloc = [(HEAP + 3 * PIECE, sixth), (DESCRIPTIONS + 40, 0xa7 | 3 << 16)];
    for (mut image, changes) in [(sample::jemalloc(), of_jemalloc), (sample::tcmalloc(), of_tcmalloc)] {
        assert_eq!(free(&image), [HEAP + PIECE, HEAP + 2 * PIECE]);
        for (place, word) in changes {
            image.put(place, word);
        }
        assert_eq!(free(&image), [HEAP + PIECE, HEAP + 2 * PIECE, sixth]);
        assert_eq!(blocks(&image, &[sixth]), [Some((sixth, PIECE, true))]);
    }
}

type Change = fn(&mut Image);

/// Writes some words.
fn put(image: &mut Image, count: u64, of: impl Fn(u64) -> (u64, u64)) {
    for (place, word) in (0..count).map(of) {
        image.put(place, word);
    }
}

/// What contradicts itself is not used, and named.
#[test]
fn what_contradicts_itself_is_refused() {
    assert!(!is_refused(&sample::jemalloc()) && !is_refused(&sample::tcmalloc()));
    let of_jemalloc: [Change; 5] = [
        // No cache of a thread.
        |image| put(image, 24, |at| (BINS + at * 24, 0)),
        // Stacks in another order.
        |image| put(image, 24, |at| (BINS + at * 24, STACKS + (30 - at) * 64)),
        // No leaf.
        |image| put(image, 128, |at| (LEAF + 0x800 + at * 8, 0)),
        // Sizes of another class, ...
        |image| put(image, 8, |at| (DESCRIPTIONS + at * 128, 1 << 12 | 4 << 20)),
        // ... and counts that no bits show.
        |image| put(image, 8, |at| (DESCRIPTIONS + at * 128, 1 << 12 | 3 << 20 | 9 << 28)),
    ];
    for (at, change) in of_jemalloc.iter().enumerate() {
        let mut image = sample::jemalloc();
        change(&mut image);
        assert!(is_refused(&image), "jemalloc {at}");
    }
    let of_tcmalloc: [Change; 4] = [
        // More threads than there are.
        |image| image.put(DATA + 16, 2),
        // Lists that are shorter than they say.
        |image| image.put(sample::THREAD + 3 * 32 + 8, 2),
        // No sizes of classes.
        |image| image.put(DATA + 0x100, 1),
        // Counts of pieces that no list shows.
        |image| put(image, 8, |at| (DESCRIPTIONS + at * 48 + 40, 5 | 3 << 16)),
    ];
    for (at, change) in of_tcmalloc.iter().enumerate() {
        let mut image = sample::tcmalloc();
        change(&mut image);
        assert!(is_refused(&image), "tcmalloc {at}");
    }
}

/// Lists that lead in a ring, out of their span or to another size end.
#[test]
fn lists_that_lead_anywhere() {
    for next in [HEAP + PIECE, HEAP + PIECE + 8, HEAP + SPAN, 0xffff_ffff_ffff_fff8, DESCRIPTIONS] {
        let mut image = sample::tcmalloc();
        image.put(HEAP + 3 * PIECE, next);
        assert_eq!(blocks(&image, &[HEAP + 6 * PIECE]), [Some((HEAP + 6 * PIECE, PIECE, false))], "{next:#x}");
        let mut image = sample::tcmalloc();
        // Of a pair in the middle that is no longer one, nothing is free.
        image.put(HEAP + 4 * PIECE, next);
        assert_eq!(blocks(&image, &[HEAP + 5 * PIECE]), [Some((HEAP + 5 * PIECE, PIECE, false))], "{next:#x}");
        image.put(MIDDLE, next);
        assert_eq!(blocks(&image, &[HEAP + 4 * PIECE]).len(), 1);
    }
}
