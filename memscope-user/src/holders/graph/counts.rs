//! Left-overs that the count of references shows.
//!
//! Memory of C and C++ without a type has words that were never cleared: the unused part of a short string, an empty `std::optional`. Where such
//! a word is the address of an object, nothing in itself shows that it is old. The object does: it counts its references. Where those that are known
//! for certain are as many as it counts, no other word holds it.

use super::{
    Graph, Kind, Node, Root, Step,
    rules::{COUNTS, MADE_BY, is_autograd_meta, is_function, is_items, is_python_tensor, is_storage, is_tensor},
};
use crate::{hash::HashSet, holders::python::Builtin};

impl Graph<'_> {
    /// Leaves out the steps that hold nothing, as the object's own count shows.
    pub(super) fn drop_left_overs(&self, node: &Node, steps: &mut Vec<Step>) {
        let Some(count) = self.references(node).filter(|count| (*count as usize) < steps.len()) else { return };
        let is_certain: Vec<bool> = steps.iter().map(|step| self.is_certain(step, node)).collect();
        let certain = steps.iter().zip(&is_certain).filter(|(_, is_certain)| **is_certain);
        let places: HashSet<u64> = certain.map(|(step, _)| step.place).collect();
        if places.len() as u64 >= count {
            let mut is_certain = is_certain.into_iter();
            steps.retain(|step| is_certain.next() == Some(true) || is_variable(step));
        }
    }

    /// Whether the count of an object has no room for a step.
    pub(super) fn is_left_over(&self, step: &Step, child: &Node) -> bool {
        let has_room = || self.parents(child).iter().any(|other| other.place == step.place);
        self.references(child).is_some() && !self.is_certain(step, child) && !is_variable(step) && !has_room()
    }

    /// References that an object counts.
    pub(super) fn references(&self, node: &Node) -> Option<u64> {
        let place = match &node.kind {
            // CPython's `ob_refcnt` comes first; from 3.12 on it has 32 bits.
            Kind::Python { object, .. } => *object,
            Kind::Cpp(class) if is_tensor(class) || is_storage(class) => node.start + COUNTS,
            Kind::Cpp(class) if is_function(class) => return self.references_of_function(node.start),
            _ => return None,
        };
        self.memory.word(place).map(|count| u64::from(count as u32))
    }

    /// A function of autograd's graph has a `std::shared_ptr` to itself, and so its counts are elsewhere (2.1 to 2.9), or it counts as tensors do.
    fn references_of_function(&self, start: u64) -> Option<u64> {
        const MAX: u32 = 1 << 24;
        let words = self.memory.words(start + COUNTS, 2)?;
        let counts = if words[0] == start { self.memory.word(words[1].checked_add(COUNTS)?)? } else { words[0] };
        let (strong, weak) = (counts as u32, (counts >> 32) as u32 & (u32::MAX >> 1));
        ((1..MAX).contains(&strong) && (1..MAX).contains(&weak)).then(|| strong.into())
    }

    /// Whether a step is known to hold a reference that is counted.
    fn is_certain(&self, step: &Step, child: &Node) -> bool {
        let of_function = child.class().is_some_and(is_function);
        match &step.parent.kind {
            Kind::Python { object, ty } if child.is_python() => {
                !self.is_redundant(*object, ty, step) && !Self::is_nameless(*object, ty, step)
            }
            Kind::Python { object, ty } => is_python_tensor(ty) && self.owns_tensor(*object, child),
            Kind::Plain if of_function => {
                step.value == child.start && self.has_owner(step, |up| self.is_in_vector(up, step.place))
            }
            Kind::Plain => {
                let is_item = |up: &Step| up.parent.is_python() && is_items(up) && self.is_owned(up, step.place, true);
                child.is_python() && self.has_owner(step, is_item)
            }
            Kind::Cpp(class) if is_tensor(class) => true,
            Kind::Cpp(class) if is_autograd_meta(class) => {
                let made_by = of_function && MADE_BY.contains(&(step.place - step.parent.start));
                made_by || child.class().is_some_and(is_tensor)
            }
            // Its variable is its last member (torch/csrc/autograd/functions/accumulate_grad.h).
            Kind::Cpp(class) => {
                let is_last = step.parent.start + step.parent.size - step.place <= 16;
                class.ends_with("AccumulateGrad") && is_last && child.class().is_some_and(is_tensor)
            }
            Kind::Root(_) => false,
        }
    }

    /// Whether the memory of a step belongs to an object in a way.
    fn has_owner(&self, step: &Step, is_so: impl Fn(&Step) -> bool) -> bool {
        self.parents(&step.parent).iter().any(is_so)
    }
}

/// Variables of functions come and go while memory is read: their count may be another one by now.
fn is_variable(step: &Step) -> bool {
    match &step.parent.kind {
        Kind::Root(root) => matches!(root, Root::Local { .. }),
        Kind::Python { ty, .. } => matches!(ty.builtin, Builtin::Frame | Builtin::Generator),
        _ => false,
    }
}
