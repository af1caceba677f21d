//! A table by page, as a tree of arrays: where jemalloc and tcmalloc note the description of each page.
//!
//! Its root is an array in the library's own data, of which no symbol says where it is. It is found by what it leads
//! to: of a true root, pages lead to descriptions that name these pages.

use std::ops::Range;

use crate::{
    hash::{HashMap, HashSet},
    holders::{
        memory::Memory,
        source::{ADDRESS_END, Mapping, PAGE},
    },
};

/// Largest data of a library that are read.
const MAX_DATA_BYTES: u64 = 64 << 20;
/// Most elements of roots that are tried for a library.
const MAX_INDICES: usize = 4096;
/// Most pairs of a place and an element that are tried, and most roots: those with the most elements.
const MAX_PAIRS: usize = 1 << 22;
const MAX_ROOTS: usize = 1 << 8;
/// A root has few elements: one for each GiB or more.
const MAX_ROOT_ELEMENTS: usize = 1024;
/// Pages that show a root to be one: at least, and as many as are looked at.
const FEW: u64 = 8;
const MANY: u64 = 256;
/// Of a hundred descriptions, those that have to fit: others change meanwhile.
const AGREE: u64 = 90;
/// Elements that are looked at for the first description.
const FOR_ONE: u64 = 4096;
/// Elements read at once, and for a trial.
const PIECE: u64 = 1 << 16;
/// Most elements read in one walk: 128 GiB of pages of 4 KiB.
const MAX_ELEMENTS: u64 = 1 << 25;

/// How the number of a page is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bits of an address inside of a page.
    pub(super) page_bits: u32,
    /// Bits for the root, for the level below it (0: there is none), and for a leaf.
    pub(super) bits: [u32; 3],
    /// Bytes of an element of a leaf; it begins with a pointer.
    pub(super) element_bytes: u64,
}

impl Shape {
    pub(super) const fn page(self) -> u64 {
        1 << self.page_bits
    }

    const fn root_bytes(self) -> u64 {
        8 << self.bits[0]
    }

    /// Bytes of memory that one element of the root is for.
    const fn reach_bits(self) -> u32 {
        self.page_bits + self.bits[1] + self.bits[2]
    }

    /// Where a page has its element in its leaf.
    const fn in_leaf(self, page: u64) -> u64 {
        page >> self.page_bits & ((1 << self.bits[2]) - 1)
    }

    /// The leaf of an address.
    fn leaf(self, memory: &Memory<'_>, root: u64, address: u64) -> Option<u64> {
        let is_node = |node: &u64| *node != 0 && node.is_multiple_of(8) && *node < ADDRESS_END;
        let first = address >> self.reach_bits();
        if first >> self.bits[0] != 0 {
            return None;
        }
        let below = memory.word(root + first * 8).filter(is_node)?;
        if self.bits[1] == 0 {
            return Some(below);
        }
        let second = address >> (self.page_bits + self.bits[2]) & ((1 << self.bits[1]) - 1);
        memory.word(below.checked_add(second * 8)?).filter(is_node)
    }
}

/// A root that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) root: u64,
    pub(super) shape: Shape,
}

impl Tree {
    /// The element of a page, if it has one.
    pub(super) fn element(&self, memory: &Memory<'_>, page: u64) -> Option<u64> {
        let leaf = self.shape.leaf(memory, self.root, page)?;
        let place = leaf.checked_add(self.shape.in_leaf(page) * self.shape.element_bytes)?;
        memory.word(place).filter(|element| *element != 0)
    }

    /// Calls `take` with each page of a mapping that has an element, and that element, until it returns false.
    pub(super) fn walk(&self, memory: &Memory<'_>, mut take: impl FnMut(u64, u64) -> bool) {
        let mut room = MAX_ELEMENTS;
        for mapping in memory.source().mappings().iter().filter(|mapping| is_heap(mapping)) {
            if !self.walk_mapping(memory, mapping, &mut room, &mut take) {
                return;
            }
        }
    }

    /// How many of the descriptions that it leads to fit, of the first `most` ones; 0 if too few of them do. `fits` says
    /// whether an element describes the pages that begin with a page; `None`: it is of no use for that.
    pub(super) fn fitting(
        &self,
        memory: &Memory<'_>,
        most: u64,
        mut fits: impl FnMut(u64, u64) -> Option<bool>,
    ) -> u64 {
        let (mut fitting, mut all, mut seen) = (0, 0, 0);
        self.walk(memory, |page, word| {
            let said = fits(page, word);
            fitting += u64::from(said == Some(true));
            all += u64::from(said.is_some());
            seen += 1;
            all < most && (all > 0 || seen < FOR_ONE)
        });
        if fitting * 100 >= all * AGREE { fitting } else { 0 }
    }

    /// False: no more.
    fn walk_mapping(
        &self,
        memory: &Memory<'_>,
        mapping: &Mapping,
        room: &mut u64,
        take: &mut impl FnMut(u64, u64) -> bool,
    ) -> bool {
        let Shape { page_bits, bits, element_bytes, .. } = self.shape;
        let of_leaf = 1 << (page_bits + bits[2]);
        let mut from = mapping.start & !(self.shape.page() - 1);
        while from < mapping.end {
            let end = ((from & !(of_leaf - 1)) + of_leaf).min(mapping.end);
            if let Some(leaf) = self.shape.leaf(memory, self.root, from) {
                let count = (end - from).div_ceil(self.shape.page());
                let Some(left) = room.checked_sub(count) else { return false };
                *room = left;
                let start = leaf.saturating_add(self.shape.in_leaf(from) * element_bytes);
                for (place, word) in present_words(memory, start..start.saturating_add(count * element_bytes)) {
                    let into = place - start;
                    let is_pointer = into.is_multiple_of(element_bytes) && word != 0;
                    if is_pointer && !take(from + ((into / element_bytes) << page_bits), word) {
                        return false;
                    }
                }
            }
            from = end;
        }
        true
    }
}

/// Memory that an allocator may have from the system.
fn is_heap(mapping: &Mapping) -> bool {
    mapping.is_anonymous() && mapping.readable && mapping.writable && mapping.private
}

/// The words of a range that are in memory; pages that were never touched are left alone.
pub(super) fn present_words(memory: &Memory<'_>, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let source = memory.source();
    let mut pieces: Vec<Range<u64>> = Vec::new();
    let mappings = source.mappings();
    let first = mappings.partition_point(|mapping| mapping.end <= range.start);
    for mapping in mappings[first..].iter().take_while(|mapping| mapping.start < range.end) {
        if !mapping.readable || range.start >= range.end {
            continue;
        }
        let part = Mapping {
            start: mapping.start.max(range.start & !(PAGE - 1)),
            end: mapping.end.min(range.end.saturating_add(PAGE - 1) & !(PAGE - 1)),
            ..mapping.clone()
        };
        for (start, end) in source.present(&part) {
            let (start, end) = (start.max(range.start), end.min(range.end));
            pieces.extend((start..end).step_by(PIECE as usize).map(|from| from..end.min(from + PIECE)));
        }
    }
    pieces.into_iter().flat_map(move |piece| {
        let mut bytes = vec![0; (piece.end - piece.start) as usize];
        let got = source.read(piece.start, &mut bytes);
        bytes.truncate(got);
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        (piece.start..).step_by(8).zip(words)
    })
}

/// The tree with its root in `data`; `fits` as for [`Tree::fitting`].
pub(super) fn find(
    memory: &Memory<'_>,
    data: &Range<u64>,
    shape: Shape,
    mut fits: impl FnMut(u64, u64) -> Option<bool>,
) -> Option<Tree> {
    if data.end.checked_sub(data.start)? > MAX_DATA_BYTES {
        return None;
    }
    let is_node = |word: u64| word.is_multiple_of(8) && memory.mapping(word).is_some_and(is_heap);
    let words = present_words(memory, data.clone());
    let nodes: Vec<u64> = words.filter(|(_, word)| *word != 0 && is_node(*word)).map(|(at, _)| at).collect();
    let mut best: Option<(u64, Tree)> = None;
    for root in roots(memory, data, shape, &nodes) {
        let tree = Tree { root, shape };
        let fitting = tree.fitting(memory, MANY, &mut fits);
        if fitting >= FEW && best.is_none_or(|(known, _)| fitting > known) {
            best = Some((fitting, tree));
        }
        if fitting >= MANY {
            break;
        }
    }
    best.map(|(_, tree)| tree)
}

/// Where a root would be for one of its elements to be at one of the places.
fn roots(memory: &Memory<'_>, data: &Range<u64>, shape: Shape, nodes: &[u64]) -> Vec<u64> {
    let mut indices: HashSet<u64> = HashSet::default();
    for mapping in memory.source().mappings().iter().filter(|mapping| is_heap(mapping)) {
        let first = mapping.start >> shape.reach_bits();
        let last = (mapping.end - 1) >> shape.reach_bits();
        indices.extend((first..=last).take(MAX_INDICES.saturating_sub(indices.len())));
    }
    let pairs = nodes.iter().flat_map(|place| indices.iter().map(move |index| (*place, *index)));
    let mut elements: HashMap<u64, usize> = HashMap::default();
    for (place, index) in pairs.take(MAX_PAIRS) {
        let Some(root) = place.checked_sub(index * 8) else { continue };
        let end = root.saturating_add(shape.root_bytes());
        if root >= data.start && end <= data.end {
            *elements.entry(root).or_default() += 1;
        }
    }
    let mut roots: Vec<(usize, u64)> = elements.into_iter().map(|(root, count)| (count, root)).collect();
    roots.retain(|(_, root)| {
        let end = root.saturating_add(shape.root_bytes());
        let behind = nodes.partition_point(|node| *node < end);
        behind - nodes.partition_point(|node| node < root) <= MAX_ROOT_ELEMENTS
    });
    roots.sort_unstable_by_key(|(count, root)| (std::cmp::Reverse(*count), *root));
    roots.into_iter().take(MAX_ROOTS).map(|(_, root)| root).collect()
}
