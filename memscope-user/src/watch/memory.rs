//! The free of a watched block's memory: a free names an address, and a block may lie anywhere in the memory that began
//! there.

use std::collections::HashMap;

use super::Range;
use crate::pipeline::calls::Space;

/// Most known allocations; of further ones only the addresses count.
const MAX_KNOWN: usize = 1 << 20;

/// Allocations of a process, by name space: the driver, its mappings, each pool.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    known: HashMap<(Space, u64), u64>,
}

impl Allocations {
    /// Bytes were handed out.
    pub(crate) fn begins(&mut self, space: Space, range: Range) {
        let key = (space, range.addr);
        if self.known.len() < MAX_KNOWN || self.known.contains_key(&key) {
            self.known.insert(key, range.size_bytes);
        }
    }

    /// The memory at an address was freed. For memory older than the trace, or beyond the limit, only the address is
    /// known.
    pub(crate) fn ends(&mut self, space: Space, addr: u64) -> Range {
        Range { addr, size_bytes: self.known.remove(&(space, addr)).unwrap_or(1).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools::PTA;

    /// Make sure that a free ends what began at its address, in its own name space, once.
    #[test]
    fn frees_end_what_began_there() {
        let mut allocations = Allocations::default();
        allocations.begins(Space::Driver, Range { addr: 0x1000, size_bytes: 0x2000 });
        allocations.begins(Space::Pool(PTA), Range { addr: 0x1000, size_bytes: 0x100 });
        assert_eq!(allocations.ends(Space::Pool(PTA), 0x1000), Range { addr: 0x1000, size_bytes: 0x100 });
        assert_eq!(allocations.ends(Space::Driver, 0x1000), Range { addr: 0x1000, size_bytes: 0x2000 });
        assert_eq!(allocations.ends(Space::Driver, 0x1000), Range { addr: 0x1000, size_bytes: 1 });
    }

    #[test]
    fn ranges_that_touch_do_not_overlap() {
        let range = |addr, size_bytes| Range { addr, size_bytes };
        assert!(range(0x1000, 16).overlaps(range(0x100f, 1)) && range(0x100f, 1).overlaps(range(0x1000, 16)));
        assert!(!range(0x1000, 16).overlaps(range(0x1010, 1)) && !range(0x1010, 1).overlaps(range(0x1000, 16)));
        assert!(range(u64::MAX - 1, 16).overlaps(range(u64::MAX - 1, 1)));
    }
}
