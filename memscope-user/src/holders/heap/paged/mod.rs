//! Allocators that give each page a description: jemalloc and tcmalloc. A block has no head there: its bounds are in
//! the description of its pages.
//!
//! Nothing is taken on trust: the table of pages is found by the descriptions that it leads to, and used only if these
//! count as many free pieces as their own marks show. All free pieces are known, those in caches of threads, too: they
//! keep their old contents.

mod caches;
mod jemalloc;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod sample;
mod tcmalloc;
#[cfg(test)]
mod tests;
mod tree;

use std::{cell::RefCell, fmt::Debug, ops::Range, rc::Rc};

use self::{
    jemalloc::{Descriptions, Jemalloc},
    tcmalloc::{Tcmalloc, Threads},
    tree::Tree,
};
use super::{Block, Origin, Place, foreign::Make};
use crate::{
    hash::{HashMap, HashSet},
    holders::{
        memory::Memory,
        pointers::Pointers,
        source::{Mapping, Source},
    },
};

/// Most extents kept.
const MAX_EXTENTS: usize = 4 << 20;
/// Most extents with free pieces that are kept.
const MAX_KNOWN: usize = 1 << 18;
/// Extents that are asked for their counts, and of a hundred, those that have to agree: others change meanwhile.
const SAMPLE: usize = 256;
/// Extents by which a layout is chosen.
const MANY: u64 = 1 << 16;
const AGREE: usize = 90;
/// Most pages with pieces of one description, with room: jemalloc has 7, tcmalloc 32.
const MAX_PAGES_OF_PIECES: u64 = 64;

/// Consecutive pages with one description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    start: u64,
    end: u64,
    /// Where its block begins, or its first piece.
    first: u64,
    /// Bytes of its pieces; 0: it is one block.
    piece: u64,
    /// Bytes from `first` on that may be in use.
    used: u64,
    description: u64,
    is_free: bool,
}

impl Extent {
    fn pieces(&self) -> u64 {
        self.used.checked_div(self.piece).unwrap_or(1)
    }

    const fn block_bytes(&self) -> u64 {
        if self.piece == 0 { self.used } else { self.piece }
    }

    /// Where the block of an address begins.
    fn start_of(&self, address: u64) -> Option<u64> {
        if address < self.first || address >= self.first + self.pieces() * self.block_bytes() {
            return None;
        }
        Some(address - (address - self.first) % self.block_bytes())
    }
}

/// Of extents by address, the one of an address.
fn extent_of(extents: &[Extent], address: u64) -> Option<&Extent> {
    let behind = extents.partition_point(|extent| extent.start <= address);
    extents.get(behind.checked_sub(1)?).filter(|extent| address < extent.end)
}

/// Free pieces of an extent.
#[derive(Debug)]
struct Pieces {
    free: HashSet<u64>,
    /// Its description counts as many.
    are_counted: bool,
}

/// What differs between the allocators.
trait Layout: Debug {
    /// The extent that begins with a page, by its element of the tree.
    fn extent(&self, memory: &Memory<'_>, page: u64, element: u64) -> Option<Extent>;

    /// Its free pieces, but for those in caches.
    fn free_pieces(&self, memory: &Memory<'_>, extent: &Extent) -> Option<Pieces>;

    /// Finds the caches of threads. False: they are not understood.
    fn learn(&mut self, memory: &Memory<'_>, pointers: &Pointers, extents: &[Extent]) -> bool;

    /// The pieces in caches, or at least those of one size.
    fn cached(&self, memory: &Memory<'_>, extents: &[Extent], piece: Option<u64>) -> Option<HashSet<u64>>;
}

/// All extents at one moment.
#[derive(Debug)]
struct Now {
    /// By address, apart from each other.
    extents: Vec<Extent>,
    /// Pieces in caches; absent: these are changing, so that any piece may be in one.
    cached: Option<HashSet<u64>>,
    free: RefCell<HashMap<u64, Rc<HashSet<u64>>>>,
}

/// An allocator of this kind.
#[derive(Debug)]
pub(super) struct Paged<'a> {
    memory: &'a Memory<'a>,
    tree: Tree,
    layout: Box<dyn Layout>,
    now: RefCell<Option<Rc<Now>>>,
}

impl<'a> Paged<'a> {
    /// Finds the structures of an allocator, and proves them. `library`: its first mapping.
    pub(super) fn find(memory: &'a Memory<'a>, pointers: &Pointers, library: &Mapping, make: Make) -> Option<Self> {
        let mut paged = Self::of_starts(memory, library, make)?;
        let extents = paged.extents();
        let is_known = paged.layout.learn(memory, pointers, &extents) && paged.is_proved(&extents);
        is_known.then_some(paged)
    }

    /// Without the caches of threads, and not proved: for the starts of blocks alone.
    pub(super) fn of_starts(memory: &'a Memory<'a>, library: &Mapping, make: Make) -> Option<Self> {
        let source = memory.source();
        let symbols = source.symbols(library)?;
        let bias = library.start.wrapping_sub(symbols.first_vaddr);
        let data = data_of(source, library, symbols.end_vaddr.wrapping_add(bias))?;
        let (tree, layout) = match make {
            Make::Jemalloc => jemalloc_of(memory, &data)?,
            Make::Tcmalloc => {
                let variable = |name: &str| symbols.vaddr_of(name).map(|vaddr| vaddr.wrapping_add(bias));
                let first = variable("_ZN8tcmalloc11ThreadCache13thread_heaps_E")?;
                let count = variable("_ZN8tcmalloc11ThreadCache18thread_heap_count_E")?;
                tcmalloc_of(memory, &data, Threads { first, count })?
            }
        };
        Some(Self { memory, tree, layout, now: RefCell::default() })
    }

    /// The block that begins at an address, by the description of its pages: a free piece counts as in use.
    pub(super) fn at_start(&self, address: u64) -> Option<Block> {
        let bytes = self.tree.shape.page();
        let first = address & !(bytes - 1);
        let mut pages = (0..MAX_PAGES_OF_PIECES).map_while(|before| first.checked_sub(before * bytes));
        let described = |page| self.layout.extent(self.memory, page, self.tree.element(self.memory, page)?);
        let extent = pages.find_map(described).filter(|extent| address < extent.end)?;
        let start = extent.start_of(address).filter(|start| *start == address)?;
        Some(Block { start, size: extent.block_bytes(), origin: Origin::Malloc, is_free: extent.is_free })
    }

    /// Whether descriptions count as many free pieces as are marked.
    fn is_proved(&self, extents: &[Extent]) -> bool {
        let with_pieces: Vec<&Extent> = extents.iter().filter(|extent| extent.piece != 0).collect();
        let step = (with_pieces.len() / SAMPLE).max(1);
        let sample: Vec<_> = with_pieces.iter().step_by(step).collect();
        let agreeing = sample
            .iter()
            .filter(|extent| self.layout.free_pieces(self.memory, extent).is_some_and(|pieces| pieces.are_counted));
        !sample.is_empty() && agreeing.count() * 100 >= sample.len() * AGREE
    }

    fn extents(&self) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        self.tree.walk(self.memory, |page, element| {
            // All pages of pieces name their extent.
            if extents.last().is_none_or(|last| page >= last.end || page < last.start) {
                extents.extend(self.layout.extent(self.memory, page, element));
            }
            extents.len() < MAX_EXTENTS
        });
        extents
    }

    fn now(&self) -> Rc<Now> {
        if let Some(now) = &*self.now.borrow() {
            return Rc::clone(now);
        }
        let extents = self.extents();
        let cached = self.layout.cached(self.memory, &extents, None);
        let now = Rc::new(Now { extents, cached, free: RefCell::default() });
        *self.now.borrow_mut() = Some(Rc::clone(&now));
        now
    }

    /// Drops cached state, so that it is read again.
    pub(super) fn forget(&self) {
        *self.now.borrow_mut() = None;
    }

    /// The block of an address.
    pub(super) fn look(&self, address: u64) -> Place {
        let now = self.now();
        let Some(extent) = extent_of(&now.extents, address) else { return Place::Elsewhere };
        let Some(start) = extent.start_of(address) else { return Place::Between };
        let is_cached = now.cached.as_ref().is_none_or(|cached| cached.contains(&start));
        let is_free = extent.is_free || is_cached || self.is_free_piece(&now, extent, start);
        Place::In(Block { start, size: extent.block_bytes(), origin: Origin::Malloc, is_free })
    }

    fn is_free_piece(&self, now: &Now, extent: &Extent, start: u64) -> bool {
        if extent.piece == 0 {
            return false;
        }
        if let Some(free) = now.free.borrow().get(&extent.start) {
            return free.contains(&start);
        }
        // A description that cannot be read is none.
        let Some(pieces) = self.layout.free_pieces(self.memory, extent) else { return true };
        let is_free = pieces.free.contains(&start);
        let mut free = now.free.borrow_mut();
        if free.len() >= MAX_KNOWN {
            free.clear();
        }
        free.insert(extent.start, Rc::new(pieces.free));
        is_free
    }

    /// Which of these blocks, all of one size, are free at this moment.
    pub(super) fn free_now(&self, blocks: &[u64]) -> HashSet<u64> {
        let now = self.now();
        let fresh = Memory::new(self.memory.source());
        let of = |block: u64| extent_of(&now.extents, block);
        let piece = blocks.iter().find_map(|block| of(*block)).map(|extent| extent.piece);
        let cached = self.layout.cached(&fresh, &now.extents, piece.filter(|piece| *piece != 0)).unwrap_or_default();
        let is_free = |block: &u64| {
            let Some(extent) = of(*block) else { return false };
            let pieces = || self.layout.free_pieces(&fresh, extent);
            cached.contains(block) || (extent.piece != 0 && pieces().is_none_or(|pieces| pieces.free.contains(block)))
        };
        blocks.iter().copied().filter(is_free).collect()
    }
}

/// The data of a library: from its first mapping that can be written on, up to where its description says.
fn data_of(source: &dyn Source, library: &Mapping, end: u64) -> Option<Range<u64>> {
    let own = source.mappings().iter().filter(|mapping| mapping.start >= library.start && mapping.start < end);
    let start = own.filter(|mapping| mapping.writable && mapping.private).map(|mapping| mapping.start).min()?;
    Some(start..end)
}

/// The layout that fits best: of slabs without free pieces, some fit another layout, too.
fn jemalloc_of(memory: &Memory<'_>, data: &Range<u64>) -> Option<(Tree, Box<dyn Layout>)> {
    let (tree, layouts) = jemalloc::shapes().find_map(|shape| {
        let layouts = Descriptions::all(shape.page_bits);
        let fits = |page, element| {
            let said = layouts.map(|layout| layout.fits(memory, page, element));
            // A layout that is not the library's takes extents for active that are none: one layout to which it is none is enough.
            let is_one = !said.contains(&None);
            said.contains(&Some(true)).then_some(true).or_else(|| is_one.then_some(false))
        };
        Some((tree::find(memory, data, shape, fits)?, layouts))
    })?;
    let fitting = layouts.map(|layout| tree.fitting(memory, MANY, |page, element| layout.fits(memory, page, element)));
    let (fitting, layout) = fitting.into_iter().zip(layouts).max_by_key(|(fitting, _)| *fitting)?;
    (fitting > 0).then(|| (tree, Box::new(Jemalloc::new(layout)) as Box<dyn Layout>))
}

fn tcmalloc_of(memory: &Memory<'_>, data: &Range<u64>, threads: Threads) -> Option<(Tree, Box<dyn Layout>)> {
    Tcmalloc::all(memory, data, threads).into_iter().find_map(|(tcmalloc, shape)| {
        let tree = tree::find(memory, data, shape, |page, word| tcmalloc.fits(memory, page, word))?;
        Some((tree, Box::new(tcmalloc) as Box<dyn Layout>))
    })
}
