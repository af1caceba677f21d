//! The pass over memory, by a few threads.

use std::{
    ops::{Range, RangeInclusive},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use super::{
    Figures, Pointer, Pointers,
    list::List,
    numbering::{LIST_PAGES, MAX_PAGES, Numbering, Run},
    unasked::{PageMarks, Unasked, UnaskedType},
};
use crate::holders::{
    deadline::Allowed,
    heap::with_mapping,
    source::{ADDRESS_END, Backing, Mapping, PAGE, Source},
};

/// Smallest valid address.
const LOWEST: u64 = 1 << 20;
/// Devices of Ascend have their memory at addresses with this in front.
const DEVICE_PREFIX: u64 = 1;
const DEVICE_SHIFT: u32 = 44;
/// Allocations of a device begin at multiples of this.
const DEVICE_ALIGN: u64 = 32;
/// Smaller mappings without memory are no reservations for a device.
const MIN_RESERVED_BYTES: u64 = 1 << 20;

/// Pointers after which a thread leaves out what is not asked for.
const TIDIED_AT_ONCE: usize = 1 << 20;
/// Most words kept with the address of the type, of each thread.
const MAX_OF_TYPE: usize = 1 << 17;

/// Limits of the scan.
#[derive(Clone, Copy, Debug)]
pub(in crate::holders) struct Limits<'a> {
    /// Pages of the process.
    pub(in crate::holders) pages: usize,
    /// Most pointers kept, of eight bytes each.
    pub(in crate::holders) pointers: usize,
    /// Pages with pointers of a list; a power of two.
    pub(in crate::holders) list_pages: usize,
    /// Threads that read and look: the pass is bound by memory.
    pub(in crate::holders) threads: usize,
    /// How long it may take, for each thread; then it ends with what it has read.
    pub(in crate::holders) time: Option<Allowed>,
    /// A type: places of words with its address are kept, which begin its objects.
    pub(in crate::holders) of_type: Option<u64>,
    /// Types of objects that no path leads through, sorted.
    pub(in crate::holders) unasked: &'a [UnaskedType],
}

impl Default for Limits<'_> {
    /// 256 GiB of the process, 2 GiB of our own for pointers.
    fn default() -> Self {
        let (pages, list_pages, pointers) = (MAX_PAGES, LIST_PAGES, 256 << 20);
        Self { pages, pointers, list_pages, threads: 2, time: None, of_type: None, unasked: &[] }
    }
}

/// The result of a thread.
#[derive(Debug, Default)]
struct Found {
    /// The last one is being filled.
    lists: Vec<List>,
    device: Vec<Pointer>,
    mapped_blocks: Vec<(u64, u64)>,
    of_type: Vec<u64>,
    scanned_bytes: u64,
    unread_bytes: u64,
}

/// Most objects of the type that are kept, by the items of the next one: a large process has millions of small ones, and those that grow have
/// many.
const fn room_of_type(items: u64) -> usize {
    const MANY: u64 = 32;
    if items < MANY { MAX_OF_TYPE / 2 } else { MAX_OF_TYPE }
}

/// What all threads look by.
struct Scan<'a> {
    source: &'a dyn Source,
    numbering: &'a Numbering,
    /// Sorted and apart from each other.
    device: Vec<Range<u64>>,
    room: usize,
    time: Option<Allowed>,
    is_late: AtomicBool,
    /// 0: none.
    of_type: u64,
    unasked: Unasked<'a>,
    /// From the first type that is looked at to the last one.
    types: RangeInclusive<u64>,
}

pub(super) fn run(source: &dyn Source, wanted: &[Range<u64>], limits: Limits<'_>) -> Pointers {
    let mut figures = Figures { swapped_bytes: source.swapped_bytes(), ..Figures::default() };
    let (numbering, runs) = number(source, limits, &mut figures);
    let scan = Scan {
        source,
        numbering: &numbering,
        device: device_ranges(source.mappings(), wanted),
        room: limits.pointers / limits.threads.max(1),
        time: limits.time,
        is_late: AtomicBool::new(false),
        of_type: limits.of_type.unwrap_or(0),
        unasked: Unasked::new(limits.unasked, &numbering),
        types: types(&limits),
    };
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..limits.threads.max(1) {
            scope.spawn(|| {
                let found = scan.work(&runs, &next);
                all.lock().unwrap_or_else(PoisonError::into_inner).push(found);
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    // By now all that is not asked for is known.
    std::thread::scope(|scope| {
        for found in &mut all {
            scope.spawn(|| found.lists.iter_mut().for_each(|list| list.leave_out(&scan.unasked)));
        }
    });
    figures.is_late = scan.is_late.into_inner();
    figures.is_full = !figures.is_late && next.load(Ordering::Relaxed) < runs.len();
    let mut pointers = Pointers { numbering, figures, ..Pointers::none() };
    for found in all {
        pointers.figures.scanned_bytes += found.scanned_bytes;
        pointers.figures.unread_bytes += found.unread_bytes;
        pointers.lists.extend(found.lists);
        pointers.device.extend(found.device);
        pointers.mapped_blocks.extend(found.mapped_blocks);
        pointers.of_type.extend(found.of_type);
    }
    pointers.device.sort_unstable();
    pointers.mapped_blocks.sort_unstable();
    pointers
}

fn types(limits: &Limits<'_>) -> RangeInclusive<u64> {
    let all = || limits.unasked.iter().map(|(address, _)| *address).chain(limits.of_type);
    all().min().unwrap_or(1)..=all().max().unwrap_or(0)
}

fn number(source: &dyn Source, limits: Limits<'_>, figures: &mut Figures) -> (Numbering, Vec<Run>) {
    let mut numbering = Numbering::new(limits.pages);
    let mut runs = Vec::new();
    // At a limit large mappings are left out: those are host data sooner than objects.
    let mut mappings: Vec<&Mapping> = source.mappings().iter().filter(|mapping| mapping.is_scanned()).collect();
    mappings.sort_by_key(|mapping| mapping.end - mapping.start);
    for mapping in mappings {
        for (start, end) in source.present(mapping) {
            figures.left_out_bytes += numbering.add(mapping, start, end, &mut runs) * PAGE;
        }
    }
    numbering.finish(limits.list_pages);
    (numbering, runs)
}

/// Ranges of possible device addresses: requested ones, mappings of drivers, and reservations.
fn device_ranges(mappings: &[Mapping], wanted: &[Range<u64>]) -> Vec<Range<u64>> {
    let reserved = mappings.iter().filter(|mapping| {
        let is_large = mapping.end - mapping.start >= MIN_RESERVED_BYTES;
        mapping.name.starts_with("/dev/") || (mapping.backing == Backing::Anonymous && is_large)
    });
    let prefix = DEVICE_PREFIX << DEVICE_SHIFT..(DEVICE_PREFIX + 1) << DEVICE_SHIFT;
    let mut all: Vec<Range<u64>> = reserved.map(|mapping| mapping.start..mapping.end).collect();
    all.extend(wanted.iter().cloned());
    all.push(prefix);
    all.sort_unstable_by_key(|range| range.start);
    let mut apart: Vec<Range<u64>> = Vec::new();
    for range in all {
        match apart.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    apart
}

impl Scan<'_> {
    fn work(&self, runs: &[Run], next: &AtomicUsize) -> Found {
        let mut found = Found { lists: vec![List::new(self.numbering)], ..Found::default() };
        let mut buffer = Vec::new();
        let mut tidied = 0;
        let deadline = self.time.map(Allowed::begin);
        // The last run may be beyond the bound: 1 MiB.
        while self.has_room(&mut found, &mut tidied)
            && let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed))
        {
            if deadline.is_some_and(|deadline| deadline.is_over()) {
                self.is_late.store(true, Ordering::Relaxed);
                break;
            }
            buffer.resize(run.pages * PAGE as usize, 0);
            let got = self.source.read(run.start, &mut buffer) / PAGE as usize;
            found.unread_bytes += (run.pages - got) as u64 * PAGE;
            found.scanned_bytes += got as u64 * PAGE;
            for (page, bytes) in buffer.as_chunks::<{ PAGE as usize }>().0.iter().take(got).enumerate() {
                self.look(run.start + page as u64 * PAGE, bytes, &mut found);
            }
        }
        found
    }

    /// Whether a thread may go on. Now and then what is not asked for is left out: pages that were read later have shown more. `tidied`: how much was left
    /// the last time.
    fn has_room(&self, found: &mut Found, tidied: &mut usize) -> bool {
        let kept = |found: &Found| found.lists.iter().map(List::len).sum::<usize>();
        let used = |found: &Found| kept(found) + found.device.len() * 2;
        if kept(found) > *tidied + *tidied / 2 + TIDIED_AT_ONCE || used(found) > self.room {
            found.lists.iter_mut().for_each(|list| list.leave_out(&self.unasked));
            *tidied = kept(found);
        }
        used(found) <= self.room
    }

    fn look(&self, address: u64, bytes: &[u8], found: &mut Found) {
        let (words, _) = bytes.as_chunks();
        found.mapped_blocks.extend(mapped_block(address, words));
        let filled = found.lists.pop().unwrap_or_else(|| List::new(self.numbering));
        let (mut list, from) = if let Some(from) = self.numbering.next_place(&filled) {
            (filled, from)
        } else {
            found.lists.push(filled);
            (List::new(self.numbering), 0)
        };
        let mut has_any = false;
        let mut marks = PageMarks::default();
        for (at, word) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            if word.wrapping_sub(LOWEST) >= ADDRESS_END - LOWEST {
                continue;
            }
            let Some(target) = untagged(word) else { continue };
            let page = self.numbering.number(target);
            if page != 0 {
                let packed = self.numbering.pack(page, target, from | at as u64);
                if !self.unasked.is_marked(packed) {
                    has_any = true;
                    list.push(self.numbering.bucket(packed), packed);
                }
            } else if self.types.contains(&word) && self.note_type(address, words, at, &mut marks, found) {
                // An object's type: most of the words that are left.
            } else if word.is_multiple_of(DEVICE_ALIGN) && self.is_device(word) {
                found.device.push(Pointer { target: word, place: address + at as u64 * 8 });
            }
        }
        self.unasked.add(address, &marks);
        if has_any {
            list.add_page(address);
        }
        found.lists.push(list);
    }

    /// Whether the word at `at` is the address of a type.
    #[inline]
    fn note_type(&self, page: u64, words: &[[u8; 8]], at: usize, marks: &mut PageMarks, found: &mut Found) -> bool {
        let word_at = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        let (place, word) = (page + at as u64 * 8, word_at(at));
        let is_unasked = self.unasked.note(place, word, at.checked_sub(1).map_or(0, word_at), marks);
        let is_asked = word == self.of_type;
        if is_asked && found.of_type.len() < room_of_type(word_at(at + 1)) {
            found.of_type.push(place);
        }
        is_unasked || is_asked
    }

    fn is_device(&self, word: u64) -> bool {
        let behind = self.device.partition_point(|range| range.end <= word);
        self.device.get(behind).is_some_and(|range| range.start <= word)
    }
}

/// The pointer in a word: references on `CPython`'s stack are marked by the lowest bit (3.14), and an object's values
/// by one less than their address (3.12).
#[inline]
pub(in crate::holders) const fn untagged(word: u64) -> Option<u64> {
    match word & 7 {
        0 => Some(word),
        1 => Some(word - 1),
        7 => Some(word + 1),
        _ => None,
    }
}

/// A block of glibc's with a mapping of its own, and the bytes of that.
fn mapped_block(address: u64, words: &[[u8; 8]]) -> Option<(u64, u64)> {
    let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
    let before = word(0)?;
    // It begins at a page, so what is in front of it is less.
    let block = with_mapping(before, word(1)?).filter(|_| before < PAGE)?;
    Some((address, block.mapping_bytes))
}
