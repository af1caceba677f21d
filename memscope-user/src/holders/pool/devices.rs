//! The allocators of the devices, behind a variable that the framework exports.

use super::{
    Missing,
    exported::{self, Exported},
    private::Private,
};
use crate::holders::{graph::Graph, heap::Block};

/// The variables, and prefixes of the libraries that have them. `torch_npu`'s was verified; those of CUDA and HIP have
/// the same form.
pub(super) const VARIABLES: [Exported; 3] = [
    ("libtorch_npu", "_ZN7c10_npu19NPUCachingAllocator9allocatorE"),
    ("libc10_cuda", "_ZN3c104cuda20CUDACachingAllocator9allocatorE"),
    ("libc10_hip", "_ZN3c103hip19HIPCachingAllocator9allocatorE"),
];
/// Bytes of the allocator among which its list of devices is.
const ALLOCATOR_BYTES: usize = 4096;
/// The allocator of a device is larger than this.
const MIN_DEVICE_BYTES: u64 = 1024;
const MAX_DEVICE_BYTES: u64 = 1 << 20;
/// Devices of a process.
const MAX_DEVICES: u64 = 512;
/// Blocks of one size may differ by what malloc cannot split.
const SAME_SIZE: u64 = 32;

/// The allocator of one device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) number: u32,
    pub(super) block: Block,
    /// Pools of their own inside of it, by address.
    pub(super) privates: Vec<Private>,
}

impl Device {
    /// The host memory that blocks point into: the allocator itself first, then the pools of their own.
    pub(super) fn areas(&self) -> impl Iterator<Item = Block> {
        std::iter::once(self.block).chain(self.privates.iter().map(|private| private.block))
    }
}

#[derive(Debug)]
pub(super) struct Allocator {
    pub(super) class: String,
    /// Where its list of devices is: begin, end, capacity.
    pub(super) list: (u64, [u64; 3]),
    pub(super) devices: Vec<Device>,
}

pub(super) fn find(graph: &Graph<'_>) -> Result<Allocator, Missing> {
    let variable = exported::variable(graph.memory.source(), &VARIABLES).ok_or(Missing::Allocator)?;
    // Before the framework has started there is none.
    let object = graph.memory.word(variable).filter(|object| *object != 0).ok_or(Missing::Blocks)?;
    let class = graph.memory.word(object).and_then(|word| graph.classes.class(word)).ok_or(Missing::Sense)?;
    let mut bytes = ALLOCATOR_BYTES;
    let words = loop {
        match graph.memory.words(object, bytes / 8) {
            Some(words) => break words,
            None if bytes > 64 => bytes /= 2,
            None => return Err(Missing::Sense),
        }
    };
    let mut lists = (0..).step_by(8).zip(words.windows(3)).skip(1).filter_map(|(at, list)| {
        let list = [list[0], list[1], list[2]];
        Some(((object + at, list), devices(graph, list)?))
    });
    let (list, devices) = lists.next().ok_or(Missing::Blocks)?;
    Ok(Allocator { class: class.to_string(), list, devices })
}

/// `begin, end, capacity` of a list of starts of large blocks, all of one size.
fn devices(graph: &Graph<'_>, [begin, end, capacity]: [u64; 3]) -> Option<Vec<Device>> {
    let is_list = begin != 0 && begin.is_multiple_of(8) && begin < end && end <= capacity;
    if !is_list || capacity - begin > MAX_DEVICES * 8 {
        return None;
    }
    let elements = graph.memory.words(begin, ((end - begin) / 8) as usize)?;
    let devices = (0..).zip(elements).map(|(number, element)| {
        let block = graph.heap.at_start(element)?;
        let is_device = (MIN_DEVICE_BYTES..MAX_DEVICE_BYTES).contains(&block.size);
        is_device.then_some(Device { number, block, privates: Vec::new() })
    });
    let devices: Vec<Device> = devices.collect::<Option<_>>()?;
    let same = devices.windows(2).all(|two| two[0].block.size.abs_diff(two[1].block.size) <= SAME_SIZE);
    same.then_some(devices)
}
