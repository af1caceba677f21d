//! The block of an address in the host's heaps: `CPython`'s pools first, since their memory lies among the rest, then
//! glibc's heaps, then glibc's blocks with mappings of their own.

mod foreign;
mod glibc;
mod pymalloc;

pub(super) use self::foreign::{Allocator, allocator};
use self::{glibc::Glibc, pymalloc::Pymalloc};
use super::{memory::Memory, pointers::Pointers, source::Backing};

/// Which allocator a block is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// `CPython`'s, for up to 512 bytes.
    Pymalloc,
    /// glibc's heaps.
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
    glibc: Glibc<'a>,
}

impl<'a> Heap<'a> {
    /// `pool_bytes`: size of `CPython`'s pools, if it has any.
    pub(super) fn new(memory: &'a Memory<'a>, pointers: &'a Pointers, pool_bytes: Option<u64>) -> Self {
        let pymalloc = pool_bytes.map(|bytes| Pymalloc::new(memory, bytes));
        Self { memory, pointers, pymalloc, glibc: Glibc::new(memory) }
    }

    /// The block of an address, free or not.
    pub(super) fn block(&self, address: u64) -> Option<Block> {
        let mapping = self.memory.mapping(address)?;
        if !mapping.is_anonymous() || !mapping.writable {
            return None;
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
        match self.glibc.look(mapping, address) {
            Place::In(block) => Some(block),
            Place::Between => None,
            Place::Elsewhere => self.glibc.mapped(mapping, address, &self.pointers.mapped_blocks),
        }
    }

    /// Whether a block's second word marks it as in a thread's cache.
    pub(super) fn is_cached(&self, second_word: u64) -> bool {
        self.glibc.is_key(second_word)
    }

    /// Drops cached state, so that it is read again.
    pub(super) fn forget(&self) {
        if let Some(pymalloc) = &self.pymalloc {
            pymalloc.forget();
        }
    }
}
