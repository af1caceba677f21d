//! Changes of the pools' memory, for analyses that follow it.

use std::ops::Range;

use crate::model::{Device, Pool};

/// What happens to the memory of a pool, address by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::analyses) enum Shift {
    /// The pool has this memory from here on, all of it free.
    Gains(PoolSpan),
    /// It no longer has the memory at this start; all of it was free.
    Loses(u64),
    /// Addresses of one span are handed out.
    HandsOut(Range<u64>),
    /// They are not any more.
    TakesBack(Range<u64>),
}

/// Memory of a pool in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::analyses) struct PoolSpan {
    pub(in crate::analyses) place: Range<u64>,
    pub(in crate::analyses) device: Device,
    pub(in crate::analyses) pool: Pool,
    /// Mapped physical memory: it continues where the next one of the same reservation begins.
    pub(in crate::analyses) mapped: bool,
    /// Start of its reservation, where known.
    pub(in crate::analyses) reservation: Option<u64>,
}
