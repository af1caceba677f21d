//! glibc's heaps: consecutive chunks, each with its size in front.
//!
//! A chunk is in use if the next one is marked so and no thread's cache has it. Caches mark their chunks by a key in
//! the second word: a random number of the process (from 2.34 on), or the address of the cache (2.29 to 2.33).

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    rc::Rc,
};

use super::{Block, Origin, Place};
use crate::{
    hash::HashMap,
    holders::{
        memory::Memory,
        pointers::Pointers,
        source::{Backing, Mapping, PAGE},
    },
};

/// Heaps of threads begin at multiples of this.
const HEAP_BYTES: u64 = 64 << 20;
/// Bytes in front of a block.
const HEAD: u64 = 16;
const LEAST: u64 = 16;
/// Marks in the size of a chunk.
const MARKS: u64 = 7;
const BEFORE_IS_USED: u64 = 1;
const IS_MAPPED: u64 = 2;
/// Chunks that start in one page of 4 KiB, and one more.
const PER_PAGE: usize = (PAGE / LEAST) as usize + 1;
/// Where chunks do not fit together: how far back the reading begins again, the first time, the second time, ...
const PAGES_BACK: [usize; 4] = [1, 4, 16, 64];
/// Most such places in one heap.
const MAX_TORN: u32 = 256;
/// How far in front of an address a head is searched for.
const MAX_BACK: u64 = 4096;
/// An object of Python begins up to here behind the start of its block.
const OBJECT_AT: u64 = 32;
/// Most candidates of mapped blocks read for one address.
const MAX_CANDIDATES: usize = 64;
/// Behind the heap's own description comes that of its arena; its size differs between versions.
const STATE_FROM: u64 = 0x800;
const STATE_STEPS: u64 = 0x200;

/// Chunks from one address on: for each 4 KiB the offset of the first one in it.
#[derive(Debug)]
struct Chunks {
    start: u64,
    end: u64,
    firsts: Vec<u16>,
    /// Where the walk has stopped.
    walked: u64,
}

/// No chunk starts there.
const NONE: u16 = u16::MAX;

impl Chunks {
    fn page(&self, at: u64) -> usize {
        ((at - self.start) / PAGE) as usize
    }

    /// Notes that a chunk starts there. Call it in order.
    fn add(&mut self, at: u64) {
        let page = self.page(at);
        if self.firsts[page] == NONE {
            self.firsts[page] = ((at - self.start) % PAGE) as u16;
        }
    }

    /// The last known start of a chunk at least `pages` pages before an address.
    fn before(&self, address: u64, pages: usize) -> Option<u64> {
        let last = self.page(address.checked_sub(HEAD).filter(|at| (self.start..self.end).contains(at))?);
        let known = self.firsts.get(..=last.checked_sub(pages)?)?.iter().enumerate().rev();
        let starts = known.filter(|(_, first)| **first != NONE);
        let mut starts = starts.map(|(page, first)| self.start + page as u64 * PAGE + u64::from(*first));
        starts.find(|start| start + HEAD <= address)
    }

    /// Drops the starts of chunks in a range.
    fn forget(&mut self, range: Range<u64>) {
        let pages = self.page(range.start)..=self.page(range.end);
        self.firsts[pages].fill(NONE);
    }
}

/// Whether a chunk can have a size; `left`: bytes up to the end of its heap.
const fn is_size(size: u64, left: u64) -> bool {
    size >= LEAST && size.is_multiple_of(LEAST) && size <= left
}

/// A piece of a heap, read at once.
struct Window<'a> {
    memory: &'a Memory<'a>,
    end: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// Size of the chunk at an address; 0 where nothing can be read.
    fn size(&mut self, at: u64) -> u64 {
        const WINDOW: u64 = 1 << 20;
        let into = at.checked_sub(self.start).filter(|into| into + HEAD <= self.bytes.len() as u64);
        let into = into.unwrap_or_else(|| {
            self.start = at & !(PAGE - 1);
            self.bytes.resize(WINDOW.min((self.end - self.start).next_multiple_of(PAGE)) as usize, 0);
            let got = self.memory.source().read(self.start, &mut self.bytes);
            self.bytes.truncate(got);
            at - self.start
        });
        let size = self.bytes.get(into as usize + 8..).and_then(|rest| rest.first_chunk());
        size.map_or(0, |size| u64::from_le_bytes(*size) & !MARKS)
    }
}

#[derive(Debug)]
pub(super) struct Glibc<'a> {
    memory: &'a Memory<'a>,
    heaps: RefCell<HashMap<u64, Option<Rc<Chunks>>>>,
    key: Option<u64>,
    /// Chunks walked in all.
    steps: Cell<u64>,
}

/// Most chunks walked: beyond, the layout is unknown.
const MAX_STEPS: u64 = 1 << 30;
/// A heap that grows is not walked further.
const MAX_HEAP_BYTES: u64 = 64 << 30;

impl<'a> Glibc<'a> {
    pub(super) fn new(memory: &'a Memory<'a>) -> Self {
        Self { memory, heaps: RefCell::default(), key: key(memory), steps: Cell::default() }
    }

    /// Whether there is a heap of it: its first chunk is a thread's cache.
    pub(super) const fn is_known(&self) -> bool {
        self.key.is_some()
    }

    pub(super) fn is_key(&self, word: u64) -> bool {
        self.key == Some(word)
    }

    /// The chunk of an address.
    pub(super) fn look(&self, mapping: &Mapping, address: u64) -> Place {
        match self.chunks(mapping, address) {
            Some(chunks) => self.chunk(&chunks, address).map_or(Place::Between, Place::In),
            None => Place::Elsewhere,
        }
    }

    fn chunks(&self, mapping: &Mapping, address: u64) -> Option<Rc<Chunks>> {
        let is_main = mapping.backing == Backing::Heap;
        let start = if is_main { mapping.start } else { address & !(HEAP_BYTES - 1) };
        if let Some(known) = self.heaps.borrow().get(&start) {
            return known.clone();
        }
        let found = if is_main {
            Some(self.walk(mapping.start, mapping.end.min(mapping.start + MAX_HEAP_BYTES)))
        } else {
            self.heap_of_threads(start)
        };
        let found = found.map(Rc::new);
        self.heaps.borrow_mut().insert(start, found.clone());
        found
    }

    /// `{arena, previous heap, size, size that may be used}` at its start.
    fn heap_of_threads(&self, start: u64) -> Option<Chunks> {
        let mapping = self.memory.mapping(start).filter(|mapping| mapping.is_anonymous())?;
        let words = self.memory.words(start, 4)?;
        let (arena, size, usable) = (words[0], words[2], words[3]);
        let is_heap =
            size != 0 && size <= HEAP_BYTES && size.is_multiple_of(PAGE) && usable >= size && arena.is_multiple_of(16);
        if !is_heap {
            return None;
        }
        let end = (start + size).min(mapping.end);
        let has_arena = arena & !(HEAP_BYTES - 1) == start;
        let (from, steps) = if has_arena { (arena + STATE_FROM, STATE_STEPS) } else { (start + 0x20, 0x40) };
        let candidates = (from..from.checked_add(steps)?).step_by(16).filter(|first| *first < end);
        candidates.map(|first| self.walk(first, end)).find(|chunks| {
            let whole = (chunks.end - chunks.start).min(PAGE);
            chunks.walked - chunks.start > whole * 9 / 10
        })
    }

    fn walk(&self, start: u64, end: u64) -> Chunks {
        let pages = ((end - start) / PAGE + 1) as usize;
        let mut chunks = Chunks { start, end, firsts: vec![NONE; pages], walked: end };
        let mut window = Window { memory: self.memory, end, start, bytes: Vec::new() };
        let (mut at, mut furthest) = (start, start);
        let (mut tries, mut torn) = (0, 0);
        while at + HEAD <= end {
            let size = window.size(at);
            self.steps.set(self.steps.get() + 1);
            if self.steps.get() <= MAX_STEPS && is_size(size, end - at) {
                chunks.add(at);
                at += size;
                continue;
            }
            // The program has split or merged chunks since the window was read: once more from an earlier chunk on.
            tries = if at > furthest { 0 } else { tries + 1 };
            (furthest, torn) = (furthest.max(at), torn + 1);
            let pages_back = PAGES_BACK.get(tries).filter(|_| torn <= MAX_TORN);
            let Some(earlier) = pages_back.and_then(|pages| chunks.before(at, *pages)) else {
                chunks.walked = at;
                break;
            };
            chunks.forget(earlier..at);
            window.bytes.clear();
            at = earlier;
        }
        chunks
    }

    fn chunk(&self, chunks: &Chunks, address: u64) -> Option<Block> {
        let mut at = chunks.before(address, 0)?;
        for _ in 0..PER_PAGE {
            if address < at + HEAD {
                return None;
            }
            let size = self.memory.word(at + 8)? & !MARKS;
            let next = at + Some(size).filter(|size| is_size(*size, chunks.end - at))?;
            // A block has the first word of the next chunk as its last.
            if address < next + 8 {
                return Some(self.describe(chunks, at, next));
            }
            at = next;
        }
        None
    }

    /// The block in use of an address, by the nearest head in front of it. For chunks that the program splits and merges all around it: from one to the
    /// next nothing leads there. What looks like a head is one if the next one says so, and something points at its block.
    pub(super) fn by_head(&self, mapping: &Mapping, address: u64, pointers: &Pointers) -> Option<Block> {
        let chunks = self.chunks(mapping, address)?;
        let from = address.saturating_sub(MAX_BACK).max(chunks.start) & !(HEAD - 1);
        let mut bytes = vec![0; address.checked_sub(from)? as usize];
        let got = self.memory.source().read(from, &mut bytes);
        let heads = bytes.get(..got)?.as_chunks::<16>().0.iter().enumerate().rev();
        heads.map(|(at, head)| (from + at as u64 * HEAD, u128::from_le_bytes(*head))).find_map(|(at, head)| {
            let size = (head >> 64) as u64 & !MARKS;
            let next = at.checked_add(size).filter(|next| size >= 2 * LEAST && address < next + 8)?;
            let mut after = [0; 8];
            let is_whole = is_size(size, chunks.end - at) && self.memory.source().read(next + 8, &mut after) == 8;
            let after = u64::from_le_bytes(after);
            let is_used = after & BEFORE_IS_USED != 0 && is_size(after & !MARKS, chunks.end - next);
            let is_known = || !pointers.all_to(at + HEAD..at + HEAD + OBJECT_AT + 8, 1).is_empty();
            (is_whole && is_used && is_known()).then(|| self.describe(&chunks, at, next))
        })
    }

    fn describe(&self, chunks: &Chunks, at: u64, next: u64) -> Block {
        const TOP: u64 = 32;
        let (start, size) = (at + HEAD, next - at - 8);
        let is_top = next + TOP >= chunks.end;
        Block { start, size, origin: Origin::Malloc, is_free: is_top || self.is_freed(start, size) }
    }

    /// The block that begins at an address, as its head says.
    pub(super) fn at_start(&self, address: u64) -> Option<Block> {
        let head = self.memory.words(address.checked_sub(HEAD)?, 2)?;
        let size = head[1] & !MARKS;
        if size < 2 * LEAST || !size.is_multiple_of(LEAST) || !address.is_multiple_of(LEAST) || size > MAX_HEAP_BYTES {
            return None;
        }
        let (origin, size) = if head[1] & IS_MAPPED == 0 {
            (Origin::Malloc, size - 8)
        } else {
            (Origin::Mapped, with_mapping(head[0], head[1])?.size)
        };
        let is_free = origin == Origin::Malloc && self.is_freed(address, size);
        Some(Block { start: address, size, origin, is_free })
    }

    /// Whether the next chunk says that this block is free, or a thread's cache has it.
    fn is_freed(&self, start: u64, size: u64) -> bool {
        let says_free = self.memory.word(start + size).is_some_and(|next| next & BEFORE_IS_USED == 0);
        says_free || self.key.is_some() && self.memory.word(start + 8) == self.key
    }

    /// The block with a mapping of its own around an address, among apparent heads of such blocks.
    pub(super) fn mapped(&self, mapping: &Mapping, address: u64, candidates: &[(u64, u64)]) -> Option<Block> {
        let behind = candidates.partition_point(|(start, _)| *start <= address);
        // What looks like one inside of a block's data does not reach to here, or the one before it does.
        let before = candidates[..behind].iter().rev().take(MAX_CANDIDATES);
        let mut fitting = before.take_while(|(start, _)| *start >= mapping.start);
        let (start, size) = fitting.find(|(start, size)| {
            let end = start.saturating_add(*size);
            address < end && end <= mapping.end && address >= start + HEAD
        })?;
        let in_front = self.memory.word(*start)? & !MARKS;
        let first = start.checked_add(in_front)?.checked_add(HEAD)?;
        let size = size.checked_sub(in_front)?.checked_sub(HEAD)?;
        Some(Block { start: first, size, origin: Origin::Mapped, is_free: false })
    }
}

/// A block with a mapping of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::holders) struct WithMapping {
    /// It has no chunk behind it, the first word of which would be its last.
    size: u64,
    /// With its head and what is in front of that.
    pub(in crate::holders) mapping_bytes: u64,
}

/// Such a block, by the two words of its head: what is in front of it, and its size, marked by the second bit. With its head it fills pages; from
/// glibc 2.43 on the size is without the head, and the first word has a mark for huge pages.
pub(in crate::holders) fn with_mapping(before: u64, size: u64) -> Option<WithMapping> {
    const MAX_BYTES: u64 = 1 << 40;
    let (before, marks, size) = (before & !MARKS, size & MARKS, size & !MARKS);
    if marks != IS_MAPPED || size < LEAST || before.max(size) > MAX_BYTES {
        return None;
    }
    let chunk = [size, size + HEAD].into_iter().find(|chunk| (before + chunk).is_multiple_of(PAGE))?;
    Some(WithMapping { size: chunk - HEAD, mapping_bytes: before + chunk })
}

/// The key of the first thread's cache, among the first chunks of the heap. It has as many counts as lists, and the chunks that these lead to agree
/// in their second word. Up to glibc 2.41 it is the first chunk; later ones make it when a block is freed first, and then other blocks of its size may be
/// in front of it: what these lead to has no random number there.
fn key(memory: &Memory<'_>) -> Option<u64> {
    const FIRST: usize = 64;
    let heap = memory.source().mappings().iter().find(|mapping| mapping.backing == Backing::Heap)?;
    let mut at = heap.start;
    for _ in 0..FIRST {
        let size = memory.word(at + 8)? & !MARKS;
        let key = cache_key(memory, at, size);
        if let Some((key, _)) =
            key.filter(|(key, count)| at == heap.start || *count > 1 && memory.mapping(*key).is_none())
        {
            return Some(key);
        }
        at = at.checked_add(size).filter(|next| size >= LEAST && *next < heap.end)?;
    }
    None
}

/// The key of a chunk that may be a cache, and how many lists agree in it: more than half.
fn cache_key(memory: &Memory<'_>, chunk: u64, size: u64) -> Option<(u64, usize)> {
    // 64 lists, and from 2.42 on 76; counts have two bytes.
    let lists: u64 = match size {
        0x290 => 64,
        0x300 => 76,
        _ => return None,
    };
    let words = memory.words(chunk + HEAD + lists * 2, lists as usize)?;
    let mut seen: HashMap<u64, usize> = HashMap::default();
    let entries = words.iter().filter(|entry| **entry != 0);
    for key in entries.filter_map(|entry| memory.word(entry.wrapping_add(8))) {
        *seen.entry(key).or_default() += 1;
    }
    let entries = seen.values().sum::<usize>();
    seen.into_iter().find(|(key, count)| *key != 0 && count * 2 > entries)
}

#[cfg(test)]
mod tests;
