//! From an address to its object, and from an object to its parents.

use std::rc::Rc;

use super::{Graph, Kind, Node, Root, Step, roots::OnStack};
use crate::holders::{
    heap::{Block, Origin},
    python::{Builtin, Variable, of_object},
    source::Mapping,
};

/// Most parents read of one object.
pub(super) const MAX_PARENTS: usize = 3000;
/// Objects of C++ and plain memory are pointed at inside as well, up to here, ...
const INSIDE_BYTES: u64 = 1024;
/// ... but for large blocks, which begin with a head.
const LARGE_BYTES: u64 = 4096;
const LARGE_INSIDE_BYTES: u64 = 32;
/// Around frames there are heads of other frames, and what earlier ones have left.
const AROUND_FRAMES: u64 = 0x4000;
/// Most objects kept.
const MAX_KNOWN: usize = 1 << 20;

impl Graph<'_> {
    /// The object at an address; `None` if it cannot hold anything.
    pub(super) fn node(&self, place: u64) -> Option<Rc<Node>> {
        if let Some(root) = self.local(place) {
            return Some(as_node(place, root));
        }
        let at = self.memory.mapping_at(place)?;
        let mappings = self.memory.source().mappings();
        let mapping = &mappings[at];
        match self.roots.stack(place, mapping) {
            OnStack::No => {}
            OnStack::Unused => return None,
            OnStack::Used(root) => return Some(as_node(place, root)),
        }
        if mapping.is_file() {
            return Some(as_node(place, self.roots.global(place, mapping)));
        }
        match self.heap.block(place) {
            Some(block) => self.node_of_block(&block),
            None => self.outside(place, mapping, at.checked_sub(1).map(|before| &mappings[before])),
        }
    }

    fn local(&self, place: u64) -> Option<Root> {
        let python = self.python?;
        if let Some(tid) = python.context_at(place) {
            return Some(Root::Context { tid });
        }
        let frame = python.frame_at(place)?;
        let function = python.code_text(frame.code);
        Some(match python.variable(frame.code, (place - frame.start) / 8) {
            Variable::Named(name) => Root::Local { name, function },
            Variable::Unnamed => Root::Value { function },
        })
    }

    /// A place in no block of a heap.
    fn outside(&self, place: u64, mapping: &Mapping, before: Option<&Mapping>) -> Option<Rc<Node>> {
        if self.is_among_frames(place) {
            return None;
        }
        let global = self.roots.zeroed_global(place, mapping, before);
        Some(as_node(place, global.unwrap_or(Root::Unknown { page: place & !4095 })))
    }

    fn is_among_frames(&self, place: u64) -> bool {
        let Some(python) = self.python.filter(|python| !python.layout.frames_are_objects()) else { return false };
        let frames = python.frames();
        let behind = frames.partition_point(|frame| frame.start <= place);
        let near = frames[behind.saturating_sub(1)..].iter().take(2);
        near.into_iter().any(|frame| frame.start.abs_diff(place) < AROUND_FRAMES)
    }

    fn node_of_block(&self, block: &Block) -> Option<Rc<Node>> {
        if block.is_free || self.skipped.contains(&block.start) {
            return None;
        }
        if let Some(known) = self.nodes.borrow().get(&block.start) {
            return known.clone();
        }
        let kind = self.kind(block);
        let node = kind.map(|kind| Rc::new(Node { start: block.start, size: block.size, kind }));
        let mut nodes = self.nodes.borrow_mut();
        if nodes.len() >= MAX_KNOWN {
            nodes.clear();
        }
        nodes.insert(block.start, node.clone());
        node
    }

    fn kind(&self, block: &Block) -> Option<Kind> {
        if let Some((object, ty)) = self.python.and_then(|python| python.object(block)) {
            return (!ty.is_scalar && !ty.is_weak).then_some(Kind::Python { object, ty });
        }
        if block.origin == Origin::Pymalloc {
            return Some(Kind::Plain);
        }
        let class = self.memory.word(block.start).and_then(|word| self.classes.class(word));
        Some(class.map_or(Kind::Plain, Kind::Cpp))
    }

    /// Whether a block of malloc's is memory without a type that no object of Python has as its items.
    pub(in crate::holders) fn is_bare(&self, block: &Block) -> bool {
        /// Nodes of trees and maps of C++; larger items of Python's.
        const NODE_BYTES: u64 = 64;
        let Some(node) = self.node(block.start).filter(|node| node.is_plain()) else { return false };
        let has_owner = || self.parents(&node).iter().any(|step| step.parent.is_python());
        block.origin != Origin::Pymalloc && (block.size <= NODE_BYTES || !has_owner())
    }

    /// What holds an object.
    pub(super) fn parents(&self, node: &Node) -> Vec<Step> {
        let range = match &node.kind {
            Kind::Root(_) => return Vec::new(),
            // Objects of Python are pointed at exactly.
            Kind::Python { object, .. } => *object..*object + 8,
            Kind::Cpp(_) | Kind::Plain => {
                // The neighbour's free lists point at the last word of a block of glibc's; others have blocks of one word.
                let size = if node.size % 16 == 8 && node.size > 8 { node.size - 8 } else { node.size };
                let inside = if node.size > LARGE_BYTES { LARGE_INSIDE_BYTES } else { INSIDE_BYTES };
                node.start..node.start.saturating_add(size.min(inside))
            }
        };
        let own = node.start..node.start.saturating_add(node.size);
        let found = self.pointers.all_to(range, MAX_PARENTS);
        let others = found.into_iter().filter(|pointer| !own.contains(&pointer.place));
        let steps = others.filter_map(|pointer| {
            let parent = self.node(pointer.place)?;
            Some(Step { parent, place: pointer.place, value: pointer.target })
        });
        let mut steps: Vec<Step> = steps.filter(|step| self.admits(step, node)).collect();
        // A module's variables are its own, whoever else has the dict: functions have it, and caches of compilers.
        if let Some(module) = steps.iter().position(is_of_module) {
            return vec![steps.swap_remove(module)];
        }
        steps.extend(self.deque_of(node));
        self.drop_left_overs(node, &mut steps);
        steps
    }
}

/// Whether a step leads from the variables of a module to it.
fn is_of_module(step: &Step) -> bool {
    match &step.parent.kind {
        Kind::Python { object, ty } => ty.builtin == Builtin::Module && step.place == object + of_object::MODULE_DICT,
        _ => false,
    }
}

/// A root is known by its place.
fn as_node(place: u64, root: Root) -> Rc<Node> {
    Rc::new(Node { start: place & !7 | 1, size: 8, kind: Kind::Root(root) })
}
