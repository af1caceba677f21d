//! `CPython`'s pools: pieces of one size behind a header, at a multiple of the pool's size.
//!
//! ```text
//! u32 count, pointer free, pointer next, pointer previous, u32 arena, u32 class, u32 next offset, u32 last offset
//! ```

use std::{cell::RefCell, rc::Rc};

use super::{Block, Origin, Place};
use crate::{
    hash::{HashMap, HashSet},
    holders::{memory::Memory, source::Mapping},
};

const HEADER: u64 = 48;
const STEP: u64 = 16;
const CLASSES: u64 = 32;
/// Most pools kept.
const MAX_POOLS: usize = 1 << 18;

#[derive(Debug)]
struct Pool {
    piece: u64,
    /// Offset of the first piece that was never handed out.
    next_offset: u64,
    free: HashSet<u64>,
}

#[derive(Debug)]
pub(super) struct Pymalloc<'a> {
    memory: &'a Memory<'a>,
    pool_bytes: u64,
    pools: RefCell<HashMap<u64, Option<Rc<Pool>>>>,
}

impl<'a> Pymalloc<'a> {
    pub(super) fn new(memory: &'a Memory<'a>, pool_bytes: u64) -> Self {
        Self { memory, pool_bytes, pools: RefCell::default() }
    }

    pub(super) fn forget(&self) {
        self.pools.borrow_mut().clear();
    }

    /// The piece of an address.
    pub(super) fn look(&self, mapping: &Mapping, address: u64) -> Place {
        let start = address & !(self.pool_bytes - 1);
        if start < mapping.start {
            return Place::Elsewhere;
        }
        let Some(pool) = self.pool(start) else { return Place::Elsewhere };
        let Some(into) = (address - start).checked_sub(HEADER) else { return Place::Between };
        let offset = HEADER + into / pool.piece * pool.piece;
        let is_free = offset >= pool.next_offset || pool.free.contains(&(start + offset));
        Place::In(Block { start: start + offset, size: pool.piece, origin: Origin::Pymalloc, is_free })
    }

    fn pool(&self, start: u64) -> Option<Rc<Pool>> {
        if let Some(known) = self.pools.borrow().get(&start) {
            return known.clone();
        }
        let pool = self.read(start).map(Rc::new);
        let mut pools = self.pools.borrow_mut();
        if pools.len() >= MAX_POOLS {
            pools.clear();
        }
        pools.insert(start, pool.clone());
        pool
    }

    fn read(&self, start: u64) -> Option<Pool> {
        let words = self.memory.words(start, 6)?;
        let (count, first_free) = (words[0] & 0xffff_ffff, words[1]);
        let (class, next_offset, last_offset) = (words[4] >> 32, words[5] & 0xffff_ffff, words[5] >> 32);
        if class >= CLASSES || count == 0 {
            return None;
        }
        let piece = (class + 1) * STEP;
        let room = (self.pool_bytes - HEADER) / piece;
        let begun = next_offset.checked_sub(HEADER)?;
        let is_pool = last_offset == self.pool_bytes - piece
            && begun.is_multiple_of(piece)
            && next_offset <= self.pool_bytes
            && count <= room;
        let is_inside = |address: u64| address & !(self.pool_bytes - 1) == start;
        if !is_pool || (first_free != 0 && !is_inside(first_free)) {
            return None;
        }
        let mut free = HashSet::default();
        let mut next = first_free;
        // A free list has no more pieces than exist, and none twice.
        while next != 0 && is_inside(next) && (free.len() as u64) < room && free.insert(next) {
            next = self.memory.word(next)?;
        }
        Some(Pool { piece, next_offset, free })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::image::Image;

    const ARENA: u64 = 0x7f00_0010_0000;
    const POOL: u64 = 16 << 10;

    /// A pool for 48 bytes: three pieces handed out, the second one freed again.
    fn image() -> Image {
        let mut image = Image::default();
        image.anonymous(ARENA, 4 * POOL);
        let first = ARENA + HEADER;
        image.put(ARENA, 2);
        image.put(ARENA + 8, first + 48);
        image.put(ARENA + 32, 2 << 32);
        image.put(ARENA + 40, (POOL - 48) << 32 | (HEADER + 3 * 48));
        image
    }

    fn found(image: &Image, address: u64) -> Result<(u64, bool), Place> {
        let memory = Memory::new(image);
        let pymalloc = Pymalloc::new(&memory, POOL);
        let mapping = memory.mapping(address).expect("mapped");
        match pymalloc.look(mapping, address) {
            Place::In(block) => Ok((block.start, block.is_free)),
            other => Err(other),
        }
    }

    #[test]
    fn pieces_of_a_pool() {
        let image = image();
        let first = ARENA + HEADER;
        assert_eq!(found(&image, first), Ok((first, false)));
        assert_eq!(found(&image, first + 47), Ok((first, false)));
        assert_eq!(found(&image, first + 48), Ok((first + 48, true)));
        assert_eq!(found(&image, first + 2 * 48 + 8), Ok((first + 2 * 48, false)));
        // Never handed out.
        assert_eq!(found(&image, first + 3 * 48), Ok((first + 3 * 48, true)));
        assert_eq!(found(&image, ARENA + 8), Err(Place::Between));
        assert_eq!(found(&image, ARENA + POOL), Err(Place::Elsewhere));
    }

    /// A list of free pieces that leads in a ring ends.
    #[test]
    fn a_ring_of_free_pieces() {
        let mut image = image();
        let second = ARENA + HEADER + 48;
        image.put(second, second + 96);
        image.put(second + 96, second);
        assert_eq!(found(&image, second + 96), Ok((second + 96, true)));
    }

    /// What contradicts itself is no pool.
    #[test]
    fn other_memory_is_no_pool() {
        let changes: [(u64, u64); 5] = [
            (0, 0),
            (8, 0x7fff_0000_0000),
            (32, 32 << 32),
            (40, (POOL - 48) << 32 | (HEADER + 3 * 48 + 8)),
            (40, (POOL - 64) << 32 | (HEADER + 3 * 48)),
        ];
        for (offset, value) in changes {
            let mut image = image();
            image.put(ARENA + offset, value);
            assert_eq!(found(&image, ARENA + HEADER), Err(Place::Elsewhere), "{offset} {value:#x}");
        }
    }
}
