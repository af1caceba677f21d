//! What a pool held when its recording began.

use crate::hash::HashMap;

/// A segment with its blocks, lowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::whatif) struct OldSegment {
    /// Its start.
    pub(in crate::whatif) addr: u64,
    /// Its size.
    pub(in crate::whatif) bytes: u64,
    /// Value of its stream's pointer.
    pub(in crate::whatif) stream: u64,
    /// It has small blocks.
    pub(in crate::whatif) small: bool,
    /// Blocks that were not free.
    pub(in crate::whatif) blocks: Vec<OldBlock>,
}

/// A block that was not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::whatif) struct OldBlock {
    /// Its start.
    pub(in crate::whatif) addr: u64,
    /// Bytes asked for.
    pub(in crate::whatif) asked: u64,
    /// Its size, if that is known; else it follows from the settings.
    pub(in crate::whatif) bytes: Option<u64>,
    /// The program has freed it, and a stream still uses it.
    pub(in crate::whatif) pending: bool,
}

/// What the pools held before the first event, by index of the device. The first requests of such a device are those of its blocks, in this
/// order, so that they can be made under other settings, too.
#[derive(Clone, Debug, Default)]
pub(in crate::whatif) struct Before {
    pub(in crate::whatif) segments: HashMap<u8, Vec<OldSegment>>,
    /// Requests and frees that stand for these blocks.
    pub(in crate::whatif) events: u64,
}
