//! Tensors of `MindSpore`, from 2.7 to 2.10: chains of objects that `std::shared_ptr`s hold, from Python's tensor to the memory of the device.
//!
//! Their memory is used again and not cleared, so an object can have an old word with the address of another tensor's part. It shows by its place: an
//! object has its part at the same offset as all others of its kind, which are learnt from the pool's live blocks.

use std::collections::BTreeMap;

use super::{Graph, Kind, Node, Step, rules};
use crate::hash::{HashMap, HashSet};

/// The parts, the innermost first; each holds some of those before it. What has a device's memory; its address; the tensor; a result that may not be there
/// yet. Python's tensor has one of the last two inside.
const PARTS: [&[&str]; 5] = [
    &["mindspore::PointerRefCount", "mindspore::DevicePointer"],
    &["mindspore::AddressCommon"],
    &["mindspore::device::DeviceAddress", "mindspore::device::ascend::AscendDeviceAddress"],
    &["mindspore::tensor::Tensor"],
    &["mindspore::stub::StubNode"],
];
const TENSOR: usize = 3;
/// Blocks that offsets are learnt from.
const MAX_SAMPLE: usize = 256;
/// Words that are looked at for each object.
const MAX_WORDS: usize = 64;

/// The place of a class among the parts.
fn part(class: &str) -> Option<usize> {
    let class = rules::counted(class);
    PARTS.iter().position(|part| part.contains(&class))
}

fn part_of(node: &Node) -> Option<usize> {
    node.class().and_then(part)
}

/// Whether an object is a part of a tensor.
pub(super) fn is_part(class: &str) -> bool {
    part(class).is_some()
}

/// Whether it has the memory.
pub(super) fn has_memory(class: &str) -> bool {
    part(class) == Some(0)
}

/// Whether it is what Python's object has inside.
pub(super) fn is_tensor(class: &str) -> bool {
    part(class).is_some_and(|part| part >= TENSOR)
}

/// Whether an object of this class may hold the child: what has memory holds nothing else, and no part one that is further out.
pub(super) fn may_hold(class: &str, child: &Node) -> bool {
    let (outer, inner) = (part(class), part_of(child));
    outer.is_some_and(|outer| outer > 0 && inner.is_none_or(|inner| inner < outer))
}

/// Where objects have their parts.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// The offset of the address of a part's counts, which `std::shared_ptr` has behind its own; by the kinds of both.
    offsets: HashMap<(usize, usize), u64>,
    /// Kinds of objects that were seen.
    outer: HashSet<usize>,
}

impl Members {
    /// Whether objects of a kind have a part of this kind there; of a kind that was not seen all may be.
    fn may_be(&self, outer: usize, inner: usize, offset: u64) -> bool {
        !self.outer.contains(&outer) || self.offsets.get(&(outer, inner)) == Some(&offset)
    }
}

/// What was seen while they are learnt.
#[derive(Default)]
struct Seen {
    /// Objects of each kind.
    objects: BTreeMap<usize, HashSet<u64>>,
    /// Of these, such with a part of a kind at an offset.
    places: BTreeMap<(usize, usize), BTreeMap<u64, usize>>,
}

impl Seen {
    /// A part of a kind is at the offset where most of its objects have it. Old words are in few.
    fn members(self) -> Members {
        let mut members = Members::default();
        for ((outer, inner), offsets) in self.places {
            let objects = self.objects.get(&outer).map_or(0, HashSet::len);
            let most = offsets.into_iter().max_by_key(|(_, count)| *count);
            if let Some((offset, _)) = most.filter(|(_, count)| count * 2 > objects) {
                members.offsets.insert((outer, inner), offset);
            }
        }
        members.outer = self.objects.into_keys().collect();
        members
    }
}

impl Graph<'_> {
    /// Learns where objects have their parts, from those of live blocks.
    pub(super) fn learn_members(&self, addresses: impl Iterator<Item = u64>) -> Members {
        let (mut seen, mut known) = (Seen::default(), HashSet::default());
        let mut level: Vec<(u64, usize)> = Vec::new();
        for address in addresses.take(MAX_SAMPLE) {
            let holders = self.holders_of(address);
            level.extend(holders.iter().filter(|(node, _)| part_of(node) == Some(0)).map(|(node, _)| (node.start, 0)));
        }
        for _ in 0..PARTS.len() {
            let mut outer = Vec::new();
            for (start, inner) in level {
                if known.insert(start) {
                    self.see(start, inner, &mut seen, &mut outer);
                }
            }
            level = outer;
        }
        seen.members()
    }

    /// Sees what has the address of a part's counts.
    fn see(&self, start: u64, inner: usize, seen: &mut Seen, outer: &mut Vec<(u64, usize)>) {
        for (node, place) in self.holders_of(start) {
            if let Some(part) = part_of(&node).filter(|part| *part > inner) {
                seen.objects.entry(part).or_default().insert(node.start);
                *seen.places.entry((part, inner)).or_default().entry(place - node.start).or_default() += 1;
                outer.push((node.start, part));
            }
        }
    }

    /// Objects with a word that is this one, and its place.
    fn holders_of(&self, word: u64) -> Vec<(std::rc::Rc<Node>, u64)> {
        let pointers = self.pointers.all_to(word..word.saturating_add(1), MAX_WORDS);
        pointers.into_iter().filter_map(|pointer| Some((self.node(pointer.place)?, pointer.place))).collect()
    }

    /// Whether a step is the reference of a tensor's object to its part: a `std::shared_ptr` has the address of the counts, which come first, as well.
    pub(super) fn is_member(&self, step: &Step, child: &Node) -> bool {
        if step.value != child.start || step.parent.start == child.start {
            return false;
        }
        match &step.parent.kind {
            Kind::Cpp(class) => part(class)
                .zip(part_of(child))
                .is_some_and(|(outer, inner)| self.members.may_be(outer, inner, step.place - step.parent.start)),
            Kind::Python { ty, .. } => rules::is_python_tensor(ty),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::{
        graph::Wanted,
        heap::Heap,
        memory::Memory,
        pointers::{Limits, Pointers},
        python::Python,
        sample::{DEVICE, Sample},
    };

    const STEP: u64 = 1 << 20;
    const COUNTS: u64 = 1 << 32 | 1;

    fn shared(sample: &mut Sample, class: &str, fields: &[u64]) -> u64 {
        let name = format!("St23_Sp_counted_ptr_inplaceI{class}SaIS1_ELN9__gnu_cxx12_Lock_policyE2EE");
        sample.cpp(&name, &[&[COUNTS], fields].concat())
    }

    /// A tensor of Python, by the parts that `MindSpore` 2.10 has: its memory, address, tensor and result. Gives its object and the last three.
    fn tensor(sample: &mut Sample, address: u64) -> (u64, [u64; 3]) {
        let memory = shared(sample, "N9mindspore13DevicePointerE", &[address, 0, 0, 0]);
        let place = shared(sample, "N9mindspore6device13DeviceAddressE", &[0, memory + 16, memory, 0]);
        let tensor = shared(sample, "N9mindspore6tensor6TensorE", &[0, 0, 0, 0, place + 16, place]);
        let result = shared(sample, "N9mindspore4stub8StubNodeE", &[0, tensor + 16, tensor, 0]);
        (sample.tensor_of(result + 16), [place, tensor, result])
    }

    /// Names of the holders of each block, by a pool that has these blocks.
    fn holders(sample: &Sample, addresses: &[u64]) -> Vec<Vec<String>> {
        let memory = Memory::new(&sample.image);
        let python = Python::find(&memory).expect("Python").expect("Python");
        let pointers = Pointers::of(&sample.image, &[], Limits { ..Python::limits(Some(&python)) });
        let heap = Heap::new(&memory, &pointers, Some(python.layout.pool_bytes()));
        let mut graph = Graph::new(&memory, &pointers, &heap, Some(&python));
        graph.set_pool([], addresses.iter().copied());
        let of = |address: &u64| {
            let found = graph.search(&Wanted { range: *address..address + 512, paths: 3 });
            found.paths.iter().map(|path| path.trail.holder()).collect()
        };
        addresses.iter().map(of).collect()
    }

    /// Each tensor by its name. An old word of another tensor, at another offset or in what has memory, is no second holder.
    #[test]
    fn tensors_by_their_names() {
        let mut sample = Sample::new();
        let addresses: Vec<u64> = (0..5).map(|number| DEVICE + number * STEP).collect();
        let made: Vec<(u64, [u64; 3])> = addresses.iter().map(|address| tensor(&mut sample, *address)).collect();
        let [first, second] = [made[0].1, made[1].1];
        sample.put_words(first[1] + 24, &[second[0] + 16, second[0]]);
        let names: Vec<String> = (0..5).map(|number| format!("t{number}")).collect();
        let items: Vec<(&str, u64)> =
            names.iter().map(String::as_str).zip(made.iter().map(|(object, _)| *object)).collect();
        sample.module("__main__", &items);
        let expected: Vec<Vec<String>> = names.iter().map(|name| vec![format!("__main__.{name}")]).collect();
        assert_eq!(holders(&sample, &addresses), expected);
    }

    /// Offsets of a part are those of most objects: 3 of 4, and not 2 of 4.
    #[test]
    fn members_are_where_most_have_them() {
        let mut seen = Seen::default();
        seen.objects.insert(TENSOR, [1, 2, 3, 4].into_iter().collect());
        seen.places.insert((TENSOR, 2), [(0x98, 1), (0xf8, 3)].into());
        seen.places.insert((TENSOR, 0), [(0x98, 2)].into());
        let members = seen.members();
        let may_be = |inner, offset| members.may_be(TENSOR, inner, offset);
        assert_eq!([may_be(2, 0xf8), may_be(2, 0x98), may_be(0, 0x98)], [true, false, false]);
        assert!(members.may_be(TENSOR + 1, 3, 0x60), "none was seen");
    }
}
