//! The cheapest paths from a block to roots, by Dijkstra's algorithm, from the block outwards. If several paths are
//! wanted, an object is passed as many times: two variables of one module both lead through its dict.

use std::{cmp::Reverse, collections::BinaryHeap, ops::Range, rc::Rc};

use super::{
    Graph, Kind, Node, Root, Step, Trail,
    cost::{KEY, LISTED, NO_ITEMS},
    nodes::MAX_PARENTS,
    proof::Proof,
    rules,
};
use crate::{
    hash::{HashMap, HashSet},
    holders::python::Builtin,
};

/// Most objects visited for one block.
const MAX_OBJECTS: usize = 40_000;
/// Most waiting steps for one block.
const MAX_WAITING: usize = 400_000;
/// Steps of one path: deeper is no structure that a person would name.
const MAX_STEPS: u32 = 400;
/// A path that costs this much more than the best one is none that a person would name.
const MAX_EXTRA: u32 = 50;
/// A word that points into a block, not at its start.
const INSIDE: u32 = 30;
/// Objects of Python that are remembered of a search.
const MAX_ON_WAY: usize = 64;
/// An object with the address itself, where tensors hold blocks.
const NO_TENSOR: u32 = 40;

/// The search's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::holders) struct Wanted {
    /// The block on the device.
    pub(in crate::holders) range: Range<u64>,
    /// Paths with different texts.
    pub(in crate::holders) paths: usize,
}

/// A way from a block to a root.
#[derive(Clone, Debug)]
pub(in crate::holders) struct Path {
    pub(in crate::holders) cost: u32,
    /// From the block outwards.
    pub(in crate::holders) steps: Vec<Step>,
    pub(in crate::holders) proof: Proof,
    pub(in crate::holders) trail: Trail,
}

/// The result for one block.
#[derive(Clone, Debug, Default)]
pub(in crate::holders) struct Found {
    pub(in crate::holders) paths: Vec<Path>,
    /// Visited objects; without any there is no reference to it.
    pub(in crate::holders) objects: usize,
    /// Objects of Python hold each other, and nothing else does.
    pub(in crate::holders) is_ring: bool,
    /// The limit of objects was reached.
    pub(in crate::holders) is_cut: bool,
    /// Objects of Python on the way, the nearest first.
    pub(in crate::holders) on_way: Vec<u64>,
}

/// A step of the tree of the search.
struct Entry {
    from: Option<usize>,
    step: Step,
    depth: u32,
}

/// A search under way.
struct Search {
    queue: BinaryHeap<Reverse<(u32, usize)>>,
    tree: Vec<Entry>,
    /// Number of times that each object was passed.
    passed: HashMap<u64, usize>,
    /// What holds each object.
    parents: HashMap<u64, Rc<[Step]>>,
    holders: HashSet<String>,
    /// Objects that variables of running functions lead to, and dicts that functions have their globals in.
    objects: HashSet<u64>,
    /// A tensor has the block, or another one of the pool: an address that no storage has is likely a left-over, or that of memory that several share.
    is_of_tensors: bool,
    found: Found,
}

impl Search {
    fn push(&mut self, cost: u32, entry: Entry) {
        self.queue.push(Reverse((cost, self.tree.len())));
        self.tree.push(entry);
    }

    /// The steps from the block to this one.
    fn steps(&self, last: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut at = Some(last);
        while let Some(entry) = at.and_then(|at| self.tree.get(at)) {
            steps.push(entry.step.clone());
            at = entry.from;
        }
        steps.reverse();
        steps
    }

    /// Whether a step is already on the path to this one: a ring.
    fn is_on_way(&self, last: usize, step: &Step) -> bool {
        let mut at = Some(last);
        while let Some(entry) = at.and_then(|at| self.tree.get(at)) {
            if entry.step.identity() == step.identity() {
                return true;
            }
            at = entry.from;
        }
        false
    }

    /// Whether no further path is of interest.
    fn has_all(&self, wanted: usize) -> bool {
        let paths = &self.found.paths;
        paths.len() >= wanted && paths.iter().all(|path| path.proof == Proof::Typed)
    }

    fn forget_paths(&mut self) {
        self.found.paths.clear();
        self.holders.clear();
        self.objects.clear();
    }

    fn is_too_dear(&self, cost: u32) -> bool {
        self.found.paths.first().is_some_and(|best| cost > best.cost + MAX_EXTRA)
    }
}

impl Graph<'_> {
    /// The cheapest ways from a block to different roots.
    pub(in crate::holders) fn search(&self, wanted: &Wanted) -> Found {
        let mut search = Search {
            queue: BinaryHeap::new(),
            tree: Vec::new(),
            passed: HashMap::default(),
            parents: HashMap::default(),
            holders: HashSet::default(),
            objects: HashSet::default(),
            is_of_tensors: self.has_tensors,
            found: Found::default(),
        };
        self.seed(wanted, &mut search);
        while let Some(Reverse((cost, at))) = search.queue.pop() {
            if search.is_too_dear(cost) {
                break;
            }
            let parent = Rc::clone(&search.tree[at].step.parent);
            if is_root(&parent) {
                search.passed.entry(parent.start).or_insert(1);
                self.arrive(cost, at, &mut search);
                if search.has_all(wanted.paths) {
                    break;
                }
                continue;
            }
            let passed = search.passed.entry(search.tree[at].step.identity()).or_default();
            if *passed >= wanted.paths {
                continue;
            }
            *passed += 1;
            if search.passed.len() > MAX_OBJECTS || search.tree.len() > MAX_WAITING {
                search.found.is_cut = true;
                break;
            }
            if search.tree[at].depth < MAX_STEPS {
                self.expand(cost, at, wanted.paths, &mut search);
            }
        }
        let mut found = search.found;
        found.paths.sort_by_key(|path| path.cost);
        found.paths.truncate(wanted.paths);
        found.objects = search.passed.len();
        let steps = search.tree.iter().map(|entry| &entry.step);
        let objects = steps.clone().filter_map(|step| match step.parent.kind {
            Kind::Python { object, .. } => Some(object),
            _ => None,
        });
        found.on_way = objects.take(MAX_ON_WAY).collect();
        found.is_ring = found.paths.is_empty() && !found.is_cut && self.is_garbage(steps, &search.parents);
        found
    }

    /// A block belongs to the object that points at its start; pointers to its inside count for less.
    fn seed(&self, wanted: &Wanted, search: &mut Search) {
        let range = &wanted.range;
        let block = Node { start: range.start, size: range.end - range.start, kind: Kind::Plain };
        let pointers = self.pointers.all_to(range.clone(), MAX_PARENTS);
        let outside = pointers.into_iter().filter(|pointer| !range.contains(&pointer.place));
        let steps = outside.filter_map(|pointer| {
            Some(Step { parent: self.node(pointer.place)?, place: pointer.place, value: pointer.target })
        });
        let steps: Vec<Step> = steps.filter(may_have_address).collect();
        search.is_of_tensors |= steps.iter().any(|step| is_of_tensor(step) && step.value == range.start);
        for step in steps {
            let inside = if step.value == range.start { 0 } else { INSIDE };
            let no_tensor = if search.is_of_tensors && !is_of_tensor(&step) { NO_TENSOR } else { 0 };
            let cost = self.cost(&step, &block) + inside + no_tensor;
            search.push(cost, Entry { from: None, step, depth: 0 });
        }
    }

    fn expand(&self, cost: u32, at: usize, most: usize, search: &mut Search) {
        let Entry { from, step: below, depth } = &search.tree[at];
        let (node, place, depth) = (Rc::clone(&below.parent), below.place, *depth);
        let below = from.map(|from| Rc::clone(&search.tree[from].step.parent));
        let has_object = below.as_ref().is_some_and(|below| below.is_python());
        let is_plain = node.is_plain();
        let item = if is_plain { below } else { Some(Rc::clone(&node)) };
        let parents = search.parents.entry(node.start).or_insert_with(|| self.parents(&node).into());
        for step in Rc::clone(parents).iter() {
            let is_done = search.passed.get(&step.identity()).is_some_and(|passed| *passed >= most);
            if is_done && !is_root(&step.parent) || (is_plain && !self.is_owned(step, place, has_object)) {
                continue;
            }
            if search.is_on_way(at, step) {
                continue;
            }
            let is_key = is_plain && self.is_key(step, place);
            let is_odd = is_plain && has_object && !rules::is_items(step);
            let is_listed = item.as_ref().is_some_and(|item| is_listed(item, &step.parent));
            let more = [(is_key, KEY), (is_odd, NO_ITEMS), (is_listed, LISTED)];
            let more: u32 = more.iter().filter(|(is_so, _)| *is_so).map(|(_, cost)| cost).sum();
            let next = cost + self.cost(step, &node) + more;
            search.push(next, Entry { from: Some(at), step: step.clone(), depth: depth + 1 });
        }
    }

    /// The dict that a path passes as the globals of a function: all functions of a module have the same.
    fn globals(&self, steps: &[Step]) -> Option<u64> {
        let is_globals = |step: &&Step| match &step.parent.kind {
            Kind::Python { object, ty } => ty.builtin == Builtin::Function && self.is_redundant(*object, ty, step),
            _ => false,
        };
        steps.iter().find(is_globals).map(|step| step.value)
    }

    /// A path is whole. It counts if none that shows more was found: the others are likely made of left-overs then.
    fn arrive(&self, cost: u32, last: usize, search: &mut Search) {
        let steps = search.steps(last);
        let is_left_over = search.is_of_tensors && !steps.first().is_some_and(is_of_tensor);
        let proof = if is_left_over { Proof::Weak } else { self.proof(&steps) };
        let best = search.found.paths.first().map_or(Proof::Weak, |path| path.proof);
        if proof < best || (proof == Proof::Weak && !search.found.paths.is_empty()) {
            return;
        }
        let Some(trail) = self.trail(&steps) else { return };
        if proof > best {
            search.forget_paths();
        }
        let mut seen = |object| !search.objects.insert(object);
        let is_passed_on = passed_on(&steps).is_some_and(&mut seen) || self.globals(&steps).is_some_and(&mut seen);
        if !is_passed_on && search.holders.insert(trail.holder()) {
            let cost = cost + trail.oddness();
            search.found.paths.push(Path { cost, steps, proof, trail });
        }
    }
}

/// Whether the word may be the address of a device block: a storage has it in front, tensors and Python's containers
/// have none.
pub(super) fn may_have_address(step: &Step) -> bool {
    const STORAGE_BYTES: u64 = 0x20;
    match &step.parent.kind {
        Kind::Cpp(class) if rules::is_storage(class) => step.place - step.parent.start <= STORAGE_BYTES,
        // Functions of autograd keep tensors, and never an address by itself.
        Kind::Cpp(class) => !rules::is_tensor(class) && !rules::is_autograd(class),
        Kind::Python { ty, .. } => !ty.is_class() && !ty.holds_objects_alone(),
        _ => true,
    }
}

/// Whether a storage has the word, or what other frameworks have in place of it.
fn is_of_tensor(step: &Step) -> bool {
    step.parent.class().is_some_and(rules::has_memory)
}

/// The object in a variable of a running function: functions pass it on to those that they call.
fn passed_on(steps: &[Step]) -> Option<u64> {
    let (root, rest) = steps.split_last()?;
    let is_local = matches!(&root.parent.kind, Kind::Root(Root::Local { .. }));
    is_local.then(|| rest.last().map(|step| step.parent.start)).flatten()
}

/// Whether a list or a tuple has a parameter: its module names it better.
fn is_listed(item: &Node, parent: &Node) -> bool {
    let is_parameter = matches!(&item.kind, Kind::Python { ty, .. } if rules::is_parameter(ty));
    is_parameter && matches!(&parent.kind, Kind::Python { ty, .. } if ty.is_list() || ty.is_tuple())
}

fn is_root(node: &Node) -> bool {
    match &node.kind {
        Kind::Root(_) => true,
        Kind::Python { ty, .. } => ty.builtin == Builtin::Module || ty.is_class(),
        _ => false,
    }
}
