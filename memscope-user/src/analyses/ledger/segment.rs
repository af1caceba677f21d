//! Driver blocks and their addresses, in few bytes: there may be millions, nearly all with one address and outside of
//! pools. Those have no [`Segment`]: all facts about them are in their [`Span`].

use crate::model::{Device, Module, Pool};

/// What makes a segment, but for its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plain {
    pub(super) device: Device,
    pub(super) module_id: Option<Module>,
}

/// The different ones, by number from 1.
#[derive(Debug, Default)]
pub(super) struct Plains(Vec<Plain>);

impl Plains {
    /// Number of one; `None` if there is no room for another.
    pub(super) fn number(&mut self, plain: Plain) -> Option<u16> {
        let at = self.0.iter().position(|known| *known == plain).unwrap_or(self.0.len());
        let number = u16::try_from(at + 1).ok()?;
        if at == self.0.len() {
            self.0.push(plain);
        }
        Some(number)
    }

    /// The one with this number.
    pub(super) fn get(&self, number: u16) -> Option<Plain> {
        self.0.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// A driver block.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) size_bytes: u64,
    pub(super) device: Device,
    module_id: Option<Module>,
    pub(super) spans: Starts,
    /// The owning pool, and bytes of the pool's blocks in it.
    owner: Option<Box<(Pool, u128)>>,
}

impl Segment {
    pub(super) const fn new(size_bytes: u64, Plain { device, module_id }: Plain, spans: Starts) -> Self {
        Self { size_bytes, device, module_id, spans, owner: None }
    }

    /// Module of the driver that asked for it.
    pub(super) const fn module(&self) -> Option<Module> {
        self.module_id
    }

    /// The owning pool.
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
    /// Several, in the order of their mapping.
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

/// Addresses of a driver block. Packed: a word of eight bytes less.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
pub(super) struct Span {
    pub(super) size_bytes: u64,
    /// Number of the block.
    block: u64,
    /// Number of the facts about a block without segment; 0 if it has one.
    plain: u16,
    mapped: bool,
}

impl Span {
    pub(super) const fn new(size_bytes: u64, block: u64, mapped: bool) -> Self {
        Self { size_bytes, block, plain: 0, mapped }
    }

    /// Of a block without segment.
    pub(super) const fn plain(size_bytes: u64, block: u64, plain: u16) -> Self {
        Self { size_bytes, block, plain, mapped: false }
    }

    /// Number of the facts about it; 0 if it has a segment.
    pub(super) const fn plain_number(self) -> u16 {
        self.plain
    }

    /// It has a segment from here on.
    pub(super) const fn has_segment(&mut self) {
        self.plain = 0;
    }

    pub(super) const fn block(self) -> u64 {
        self.block
    }

    pub(super) const fn mapped(self) -> bool {
        self.mapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::modules;

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

    /// The documented memory of each block.
    #[test]
    fn segments_are_small() {
        assert!(size_of::<Segment>() <= 48 && size_of::<Span>() <= 20);
    }

    /// Each is kept once, and found by its number; none is 0.
    #[test]
    fn plain_ones_have_numbers() {
        let mut plains = Plains::default();
        let [one, other] = [None, Some(modules::of(3))].map(|module_id| Plain { device: Device::Npu(1), module_id });
        assert_eq!([one, other, one].map(|plain| plains.number(plain)), [Some(1), Some(2), Some(1)]);
        assert_eq!([0, 1, 2, 3].map(|number| plains.get(number)), [None, Some(one), Some(other), None]);
    }
}
