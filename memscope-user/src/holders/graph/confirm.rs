//! Confirms a path before it is shown: every word of it is read again, and every rule is applied again.

use std::ops::Range;

use super::{Graph, Kind, Node, Path, Step, search};
use crate::holders::pointers::untagged;

impl Graph<'_> {
    /// Whether a path is unchanged since it was found. Call [`forget`](Self::forget) before, or old pages are used.
    pub(in crate::holders) fn confirms(&self, block: &Range<u64>, path: &Path) -> bool {
        let seed = Node { start: block.start, size: block.end - block.start, kind: Kind::Plain };
        let mut child = &seed;
        for (at, step) in path.steps.iter().enumerate() {
            let below = at.checked_sub(1).map(|below| &path.steps[below]);
            if !self.is_still(step) || !self.still_holds(step, below, child) {
                return false;
            }
            child = &step.parent;
        }
        // The same numbers and keys lead there.
        self.trail(&path.steps).is_some_and(|trail| trail == path.trail)
    }

    /// The same word, in the same object.
    fn is_still(&self, step: &Step) -> bool {
        if Self::is_through_deque(step) {
            return self.is_still_in_deque(step);
        }
        let value = self.memory.word(step.place).and_then(untagged);
        value == Some(step.value)
            && self.node(step.place).is_some_and(|now| now.start == step.parent.start && is_alike(&now, &step.parent))
    }

    fn still_holds(&self, step: &Step, below: Option<&Step>, child: &Node) -> bool {
        let Some(below) = below else { return search::may_have_address(step) };
        let has_object = below.parent.is_plain() && self.leads_to_object(below);
        self.admits(step, child)
            && !self.is_left_over(step, child)
            && (!child.is_plain() || self.is_owned(step, below.place, has_object))
    }

    fn leads_to_object(&self, step: &Step) -> bool {
        self.heap.block(step.value).and_then(|block| self.python?.object(&block)).is_some()
    }
}

fn is_alike(one: &Node, other: &Node) -> bool {
    match (&one.kind, &other.kind) {
        (Kind::Python { object, ty }, Kind::Python { object: other, ty: other_ty }) => {
            object == other && ty.address == other_ty.address
        }
        (Kind::Cpp(class), Kind::Cpp(other)) => class == other,
        (Kind::Plain, Kind::Plain) => true,
        (Kind::Root(root), Kind::Root(other)) => root == other,
        _ => false,
    }
}
