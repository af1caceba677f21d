//! Left-overs that the count of references shows.
//!
//! Memory of C and C++ without a type has words that were never cleared: the unused part of a short string, an empty `std::optional`. Where such
//! a word is the address of an object, nothing in itself shows that it is old. The object does: it counts its references. Where those that are known
//! for certain are as many as it counts, no other word holds it.

use super::{
    Graph, Kind, Node, Root, Step, mindspore,
    rules::{
        COUNTS, MADE_BY, is_autograd, is_autograd_meta, is_function, is_gradient, is_items, is_python_tensor,
        is_script_object, is_shared, is_storage, is_tensor,
    },
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

    /// Whether an object of C++ counts at least as many references as are known: then each of these holds it. Objects of Python are also held by
    /// what is not known here, such as running functions of C.
    pub(super) fn is_counted(&self, node: &Node) -> bool {
        // Neither a stack nor a word that leads inside, as to the sizes of a tensor, is counted.
        let is_of_heap = |step: &Step| !matches!(&step.parent.kind, Kind::Root(root) if root.is_weak());
        let may_count = |step: &&Step| step.value == node.start && is_of_heap(step) && !is_of_queue(step);
        let places = || self.parents(node).iter().filter(may_count).map(|step| step.place).collect::<HashSet<u64>>();
        let count = self.references(node).filter(|_| !node.is_python());
        count.is_some_and(|count| places().len() as u64 <= count)
    }

    /// Whether a step is one of more than an object of C++ counts, and its holder of no kind that is known to count. `up` leads to the owner of
    /// the step's memory.
    pub(super) fn is_uncounted(&self, step: &Step, up: Option<&Step>, child: &Node) -> bool {
        let may_keep = |up: &Step| up.parent.is_python() || up.parent.class().is_some_and(keeps_tensors);
        let has_count = || child.class().is_some_and(|class| is_tensor(class) || is_storage(class));
        let is_known = || match &step.parent.kind {
            Kind::Plain => up.is_some_and(|up| may_keep(up) && self.is_in_vector(up, step.place)),
            Kind::Cpp(class) => keeps_tensors(class),
            Kind::Python { ty, .. } => is_python_tensor(ty),
            Kind::Root(_) => false,
        };
        has_count() && !is_known() && (is_of_queue(step) || !self.is_counted(child))
    }

    /// References that an object counts.
    pub(super) fn references(&self, node: &Node) -> Option<u64> {
        let place = match &node.kind {
            // CPython's `ob_refcnt` comes first; from 3.12 on it has 32 bits.
            Kind::Python { object, .. } => *object,
            Kind::Cpp(class) if is_tensor(class) || is_storage(class) || is_script_object(class) => node.start + COUNTS,
            Kind::Cpp(class) if mindspore::is_part(class) && is_shared(class) => node.start + COUNTS,
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
        let of_tensor = child.class().is_some_and(is_tensor);
        if child.class().is_some_and(mindspore::is_part) {
            return self.is_member(step, child);
        }
        match &step.parent.kind {
            Kind::Python { object, ty } if child.is_python() => {
                !self.is_redundant(*object, ty, step) && !Self::is_nameless(*object, ty, step)
            }
            Kind::Python { object, ty } => is_python_tensor(ty) && self.owns_tensor(*object, child),
            Kind::Plain if of_function || of_tensor => {
                let may_own = |class: &str| of_function || is_script_object(class);
                let is_item = |up: &Step| up.parent.class().is_some_and(may_own) && self.is_in_vector(up, step.place);
                step.value == child.start && self.has_owner(step, is_item)
            }
            Kind::Plain => {
                let is_item = |up: &Step| up.parent.is_python() && is_items(up) && self.is_owned(up, step.place, true);
                child.is_python() && self.has_owner(step, is_item)
            }
            Kind::Cpp(class) if is_tensor(class) => true,
            Kind::Cpp(class) if is_autograd_meta(class) => {
                let made_by = of_function && MADE_BY.contains(&(step.place - step.parent.start));
                made_by || (of_tensor && is_gradient(step))
            }
            // Its variable is its last member (torch/csrc/autograd/functions/accumulate_grad.h).
            Kind::Cpp(class) => {
                let is_last = step.parent.start + step.parent.size - step.place <= 16;
                class.ends_with("AccumulateGrad") && is_last && of_tensor
            }
            Kind::Root(root) => matches!(root, Root::Context { .. }),
        }
    }

    /// Whether the memory of a step belongs to an object in a way.
    fn has_owner(&self, step: &Step, is_so: impl Fn(&Step) -> bool) -> bool {
        self.parents(&step.parent).iter().any(is_so)
    }
}

/// Whether a word is in memory that is large enough for a ring of waiting calls, which has the old ones for long: those of `torch_npu`'s task queue are.
fn is_of_queue(step: &Step) -> bool {
    const MIN_BYTES: u64 = 1 << 16;
    step.parent.is_plain() && step.parent.size >= MIN_BYTES
}

/// Whether objects of a class have members that are references to tensors.
pub(super) fn keeps_tensors(class: &str) -> bool {
    is_tensor(class) || is_autograd(class) || is_script_object(class)
}

/// Variables of functions come and go while memory is read: their count may be another one by now.
fn is_variable(step: &Step) -> bool {
    match &step.parent.kind {
        Kind::Root(root) => matches!(root, Root::Local { .. }),
        Kind::Python { ty, .. } => matches!(ty.builtin, Builtin::Frame | Builtin::Generator),
        _ => false,
    }
}
