//! What is known of registers before each instruction of a function, whatever path led there.

use std::collections::HashMap;

use super::op::{Flow, Op};

/// Knowledge of registers, which only becomes less where paths meet.
pub(super) trait Known: Copy + PartialEq {
    /// What both say.
    fn and(self, other: Self) -> Self;
    /// Behind an instruction.
    fn behind(self, op: &Op) -> Self;
}

/// Before each instruction, from `at_entry` before the first; `None` for unreachable ones.
pub(super) fn known_before<K: Known>(ops: &[Op], at_entry: K) -> Vec<Option<K>> {
    let index: HashMap<u64, usize> = ops.iter().enumerate().map(|(at, op)| (op.address, at)).collect();
    let mut before = vec![None; ops.len()];
    let mut work = vec![(0, at_entry)];
    while let Some((at, arriving)) = work.pop() {
        let (Some(op), Some(known)) = (ops.get(at), before.get_mut(at)) else { continue };
        // Less each time, so each instruction is visited a bounded number of times.
        let merged = known.map_or(arriving, |known: K| known.and(arriving));
        if *known == Some(merged) {
            continue;
        }
        *known = Some(merged);
        let behind = merged.behind(op);
        let target = match op.flow {
            Flow::Branch(target) | Flow::Jump(target) => index.get(&target),
            _ => None,
        };
        work.extend(target.map(|target| (*target, behind)));
        if matches!(op.flow, Flow::Next | Flow::Branch(_) | Flow::Call(_)) {
            work.push((at + 1, behind));
        }
    }
    before
}
