//! Pools of their own inside of a device's allocator: those of captured graphs, and those that a program makes itself. The allocator keeps
//! them in a table by number; each has trees of free blocks as the device's allocator has.
//!
//! ```text
//! slot of the table: i8 distance (-1: empty), number (two words), pool
//! pool: … trees …, u8 is_small, itself, … trees …, u8 is_small, itself, …
//! ```

use super::devices::Device;
use crate::{
    hash::{HashMap, HashSet},
    holders::{graph::Graph, heap::Block},
};

/// Bytes of the table, and of a pool.
const TABLE_BYTES: std::ops::RangeInclusive<u64> = 64..=1 << 20;
const POOL_BYTES: std::ops::RangeInclusive<u64> = 128..=4096;
/// Most pools of a device: a server has one for each captured size at most.
const MAX_POOLS: usize = 4096;
/// Numbers of pools are counted up from 0.
const MAX_NUMBER: u64 = 1 << 32;
/// Words of a slot.
const SLOT_WORDS: usize = 4;

/// A pool of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Private {
    pub(super) block: Block,
    /// Its number, as the allocator's snapshot has it.
    pub(super) number: (u64, u64),
}

/// The pools of their own of a device, by address.
pub(super) fn find(graph: &Graph<'_>, device: &Device) -> Vec<Private> {
    // A slot that is empty may still have what was in it: those in use count more.
    let mut found: HashMap<u64, (bool, Private)> = HashMap::default();
    for table in tables(graph, device) {
        let Some(words) = graph.memory.words(table.start, (table.size / 8) as usize) else { continue };
        for slot in words.windows(SLOT_WORDS) {
            if found.len() >= MAX_POOLS {
                break;
            }
            let Some(private) = of_slot(graph, slot) else { continue };
            let is_used = slot[0].to_le_bytes()[0] < 0x80;
            let known = found.entry(private.block.start).or_insert((is_used, private));
            if is_used && !known.0 {
                *known = (is_used, private);
            }
        }
    }
    let mut pools: Vec<Private> = found.into_values().map(|(_, private)| private).collect();
    pools.sort_unstable_by_key(|private| private.block.start);
    pools
}

/// Blocks of the host that the device's allocator points at.
fn tables(graph: &Graph<'_>, device: &Device) -> Vec<Block> {
    let Block { start, size, .. } = device.block;
    let mut words = graph.memory.words(start, (size / 8) as usize).unwrap_or_default();
    words.sort_unstable();
    words.dedup();
    let blocks = words.into_iter().filter_map(|word| whole(graph, word));
    blocks.filter(|block| TABLE_BYTES.contains(&block.size)).collect()
}

/// The block in use that begins at an address.
fn whole(graph: &Graph<'_>, address: u64) -> Option<Block> {
    let may_be = address != 0 && address.is_multiple_of(8);
    may_be.then(|| graph.heap.at_start(address)).flatten()
}

fn of_slot(graph: &Graph<'_>, slot: &[u64]) -> Option<Private> {
    let [_, first, second, address] = *slot else { return None };
    // Before the look at the heap, which is the cost.
    if first >= MAX_NUMBER || second >= MAX_NUMBER || (first, second) == (0, 0) {
        return None;
    }
    let block = whole(graph, address).filter(|block| POOL_BYTES.contains(&block.size))?;
    let words = graph.memory.words(address, (block.size / 8) as usize)?;
    // Each of its two halves, for small and for large blocks, points at it.
    let halves = words.iter().filter(|word| **word == address).count();
    (halves == 2).then_some(Private { block, number: (first, second) })
}

/// Words from where blocks point at to the one that says of which pool of its own it is.
pub(super) fn owner_word(graph: &Graph<'_>, privates: &[Private], pools: &HashSet<u64>) -> Option<u64> {
    let mut distances = pools.iter().filter_map(|pool| {
        let private = containing(privates, *pool)?;
        let from = pool.checked_sub(private.block.start)? / 8;
        let words = graph.memory.words(private.block.start, (private.block.size / 8) as usize)?;
        let behind = words.iter().skip(from as usize);
        behind.zip(0..).find(|(word, _)| **word == private.block.start).map(|(_, distance)| distance)
    });
    distances.next()
}

/// The one that an address is inside of.
pub(super) fn containing(privates: &[Private], address: u64) -> Option<&Private> {
    let at = privates.partition_point(|private| private.block.start <= address);
    let private = privates.get(at.checked_sub(1)?)?;
    (address - private.block.start < private.block.size).then_some(private)
}
