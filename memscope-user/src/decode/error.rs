//! Bytes that are no record.

use memscope_common::record::{MAX_OBJECTS, TEXT_CHUNK};
use memscope_common::row::MAX_VALUES;
use thiserror::Error;

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Fewer bytes than a header, or than the record's length.
    #[error("record of {need} bytes in {have} bytes")]
    Short {
        /// Bytes there.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// The record's own length is too small for its contents.
    #[error("record of kind {kind} says it has {len} bytes, but holds {need}")]
    Length {
        /// A [`Kind`](memscope_common::Kind) as a number.
        kind: u16,
        /// The record's length.
        len: usize,
        /// What its contents take.
        need: usize,
    },
    /// More values than a row can have.
    #[error("{count} values, of at most {MAX_VALUES}")]
    Values {
        /// The record's count.
        count: u8,
    },
    /// More objects than a record can hold.
    #[error("{count} objects, of at most {MAX_OBJECTS}")]
    Objects {
        /// The record's count.
        count: u16,
    },
    /// A stack with id 0, or an unknown end or part.
    #[error("stack that is none")]
    Stack,
    /// A longer text than a record can hold.
    #[error("text of {len} bytes, of at most {TEXT_CHUNK}")]
    Text {
        /// The record's length.
        len: u32,
    },
}
