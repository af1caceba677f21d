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
    pool::{self, Framework, Missing, Pool, PoolBlock, UsedBy},
    python::Python,
    source::Source,
};
use crate::{hash::HashSet, model::HeldAs};

/// Most blocks of all devices.
const MAX_BLOCKS: usize = 1 << 20;
/// Readings of the pool's own tables: what came while one went on is missing from it, and the sums say so. One takes milliseconds.
const MAX_READINGS: u32 = 50;
/// No further one begins later.
const READINGS: Duration = Duration::from_millis(500);
/// Passes.
const MAX_PASSES: u32 = 3;
/// Paths of a block: further ones are less sure, and may show another purpose.
const PATHS: usize = 3;
/// Threads of a pass: the program goes on meanwhile, maybe on few cores.
const THREADS: usize = 1;

/// Bounds of the reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BooksBudget {
    /// No further reading begins later.
    pub patience: Duration,
    /// A pass over the process's memory, where the pool's tables do not lead to all its blocks.
    pub pass: Option<PassBudget>,
}

/// Bounds of a pass over the process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassBudget {
    /// Longest pass, in processor time; what is beyond is not looked at.
    pub scan: Duration,
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
}

/// What blocks are for, where their holders show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purposes {
    /// Addresses and purposes of blocks, by device in the program's numbering.
    pub of_devices: Vec<(u32, Vec<(u64, HeldAs)>)>,
    /// Its cost.
    pub effort: Effort,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Devices of which the reading is proved.
    pub devices: Vec<DeviceBooks>,
    /// Devices of which it is not.
    pub unsure: Vec<u32>,
    /// The purposes of their blocks, if a pass was needed, which shows them, too.
    pub purposes: Option<Purposes>,
    /// Memory was left out, at a bound.
    pub cut: Option<Cut>,
    /// The framework of the pool.
    pub framework: Framework,
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

/// Finds the purposes of the blocks in books, by a pass over the process's memory. Memory that is left out hides some.
///
/// # Errors
///
/// The process has ended.
pub fn purposes(process: &Process, books: &Books, budget: PassBudget) -> Result<Purposes, NotRead> {
    let of_devices = |graph: &mut Graph<'_>, search| {
        let own = pool::find(graph).map(|pool| pool.own).unwrap_or_default();
        Ok(purposes_of(graph, &books.devices, own, search))
    };
    let (of_devices, effort) = passed(process, budget, of_devices)?;
    Ok(Purposes { of_devices, effort })
}

pub(super) fn read(source: &dyn Source, parent: Option<&dyn Source>, budget: BooksBudget) -> Result<Books, NotRead> {
    // Before anything that costs.
    if !pool::is_mapped(source) {
        return Err(NotRead::NoPool);
    }
    let begin = Instant::now();
    let tables = Readings { most: MAX_READINGS, until: begin + READINGS.min(budget.patience) };
    let mut books = tables.take(source, None, |source| alone(source, parent));
    if let Some(pass) = budget.pass {
        let passes = Readings { most: MAX_PASSES, until: begin + budget.patience };
        books = match books {
            Ok(books) if books.unsure.is_empty() => Ok(books),
            // Another way shows nothing else.
            Err(why @ (NotRead::NoPool | NotRead::OfParent | NotRead::Gone | NotRead::TooMany)) => Err(why),
            _ => passes.take(source, books.ok(), |source| whole(source, parent, pass)),
        };
    }
    let time_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    books.map(|books| Books { effort: Effort { time_ns, ..books.effort }, ..books })
}

/// Readings by which a pool is not in use.
const MAX_UNUSED: u32 = 5;

/// Bounds of readings of one kind.
struct Readings {
    most: u32,
    until: Instant,
}

impl Readings {
    /// Reads until each device is proved, which may be by different readings; `known` are those that are already.
    fn take(
        &self,
        source: &dyn Source,
        known: Option<Books>,
        read: impl Fn(&dyn Source) -> Result<Books, NotRead>,
    ) -> Result<Books, NotRead> {
        let mut known = known.unwrap_or_default();
        let mut renewed: Option<Box<dyn Source>> = None;
        for reading in 1.. {
            let books = read(renewed.as_deref().unwrap_or(source));
            if renewed.is_some() && !source.is_same() {
                break;
            }
            let is_last = reading >= self.most || Instant::now() >= self.until;
            match books {
                Ok(books) => {
                    known = books.with(known);
                    if known.unsure.is_empty() || is_last {
                        return Ok(known);
                    }
                }
                // Blocks that come and go all the while may not be recognised.
                Err(NotRead::NoBlocks) if !is_last => {}
                // A pool that changes all the while may look as if it were not in use.
                Err(NotRead::NoPool) if !is_last && reading < MAX_UNUSED => {}
                Err(NotRead::NoBlocks) if !known.devices.is_empty() => return Ok(known),
                Err(why) => return Err(why),
            }
            renewed = source.renewed();
        }
        Err(NotRead::Gone)
    }
}

impl Books {
    /// With the devices that an earlier reading has proved: what calls have said since then counts more than both.
    fn with(mut self, earlier: Self) -> Self {
        let is_new = |device: &DeviceBooks| self.devices.iter().all(|known| known.device != device.device);
        let proved: Vec<DeviceBooks> = earlier.devices.into_iter().filter(is_new).collect();
        self.unsure.retain(|unsure| proved.iter().all(|device| device.device != *unsure));
        self.devices.extend(proved);
        self.devices.sort_by_key(|device| device.device);
        self
    }
}

/// The pool by its own structures.
fn alone(source: &dyn Source, parent: Option<&dyn Source>) -> Result<Books, NotRead> {
    let (memory, none) = (Memory::new(source), Pointers::none());
    let heap = Heap::of_starts(&memory, &none).ok_or(NotRead::OtherPool)?;
    let graph = Graph::new(&memory, &none, &heap, None);
    let pool = pool_of(&graph, parent)?;
    Ok(Books { devices: devices(&pool), unsure: pool.unsure, framework: pool.framework, ..Books::default() })
}

/// The pool, and the purposes of its blocks, by a pass.
fn whole(source: &dyn Source, parent: Option<&dyn Source>, budget: PassBudget) -> Result<Books, NotRead> {
    let (books, effort) = passed(source, budget, |graph, search| {
        let pool = pool_of(graph, parent)?;
        let (devices, framework) = (devices(&pool), pool.framework);
        let mut books = Books { devices, unsure: pool.unsure, framework, ..Books::default() };
        // A reading that is not proved is made again.
        if books.unsure.is_empty() {
            let of_devices = purposes_of(graph, &books.devices, pool.own, search);
            books.purposes = Some(Purposes { of_devices, ..Purposes::default() });
        }
        Ok(Books { cut: Cut::of(&graph.pointers.figures), ..books })
    })?;
    let purposes = books.purposes.map(|purposes| Purposes { effort, ..purposes });
    Ok(Books { purposes, effort, ..books })
}

/// What is found with the references of a pass over the process's memory, and its cost.
fn passed<T>(
    source: &dyn Source,
    budget: PassBudget,
    find: impl FnOnce(&mut Graph<'_>, Allowed) -> Result<T, NotRead>,
) -> Result<(T, Effort), NotRead> {
    let begin = Instant::now();
    let memory = Memory::new(source);
    // Without, blocks of the interpreter are taken for those of malloc, and none of them is of the pool.
    let python = Python::find(&memory).ok().flatten();
    let until = begin + budget.longest;
    let time = Some(Allowed { work: Some(budget.scan), until });
    let limits = Limits { pointers: budget.pointers, threads: THREADS, time, ..Python::limits(python.as_ref()) };
    let pointers = Pointers::of(source, &[], limits);
    let heap = Heap::new(&memory, &pointers, python.as_ref().map(|python| python.layout.pool_bytes()));
    let mut graph = Graph::new(&memory, &pointers, &heap, python.as_ref());
    let found = find(&mut graph, Allowed { work: Some(budget.search), until });
    if !source.is_same() {
        return Err(NotRead::Gone);
    }
    found.map(|found| (found, effort(&pointers, begin)))
}

/// The pool of the process itself.
fn pool_of(graph: &Graph<'_>, parent: Option<&dyn Source>) -> Result<Pool, NotRead> {
    let found = pool::find(graph);
    if !graph.memory.source().is_same() {
        return Err(NotRead::Gone);
    }
    let pool = found.map_err(|missing| match missing {
        Missing::Blocks if pool::is_started(graph) => NotRead::NoBlocks,
        Missing::Allocator | Missing::Blocks => NotRead::NoPool,
        Missing::Sense => NotRead::OtherPool,
    })?;
    if parent.is_some_and(|parent| is_of(parent, &pool)) {
        return Err(NotRead::OfParent);
    }
    if pool.blocks.len() > MAX_BLOCKS {
        return Err(NotRead::TooMany);
    }
    Ok(pool)
}

/// Purposes of blocks, by the objects of Python that hold them; `own`: host blocks of the allocator itself.
fn purposes_of(
    graph: &mut Graph<'_>,
    devices: &[DeviceBooks],
    own: HashSet<u64>,
    search: Allowed,
) -> Vec<(u32, Vec<(u64, HeldAs)>)> {
    if graph.python.is_none() {
        return Vec::new();
    }
    graph.set_pool(own, devices.iter().flat_map(|books| &books.blocks).map(|block| block.address));
    let deadline = search.begin();
    devices.iter().map(|books| (books.device, purposes_in(graph, &books.blocks, deadline))).collect()
}

/// The purposes that holders of blocks show, the largest block first.
fn purposes_in(graph: &Graph<'_>, blocks: &[LiveBlock], deadline: Deadline) -> Vec<(u64, HeldAs)> {
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
        if block.used_by == UsedBy::Program {
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
        let pass = PassBudget { scan: time, search: time, longest: time, pointers: 1 << 20 };
        BooksBudget { patience: Duration::ZERO, pass: Some(pass) }
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
        };
        assert_eq!((books.devices, books.unsure, books.cut), (vec![expected], vec![], None));
    }

    /// Its table of live blocks leads to the same without a pass; without one, nothing is known of blocks that no table names.
    #[test]
    fn the_table_of_live_blocks_is_enough() {
        let alone = BooksBudget { pass: None, ..budget() };
        let mut made = Made::whole();
        assert_eq!(read(&made.sample.image, None, alone), Err(NotRead::NoBlocks));
        let by_pass = read(&made.sample.image, None, budget()).expect("books").devices;
        let live = made.live.clone();
        made.table_of_live(&live);
        let books = read(&made.sample.image, None, alone).expect("books");
        assert_eq!((books.devices, books.unsure, books.effort.scanned_bytes), (by_pass, vec![], 0));
        // Of a block that is missing in the table its neighbours know. One without neighbours is missing in the sum, too.
        made.table_of_live(&live[1..]);
        assert_eq!(read(&made.sample.image, None, alone).map(|books| books.devices[0].blocks.len()), Ok(3));
        made.table_of_live(&live[..2]);
        assert_eq!(
            read(&made.sample.image, None, alone).map(|books| (books.devices, books.unsure)),
            Ok((vec![], vec![0]))
        );
    }

    /// Each device once, by the newest reading that proved it; by hand.
    #[test]
    fn devices_are_proved_by_different_readings() {
        let books = |devices: &[(u32, u64)], unsure: &[u32]| Books {
            devices: devices
                .iter()
                .map(|&(device, used_bytes)| DeviceBooks { device, used_bytes, ..DeviceBooks::default() })
                .collect(),
            unsure: unsure.to_vec(),
            ..Books::default()
        };
        let third = books(&[(2, 20)], &[0, 1]).with(books(&[(0, 1), (2, 5)], &[1]));
        assert_eq!(third, books(&[(0, 1), (2, 20)], &[1]));
        assert_eq!(books(&[(1, 7)], &[0, 2]).with(third), books(&[(0, 1), (1, 7), (2, 20)], &[]));
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
        let pass = budget().pass.map(|pass| PassBudget { scan: Duration::ZERO, ..pass });
        let little = read(&made.sample.image, None, BooksBudget { pass, ..budget() });
        assert!(little.map_or(true, |books| books.cut == Some(Cut::Time) && books.devices.is_empty()));
    }
}
