//! Which bytes a function reads of what an argument points to.
//!
//! Follows the argument through copies of its register, along all paths: a register counts where it holds the argument
//! on every path. A value spilled to the stack is lost, so a compiler can hide reads from the search, but cannot fake
//! any.

use super::{
    code::Code,
    functions::Function,
    op::Op,
    paths::{Known, known_before},
};

/// Longest supported structure, in bytes.
const MAX_BYTES: i64 = 64;

/// Registers that hold the argument, by bit.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Holders(u32);

impl Known for Holders {
    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn behind(self, op: &Op) -> Self {
        let kept = self.0 & !op.clobbers;
        Self(op.copied(self.0) | kept)
    }
}

/// Bit *n* set: byte *n* behind C argument `number`, from 0, is read.
pub(super) fn bytes_read(code: &Code<'_>, function: Function, number: u8) -> u64 {
    let ops = code.ops(function);
    let holders = known_before(&ops, Holders(1 << code.argument(number)));
    let reads = ops.iter().zip(holders).filter_map(|(op, holders)| {
        let read = op.read?;
        (holders?.0 & 1 << read.base != 0).then_some(read)
    });
    reads.fold(0, |bytes, read| {
        let end = read.offset.saturating_add(i64::from(read.size_bytes));
        (read.offset.max(0)..end.min(MAX_BYTES)).fold(bytes, |bytes, at| bytes | 1 << at)
    })
}
