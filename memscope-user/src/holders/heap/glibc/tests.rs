use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::holders::{
    image::Image,
    pointers::Pointer,
    source::{Source, Thread},
    symbols::Symbols,
};

const HEAP: u64 = 0x5555_0000_0000;

/// A heap by hand: 32 bytes in use, 48 free, 64 in a cache, 32 in use, the rest.
fn image() -> Image {
    let mut image = Image::default();
    image.heap(HEAP, 2 * PAGE);
    let mut at = HEAP;
    for (size, before_is_used) in [(0x20, 1), (0x30, 1), (0x40, 0), (0x20, 1)] {
        image.put(at + 8, size | before_is_used);
        at += size;
    }
    image.put(at + 8, (HEAP + 2 * PAGE - at) | 1);
    image
}

fn block(image: &Image, key: Option<u64>, address: u64) -> Option<(u64, u64, bool)> {
    let memory = Memory::new(image);
    let glibc = Glibc { key, ..Glibc::new(&memory) };
    let mapping = memory.mapping(address).expect("mapped");
    match glibc.look(mapping, address) {
        Place::In(block) => Some((block.start - HEAP, block.size, block.is_free)),
        _ => None,
    }
}

#[test]
fn chunks_of_a_heap() {
    let mut image = image();
    image.put(HEAP + 0x50 + 0x18, 0x1234_5678);
    let of = |address| block(&image, Some(0x1234_5678), HEAP + address);
    assert_eq!(of(0x10), Some((0x10, 0x18, false)));
    // Its last word is the first of the next chunk.
    assert_eq!(of(0x27), Some((0x10, 0x18, false)));
    assert_eq!(of(0x28), None);
    assert_eq!(of(0x30), Some((0x30, 0x28, true)));
    assert_eq!(of(0x60), Some((0x60, 0x38, true)));
    assert_eq!(of(0xa0), Some((0xa0, 0x18, false)));
    // The rest of the heap belongs to none.
    assert_eq!(of(0x400).map(|(_, _, is_free)| is_free), Some(true));
    assert_eq!(block(&image, None, HEAP + 0x60), Some((0x60, 0x38, false)));
}

/// Sizes that lead out of the heap, backwards or nowhere end the walk.
#[test]
fn sizes_that_make_no_sense() {
    for size in [0, 8, 0x18, 1 << 40, !MARKS] {
        let mut image = image();
        image.put(HEAP + 0x20 + 8, size | 1);
        assert_eq!(block(&image, None, HEAP + 0x10), Some((0x10, 0x18, false)), "{size:#x}");
        assert_eq!(block(&image, None, HEAP + 0x60), None, "{size:#x}");
    }
}

/// The size of a chunk is garbage, as that of one that was merged: the block behind it is found by its own head, and only if something points there.
#[test]
fn chunks_that_lead_nowhere() {
    let mut image = image();
    image.put(HEAP + 0x20 + 8, 0x7f00_1234_5671);
    let memory = Memory::new(&image);
    let (glibc, mapping) = (Glibc { key: None, ..Glibc::new(&memory) }, memory.mapping(HEAP).expect("mapped"));
    let of = |pointers: &Pointers, address: u64| {
        let block = glibc.by_head(mapping, HEAP + address, pointers);
        block.map(|block| (block.start - HEAP, block.size, block.is_free))
    };
    let pointers = Pointers::none();
    assert_eq!([of(&pointers, 0x60), of(&pointers, 0x97)], [None; 2]);
    // To an object behind the collector's two words.
    pointers.add_later(vec![Pointer { target: HEAP + 0x70, place: HEAP + 0x18 }]);
    assert_eq!(of(&pointers, 0x60), Some((0x60, 0x38, false)));
    assert_eq!(of(&pointers, 0x97), Some((0x60, 0x38, false)));
    // Its neighbour is not pointed at.
    assert_eq!(of(&pointers, 0xa0), None);
}

/// A process that changes while it is read: the first reading of one word is older than the rest.
#[derive(Debug)]
struct Changing {
    image: Image,
    old: (u64, u64),
    was_read: AtomicBool,
}

impl Source for Changing {
    fn mappings(&self) -> &[Mapping] {
        self.image.mappings()
    }

    fn read(&self, address: u64, to: &mut [u8]) -> usize {
        let got = self.image.read(address, to);
        let (place, word) = self.old;
        let into = place.checked_sub(address).filter(|into| into + 8 <= got as u64);
        if let Some(into) = into.filter(|_| !self.was_read.swap(true, Ordering::Relaxed)) {
            to[into as usize..into as usize + 8].copy_from_slice(&word.to_le_bytes());
        }
        got
    }

    fn present(&self, mapping: &Mapping) -> Vec<(u64, u64)> {
        self.image.present(mapping)
    }

    fn symbols(&self, mapping: &Mapping) -> Option<Symbols> {
        self.image.symbols(mapping)
    }

    fn threads(&self) -> Vec<Thread> {
        self.image.threads()
    }

    fn is_same(&self) -> bool {
        true
    }
}

/// Two chunks were merged between two readings: the walk begins again in front of them.
#[test]
fn a_heap_that_changes_under_the_walk() {
    const PAGES: u64 = 8;
    let mut image = Image::default();
    image.heap(HEAP, PAGES * PAGE);
    let chunks = PAGES * PAGE / 0x100;
    for chunk in 0..chunks {
        image.put(HEAP + chunk * 0x100 + 8, 0x101);
    }
    // In the sixth page there was a border, which is data by now.
    let old = (HEAP + 5 * PAGE + 8, 0x81);
    image.put(HEAP + 5 * PAGE + 0x88, u64::MAX);
    let source = Changing { image, old, was_read: AtomicBool::new(false) };
    let memory = Memory::new(&source);
    // The key was looked for in the first pages alone.
    let walked = Glibc { key: None, ..Glibc::new(&memory) }.walk(HEAP, HEAP + PAGES * PAGE);
    assert!(source.was_read.load(Ordering::Relaxed));
    assert_eq!((walked.walked, walked.firsts[7]), (HEAP + PAGES * PAGE, 0));
    // One that stays so ends it.
    let mut image = source.image;
    image.put(old.0, old.1);
    let memory = Memory::new(&image);
    let walked = Glibc { key: None, ..Glibc::new(&memory) }.walk(HEAP, HEAP + PAGES * PAGE);
    assert_eq!((walked.walked, walked.firsts[6]), (HEAP + 5 * PAGE + 0x80, NONE));
}

/// The key is what most cached chunks agree in.
#[test]
fn the_key_is_learnt() {
    let mut image = image();
    image.put(HEAP + 8, 0x291);
    for list in 0..3 {
        let entry = HEAP + PAGE + list * 0x40;
        image.put(HEAP + 0x90 + list * 8, entry);
        image.put(entry + 8, if list == 1 { 7 } else { 0xabcd });
    }
    assert_eq!(key(&Memory::new(&image)), Some(0xabcd));
}

/// glibc 2.43: it is behind other chunks, and has more lists.
#[test]
fn the_key_of_a_later_cache() {
    let mut image = Image::default();
    image.heap(HEAP, 2 * PAGE);
    for (at, size) in [(0, 0x21), (0x20, 0x301), (0x320, 0x1001)] {
        image.put(HEAP + at + 8, size);
    }
    for list in 0..3 {
        let entry = HEAP + PAGE + list * 0x40;
        image.put(HEAP + 0x20 + 0x10 + 76 * 2 + list * 8, entry);
        image.put(entry + 8, 0xabcd);
    }
    assert_eq!(key(&Memory::new(&image)), Some(0xabcd));
}

/// A block of the same size that leads to objects of one type is no cache: their second word is an address. Nor is one that leads to a single one.
#[test]
fn what_looks_like_a_cache() {
    const OBJECTS: u64 = HEAP + PAGE;
    let with = |second_words: &[u64]| {
        let mut image = Image::default();
        image.heap(HEAP, 2 * PAGE);
        for (at, size) in [(0, 0x21), (0x20, 0x301), (0x320, 0x1001)] {
            image.put(HEAP + at + 8, size);
        }
        for (at, word) in (0..).step_by(0x40).zip(second_words) {
            image.put(HEAP + 0x20 + 0x10 + 76 * 2 + at / 8, OBJECTS + at);
            image.put(OBJECTS + at + 8, *word);
        }
        key(&Memory::new(&image))
    };
    assert_eq!(with(&[0xabcd, 0xabcd, 7]), Some(0xabcd));
    assert_eq!([with(&[HEAP + 0x400; 3]), with(&[0xabcd]), with(&[1, 2, 3])], [None; 3]);
}

/// Heads of blocks with a mapping of their own, as glibc 2.36 and 2.43 write them for 300 000 bytes, and one that 2.43 aligned to 64 KiB.
#[test]
fn heads_with_a_mapping() {
    let of = |before, size| with_mapping(before, size).map(|block| (block.size, block.mapping_bytes));
    assert_eq!(of(0, 0x4a002), Some((0x49ff0, 0x4a000)));
    assert_eq!(of(0, 0x49ff2), Some((0x49ff0, 0x4a000)));
    assert_eq!(of(1, 0x49ff2), Some((0x49ff0, 0x4a000)));
    assert_eq!(of(0x7ff0, 0xb3002), Some((0xb3000, 0xbb000)));
    assert_eq!([of(0, 0x49fe2), of(0, 0x4a003), of(0, 2), of(!MARKS, 0x4a002)], [None; 4]);
}
