//! Small processes with jemalloc and with tcmalloc, by hand. Tests query them; the fuzzer changes words of them.

use crate::holders::{
    image::Image,
    source::{Backing, PAGE},
    symbols::{Symbol, Symbols},
};

const LIBRARY: u64 = 0x7f10_0000_0000;
/// Its data: a page with variables, and the part of the root that is used.
pub(super) const DATA: u64 = LIBRARY + PAGE;
/// The heap, and where leaf and descriptions are.
pub(super) const HEAP: u64 = 0x7f80_0010_0000;
const HEAP_BYTES: u64 = 64 * PAGE;
pub(super) const LEAF: u64 = 0x7f40_0000_0000;
pub(super) const DESCRIPTIONS: u64 = 0x7f50_0000_0000;
/// Memory of a thread.
pub(super) const THREAD: u64 = 0x7f60_0000_0000;

/// A library with its root behind its variables, and a heap. `reach_bits`: bits of an address below those for the root.
fn process(name: &str, reach_bits: u32, root_bytes: u64, variables: &[(&str, u64)]) -> Image {
    let mut image = Image::default();
    image.file(LIBRARY, PAGE, name);
    image.file(LIBRARY + (1 << 30), PAGE, "/lib/libc.so.6");
    image.map(Image::plain(DATA, PAGE, Backing::Anonymous, ""));
    let element = root() + (HEAP >> reach_bits) * 8;
    image.map(Image::plain(element & !(PAGE - 1), PAGE, Backing::Anonymous, ""));
    for (start, bytes) in [(HEAP, HEAP_BYTES), (LEAF, 2 * PAGE), (DESCRIPTIONS, 2 * PAGE), (THREAD, 2 * PAGE)] {
        image.map(Image::plain(start, bytes, Backing::Anonymous, ""));
    }
    image.put(element, LEAF);
    let of = |(name, vaddr): &(&str, u64)| Symbol { vaddr: *vaddr, size_bytes: 8, name: (*name).into() };
    let end_vaddr = root() + root_bytes + PAGE - LIBRARY;
    let symbols = Symbols { objects: variables.iter().map(of).collect(), first_vaddr: 0, end_vaddr };
    image.set_symbols(name, symbols);
    image
}

const fn root() -> u64 {
    DATA + PAGE + 0x10
}

/// Bytes of the extents of the sample: eight slabs for 48 bytes, of three pages each, then a block of four pages, the
/// stacks of the thread, which is one of 16 KiB as well, and one that is free.
pub(super) const SLAB: u64 = 3 * PAGE;
const SLABS: u64 = 8;
pub(super) const LARGE: u64 = HEAP + SLABS * SLAB;
pub(super) const STACKS: u64 = LARGE + 4 * PAGE;
pub(super) const GONE: u64 = STACKS + 4 * PAGE;
/// Of the first slab, piece 1 is free, and piece 2 is in a cache.
pub(super) const PIECE: u64 = 48;
/// Where a thread has its bins.
pub(super) const BINS: u64 = THREAD + 0x108;
const BIN_COUNT: u64 = 24;

/// jemalloc 5.3, with pages of 4 KiB.
pub(in crate::holders::heap) fn jemalloc() -> Image {
    const IS_SLAB: u64 = 1 << 12;
    const DIRTY: u64 = 1 << 17;
    let bits = |class: u64, free: u64| class << 20 | free << 28;
    let mut image = process("/usr/lib/libjemalloc.so.2", 30, 8 << 18, &[]);
    let mut extents: Vec<(u64, u64, u64)> =
        (0..SLABS).map(|at| (HEAP + at * SLAB, SLAB, bits(3, u64::from(at == 0)) | IS_SLAB)).collect();
    // 16 KiB are class 36.
    extents.extend([
        (LARGE, 4 * PAGE, bits(36, 0)),
        (STACKS, 4 * PAGE, bits(36, 0)),
        (GONE, 4 * PAGE, bits(36, 0) | DIRTY),
    ]);
    for (description, (start, size, bits)) in (DESCRIPTIONS..).step_by(128).zip(extents) {
        for (at, word) in (0..).step_by(8).zip([bits, start, size]) {
            image.put(description + at, word);
        }
        let is_slab = bits & IS_SLAB != 0;
        for page in (start..start + size).step_by(PAGE as usize) {
            let is_edge = page == start || page + PAGE == start + size;
            if is_slab || is_edge {
                let class = bits >> 20 & 0xff;
                image.put(LEAF + (page >> 12 & 0x3ffff) * 8, class << 48 | description | u64::from(is_slab));
            }
        }
    }
    // Piece 1 of the first slab.
    image.put(DESCRIPTIONS + 64, 1 << 1);
    // Bins with stacks of 64 bytes; that of the fourth one has a piece.
    for at in 0..BIN_COUNT {
        let (bin, end) = (BINS + at * 24, STACKS + (at + 1) * 64);
        let head = if at == 3 { end - 8 } else { end };
        image.put(bin, head);
        image.put(bin + 16, (end & 0xffff) << 32);
    }
    image.put(STACKS + 4 * 64 - 8, HEAP + 2 * PIECE);
    // What was taken from a stack is still in it.
    image.put(STACKS + 4 * 64 - 16, HEAP + 3 * PIECE);
    image
}

/// Bytes of the spans of the sample: eight with pieces, a block, and one that is free.
pub(super) const SPAN: u64 = 2 * PAGE;
pub(super) const BLOCK: u64 = HEAP + SLABS * SPAN;
pub(super) const FREE_SPAN: u64 = BLOCK + 2 * SPAN;
/// Where the lists between threads and spans are.
pub(super) const MIDDLE: u64 = DATA + 0x800;

/// tcmalloc with pages of 8 KiB. Of the first span, pieces 1 and 3 are free, 2 is a thread's, 4 and 5 are in the middle.
pub(in crate::holders::heap) fn tcmalloc() -> Image {
    const FIRST_THREAD: &str = "_ZN8tcmalloc11ThreadCache13thread_heaps_E";
    const THREADS: &str = "_ZN8tcmalloc11ThreadCache18thread_heap_count_E";
    let vaddr = DATA - LIBRARY;
    let variables = [(FIRST_THREAD, vaddr + 8), (THREADS, vaddr + 16)];
    let mut image = process("/usr/lib/libtcmalloc_minimal.so.4", 31, 8 << 17, &variables);
    image.put(DATA + 8, THREAD);
    image.put(DATA + 16, 1);
    put_classes(&mut image);
    let mut spans: Vec<(u64, u64, u64)> =
        (0..SLABS).map(|at| (HEAP + at * SPAN, 1, (SPAN / PIECE - if at == 0 { 2 } else { 0 }) | 3 << 16)).collect();
    spans.extend([(BLOCK, 2, 0), (FREE_SPAN, 2, 1 << 24)]);
    for (description, (start, count, bits)) in (DESCRIPTIONS..).step_by(48).zip(spans) {
        let objects = if start == HEAP { HEAP + PIECE } else { 0 };
        for (at, word) in (0..).step_by(8).zip([start >> 13, count, 0, 0, objects, bits]) {
            image.put(description + at, word);
        }
        for page in [start, start + (count - 1) * SPAN] {
            image.put(LEAF + (page >> 13 & 0x3ffff) * 8, description);
        }
    }
    image.put(HEAP + PIECE, HEAP + 3 * PIECE);
    let list = THREAD + 3 * 32;
    image.put(list, HEAP + 2 * PIECE);
    image.put(list + 8, 1);
    image.put(MIDDLE, HEAP + 4 * PIECE);
    image.put(MIDDLE + 8, HEAP + 5 * PIECE);
    image.put(HEAP + 4 * PIECE, HEAP + 5 * PIECE);
    image
}

/// Places all over the heap.
#[cfg_attr(not(feature = "fuzzing"), expect(dead_code, reason = "the fuzzer's"))]
pub(in crate::holders::heap) fn addresses() -> impl Iterator<Item = u64> {
    (HEAP..HEAP + HEAP_BYTES).step_by(1000)
}

/// 0, 8, 16, 48, steps of 4 KiB, and 256 KiB.
fn put_classes(image: &mut Image) {
    let sizes = [0_u32, 8, 16, 48].into_iter().chain((1..=40).map(|at| at << 12)).chain([256 << 10]);
    for (at, size) in (0..).step_by(4).zip(sizes) {
        image.put_bytes(DATA + 0x100 + at, &size.to_le_bytes());
    }
}
