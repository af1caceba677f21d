//! The blocks of a framework's pool, out of its own structures.
//!
//! Those of a caching allocator of `PyTorch` are found without offsets of any version: [`devices`] finds the allocators of the devices behind the one exported variable, [`downwards`] the descriptions of live
//! blocks in their tables, [`layout`] the fields of a block, by properties that only a list of neighbours has, [`trees`] the
//! free blocks, [`private`] the pools of captured graphs, and [`reading`] reads all of it again until the result is of one
//! moment, as the allocator's own sums prove. [`mindspore`] does all of it for the pool of that framework.

mod devices;
mod downwards;
mod exported;
mod layout;
#[cfg(test)]
pub(super) mod made;
mod mindspore;
mod private;
mod reading;
#[cfg(test)]
mod tests;
mod trees;

use std::time::Duration;

use self::{
    devices::Device,
    layout::Fields,
    reading::{Learnt, Reading},
};
use super::{graph::Graph, heap::Block, source::Source};
use crate::hash::{HashMap, HashSet};

/// Most blocks read of a device.
const MAX_BLOCKS: usize = 1 << 20;
/// Blocks of host memory that describe a block of a pool have between these sizes.
const DESCRIPTION_BYTES: std::ops::RangeInclusive<u64> = 96..=1024;
/// Most groups of equal blocks that are tried.
const MAX_GROUPS: usize = 16;
/// Longest time of reading one device.
const PATIENCE: Duration = Duration::from_millis(300);
/// The small pool's blocks have at most this size.
const MAX_SMALL_BYTES: u64 = 1 << 20;

/// Who uses a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum UsedBy {
    /// It is live.
    Program,
    /// It was freed, and another stream still uses it: no request gets it before that is over.
    Stream,
    /// The pool has it back.
    Pool,
}

/// A block of the pool, live or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PoolBlock {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    /// The requested size; absent where the allocator does not keep it.
    pub(super) requested_bytes: Option<u64>,
    pub(super) used_by: UsedBy,
    pub(super) stream: u64,
    /// Start of its segment.
    pub(super) segment: u64,
    /// The segment is no block of the driver: address space, parts of which have memory, or a part of a larger block.
    pub(super) is_expandable: bool,
    pub(super) is_small: bool,
    /// Number of its pool, where that is one of its own, such as a captured graph has: else 0 and 0.
    pub(super) private: (u64, u64),
    pub(super) device: u32,
}

/// A framework that has a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framework {
    /// `PyTorch`, with the caching allocator of a backend.
    #[default]
    Torch,
    /// `MindSpore`.
    MindSpore,
}

/// The pool of a process.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Class of the allocator.
    pub(super) class: String,
    /// Address and words of its list of devices.
    pub(super) list: (u64, [u64; 3]),
    /// By device, then address.
    pub(super) blocks: Vec<PoolBlock>,
    /// Host blocks of the allocator itself: they hold nothing.
    pub(super) own: HashSet<u64>,
    /// Devices with blocks.
    pub(super) devices: usize,
    /// Devices with a reading that is not proved to be of one moment.
    pub(super) unsure: Vec<u32>,
    pub(super) framework: Framework,
}

impl Pool {
    /// Addresses of live blocks.
    pub(super) fn live(&self) -> impl Iterator<Item = u64> {
        self.blocks.iter().filter(|block| block.used_by == UsedBy::Program).map(|block| block.address)
    }
}

/// Why there is no pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// No library here has a known one.
    Allocator,
    /// There is an allocator, and no block yet.
    Blocks,
    /// Its structures are unknown.
    Sense,
}

/// Whether a library is mapped that has a known pool.
pub(super) fn is_mapped(source: &dyn Source) -> bool {
    exported::libraries(source, &devices::VARIABLES).next().is_some() || mindspore::is_mapped(source)
}

/// The device of a process, where its framework uses one.
pub(super) fn device(source: &dyn Source) -> Option<u32> {
    mindspore::is_mapped(source).then(|| mindspore::device(source)).flatten()
}

/// Whether it has allocators of devices.
pub(super) fn is_started(graph: &Graph<'_>) -> bool {
    devices::find(graph).is_ok() || mindspore::object(graph).is_ok()
}

/// Reads the pool of a process.
pub(super) fn find(graph: &Graph<'_>) -> Result<Pool, Missing> {
    match of_torch(graph) {
        Err(missing @ (Missing::Allocator | Missing::Blocks)) => mindspore::find(graph).map_err(|other| match other {
            Missing::Allocator => missing,
            Missing::Blocks | Missing::Sense => other,
        }),
        found => found,
    }
}

fn of_torch(graph: &Graph<'_>) -> Result<Pool, Missing> {
    let mut allocator = devices::find(graph)?;
    for device in &mut allocator.devices {
        device.privates = private::find(graph, device);
    }
    let mut pool = Pool { class: allocator.class, list: allocator.list, ..Pool::default() };
    pool.own.extend(allocator.devices.iter().flat_map(|device| device.areas().map(|area| area.start)));
    let readings = readings(graph, &allocator.devices);
    if readings.iter().all(Option::is_none) {
        return Err(Missing::Blocks);
    }
    for (device, reading) in allocator.devices.iter().zip(&readings) {
        let Some(reading) = reading else { continue };
        pool.devices += usize::from(!reading.rows.is_empty());
        if !reading.is_proved {
            pool.unsure.push(device.number);
        }
        add(&mut pool, graph, device, reading);
    }
    index_blocks(graph, &mut pool);
    pool.blocks.sort_unstable_by_key(|block| (block.device, block.address));
    Ok(pool)
}

/// Reads each device. The first one that is proved shows where the others have everything: a device with few blocks does not show it by itself,
/// and one without any is proved by its sums. Until one is proved, a device that shows nothing is taken for unused.
fn readings(graph: &Graph<'_>, devices: &[Device]) -> Vec<Option<Reading>> {
    let mut readings: Vec<Option<Reading>> = devices.iter().map(|_| None).collect();
    let mut by_itself = devices.iter().zip(&mut readings).map(|(device, reading)| {
        *reading = read(graph, device, None);
        reading.as_ref().and_then(|reading| reading.learnt(device))
    });
    let Some(learnt) = by_itself.find_map(|learnt| learnt) else { return readings };
    for (device, reading) in devices.iter().zip(&mut readings) {
        if reading.as_ref().is_none_or(|reading| !reading.is_proved) {
            *reading = read(graph, device, Some(&learnt));
        }
    }
    readings
}

/// The blocks of a device: from its allocator downwards, and if that is not proved, from all that points at it in the pass.
fn read(graph: &Graph<'_>, device: &Device, learnt: Option<&Learnt>) -> Option<Reading> {
    let mut known = None;
    for groups in [downwards::groups, upwards] {
        let groups = groups(graph, device);
        let (fields, owners) = match learnt {
            Some(learnt) => (learnt.fields, learnt.fields.owners(groups)),
            None => match fields_of(graph, groups) {
                Some(found) => found,
                None => continue,
            },
        };
        // Nothing more than before: without a pass nothing points upwards.
        if known.is_some() && owners.is_empty() {
            continue;
        }
        let reading = reading::read(graph, device, fields, &owners, learnt);
        if reading.is_proved {
            return Some(reading);
        }
        known = Some(reading);
    }
    known
}

/// Host blocks of one size that point, at one offset, into the device's allocator or a pool of its own; and their targets there.
type Owners = Vec<(u64, u64)>;
/// The same by offset and size.
type Groups = HashMap<(u64, u64), Owners>;

/// malloc returns a block whole if it cannot split it, so equal objects have blocks that differ by 16.
fn add_owner(groups: &mut Groups, (offset, size): (u64, u64), owner: (u64, u64)) {
    for size in [size, size - 16] {
        groups.entry((offset, size)).or_default().push(owner);
    }
}

/// All blocks that the pass has seen pointing into the device's allocator.
fn upwards(graph: &Graph<'_>, device: &Device) -> Groups {
    let mut groups = Groups::default();
    for Block { start, size, .. } in device.areas() {
        graph.pointers.to(start..start + size, 4 * MAX_BLOCKS, |pointer| {
            if (start..start + size).contains(&pointer.place) {
                return;
            }
            let block = graph.heap.block(pointer.place).filter(|block| !block.is_free);
            if let Some(block) = block.filter(|block| DESCRIPTION_BYTES.contains(&block.size)) {
                add_owner(&mut groups, (pointer.place - block.start, block.size), (block.start, pointer.target));
            }
        });
    }
    groups
}

fn fields_of(graph: &Graph<'_>, groups: Groups) -> Option<(Fields, Owners)> {
    let mut groups: Vec<_> = groups.into_iter().filter(|(_, owners)| owners.len() <= MAX_BLOCKS).collect();
    groups.sort_unstable_by_key(|((offset, size), owners)| (std::cmp::Reverse((owners.len(), *size)), *offset));
    groups.truncate(MAX_GROUPS);
    let mut found = groups.into_iter().filter_map(|((offset, size), owners)| {
        let fields = layout::find(graph.memory, offset, size, &owners)?;
        Some((fields, owners))
    });
    found.next()
}

fn add(pool: &mut Pool, graph: &Graph<'_>, device: &Device, reading: &Reading) {
    let Reading { fields, rows, mapped, .. } = reading;
    let has_memory = |row: &[u64]| mapped.is_none_or(|at| layout::byte(row, at) == 1);
    let small = small_pools(graph, device, reading);
    let segments = segments(reading, &has_memory);
    for (at, row) in rows {
        pool.own.insert(*at);
        // Address space alone.
        if !has_memory(row) {
            continue;
        }
        let (segment, is_expandable) = segments.get(at).copied().unwrap_or((fields.address(row), false));
        pool.blocks.push(PoolBlock {
            address: fields.address(row),
            size_bytes: fields.size(row),
            requested_bytes: fields.requested(row),
            used_by: reading.used_by(row),
            stream: layout::stream(row),
            segment,
            is_expandable,
            is_small: small.contains(&fields.pool(row)),
            private: private::containing(&device.privates, fields.pool(row)).map_or((0, 0), |private| private.number),
            device: device.number,
        });
    }
}

/// The pools of small blocks. Where one of its own shows the place of the word that says so, it says so of all.
fn small_pools(graph: &Graph<'_>, device: &Device, reading: &Reading) -> HashSet<u64> {
    let pools: HashSet<u64> = reading.rows.values().map(|row| reading.fields.pool(row)).collect();
    let owner = private::owner_word(graph, &device.privates, &pools);
    let Some(word) = owner.and_then(|owner| owner.checked_sub(1)) else {
        return small_pool(reading).into_iter().collect();
    };
    let is_small = |pool: &u64| graph.memory.word(pool + word * 8).is_some_and(|word| word & 0xff == 1);
    pools.into_iter().filter(is_small).collect()
}

/// Of the pools that blocks point at, the one with the smallest largest live block, if that is small.
fn small_pool(reading: &Reading) -> Option<u64> {
    let mut largest: HashMap<u64, u64> = HashMap::default();
    for row in reading.rows.values() {
        let size = if layout::byte(row, reading.live) == 1 { reading.fields.size(row) } else { 0 };
        let known = largest.entry(reading.fields.pool(row)).or_default();
        *known = size.max(*known);
    }
    let least = largest.into_iter().min_by_key(|(pool, size)| (*size, *pool));
    least.filter(|(_, size)| *size <= MAX_SMALL_BYTES).map(|(pool, _)| pool)
}

/// The segment of each description: where it starts, and whether it can grow. Blocks next to each other that have memory are one; where
/// others of the same chain have none it can grow.
fn segments(reading: &Reading, has_memory: &impl Fn(&[u64]) -> bool) -> HashMap<u64, (u64, bool)> {
    let Reading { fields, rows, .. } = reading;
    let is_first = |row: &[u64]| !rows.contains_key(&fields.previous(row));
    let mut found = HashMap::default();
    for (first, _) in rows.iter().filter(|(_, row)| is_first(row)) {
        let mut chain: Vec<(u64, u64)> = Vec::new();
        let (mut at, mut segment, mut is_expandable) = (*first, None, false);
        // Each has one that is in front of it, so a chain that has a beginning has an end.
        while let Some(row) = rows.get(&at).filter(|_| chain.len() < rows.len()) {
            let has_memory = has_memory(row);
            is_expandable |= !has_memory;
            segment = has_memory.then(|| segment.unwrap_or_else(|| fields.address(row)));
            chain.push((at, segment.unwrap_or_default()));
            at = fields.next(row);
        }
        found.extend(chain.into_iter().map(|(at, segment)| (at, (segment, is_expandable))));
    }
    found
}

/// An object that only has an index of blocks, such as a node of a tree, holds nothing either. Words of an earlier use make no index: they lie in
/// the room of a list behind its items, in that behind an object which is smaller than its block, and in objects of C++.
fn index_blocks(graph: &Graph<'_>, pool: &mut Pool) {
    const MAX_INDEXES: usize = 64;
    let blocks: Vec<u64> = pool.own.iter().copied().collect();
    for at in blocks {
        for pointer in graph.pointers.all_to(at..at + 8, MAX_INDEXES) {
            let block = graph.heap.block(pointer.place).filter(|block| graph.is_bare(block));
            if let Some(block) = block.filter(|block| !graph.heap.is_room(block, pointer.place)) {
                pool.own.insert(block.start);
            }
        }
    }
}
