//! Values of context variables. A context keeps them in a tree by the hashes of the variables: nodes with a place for each part of the hash, and
//! nodes with pairs of a variable and its value, or of nothing and a further node (`Python/hamt.c`, `Include/internal/pycore_context.h`, 3.8 to 3.14).

use super::{Graph, Step, edges::Edge};
use crate::holders::{
    python::{Builtin, Python, Type},
    trail::Segment,
};

/// In a context: its tree. In a tree, or a node with places: the first node.
const TREE: u64 = 24;
const FIRST_NODE: u64 = 16;
/// In a variable: name, value of those without their own, and the last value that was asked for, which it does not hold.
const NAME: u64 = 16;
const DEFAULT: u64 = 24;
const LAST_VALUE: u64 = 32;

/// The text of a step through an object that belongs to a context; `None` if it has no special one.
pub(super) fn edge(python: &Python<'_>, graph: &Graph<'_>, object: u64, ty: &Type, step: &Step) -> Option<Edge> {
    let offset = step.place.wrapping_sub(object);
    match ty.builtin {
        Builtin::Context if offset == TREE => Some(Edge::Nothing),
        Builtin::ContextTree if offset >= FIRST_NODE => Some(Edge::Nothing),
        Builtin::ContextVariable if offset == DEFAULT => Some(Edge::Says(Segment::Object("default".to_owned()))),
        Builtin::ContextPairs => {
            let at = offset.checked_sub(ty.basic_size)? / 8;
            if at.is_multiple_of(2) {
                return Some(Edge::Says(Segment::IsKey(python.key_text(graph.memory.word(step.place)?))));
            }
            let variable = graph.memory.word(step.place - 8)?;
            let name = graph.memory.word(variable.checked_add(NAME)?).and_then(|name| python.text(name));
            let is_variable = python.type_of(variable).is_some_and(|ty| ty.builtin == Builtin::ContextVariable);
            match name.filter(|_| is_variable) {
                Some(name) => Some(Edge::Says(Segment::ContextVariable(name))),
                None => (variable == 0).then_some(Edge::Nothing),
            }
        }
        _ => None,
    }
}

/// Whether a word of a variable is no reference: the last value is kept as a number that may be old.
pub(super) const fn is_last_value(ty: &Type, offset: u64) -> bool {
    matches!(ty.builtin, Builtin::ContextVariable) && offset == LAST_VALUE
}

/// Whether an object belongs to a context, and clears what it drops.
pub(super) const fn is_part(builtin: Builtin) -> bool {
    matches!(
        builtin,
        Builtin::Context
            | Builtin::ContextTree
            | Builtin::ContextPairs
            | Builtin::ContextVariable
            | Builtin::ContextToken
    )
}

#[cfg(test)]
mod tests {
    use crate::holders::sample::{DEVICE, Sample};

    const COLLECTED: u64 = 1 << 14;
    /// In a type.
    const ITEM_SIZE: u64 = 5 * 8;

    fn object(sample: &mut Sample, ty: u64, fields: &[u64]) -> u64 {
        let object = sample.block(16 + 16 + 8 * fields.len() as u64) + 16;
        sample.put_words(object, &[1, ty]);
        sample.put_words(object + 16, fields);
        object
    }

    /// A context with two levels of nodes: a place of the first one has a node with two pairs, the second of which has a further node.
    #[test]
    fn values_in_a_tree() {
        let mut sample = Sample::new();
        let mut ty = |name: &str, bytes: u64| sample.add_type(name, bytes, COLLECTED);
        let (variable, context) = (ty("_contextvars.ContextVar", 72), ty("_contextvars.Context", 48));
        let (tree, places, pairs) = (ty("hamt", 40), ty("hamt_array_node", 280), ty("hamt_bitmap_node", 32));
        sample.image.put(pairs + ITEM_SIZE, 8);
        // A program's own class of that name, with a field there.
        let other = sample.add_type("Context", 48, COLLECTED | 1 << 9);
        let tensors: Vec<u64> = (0..4).map(|at| sample.tensor(DEVICE + at * 4096)).collect();
        let names = [sample.text("user"), sample.text("request")];
        // The second one has a value of its own, and the last value that was asked for, which it does not hold.
        let variables = [(0, 0), (tensors[2], tensors[3])];
        let variables: Vec<u64> = (0..2)
            .map(|at| object(&mut sample, variable, &[names[at], variables[at].0, variables[at].1, 0, 0, 0, 0]))
            .collect();
        let inner = object(&mut sample, pairs, &[2, 1, variables[1], tensors[1]]);
        let outer = object(&mut sample, pairs, &[4, 3, variables[0], tensors[0], 0, inner]);
        let mut places_fields = vec![0; 33];
        places_fields[7] = outer;
        let first = object(&mut sample, places, &places_fields);
        let root = object(&mut sample, tree, &[first, 0, 2]);
        let held = object(&mut sample, context, &[0, root, 0, 0]);
        let own = object(&mut sample, other, &[0, root, 0, 0]);
        sample.module("__main__", &[("held", held), ("default", variables[1]), ("own", own)]);
        let found = sample.ask(&[0, 1, 2, 3].map(|at| DEVICE + at * 4096));
        assert!(found[0].starts_with("__main__.held context variable `user`"), "{found:?}");
        assert!(found[1].starts_with("__main__.held context variable `request`"), "{found:?}");
        assert!(found[2].starts_with("__main__.default → default"), "{found:?}");
        assert_eq!(found[3], "NoRoot");
    }
}
