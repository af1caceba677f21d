//! Blocks of the pool and their links.

/// Place of a block in the table.
pub(in crate::whatif) type Id = u32;

/// No block.
pub(super) const NONE: Id = Id::MAX;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In its rack.
    Free,
    /// Addresses without memory, of an expandable segment.
    Unmapped,
    /// With the program.
    Allocated,
    /// The program gave it back; streams still use it.
    Pending,
}

/// A part of a segment. Neighbours are those of the same segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) addr: u64,
    pub(super) size: u64,
    /// Requested bytes; 0 for a free block.
    pub(super) asked: u64,
    /// Searches of its class when it was put into its rack.
    pub(super) tick: u64,
    pub(super) prev: Id,
    pub(super) next: Id,
    /// Its expandable segment, or [`NONE`].
    pub(super) reservation: u32,
    /// Rack that it belongs to.
    pub(super) rack: u16,
    pub(super) state: State,
}

impl Block {
    /// It is all of its segment.
    pub(super) const fn is_whole(&self) -> bool {
        self.prev == NONE && self.next == NONE
    }

    pub(super) const fn is_plain(&self) -> bool {
        self.reservation == NONE
    }

    /// In an expandable segment, it can become part of a block: it is free, or without memory.
    pub(super) const fn is_usable(&self) -> bool {
        matches!(self.state, State::Free | State::Unmapped)
    }
}

/// All blocks. Places are used again.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    unused: Vec<Id>,
}

impl Blocks {
    pub(super) fn get(&self, id: Id) -> &Block {
        &self.blocks[id as usize]
    }

    pub(super) fn at(&mut self, id: Id) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    pub(super) fn add(&mut self, block: Block) -> Id {
        if let Some(id) = self.unused.pop() {
            self.blocks[id as usize] = block;
            return id;
        }
        self.blocks.push(block);
        (self.blocks.len() - 1) as Id
    }

    pub(super) fn remove(&mut self, id: Id) {
        self.unused.push(id);
    }

    /// Puts a new block between `id` and the block before it.
    pub(super) fn add_before(&mut self, id: Id, block: Block) -> Id {
        let prev = self.get(id).prev;
        let new = self.add(Block { prev, next: id, ..block });
        if prev != NONE {
            self.at(prev).next = new;
        }
        self.at(id).prev = new;
        new
    }

    /// Puts a new block between `id` and the block behind it.
    pub(super) fn add_behind(&mut self, id: Id, block: Block) -> Id {
        let next = self.get(id).next;
        let new = self.add(Block { prev: id, next, ..block });
        if next != NONE {
            self.at(next).prev = new;
        }
        self.at(id).next = new;
        new
    }

    /// Makes the neighbour `from` a part of `into`.
    pub(super) fn join(&mut self, into: Id, from: Id) {
        let gone = *self.get(from);
        let block = self.at(into);
        block.size += gone.size;
        if block.prev == from {
            (block.addr, block.prev) = (gone.addr, gone.prev);
            if gone.prev != NONE {
                self.at(gone.prev).next = into;
            }
        } else {
            block.next = gone.next;
            if gone.next != NONE {
                self.at(gone.next).prev = into;
            }
        }
        self.remove(from);
    }

    /// All blocks in use; for tests.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = (Id, &Block)> {
        let unused: std::collections::BTreeSet<Id> = self.unused.iter().copied().collect();
        (0..).zip(&self.blocks).filter(move |(id, _)| !unused.contains(id))
    }
}
