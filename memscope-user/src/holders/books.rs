//! The books of a framework's pool, for a trace that has just attached: its live blocks and its segments, and only if they are proved to
//! be of one moment. Bounded in time and memory; the process is not stopped.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    answer::Effort,
    deadline::{Allowed, Deadline},
    graph::Graph,
    heap::Heap,
    live::Process,
    look::{Block, effort, search_all},
    memory::Memory,
    places::Cut,
    pointers::{Limits, Pointers},
    pool::{self, Missing, Pool, PoolBlock},
    python::Python,
    source::Source,
};
use crate::model::HeldAs;

/// Most blocks of all devices.
const MAX_BLOCKS: usize = 1 << 20;
/// Passes over the memory: what came while one went on is missing from it, and the sums say so.
const MAX_PASSES: u32 = 3;
/// Paths of a block: further ones are less sure, and may show another purpose.
const PATHS: usize = 3;
/// Threads of a pass: the program goes on meanwhile, maybe on few cores.
const THREADS: usize = 1;

/// Bounds of the reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BooksBudget {
    /// Longest pass over the process's memory, in processor time; what is beyond is not looked at.
    pub scan: Duration,
    /// No further pass begins later.
    pub patience: Duration,
    /// Longest search for what holds the blocks, in processor time; the purpose of those beyond is not known.
    pub search: Duration,
    /// A pass and its search, by the clock.
    pub longest: Duration,
    /// Most pointers kept, of eight bytes each.
    pub pointers: usize,
}

/// A live block of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Its address.
    pub address: u64,
    /// Its size.
    pub size_bytes: u64,
    /// The size that was asked for, where the pool keeps it.
    pub requested_bytes: Option<u64>,
}

/// What the pool holds on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceBooks {
    /// Number of the device, as the program counts them.
    pub device: u32,
    /// Bytes handed out.
    pub used_bytes: u64,
    /// Bytes held.
    pub reserved_bytes: u64,
    /// Address and size of its segments, but for those that can grow.
    pub segments: Vec<(u64, u64)>,
    /// Blocks that are handed out, by address.
    pub blocks: Vec<LiveBlock>,
    /// Purposes of those, by address, where their holders show them.
    pub held_as: Vec<(u64, HeldAs)>,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Devices of which the reading is proved.
    pub devices: Vec<DeviceBooks>,
    /// Devices of which it is not.
    pub unsure: Vec<u32>,
    /// Memory was left out, at a bound.
    pub cut: Option<Cut>,
    /// Its cost.
    pub effort: Effort,
}

/// Why the books were not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRead {
    /// No library has a known pool, or it has not been used.
    #[error("there is no pool that is known, or it is not in use")]
    NoPool,
    /// It has been started, and no block of it was made out.
    #[error("no block of it was made out: it has none, or they came and went all the while")]
    NoBlocks,
    /// Its structures are unknown.
    #[error("the pool's structures are not understood")]
    OtherPool,
    /// The process was forked by one that uses its pool: what is in its memory is a copy of that one's books.
    #[error("the pool is that of the process's parent")]
    OfParent,
    /// There are too many blocks.
    #[error("the pool has more than {MAX_BLOCKS} blocks")]
    TooMany,
    /// The process has ended.
    #[error("the process has ended or runs another program now")]
    Gone,
}

/// Reads the pool of a process; `parent` is the one that has started it, if that lives.
///
/// # Errors
///
/// Why there is nothing to read.
pub fn books(process: &Process, parent: Option<&Process>, budget: BooksBudget) -> Result<Books, NotRead> {
    read(process, parent.map(|parent| -> &dyn Source { parent }), budget)
}

pub(super) fn read(source: &dyn Source, parent: Option<&dyn Source>, budget: BooksBudget) -> Result<Books, NotRead> {
    // Before the pass, which is the cost.
    if !pool::is_mapped(source) {
        return Err(NotRead::NoPool);
    }
    let begin = Instant::now();
    let mut passes = 0;
    let mut renewed: Option<Box<dyn Source>> = None;
    loop {
        passes += 1;
        let read = pass(renewed.as_deref().unwrap_or(source), parent, budget);
        if renewed.is_some() && !source.is_same() {
            return Err(NotRead::Gone);
        }
        let is_sure = match &read {
            Ok(books) => books.unsure.is_empty(),
            // Blocks that come and go all the while may not be recognised.
            Err(why) => *why != NotRead::NoBlocks,
        };
        if is_sure || passes >= MAX_PASSES || begin.elapsed() >= budget.patience {
            let time_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            return read.map(|books| Books { effort: Effort { time_ns, ..books.effort }, ..books });
        }
        renewed = source.renewed();
    }
}

fn pass(source: &dyn Source, parent: Option<&dyn Source>, budget: BooksBudget) -> Result<Books, NotRead> {
    let begin = Instant::now();
    let memory = Memory::new(source);
    // Without, blocks of the interpreter are taken for those of malloc, and none of them is of the pool.
    let python = Python::find(&memory).ok().flatten();
    let until = begin + budget.longest;
    let time = Some(Allowed { work: Some(budget.scan), until });
    let of_type = python.as_ref().and_then(|python| python.list_type);
    let limits = Limits { pointers: budget.pointers, threads: THREADS, time, of_type, ..Limits::default() };
    let pointers = Pointers::of(source, &[], limits);
    let heap = Heap::new(&memory, &pointers, python.as_ref().map(|python| python.layout.pool_bytes()));
    let mut graph = Graph::new(&memory, &pointers, &heap, python.as_ref());
    let found = pool::find(&graph);
    if !source.is_same() {
        return Err(NotRead::Gone);
    }
    let pool = found.map_err(|missing| match missing {
        Missing::Blocks if pool::is_started(&graph) => NotRead::NoBlocks,
        Missing::Allocator | Missing::Blocks => NotRead::NoPool,
        Missing::Sense => NotRead::OtherPool,
    })?;
    if parent.is_some_and(|parent| is_of(parent, &pool)) {
        return Err(NotRead::OfParent);
    }
    if pool.blocks.len() > MAX_BLOCKS {
        return Err(NotRead::TooMany);
    }
    let cut = Cut::of(&pointers.figures);
    let mut devices = devices(&pool);
    // A reading that is not proved is made again.
    if pool.unsure.is_empty() && python.is_some() {
        graph.skip(pool.own.iter().copied());
        let deadline = Allowed { work: Some(budget.search), until }.begin();
        for device in &mut devices {
            device.held_as = purposes(&graph, &device.blocks, deadline);
        }
    }
    if !source.is_same() {
        return Err(NotRead::Gone);
    }
    Ok(Books { devices, unsure: pool.unsure, cut, effort: effort(&pointers, begin) })
}

/// The purposes that holders of blocks show, the largest block first.
fn purposes(graph: &Graph<'_>, blocks: &[LiveBlock], deadline: Deadline) -> Vec<(u64, HeldAs)> {
    let mut wanted: Vec<Block> = blocks.iter().map(|block| Block::at(block.address, block.size_bytes)).collect();
    wanted.sort_by_key(|block| (std::cmp::Reverse(block.size_bytes), block.address));
    let (held, _) = search_all(graph, &wanted, PATHS, deadline);
    held.iter().filter_map(|block| Some((block.address, block.held_as()?))).collect()
}

/// Whether a process has the same list of devices at the same place: then the other was forked when the pool was in use, and cannot use it.
fn is_of(parent: &dyn Source, pool: &Pool) -> bool {
    let (at, list) = pool.list;
    let bytes = parent.read_pieces(&[at], size_of_val(&list));
    bytes.as_chunks().0.iter().copied().map(u64::from_le_bytes).eq(list)
}

/// The proved devices.
fn devices(pool: &Pool) -> Vec<DeviceBooks> {
    let mut found: BTreeMap<u32, (DeviceBooks, BTreeMap<u64, u64>)> = BTreeMap::new();
    for block in pool.blocks.iter().filter(|block| !pool.unsure.contains(&block.device)) {
        let PoolBlock { address, size_bytes, requested_bytes, device, segment, .. } = *block;
        let (books, segments) = found.entry(device).or_default();
        books.reserved_bytes = books.reserved_bytes.saturating_add(size_bytes);
        if block.is_live {
            books.used_bytes = books.used_bytes.saturating_add(size_bytes);
            books.blocks.push(LiveBlock { address, size_bytes, requested_bytes });
        }
        if !block.is_expandable {
            let size = segments.entry(segment).or_default();
            *size = size.saturating_add(size_bytes);
        }
    }
    let device = |(device, (books, segments)): (u32, (DeviceBooks, BTreeMap<u64, u64>))| DeviceBooks {
        device,
        segments: segments.into_iter().collect(),
        ..books
    };
    found.into_iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::{
        image::Image,
        pool::made::{FIGURES, LARGE, LARGE_POOL, LIBRARY, MIB, Made, SMALL, SMALL_POOL, VARIABLE},
        sample::Sample,
    };

    fn budget() -> BooksBudget {
        let time = Duration::from_secs(60);
        BooksBudget { scan: time, patience: Duration::ZERO, search: time, longest: time, pointers: 1 << 20 }
    }

    fn block(address: u64, size_bytes: u64, requested: u64) -> LiveBlock {
        LiveBlock { address, size_bytes, requested_bytes: Some(requested) }
    }

    /// The live blocks and the segments, by hand.
    #[test]
    fn books_of_a_pool() {
        let made = Made::whole();
        let books = read(&made.sample.image, None, budget()).expect("books");
        let expected = DeviceBooks {
            device: 0,
            used_bytes: 20 * MIB + 3072,
            reserved_bytes: 22 * MIB,
            segments: vec![(SMALL, 2 * MIB), (LARGE, 20 * MIB)],
            blocks: vec![
                block(SMALL, 1024, 900),
                block(SMALL + 1536, 2048, 2047),
                block(LARGE, 20 * MIB, 19 * MIB + 1),
            ],
            held_as: vec![],
        };
        assert_eq!((books.devices, books.unsure, books.cut), (vec![expected], vec![], None));
    }

    /// Where the allocator's own sum is another, nothing is said of the device.
    #[test]
    fn what_is_not_proved_is_not_said() {
        let mut made = Made::whole();
        made.put(made.device + FIGURES, &[20 * MIB + 3072 + 512]);
        let books = read(&made.sample.image, None, budget()).expect("books");
        assert_eq!((books.devices, books.unsure), (vec![], vec![0]));
    }

    /// A segment that can grow has address space behind its memory: its blocks are known, and it is none of the driver's.
    #[test]
    fn segments_that_grow_are_no_blocks_of_the_driver() {
        let mut made = Made::new();
        let blocks = [
            made.describe(LARGE_POOL, (LARGE, 20 * MIB, 20 * MIB), 1 << 8 | 1),
            made.describe(LARGE_POOL, (LARGE + 20 * MIB, 2 * MIB, 0), 1 << 8),
            made.describe(LARGE_POOL, (LARGE + 22 * MIB, 1 << 34, 0), 0),
        ];
        made.chain(&blocks);
        made.tree(SMALL_POOL, &[]);
        made.tree(LARGE_POOL, &blocks[1..]);
        made.put(made.device + FIGURES, &[20 * MIB, 22 * MIB]);
        let books = read(&made.sample.image, None, budget()).expect("books");
        let expected = DeviceBooks {
            device: 0,
            used_bytes: 20 * MIB,
            reserved_bytes: 22 * MIB,
            segments: vec![],
            blocks: vec![block(LARGE, 20 * MIB, 20 * MIB)],
            held_as: vec![],
        };
        assert_eq!((books.devices, books.unsure), (vec![expected], vec![]));
    }

    /// A process forked by one that uses the pool has a copy of its books. Another parent has not.
    #[test]
    fn copies_of_the_parents_books() {
        let (made, parent, other) = (Made::whole(), Made::whole(), Sample::new());
        let with = |parent: &Image| read(&made.sample.image, Some(parent), budget()).map(|books| books.devices.len());
        assert_eq!((with(&parent.sample.image), with(&other.image)), (Err(NotRead::OfParent), Ok(1)));
    }

    /// Without a library that has a pool nothing is read; before the pool is used there is nothing.
    #[test]
    fn no_pool() {
        let none = read(&Sample::new().image, None, budget());
        assert_eq!(none, Err(NotRead::NoPool));
        assert_eq!(read(&Made::new().sample.image, None, budget()), Err(NotRead::NoBlocks));
        let mut before = Made::new();
        before.put(LIBRARY + VARIABLE, &[0]);
        assert_eq!(read(&before.sample.image, None, budget()), Err(NotRead::NoPool));
        let made = Made::whole();
        let little = read(&made.sample.image, None, BooksBudget { scan: Duration::ZERO, ..budget() });
        assert!(little.map_or(true, |books| books.cut == Some(Cut::Time) && books.devices.is_empty()));
    }
}
