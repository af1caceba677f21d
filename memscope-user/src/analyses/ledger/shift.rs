//! What happens to the pools' memory, for those who follow it.

use std::ops::Range;

use crate::model::{Device, Pool};

/// What happens to the memory of a pool, address by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::analyses) enum Shift {
    /// The pool has memory from here on, and nothing of it is handed out yet.
    Gains(PoolSpan),
    /// It has that at this start no more; nothing of it is handed out.
    Loses(u64),
    /// Addresses of one span are handed out.
    HandsOut(Range<u64>),
    /// They are not any more.
    TakesBack(Range<u64>),
}

/// Memory in one piece that is a pool's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::analyses) struct PoolSpan {
    pub(in crate::analyses) place: Range<u64>,
    pub(in crate::analyses) device: Device,
    pub(in crate::analyses) pool: Pool,
    /// It is mapped physical memory: it goes on where the next one of the same reservation begins.
    pub(in crate::analyses) mapped: bool,
    /// Start of the reservation that it lies in, where that is known.
    pub(in crate::analyses) reservation: Option<u64>,
}
