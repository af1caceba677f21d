//! The block of an address in the host's heaps: those of jemalloc or tcmalloc first, where such a library is preloaded,
//! since these know which pages are theirs; then `CPython`'s pools, since their memory lies among the rest, then glibc's
//! heaps, then glibc's blocks with mappings of their own.

mod foreign;
mod glibc;
mod paged;
mod pymalloc;

pub(super) use self::glibc::with_mapping;
use self::{foreign::Allocator, glibc::Glibc, paged::Paged, pymalloc::Pymalloc};
use super::{memory::Memory, pointers::Pointers, source::Backing};
use crate::hash::HashSet;
#[cfg(any(test, feature = "fuzzing"))]
use crate::holders::{image::Image, pointers::Limits};

/// Processes with other allocators, by hand.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn samples() -> [Image; 2] {
    [paged::sample::jemalloc(), paged::sample::tcmalloc()]
}

/// Asks for the blocks of such a process, all over its heap.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn look_at_all(image: &Image) {
    let memory = Memory::new(image);
    let pointers = Pointers::of(image, &[], Limits::default());
    let heap = Heap::new(&memory, &pointers, None);
    let addresses = || paged::sample::addresses();
    for address in addresses() {
        let block = heap.block(address);
        assert!(block.is_none_or(|block| block.start <= address && address - block.start < block.size));
    }
    heap.forget();
    let free = heap.free_now(&addresses().collect::<Vec<_>>());
    assert!(free.len() <= addresses().count());
}

/// Which allocator a block is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// `CPython`'s, for up to 512 bytes.
    Pymalloc,
    /// glibc's heaps, or those of an allocator in its place.
    Malloc,
    /// glibc's, with a mapping of its own.
    Mapped,
}

/// A block of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) origin: Origin,
    pub(super) is_free: bool,
}

/// Where an address is, as one allocator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In none of its heaps.
    Elsewhere,
    /// In a heap, and in no block of it.
    Between,
    In(Block),
}

/// The heaps of a process.
#[derive(Debug)]
pub(super) struct Heap<'a> {
    memory: &'a Memory<'a>,
    pointers: &'a Pointers,
    pymalloc: Option<Pymalloc<'a>>,
    /// In its place, or beside it.
    paged: Option<Paged<'a>>,
    /// Absent where it has no heap.
    glibc: Option<Glibc<'a>>,
    /// Blocks are known by their start alone.
    starts_alone: bool,
}

impl<'a> Heap<'a> {
    /// `pool_bytes`: size of `CPython`'s pools, if it has any.
    pub(super) fn new(memory: &'a Memory<'a>, pointers: &'a Pointers, pool_bytes: Option<u64>) -> Self {
        let pymalloc = pool_bytes.map(|bytes| Pymalloc::new(memory, bytes));
        let library = foreign::paged(memory.source());
        let paged = library.and_then(|(library, make)| Paged::find(memory, pointers, library, make));
        // A heap of another allocator begins with no chunk.
        let glibc = Some(Glibc::new(memory)).filter(|glibc| paged.is_none() || glibc.is_known());
        Self { memory, pointers, pymalloc, paged, glibc, starts_alone: false }
    }

    /// Without a pass over the process's memory, and without a walk over its heap: `None` where an unknown allocator has it.
    /// Blocks are taken at their word, so what is found by them has to be proved.
    pub(super) fn of_starts(memory: &'a Memory<'a>, none: &'a Pointers) -> Option<Self> {
        let source = memory.source();
        let (paged, glibc) = match foreign::paged(source) {
            Some((library, make)) => (Some(Paged::of_starts(memory, library, make)?), None),
            None if foreign::allocator(source) == Allocator::Glibc => (None, Some(Glibc::new(memory))),
            None => return None,
        };
        Some(Self { memory, pointers: none, pymalloc: None, paged, glibc, starts_alone: true })
    }

    /// The block in use that begins at an address.
    pub(super) fn at_start(&self, address: u64) -> Option<Block> {
        let block = if self.starts_alone {
            self.memory.mapping(address).filter(|mapping| mapping.is_anonymous() && mapping.writable)?;
            match &self.paged {
                Some(paged) => paged.at_start(address),
                None => self.glibc.as_ref()?.at_start(address),
            }
        } else {
            self.block(address)
        };
        block.filter(|block| block.start == address && !block.is_free)
    }

    /// The allocator of the process, if its blocks are not understood.
    pub(super) fn unknown(&self) -> Option<String> {
        match foreign::allocator(self.memory.source()) {
            Allocator::Other(name) if self.paged.is_none() => Some(name),
            _ => None,
        }
    }

    /// The block of an address, free or not.
    pub(super) fn block(&self, address: u64) -> Option<Block> {
        if self.starts_alone {
            return self.at_start(address);
        }
        let mapping = self.memory.mapping(address)?;
        if !mapping.is_anonymous() || !mapping.writable {
            return None;
        }
        if let Some(paged) = &self.paged {
            match paged.look(address) {
                Place::In(block) => return Some(block),
                Place::Between => return None,
                Place::Elsewhere => {}
            }
        }
        // Objects of the interpreter come from mappings of their own, never from the heap that grows.
        if mapping.backing != Backing::Heap
            && let Some(pymalloc) = &self.pymalloc
        {
            match pymalloc.look(mapping, address) {
                Place::In(block) => return Some(block),
                Place::Between => return None,
                Place::Elsewhere => {}
            }
        }
        let glibc = self.glibc.as_ref()?;
        match glibc.look(mapping, address) {
            Place::In(block) => Some(block),
            Place::Between => glibc.by_head(mapping, address, self.pointers),
            Place::Elsewhere => glibc.mapped(mapping, address, &self.pointers.mapped_blocks),
        }
    }

    /// Whether a block's second word marks it as in a thread's cache.
    pub(super) fn is_cached(&self, second_word: u64) -> bool {
        self.glibc.as_ref().is_some_and(|glibc| glibc.is_key(second_word))
    }

    /// Whether a place may be behind the object in a block: sizes of blocks are steps of two words, glibc's are one word
    /// more, as they are asked for.
    pub(super) fn is_room(&self, block: &Block, place: u64) -> bool {
        const NODE_BYTES: u64 = 64;
        self.paged.is_some() && block.size <= NODE_BYTES && place + 8 == block.start + block.size
    }

    /// Those of these blocks, all of one size, that are free at this moment without a mark in themselves.
    pub(super) fn free_now(&self, blocks: &[u64]) -> HashSet<u64> {
        let paged = self.paged.as_ref().filter(|_| !self.starts_alone && !blocks.is_empty());
        paged.map(|paged| paged.free_now(blocks)).unwrap_or_default()
    }

    /// Drops cached state, so that it is read again.
    pub(super) fn forget(&self) {
        if let Some(pymalloc) = &self.pymalloc {
            pymalloc.forget();
        }
        if let Some(paged) = &self.paged {
            paged.forget();
        }
    }
}
