//! Access to a process: a living one, or an image of one in tests.

use std::fmt::Debug;

use super::symbols::Symbols;

/// Memory is read in pieces of this size, independent of the machine's pages.
pub(super) const PAGE: u64 = 4096;
/// Behind the last address of user space: 48 bits on both architectures.
pub(super) const ADDRESS_END: u64 = 1 << 48;

/// The memory behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// Memory of the process alone: heaps, stacks of threads, data that starts as zeros.
    Anonymous,
    /// The heap that grows at its end (`[heap]`).
    Heap,
    /// The stack of the first thread.
    Stack,
    /// A regular file.
    File,
    /// A device, the kernel's own pages, or any other memory that is not read.
    Other,
}

/// One mapping of the process.
#[expect(clippy::struct_excessive_bools, reason = "each is a right of its own")]
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) executable: bool,
    pub(super) private: bool,
    pub(super) file_offset: u64,
    pub(super) backing: Backing,
    /// Path, or a name in brackets, or nothing.
    pub(super) name: String,
}

impl Mapping {
    pub(super) const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    pub(super) const fn is_file(&self) -> bool {
        matches!(self.backing, Backing::File)
    }

    /// Memory that may contain heaps.
    pub(super) const fn is_anonymous(&self) -> bool {
        matches!(self.backing, Backing::Anonymous | Backing::Heap)
    }

    /// Memory that may hold pointers of the program.
    pub(super) const fn is_scanned(&self) -> bool {
        self.readable && self.writable && self.private && !matches!(self.backing, Backing::Other)
    }

    /// Whether the heap goes on there: a process that was forked has what it has added since as a mapping of its own.
    pub(super) fn goes_on_in(&self, next: &Self) -> bool {
        let are_heap = self.backing == Backing::Heap && next.backing == Backing::Heap;
        are_heap && self.end == next.start && (self.readable, self.writable) == (next.readable, next.writable)
    }

    /// Last part of the path.
    pub(super) fn file_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }
}

/// A thread of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) tid: u32,
    /// Where its stack ends now; absent while it runs.
    pub(super) stack_pointer: Option<u64>,
}

/// Reads the parts of a process that `holders` needs. All of it is hostile.
pub(super) trait Source: Sync + Debug {
    /// Sorted by address, apart from each other.
    fn mappings(&self) -> &[Mapping];

    /// Reads from `address` on, as much as is readable; returns the number of bytes.
    fn read(&self, address: u64, to: &mut [u8]) -> usize;

    /// Reads `len` bytes at each address, as close together in time as possible. Unreadable bytes are zeros.
    fn read_pieces(&self, addresses: &[u64], len: usize) -> Vec<u8> {
        let mut bytes = vec![0; addresses.len() * len];
        for (address, piece) in addresses.iter().zip(bytes.chunks_mut(len.max(1))) {
            let got = self.read(*address, piece);
            piece[got..].fill(0);
        }
        bytes
    }

    /// Runs of pages of a mapping that are in memory: start and end. Reading those that are swapped out would bring them in.
    fn present(&self, mapping: &Mapping) -> Vec<(u64, u64)>;

    /// Bytes that are swapped out.
    fn swapped_bytes(&self) -> u64 {
        0
    }

    /// Symbols of the file behind a mapping.
    fn symbols(&self, mapping: &Mapping) -> Option<Symbols>;

    /// Its threads.
    fn threads(&self) -> Vec<Thread>;

    /// Whether it is still the process that it was: neither ended nor another program by now.
    fn is_same(&self) -> bool;

    /// The same process with its mappings as they are now: heaps grow, and what lies behind their old end is not read.
    fn renewed(&self) -> Option<Box<dyn Source>> {
        None
    }
}
