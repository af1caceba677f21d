//! Requests in 32-bit words: 12 bytes for an allocation and its free.
//!
//! The first three bits are the kind. Blocks are numbered by *slots*: an allocation takes the slot that was freed last,
//! or a new one, so that neither side has to store it, and a replay finds live blocks in a small table.

use crate::model::Fraction;

/// An action of the program, or of the driver below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::whatif) enum Op {
    /// A request that got a block; it takes the next slot.
    Alloc { lane: u16, asked: u64 },
    /// The block of a slot is free.
    Free { slot: u32 },
    /// The same while streams use it; the slot stays taken.
    FreeInUse { slot: u32 },
    /// Streams have done with it.
    Returned { slot: u32 },
    /// A request that failed in the recording.
    Failed { lane: u16, asked: u64 },
    /// The program emptied the cache of a device.
    EmptyCache { device: u8 },
    /// Driver memory of the process outside of the pool.
    Others { device: u8, bytes: i64 },
    /// The pool's figure of its memory after the next request or free.
    Reserved { device: u8, bytes: u64 },
    /// A named moment.
    Mark { index: u32 },
    /// No graph uses a private pool any more: what is free in it may be given back.
    PoolReleased { device: u8, private: u16 },
    /// A private pool that is not needed any more gives its memory back.
    PoolEmptied { device: u8, private: u16 },
    /// The program changes settings of the pools: those of this number.
    Settings { index: u32 },
    /// The program may have this part of a device.
    Fraction { device: u8, fraction: Fraction },
    /// The process can have these many bytes of a device from here on: others hold the rest. Only of the recording.
    Limit { device: u8, bytes: u64 },
    /// Nothing: was first taken for another operation.
    Nothing { words: u8 },
}

/// Different combinations of device, stream and private pool.
pub(in crate::whatif) const MAX_LANES: usize = 1 << 13;
/// Live blocks at a time.
pub(in crate::whatif) const MAX_SLOTS: u32 = 1 << 29;
/// Named moments.
pub(in crate::whatif) const MAX_MARKS: u32 = 1 << 20;
/// Larger requests count as this.
const MOST_BYTES: u64 = (1 << 48) - 1;

const ALLOC: u32 = 0;
const FREE: u32 = 1;
const FREE_IN_USE: u32 = 2;
const RETURNED: u32 = 3;
const FAILED: u32 = 4;
const OTHER: u32 = 5;

const EMPTY_CACHE: u32 = 0;
const OTHERS: u32 = 1;
const RESERVED: u32 = 2;
const MARK: u32 = 3;
const NOTHING: u32 = 4;
const POOL_RELEASED: u32 = 5;
const SETTINGS: u32 = 6;
const FRACTION: u32 = 7;
const POOL_EMPTIED: u32 = 8;
const LIMIT: u32 = 9;

/// The words of an operation, and their number.
const fn encode(op: Op) -> ([u32; 3], usize) {
    match op {
        Op::Alloc { lane, asked } => request(ALLOC, lane, asked),
        Op::Failed { lane, asked } => request(FAILED, lane, asked),
        Op::Free { slot } => ([FREE << 29 | slot, 0, 0], 1),
        Op::FreeInUse { slot } => ([FREE_IN_USE << 29 | slot, 0, 0], 1),
        Op::Returned { slot } => ([RETURNED << 29 | slot, 0, 0], 1),
        Op::EmptyCache { device } => ([other(EMPTY_CACHE, device as u32), 0, 0], 1),
        Op::Others { device, bytes } => wide(OTHERS, device, bytes as u64),
        Op::Reserved { device, bytes } => wide(RESERVED, device, bytes),
        Op::Limit { device, bytes } => wide(LIMIT, device, bytes),
        Op::Settings { index } => ([other(SETTINGS, index), 0, 0], 1),
        Op::Fraction { device, fraction } => wide(FRACTION, device, fraction.value().to_bits()),
        Op::Mark { index } => ([other(MARK, index), 0, 0], 1),
        Op::PoolReleased { device, private } => of_private(POOL_RELEASED, device, private),
        Op::PoolEmptied { device, private } => of_private(POOL_EMPTIED, device, private),
        Op::Nothing { words } => ([other(NOTHING, words as u32), 0, 0], words as usize),
    }
}

const fn other(kind: u32, low: u32) -> u32 {
    OTHER << 29 | kind << 24 | low
}

const fn of_private(kind: u32, device: u8, private: u16) -> ([u32; 3], usize) {
    ([other(kind, (device as u32) << 16 | private as u32), 0, 0], 1)
}

const fn wide(kind: u32, device: u8, value: u64) -> ([u32; 3], usize) {
    ([other(kind, device as u32), (value >> 32) as u32, value as u32], 3)
}

const fn request(kind: u32, lane: u16, asked: u64) -> ([u32; 3], usize) {
    let asked = if asked > MOST_BYTES { MOST_BYTES } else { asked };
    ([kind << 29 | (lane as u32) << 16 | (asked >> 32) as u32, asked as u32, 0], 2)
}

/// A list of operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::whatif) struct Words(Vec<u32>);

impl Words {
    /// Adds an operation; gives its place.
    pub(in crate::whatif) fn push(&mut self, op: Op) -> usize {
        let at = self.0.len();
        let (words, count) = encode(op);
        self.0.extend_from_slice(&words[..count]);
        at
    }

    /// Replaces an operation by one of the same length.
    pub(in crate::whatif) fn replace(&mut self, at: usize, op: Op) {
        let (words, count) = encode(op);
        if let Some(place) = self.0.get_mut(at..at + count) {
            place.copy_from_slice(&words[..count]);
        }
    }

    pub(in crate::whatif) fn iter(&self) -> Iter<'_> {
        Iter(&self.0)
    }

    /// Operations with their places.
    pub(in crate::whatif) fn placed(&self) -> impl Iterator<Item = (usize, Op)> {
        let mut ops = self.iter();
        std::iter::from_fn(move || {
            let at = self.len() - ops.0.len();
            ops.next().map(|op| (at, op))
        })
    }

    /// Place of the next operation.
    pub(in crate::whatif) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::whatif) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<u32>()
    }

    pub(in crate::whatif) fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }
}

/// Operations in their order.
#[derive(Clone, Debug)]
pub(in crate::whatif) struct Iter<'a>(&'a [u32]);

impl Iterator for Iter<'_> {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let (&head, rest) = self.0.split_first()?;
        let low = head & ((1 << 29) - 1);
        let (op, more) = match head >> 29 {
            FREE => (Op::Free { slot: low }, 0),
            FREE_IN_USE => (Op::FreeInUse { slot: low }, 0),
            RETURNED => (Op::Returned { slot: low }, 0),
            kind @ (ALLOC | FAILED) => {
                let asked = u64::from(low & 0xffff) << 32 | u64::from(*rest.first()?);
                let lane = (low >> 16) as u16;
                (if kind == ALLOC { Op::Alloc { lane, asked } } else { Op::Failed { lane, asked } }, 1)
            }
            _ => decode_other(low, rest)?,
        };
        self.0 = rest.get(more..)?;
        Some(op)
    }
}

fn decode_other(low: u32, rest: &[u32]) -> Option<(Op, usize)> {
    let value = low & ((1 << 24) - 1);
    let (device, private) = (value as u8, value as u16);
    let upper = (value >> 16) as u8;
    let wide = || Some(u64::from(*rest.first()?) << 32 | u64::from(*rest.get(1)?));
    Some(match low >> 24 {
        EMPTY_CACHE => (Op::EmptyCache { device }, 0),
        OTHERS => (Op::Others { device, bytes: wide()?.cast_signed() }, 2),
        RESERVED => (Op::Reserved { device, bytes: wide()? }, 2),
        LIMIT => (Op::Limit { device, bytes: wide()? }, 2),
        MARK => (Op::Mark { index: value }, 0),
        POOL_RELEASED => (Op::PoolReleased { device: upper, private }, 0),
        POOL_EMPTIED => (Op::PoolEmptied { device: upper, private }, 0),
        SETTINGS => (Op::Settings { index: value }, 0),
        FRACTION => (Op::Fraction { device, fraction: Fraction::of(f64::from_bits(wide()?)) }, 2),
        _ => (Op::Nothing { words: value as u8 }, (value as usize).saturating_sub(1)),
    })
}

/// Slots of live blocks: the one freed last is taken first.
#[derive(Clone, Debug, Default)]
pub(in crate::whatif) struct Slots {
    free: Vec<u32>,
    count: u32,
}

impl Slots {
    pub(in crate::whatif) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }

    pub(in crate::whatif) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Slots in use at most so far.
    #[cfg(test)]
    pub(in crate::whatif) const fn count(&self) -> u32 {
        self.count
    }

    /// Whether there is room for another block.
    pub(in crate::whatif) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.count < MAX_SLOTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written operations are read back, at the limits too, and may be replaced in place.
    #[test]
    fn operations_are_kept() {
        let ops = [
            Op::Alloc { lane: 8191, asked: MOST_BYTES },
            Op::Alloc { lane: 0, asked: 0 },
            Op::Free { slot: MAX_SLOTS - 1 },
            Op::FreeInUse { slot: 1 },
            Op::Returned { slot: 1 },
            Op::Failed { lane: 3, asked: 1 << 33 },
            Op::EmptyCache { device: 255 },
            Op::Others { device: 1, bytes: -(1 << 40) },
            Op::Reserved { device: 2, bytes: 1 << 40 },
            Op::Mark { index: MAX_MARKS - 1 },
            Op::PoolReleased { device: 255, private: 8192 },
            Op::PoolEmptied { device: 255, private: 8192 },
            Op::Settings { index: (1 << 24) - 1 },
            Op::Limit { device: 3, bytes: u64::MAX },
            Op::Fraction { device: 254, fraction: Fraction::of(0.3) },
            Op::Nothing { words: 3 },
            Op::Free { slot: 0 },
        ];
        let mut words = Words::default();
        let places: Vec<usize> = ops.iter().map(|op| words.push(*op)).collect();
        assert_eq!(words.iter().collect::<Vec<_>>(), ops);
        words.replace(places[7], Op::Nothing { words: 3 });
        assert_eq!(words.iter().nth(7), Some(Op::Nothing { words: 3 }));
        assert_eq!(words.iter().count(), ops.len());
    }

    /// An allocation and its free take 12 bytes.
    #[test]
    fn a_request_is_small() {
        let mut words = Words::default();
        words.push(Op::Alloc { lane: 1, asked: 5 });
        words.push(Op::Free { slot: 0 });
        words.shrink();
        assert_eq!(words.bytes(), 12);
    }

    #[test]
    fn slots_are_used_again() {
        let mut slots = Slots::default();
        assert_eq!([slots.take(), slots.take()], [0, 1]);
        slots.give_back(0);
        assert_eq!(([slots.take(), slots.take()], slots.count()), ([0, 2], 3));
    }
}
