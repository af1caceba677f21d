//! How much shows that a path is one: memory of unknown make may have old addresses, and so may objects of C++ that are of no known class.

use super::{Graph, Kind, Node, Step, cost::WEAK, counts::keeps_tensors, rules};

/// From the least on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::holders) enum Proof {
    /// It may be made of left-overs.
    Weak,
    /// Memory of unknown make is on it, and what that holds counts as many references as are known, or it is the items of a vector.
    Counted,
    /// Each of its objects is of a kind that is known to hold the next one.
    Typed,
}

impl Graph<'_> {
    /// `steps`: from the block to a root.
    pub(super) fn proof(&self, steps: &[Step]) -> Proof {
        let is_known = steps.iter().any(|step| matches!(step.parent.kind, Kind::Python { .. } | Kind::Cpp(_)));
        let root = steps.last().map(|step| &step.parent.kind);
        if !is_known || self.is_of_no_tensor(steps) || matches!(root, Some(Kind::Root(root)) if root.cost() >= WEAK) {
            return Proof::Weak;
        }
        let mut pairs = steps.array_windows().enumerate();
        if pairs.any(|(at, [child, step])| self.is_uncounted(step, steps.get(at + 2), &child.parent)) {
            return Proof::Weak;
        }
        let links = steps.array_windows().map(|[child, items, up]| self.proof_of_owner(&child.parent, items, up));
        links.min().unwrap_or(Proof::Typed)
    }

    /// That `items`, if it is memory without a type, is that of the object to which `up` leads.
    fn proof_of_owner(&self, child: &Node, items: &Step, up: &Step) -> Proof {
        let is_vector = || self.is_only_vector(up, &items.parent, items.place);
        let if_counted = |is_so: bool| if is_so { Proof::Counted } else { Proof::Weak };
        match &up.parent.kind {
            _ if !items.parent.is_plain() => Proof::Typed,
            Kind::Cpp(class) if keeps_tensors(class) && self.is_in_vector(up, items.place) => Proof::Typed,
            Kind::Cpp(_) | Kind::Root(_) => if_counted(self.is_counted(child) || is_vector()),
            Kind::Plain => if_counted(is_vector()),
            Kind::Python { .. } if rules::is_items(up) || child.is_python() || is_vector() => Proof::Typed,
            Kind::Python { .. } => if_counted(child.is_plain() || self.is_counted(child)),
        }
    }
}
