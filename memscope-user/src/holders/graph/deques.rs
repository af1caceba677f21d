//! Blocks in the middle of a deque. The deque points at its first and its last block alone; each block points at the two beside it, and has 64
//! items. A block counts if the blocks before it lead to the first one of a deque.

use super::{Graph, Kind, Node, Step};
use crate::holders::python::{Builtin, of_object};

/// Most blocks in front of one: 262 144 items.
const MAX_BLOCKS: usize = 4096;
/// Words that may point at a block: the deque, and the two blocks beside it, and left-overs.
const MAX_POINTERS: usize = 16;

impl Graph<'_> {
    /// The step from a block to the deque that it is in the middle of: by the word of the block before it.
    pub(super) fn deque_of(&self, node: &Node) -> Option<Step> {
        if !node.is_plain() || node.size < of_object::DEQUE_NEXT + 8 {
            return None;
        }
        let before = self.block_before(node.start)?;
        let mut block = before;
        for _ in 0..MAX_BLOCKS {
            if let Some(parent) = self.begins_deque(block) {
                return Some(Step { parent, place: before + of_object::DEQUE_NEXT, value: node.start });
            }
            block = self.block_before(block)?;
        }
        None
    }

    /// Whether a deque or another block of one points at a block as one of its own.
    pub(super) fn is_deque_block(&self, block: u64) -> bool {
        self.begins_deque(block).is_some() || self.block_before(block).is_some()
    }

    /// The block in front of another, if both say so.
    fn block_before(&self, block: u64) -> Option<u64> {
        let before = self.memory.word(block)?;
        let next = before.checked_add(of_object::DEQUE_NEXT)?;
        (self.memory.word(next) == Some(block) && before != block).then_some(before)
    }

    /// The deque that a block is the first one of.
    fn begins_deque(&self, block: u64) -> Option<std::rc::Rc<Node>> {
        let pointers = self.pointers.all_to(block..block + 8, MAX_POINTERS);
        pointers.into_iter().find_map(|pointer| {
            let parent = self.node(pointer.place)?;
            let Kind::Python { object, ty } = &parent.kind else { return None };
            let is_first = pointer.place == object + of_object::DEQUE_BLOCKS[0];
            let is_still = self.memory.word(pointer.place) == Some(block);
            (ty.builtin == Builtin::Deque && is_first && is_still).then_some(parent)
        })
    }

    /// Whether a step is one by [`deque_of`](Self::deque_of).
    pub(super) fn is_through_deque(step: &Step) -> bool {
        let Kind::Python { object, ty } = &step.parent.kind else { return false };
        let is_own = (step.parent.start..step.parent.start + step.parent.size).contains(&step.place);
        ty.builtin == Builtin::Deque && !is_own && step.place != *object
    }

    /// Whether the blocks still lead from the deque to this one.
    pub(super) fn is_still_in_deque(&self, step: &Step) -> bool {
        let block = Node { start: step.value, size: of_object::DEQUE_NEXT + 8, kind: Kind::Plain };
        self.deque_of(&block).is_some_and(|now| now.parent.start == step.parent.start && now.place == step.place)
    }
}
