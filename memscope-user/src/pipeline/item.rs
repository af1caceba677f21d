//! An [`Item`] is a decoded call or note: the unit of the stages from time order to the process.

use std::num::NonZeroU64;

use super::domains::Effect;
use crate::decode::{Phase, Values};

/// A decoded call or note, not yet in time order.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) head: Head,
    pub(super) effect: Effect,
}

/// When and where the call happened, and its position in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) time_ns: u64,
    /// Number of the record in the stream: decides between equal times.
    pub(super) seq: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) row: u16,
    /// Row of the outermost allocation call that the thread is inside of; 0 is none.
    pub(super) outer: u16,
    pub(super) stacks: StackIds,
}

/// Ids of a call's stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StackIds {
    pub(super) native: Option<NonZeroU64>,
    pub(super) python: Option<NonZeroU64>,
    /// The call had returned already: its function is not on the native stack.
    pub(super) returned: bool,
}

/// A call with its complete text.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) head: Head,
    pub(super) phase: Phase,
    pub(super) status: i64,
    pub(super) values: Values,
    /// `None` for a null pointer.
    pub(super) text: Option<String>,
}
