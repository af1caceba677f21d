//! The graph of what holds what, upwards from a device block: objects of Python and C++, plain memory, and roots.
//!
//! Memory is full of left-overs, since allocators do not clear it: [`rules`] decide which words of an object count, and
//! each of them has kept a wrong path out. Names of paths are in [`edges`], their order in [`cost`].

mod confirm;
mod contexts;
mod cost;
mod counts;
mod deques;
mod edges;
mod garbage;
mod lists;
mod mindspore;
mod nodes;
mod proof;
mod purpose;
mod roots;
mod rules;
mod search;
mod storages;

use std::{cell::RefCell, rc::Rc};

use self::roots::Roots;
pub(super) use self::{
    edges::Trail,
    proof::Proof,
    search::{Found, Path, Wanted},
};
use super::{
    cpp::Classes,
    heap::Heap,
    memory::Memory,
    pointers::Pointers,
    python::{Python, Type},
};
use crate::hash::{HashMap, HashSet};

/// The kind of an object.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Of Python; the object lies behind the start of its block.
    Python { object: u64, ty: Rc<Type> },
    /// Of C++, by its class.
    Cpp(Rc<str>),
    /// Memory without a type: items of a list, keys of a dict, and unknown memory.
    Plain,
    /// Where a path ends.
    Root(Root),
}

/// Where a path ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// A variable of a function that runs.
    Local { name: String, function: String },
    /// A value of a function that runs, maybe a left-over.
    Value { function: String },
    /// A variable of a library.
    Global { name: String, is_known_holder: bool },
    /// The current context of a thread; the number 0 is unknown.
    Context { tid: u32 },
    /// The stack of a thread.
    Stack { tid: u32 },
    /// Memory that no allocator here knows.
    Unknown { page: u64 },
}

/// An object, by the block that it lies in.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) kind: Kind,
}

impl Node {
    pub(super) const fn is_plain(&self) -> bool {
        matches!(self.kind, Kind::Plain)
    }

    pub(super) const fn is_python(&self) -> bool {
        matches!(self.kind, Kind::Python { .. })
    }

    /// The class, of an object of C++.
    pub(super) fn class(&self) -> Option<&str> {
        match &self.kind {
            Kind::Cpp(class) => Some(class),
            _ => None,
        }
    }
}

/// One step up: the word at `place`, in `parent`, points at the child.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) parent: Rc<Node>,
    pub(super) place: u64,
    pub(super) value: u64,
}

impl Step {
    /// Plain memory is visited by the word, all other objects as a whole: a left-over in an array would hide the word
    /// that counts.
    fn identity(&self) -> u64 {
        if self.parent.is_plain() { self.place } else { self.parent.start }
    }
}

/// Parts of a process together.
#[derive(Debug)]
pub(super) struct Graph<'a> {
    pub(super) memory: &'a Memory<'a>,
    pub(super) pointers: &'a Pointers,
    pub(super) heap: &'a Heap<'a>,
    pub(super) python: Option<&'a Python<'a>>,
    pub(super) classes: Classes<'a>,
    /// Blocks of the pool's allocator itself, which hold nothing.
    skipped: HashSet<u64>,
    /// Blocks are held by tensors: other words that look like their addresses count for less.
    has_tensors: bool,
    members: mindspore::Members,
    roots: Roots<'a>,
    nodes: RefCell<HashMap<u64, Option<Rc<Node>>>>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(
        memory: &'a Memory<'a>,
        pointers: &'a Pointers,
        heap: &'a Heap<'a>,
        python: Option<&'a Python<'a>>,
    ) -> Self {
        Self {
            memory,
            pointers,
            heap,
            python,
            classes: Classes::new(memory),
            skipped: HashSet::default(),
            has_tensors: false,
            members: mindspore::Members::default(),
            roots: Roots::new(memory, python),
            nodes: RefCell::default(),
        }
    }

    /// There is a pool: leaves out `own`, what belongs to its allocator; `live` are addresses of its blocks.
    pub(super) fn set_pool(&mut self, own: impl IntoIterator<Item = u64>, live: impl Iterator<Item = u64>) {
        self.skipped.extend(own);
        self.has_tensors = true;
        self.members = self.learn_members(live);
        self.nodes.borrow_mut().clear();
    }

    /// Drops all pages: later reads see the memory as it is then.
    pub(super) fn forget(&self) {
        self.memory.forget();
        self.heap.forget();
        if let Some(python) = self.python {
            python.forget();
        }
        self.nodes.borrow_mut().clear();
    }
}
