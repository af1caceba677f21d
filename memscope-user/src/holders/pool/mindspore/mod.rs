//! `MindSpore`'s pool: the objects of its `AbstractDynamicMemPool`, as they are in 2.7.0 to 2.10.0 (`abstract_dynamic_mem_pool.h`).
//!
//! ```text
//! AscendMemoryPool::instance_ (exported) → DefaultAscendMemoryPool
//!   std::map<stream, shared_ptr<MemBufAllocator>>                  MemBufAllocator: std::list<MemBlock *>, std::set<MemBuf *> of free ones
//!   std::unordered_map<address, {MemBuf *, MemBufAllocator *}>     handed out
//!   MemStat                                                        in it, or behind a pointer: its sums
//! ```
//!
//! Where the containers are in their objects is found by their form. A reading counts if the buffers fill their blocks without a gap, those in use are
//! those of the table, and the sums are the pool's own.

mod device;
#[cfg(test)]
mod tests;

use std::time::Instant;

use super::{
    Framework, MAX_BLOCKS, Missing, PATIENCE, Pool, PoolBlock, UsedBy,
    exported::{self, Exported},
    trees::{self, Header},
};
use crate::{
    hash::{HashMap, HashSet},
    holders::{
        graph::Graph,
        source::{ADDRESS_END, Source},
    },
};

const INSTANCE: Exported =
    ("libmindspore_ascend_res_manager", "_ZN9mindspore6device6ascend16AscendMemoryPool9instance_E");
const CLASS: &str = "mindspore::device::ascend::DefaultAscendMemoryPool";
/// Words of a pool and of an allocator in which their containers are.
const POOL_WORDS: usize = 64;
const ALLOCATOR_WORDS: usize = 64;
const MAX_TRIES: u32 = 50;
/// Most buckets of a table.
const MAX_BUCKETS: u64 = 1 << 21;
/// Rounds in which the nodes of a table are read: no bucket has more.
const MAX_ROUNDS: u32 = 64;
const MAX_ALLOCATORS: usize = 4096;
/// Times that neighbours which were not known are followed, in one reading.
const MAX_HOPS: u32 = 8;
/// Words of a buffer, and of a block.
const BUFFER_WORDS: usize = 9;
const BLOCK_WORDS: usize = 2;
/// Words of the sums.
const SUM_WORDS: usize = 6;
/// Buffers are multiples of this.
const SIZE_STEP: u64 = 512;

/// The states of a buffer (`DynamicMemBufStatus`).
mod state {
    pub(super) const IDLE: u32 = 0;
    pub(super) const USED: u32 = 1;
    /// It has no memory.
    pub(super) const EAGER_FREE: u32 = 2;
    /// It was freed, and events of other streams are awaited.
    pub(super) const USED_BY_EVENT: u32 = 3;
}

/// A piece of a block (`MemBuf`): its events, neighbours, extent, stream, block and state.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    previous: u64,
    next: u64,
    size: u64,
    address: u64,
    stream: u32,
    block: u64,
    state: u32,
}

impl Buffer {
    const fn of([_, _, previous, next, size, address, stream, block, state]: [u64; BUFFER_WORDS]) -> Self {
        Self { previous, next, size, address, stream: stream as u32, block, state: state as u32 }
    }

    const fn is_one(&self) -> bool {
        self.address != 0
            && self.size != 0
            && self.size.is_multiple_of(SIZE_STEP)
            && self.address.checked_add(self.size).is_some()
            && self.state <= state::USED_BY_EVENT
    }

    const fn is_in_table(&self) -> bool {
        matches!(self.state, state::USED | state::USED_BY_EVENT)
    }
}

/// One reading.
#[derive(Debug, Default)]
struct Moment {
    /// By their descriptions.
    buffers: HashMap<u64, Buffer>,
    /// Address and size of blocks by their descriptions.
    blocks: HashMap<u64, (u64, u64)>,
    /// Address of each buffer in the table, by its description.
    table: HashMap<u64, u64>,
    /// Nodes of containers and objects of the pool: they hold nothing.
    own: Vec<u64>,
    /// Where its sums may be.
    sums: Vec<[u64; SUM_WORDS]>,
    /// The tree of allocators: where it is, and its words, which hardly change.
    tree: Option<(u64, [u64; 3])>,
}

/// The process's device.
pub(super) fn device(source: &dyn Source) -> Option<u32> {
    device::number(source)
}

pub(super) fn is_mapped(source: &dyn Source) -> bool {
    exported::libraries(source, &[INSTANCE]).next().is_some()
}

/// The pool's object.
pub(super) fn object(graph: &Graph<'_>) -> Result<u64, Missing> {
    let variable = exported::variable(graph.memory.source(), &[INSTANCE]).ok_or(Missing::Allocator)?;
    let object = graph.memory.word(variable).filter(|object| *object != 0).ok_or(Missing::Blocks)?;
    let class = graph.memory.word(object).and_then(|word| graph.classes.class(word));
    // Another one is there with `MS_ALLOC_CONF` or a variable for tests.
    class.filter(|class| &**class == CLASS).map(|_| object).ok_or(Missing::Sense)
}

pub(super) fn find(graph: &Graph<'_>) -> Result<Pool, Missing> {
    let object = object(graph)?;
    let source = graph.memory.source();
    let device = device(source).ok_or(Missing::Sense)?;
    let begin = Instant::now();
    let mut tries = 0;
    let (moment, is_proved) = loop {
        tries += 1;
        let moment = Moment::read(source, object);
        let is_proved = moment.as_ref().is_some_and(Moment::is_proved);
        if is_proved || tries >= MAX_TRIES || begin.elapsed() > PATIENCE {
            break (moment.ok_or(Missing::Sense)?, is_proved);
        }
    };
    if moment.buffers.is_empty() {
        return Err(Missing::Blocks);
    }
    let mut pool = Pool {
        class: CLASS.to_owned(),
        list: moment.tree.unwrap_or_default(),
        blocks: moment.rows(device),
        devices: 1,
        unsure: if is_proved { Vec::new() } else { vec![device] },
        framework: Framework::MindSpore,
        ..Pool::default()
    };
    let own = moment.own.iter().chain(moment.buffers.keys()).chain(moment.blocks.keys()).chain([&object]);
    pool.own.extend(own.map(|at| graph.heap.block(*at).map_or(*at, |block| block.start)));
    pool.blocks.sort_unstable_by_key(|block| block.address);
    Ok(pool)
}

fn words(source: &dyn Source, at: u64, count: usize) -> Vec<u64> {
    let bytes = source.read_pieces(&[at], count * 8);
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Words at each address.
fn rows<const N: usize>(source: &dyn Source, at: &[u64]) -> Vec<[u64; N]> {
    let bytes = source.read_pieces(at, N * 8);
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    words.as_chunks().0.to_vec()
}

const fn is_object(word: u64) -> bool {
    word.is_multiple_of(8) && word > 1 << 16 && word < ADDRESS_END
}

impl Moment {
    /// Nothing if the pool has no table or no allocators.
    fn read(source: &dyn Source, object: u64) -> Option<Self> {
        let pool = words(source, object, POOL_WORDS);
        let mut moment = Self::default();
        let nodes = table(source, object, &pool)?;
        moment.own.extend(nodes.iter().map(|(node, _)| *node));
        moment.table.extend(nodes.iter().map(|(_, [_, address, buffer, _])| (*buffer, *address)));
        let headers = trees::all_headers(&pool, object);
        let header = headers.iter().find(|(_, header)| header.count > 0);
        moment.tree = header.map(|(at, _)| (at + 8, [1, 2, 3].map(|word| pool[((at - object) / 8) as usize + word])));
        let headers: Vec<Header> = headers.into_iter().map(|(_, header)| header).collect();
        let mut allocators = trees::values_now(source, &headers, trees::MAPPED_WORD);
        allocators.sort_unstable();
        allocators.dedup();
        let mut free: Vec<Header> = Vec::new();
        let mut blocks: Vec<u64> = Vec::new();
        for allocator in allocators.into_iter().take(MAX_ALLOCATORS) {
            moment.own.push(allocator);
            let words = words(source, allocator, ALLOCATOR_WORDS);
            free.extend(trees::all_headers(&words, allocator).into_iter().map(|(_, header)| header));
            blocks.extend(list(source, allocator, &words, &mut moment.own));
        }
        let read = rows::<BLOCK_WORDS>(source, &blocks).into_iter().map(|[size, address]| (address, size));
        moment.blocks.extend(blocks.iter().copied().zip(read));
        let mut buffers = trees::blocks_now(source, &free);
        buffers.extend(moment.table.keys());
        for _ in 0..MAX_HOPS {
            buffers.sort_unstable();
            buffers.dedup();
            if buffers.is_empty() || moment.buffers.len() + buffers.len() > MAX_BLOCKS {
                break;
            }
            let read = rows(source, &buffers).into_iter().map(Buffer::of);
            moment.buffers.extend(buffers.iter().copied().zip(read).filter(|(_, buffer)| buffer.is_one()));
            let all = moment.buffers.values().flat_map(|buffer| [buffer.previous, buffer.next]);
            buffers = all.filter(|at| is_object(*at) && !moment.buffers.contains_key(at)).collect();
        }
        // What neighbours name that are gone.
        let is_known = |buffer: &Buffer| moment.blocks.contains_key(&buffer.block);
        moment.buffers.retain(|_, buffer| is_known(buffer));
        let pointers: Vec<u64> = pool.iter().copied().filter(|word| is_object(*word)).collect();
        moment.sums = pool.array_windows().copied().chain(rows(source, &pointers)).collect();
        Some(moment)
    }

    fn is_proved(&self) -> bool {
        let in_use = || self.buffers.iter().filter(|(_, buffer)| buffer.is_in_table());
        let is_of_table = |(at, buffer): (&u64, &Buffer)| self.table.get(at) == Some(&buffer.address);
        let sum = |state: u32| {
            let sizes = self.buffers.values().filter(|buffer| buffer.state == state).map(|buffer| buffer.size);
            sizes.fold(0_u64, u64::wrapping_add)
        };
        let [used, by_event, eager] = [state::USED, state::USED_BY_EVENT, state::EAGER_FREE].map(sum);
        let all = self.blocks.values().fold(0_u64, |sum, (_, size)| sum.wrapping_add(*size));
        let agrees = |sums: &[u64; SUM_WORDS]| {
            // Since 2.8 what the program's own functions have allocated is a sum of its own.
            let [now, most, of_blocks, third, fourth, fifth] = *sums;
            let before = of_blocks == all && [third, fourth] == [by_event, eager];
            let since = of_blocks.wrapping_add(third) == all && [fourth, fifth] == [by_event, eager];
            now == used && most >= used && (before || since)
        };
        in_use().count() == self.table.len()
            && in_use().all(is_of_table)
            && self.fill_their_blocks()
            && self.sums.iter().any(agrees)
    }

    /// Each block consists of its buffers, next to each other.
    fn fill_their_blocks(&self) -> bool {
        let mut pieces: HashMap<u64, Vec<(u64, u64)>> = HashMap::default();
        for buffer in self.buffers.values() {
            pieces.entry(buffer.block).or_default().push((buffer.address, buffer.size));
        }
        self.blocks.iter().all(|(at, (address, size))| {
            let mut pieces = pieces.remove(at).unwrap_or_default();
            pieces.sort_unstable();
            let end = pieces.iter().try_fold(*address, |end, (at, size)| (*at == end).then(|| end.wrapping_add(*size)));
            end == Some(address.wrapping_add(*size))
        })
    }

    /// Buffers that have memory.
    fn rows(&self, device: u32) -> Vec<PoolBlock> {
        let with_memory = self.buffers.values().filter(|buffer| buffer.state != state::EAGER_FREE);
        let row = |buffer: &Buffer| PoolBlock {
            address: buffer.address,
            size_bytes: buffer.size,
            requested_bytes: None,
            used_by: match buffer.state {
                state::IDLE => UsedBy::Pool,
                state::USED_BY_EVENT => UsedBy::Stream,
                _ => UsedBy::Program,
            },
            stream: u64::from(buffer.stream),
            segment: self.blocks.get(&buffer.block).map_or(buffer.address, |(address, _)| *address),
            // Of memory that is mapped piece by piece, or of one large block of the driver.
            is_expandable: true,
            is_small: false,
            private: (0, 0),
            device,
        };
        with_memory.map(row).collect()
    }
}

/// The nodes of the pool's first table (`std::unordered_map` of libstdc++): `next, address, MemBuf *, MemBufAllocator *`.
fn table(source: &dyn Source, object: u64, pool: &[u64]) -> Option<Vec<(u64, [u64; 4])>> {
    /// The largest mean length of a bucket, as it is without a choice.
    const LOAD: u64 = 0x3f80_0000;
    let is_table = |words: &&[u64; 5]| {
        let [buckets, count, first, nodes, load] = **words;
        let is_plausible = (1..=MAX_BUCKETS).contains(&count) && nodes <= MAX_BLOCKS as u64;
        is_object(buckets) && is_plausible && load & 0xffff_ffff == LOAD && (first == 0) == (nodes == 0)
    };
    let [buckets, count, first, nodes, _] = *pool.array_windows().find(is_table)?;
    if nodes == 0 {
        return Some(Vec::new());
    }
    let end = object + pool.len() as u64 * 8;
    let mut level = words(source, buckets, count as usize);
    level.push(first);
    let mut known: HashMap<u64, [u64; 4]> = HashMap::default();
    for _ in 0..MAX_ROUNDS {
        // One of the buckets has the pool's own word in front of the first node.
        level.retain(|node| is_object(*node) && !(object..end).contains(node) && !known.contains_key(node));
        level.sort_unstable();
        level.dedup();
        if level.is_empty() || known.len() + level.len() > MAX_BLOCKS {
            break;
        }
        let nodes = rows(source, &level);
        let next: Vec<u64> = nodes.iter().map(|node: &[u64; 4]| node[0]).collect();
        known.extend(level.into_iter().zip(nodes));
        level = next;
    }
    Some(known.into_iter().collect())
}

/// The items of the first list in an object (`std::list` of libstdc++: `next, previous`, in nodes with the item behind them).
fn list(source: &dyn Source, object: u64, words: &[u64], own: &mut Vec<u64>) -> Vec<u64> {
    const MAX_ITEMS: usize = 1 << 16;
    let headers = (object..).step_by(8).zip(words.array_windows::<2>());
    for (header, &[first, last]) in headers {
        if first == header && last == header {
            return Vec::new();
        }
        if !is_object(first) || !is_object(last) {
            continue;
        }
        let (mut items, mut nodes) = (Vec::new(), HashSet::default());
        let (mut before, mut at) = (header, first);
        while at != header && items.len() < MAX_ITEMS && nodes.insert(at) {
            let [[next, previous, item]] = rows::<3>(source, &[at])[..] else { break };
            if previous != before || !is_object(next) || !is_object(item) {
                break;
            }
            items.push(item);
            (before, at) = (at, next);
        }
        if at == header && before == last {
            own.extend(nodes);
            return items;
        }
    }
    Vec::new()
}
