//! Which bytes a function reads of what its first argument points to.
//!
//! Follows the argument through copies of its register, along all paths: a register counts where it holds the argument
//! on every path. A value spilled to the stack is lost, so a compiler can hide reads from the search, but cannot fake
//! any.

use std::collections::HashMap;

use super::{
    code::Code,
    functions::Function,
    op::{Flow, Op},
};

/// Longest supported structure, in bytes.
const MAX_BYTES: i64 = 64;

/// Bit *n* set: byte *n* behind the first argument is read.
pub(super) fn bytes_read(code: &Code<'_>, function: Function) -> u64 {
    let ops = code.ops(function);
    let holders = holders(&ops, 1 << code.argument(0));
    let reads = ops.iter().zip(holders).filter_map(|(op, holders)| {
        let read = op.read?;
        (holders? & 1 << read.base != 0).then_some(read)
    });
    reads.fold(0, |bytes, read| {
        let end = read.offset.saturating_add(i64::from(read.size_bytes));
        (read.offset.max(0)..end.min(MAX_BYTES)).fold(bytes, |bytes, at| bytes | 1 << at)
    })
}

/// The registers that hold the argument before each instruction; `None` for unreachable ones.
fn holders(ops: &[Op], at_entry: u32) -> Vec<Option<u32>> {
    let index: HashMap<u64, usize> = ops.iter().enumerate().map(|(at, op)| (op.address, at)).collect();
    let mut before = vec![None; ops.len()];
    let mut work = vec![(0, at_entry)];
    while let Some((at, arriving)) = work.pop() {
        let (Some(op), Some(known)) = (ops.get(at), before.get_mut(at)) else { continue };
        // Bits only ever go away, so each instruction is visited a bounded number of times.
        let merged = known.map_or(arriving, |known| known & arriving);
        if *known == Some(merged) {
            continue;
        }
        *known = Some(merged);
        let after = after(op, merged);
        let target = match op.flow {
            Flow::Branch(target) | Flow::Jump(target) => index.get(&target),
            _ => None,
        };
        work.extend(target.map(|target| (*target, after)));
        if matches!(op.flow, Flow::Next | Flow::Branch(_) | Flow::Call(_)) {
            work.push((at + 1, after));
        }
    }
    before
}

fn after(op: &Op, holders: u32) -> u32 {
    let kept = holders & !op.clobbers;
    match op.copy {
        Some((to, from)) if holders & 1 << from != 0 => kept | 1 << to,
        _ => kept,
    }
}
