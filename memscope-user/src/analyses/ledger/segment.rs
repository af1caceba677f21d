//! Driver blocks and where they are, in few bytes: there may be millions, and nearly all are at one place and no pool's.

use crate::model::{Block, Device, Pool, module_name};

/// A driver block.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) size_bytes: u64,
    pub(super) device: Device,
    module_id: Option<u8>,
    pub(super) spans: Starts,
    /// The pool whose it is, and bytes of the pool's blocks in it.
    owner: Option<Box<(Pool, u128)>>,
}

impl Segment {
    pub(super) const fn new(block: &Block, device: Device) -> Self {
        let Block { size_bytes, module_id, .. } = *block;
        Self { size_bytes, device, module_id, spans: Starts::None, owner: None }
    }

    /// Module of the driver that asked for it.
    pub(super) fn module(&self) -> &'static str {
        module_name(self.module_id)
    }

    /// Whose it is.
    pub(super) fn owner(&self) -> Option<Pool> {
        self.owner.as_ref().map(|owner| owner.0)
    }

    pub(super) fn claim(&mut self, pool: Pool) {
        self.owner = Some(Box::new((pool, 0)));
    }

    /// Bytes of its owner's blocks in it, if it has one.
    pub(super) fn filled(&mut self) -> Option<&mut u128> {
        self.owner.as_mut().map(|owner| &mut owner.1)
    }
}

/// Where a driver block is.
#[derive(Debug)]
pub(super) enum Starts {
    /// Nowhere: not mapped.
    None,
    /// At one address.
    One(u64),
    /// At several, in the order in which they came.
    #[expect(clippy::box_collection, reason = "one word, as the others have")]
    Several(Box<Vec<u64>>),
}

impl Starts {
    pub(super) fn push(&mut self, start: u64) {
        match self {
            Self::None => *self = Self::One(start),
            Self::One(first) => *self = Self::Several(Box::new(vec![*first, start])),
            Self::Several(starts) => starts.push(start),
        }
    }

    pub(super) fn remove(&mut self, start: u64) {
        match self {
            Self::One(first) if *first == start => *self = Self::None,
            Self::Several(starts) => starts.retain(|other| *other != start),
            _ => {}
        }
    }

    pub(super) fn all(&self) -> Vec<u64> {
        match self {
            Self::None => Vec::new(),
            Self::One(start) => vec![*start],
            Self::Several(starts) => starts.to_vec(),
        }
    }
}

/// Addresses of a driver block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) size_bytes: u64,
    /// Number of the block, of which no process has 2^63; the lowest bit tells whether it is mapped there.
    block: u64,
}

impl Span {
    pub(super) const fn new(size_bytes: u64, block: u64, mapped: bool) -> Self {
        Self { size_bytes, block: block << 1 | mapped as u64 }
    }

    pub(super) const fn block(self) -> u64 {
        self.block >> 1
    }

    pub(super) const fn mapped(self) -> bool {
        self.block & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_come_and_go() {
        let mut starts = Starts::None;
        starts.push(1);
        assert_eq!(starts.all(), [1]);
        starts.push(2);
        starts.push(3);
        starts.remove(2);
        assert_eq!(starts.all(), [1, 3]);
        starts.remove(1);
        starts.remove(3);
        assert_eq!(starts.all(), [0_u64; 0]);
        let mut starts = Starts::One(1);
        starts.remove(2);
        assert_eq!(starts.all(), [1]);
        starts.remove(1);
        assert_eq!(starts.all(), [0_u64; 0]);
    }

    /// Of the memory that is promised for each block.
    #[test]
    fn segments_are_small() {
        assert!(size_of::<Segment>() <= 48 && size_of::<Span>() <= 16);
        let span = Span::new(5, 7, true);
        assert_eq!((span.block(), span.mapped(), Span::new(5, 7, false).mapped()), (7, true, false));
    }
}
