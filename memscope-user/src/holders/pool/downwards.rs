//! Descriptions of blocks, found from the allocator of a device downwards: it points at its table of live blocks, and that at their
//! descriptions. No pass over the process's memory is needed for it; what is in no such table, such as free blocks, is found from those.

use super::{Groups, MAX_BLOCKS, devices::Device, private};
use crate::{
    hash::{HashMap, HashSet},
    holders::{graph::Graph, heap::Block, memory::Memory, source::ADDRESS_END},
};

/// Most bytes of all tables of a device: those of a million blocks, half empty.
const MAX_TABLES: u64 = 64 << 20;
/// The first byte of an empty slot: it may still have the block that was in it, the memory of which is another's by now.
const EMPTY: u64 = 0xff;
/// Blocks of the heap begin at multiples of this.
const ALIGN: u64 = 16;

/// Blocks that the device's allocator, or a table of it, points at, and that point back into it.
pub(super) fn groups(graph: &Graph<'_>, device: &Device) -> Groups {
    let is_inside = |address: u64| {
        let Block { start, size, .. } = device.block;
        address.checked_sub(start).is_some_and(|into| into < size)
            || private::containing(&device.privates, address).is_some()
    };
    let areas = device.areas().map(|area| (area.start, area.size));
    let mut tables = starts(graph.memory, areas, &HashSet::default());
    tables.retain(|table| !is_inside(*table));
    let mut room = MAX_TABLES;
    let tables: Vec<(u64, u64)> = tables
        .into_iter()
        .filter_map(|table| graph.heap.at_start(table))
        .map(|block| (block.start, block.size))
        .filter(|(_, size)| {
            let fits = *size <= room;
            room -= if fits { *size } else { 0 };
            fits
        })
        .collect();
    let known = tables.iter().map(|(start, _)| *start).collect();
    let mut descriptions: Vec<u64> = tables.iter().map(|(start, _)| *start).collect();
    descriptions.extend(starts(graph.memory, tables.into_iter(), &known));
    grouped(graph, &descriptions, is_inside)
}

/// Where words of these pieces point at that may be the start of a block, each once, without those that are `known`.
fn starts(memory: &Memory<'_>, pieces: impl Iterator<Item = (u64, u64)>, known: &HashSet<u64>) -> Vec<u64> {
    const PIECE: u64 = 1 << 20;
    let source = memory.source();
    let (mut seen, mut found) = (HashSet::default(), Vec::new());
    let mut buffer = Vec::new();
    for (start, size) in pieces {
        let end = start.saturating_add(size & !7);
        for from in (start..end).step_by(PIECE as usize) {
            buffer.resize((end - from).min(PIECE) as usize, 0);
            let got = source.read(from, &mut buffer);
            let words = buffer[..got].as_chunks().0.iter().copied().map(u64::from_le_bytes);
            let mut before = 0;
            for word in words {
                let is_empty = std::mem::replace(&mut before, word) & 0xff == EMPTY;
                let may_be = word != 0 && !is_empty && word.is_multiple_of(ALIGN) && word < ADDRESS_END;
                if !may_be || known.contains(&word) || !seen.insert(word) {
                    continue;
                }
                if memory.mapping(word).is_some_and(|mapping| mapping.is_anonymous() && mapping.writable) {
                    found.push(word);
                }
                if seen.len() >= 2 * MAX_BLOCKS {
                    return found;
                }
            }
        }
    }
    found
}

/// The blocks that begin at these addresses, by their size and by where they point into the allocator.
fn grouped(graph: &Graph<'_>, starts: &[u64], is_inside: impl Fn(u64) -> bool) -> Groups {
    let mut by_size: HashMap<u64, Vec<u64>> = HashMap::default();
    for block in starts.iter().filter_map(|start| graph.heap.at_start(*start)) {
        if super::DESCRIPTION_BYTES.contains(&block.size) {
            by_size.entry(block.size).or_default().push(block.start);
        }
    }
    let mut groups = Groups::default();
    for (size, starts) in by_size {
        let bytes = size as usize & !7;
        for starts in starts.chunks(1 << 12) {
            let read = graph.memory.source().read_pieces(starts, bytes);
            for (start, block) in starts.iter().zip(read.chunks_exact(bytes)) {
                let words = block.as_chunks().0.iter().copied().map(u64::from_le_bytes);
                for (offset, target) in (0..).step_by(8).zip(words).filter(|(_, word)| is_inside(*word)) {
                    super::add_owner(&mut groups, (offset, size), (*start, target));
                }
            }
        }
    }
    groups
}
