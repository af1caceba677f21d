//! From a question to its answer: reads the process, finds the pool, searches, reads again, groups.

use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, Instant},
};

use super::{
    answer::{Effort, Holders, PoolNow, PrivateNow, State, Sum},
    deadline::{Allowed, Deadline},
    graph::{Found, Graph, Path, Proof, Wanted},
    group::{self, Held, Way},
    heap::Heap,
    memory::Memory,
    pointers::Pointers,
    pool::{self, Missing, Pool, PoolBlock, UsedBy},
    python::{self, Python},
    source::Source,
    tree,
};
use crate::hash::{HashMap, HashSet};

/// Most blocks of one answer, the largest.
const MAX_BLOCKS: usize = 20_000;
/// Passes at most, for blocks without a holder.
const PASSES: usize = 3;
/// No further pass begins after this.
const AGAIN_WITHIN: Duration = Duration::from_secs(5);
/// Readings of lists at most, for blocks without a path.
const LIST_READINGS: usize = 2;
/// Longest search for paths, behind the reading; the answer says what was not searched by then.
const PATIENCE_S: u64 = 60;

/// Which blocks are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// All live ones of the pool.
    All,
    /// The largest live ones of the pool.
    Largest(usize),
    /// These.
    These(Vec<Asked>),
}

/// A requested block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Where it is on the device.
    pub address: u64,
    /// Its size, if known.
    pub size_bytes: Option<u64>,
    /// Place of its allocation, if known.
    pub allocated_at: Option<String>,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Which blocks.
    pub which: Which,
    /// Different paths for each block.
    pub paths: usize,
    /// Show keys of dicts, which are data of the program.
    pub keys: bool,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Blocks of the pool are asked for, and there is no pool.
    #[error(
        "no pool of torch_npu or MindSpore and no tensor on a device was found in the process; name blocks by --block, or where they are known from by --capture"
    )]
    NoPool,
    /// There is one, without blocks.
    #[error("the pool of the process has no blocks yet")]
    NoBlocks,
    /// There is one of another make.
    #[error("the pool's structures are not understood; name blocks by --block")]
    OtherPool,
    /// It has ended, or runs another program now.
    #[error("the process has ended or runs another program now")]
    Gone,
}

/// Answers a question about a process. Where blocks have no holder it reads again: items of a list or dict that grows move to another place, and a
/// pass that meets this finds neither.
pub(super) fn look(source: &dyn Source, question: &Question) -> Result<Holders, Refused> {
    look_since(source, question, Instant::now())
}

/// The same; the reading began at this time.
pub(super) fn look_since(source: &dyn Source, question: &Question, begin: Instant) -> Result<Holders, Refused> {
    let mut best: Option<(Sum, Holders)> = None;
    let mut renewed: Option<Box<dyn Source>> = None;
    for _ in 0..PASSES {
        let found = look_once(renewed.as_deref().unwrap_or(source), question, begin)?;
        if renewed.is_some() && !source.is_same() {
            return Err(Refused::Gone);
        }
        let open = open(&found);
        let is_done = !is_much(open, found.asked) || begin.elapsed() >= AGAIN_WITHIN;
        if best.as_ref().is_none_or(|(least, _)| open.blocks < least.blocks) {
            best = Some((open, found));
        }
        if is_done {
            break;
        }
        renewed = source.renewed();
    }
    let (_, mut found) = best.ok_or(Refused::Gone)?;
    found.effort.time_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(found)
}

/// Blocks that another pass may find a holder of.
fn open(found: &Holders) -> Sum {
    let is_open = |state| matches!(state, State::NoRoot | State::Nothing | State::Changed);
    let mut open = Sum::default();
    for group in found.groups.iter().filter(|group| is_open(group.state)) {
        open.blocks += group.sum.blocks;
        open.size_bytes += group.sum.size_bytes;
    }
    open
}

/// Whether more than a twentieth is open. A few blocks without a holder are usual: some holders are of no known kind.
const fn is_much(open: Sum, asked: Sum) -> bool {
    open.blocks.saturating_mul(20) > asked.blocks || open.size_bytes.saturating_mul(20) > asked.size_bytes
}

/// Said of an answer without a pool.
const BY_STORAGE: &str = "no block of a pool was found: these are the storages of tensors, whoever has their memory";

fn look_once(source: &dyn Source, question: &Question, begin: Instant) -> Result<Holders, Refused> {
    let memory = Memory::new(source);
    let found = Python::find(&memory);
    let python = found.as_ref().ok().and_then(Option::as_ref);
    let pointers = Pointers::of(source, &ranges(&question.which), Python::limits(python));
    let heap = Heap::new(&memory, &pointers, python.map(|python| python.layout.pool_bytes()));
    let mut graph = Graph::new(&memory, &pointers, &heap, python);
    let pool = pool::find(&graph);
    if let Ok(pool) = &pool {
        graph.set_pool(pool.own.iter().copied(), pool.live());
    }
    let (blocks, left_out) = chosen(&question.which, &graph, pool.as_ref())?;
    // Hundreds of gigabytes are read for minutes: that is no time of the search.
    let deadline = Allowed { work: None, until: Instant::now() + Duration::from_secs(PATIENCE_S) }.begin();
    let (mut held, unsearched) = search_all(&graph, &blocks, question.paths, deadline);
    if !question.keys {
        for way in held.iter_mut().flat_map(|block| &mut block.paths) {
            way.trail = std::mem::take(&mut way.trail).without_keys();
        }
    }
    if !source.is_same() {
        return Err(Refused::Gone);
    }
    let mut asked = Sum::default();
    for block in &blocks {
        asked.add(block.size_bytes);
    }
    let mut notes = notes(source, &found, &pointers, &heap, pool.as_ref());
    let is_by_storage = pool.is_err() && !matches!(question.which, Which::These(_));
    notes.extend(is_by_storage.then(|| BY_STORAGE.to_owned()));
    notes.extend(left_out_text(left_out, "there are too many for one answer"));
    notes.extend(left_out_text(unsearched, "the search took too long"));
    Ok(Holders {
        python: python.map(|python| format!("CPython 3.{}", python.layout.minor)),
        pool: pool.as_ref().ok().map(sums),
        asked,
        groups: group::groups(&held),
        tree: tree::tree(&held),
        purposes: group::purposes(&held),
        notes,
        effort: effort(&pointers, begin),
        ..Holders::default()
    })
}

fn left_out_text(blocks: u64, why: &str) -> Option<String> {
    (blocks > 0).then(|| format!("{blocks} smaller blocks were not looked at: {why}"))
}

fn ranges(which: &Which) -> Vec<Range<u64>> {
    let Which::These(asked) = which else { return Vec::new() };
    asked
        .iter()
        .map(|block| block.address..block.address.saturating_add(block.size_bytes.unwrap_or(0).max(1)))
        .collect()
}

/// A block to search for.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) allocated_at: Option<String>,
    /// It is not live.
    pub(super) ended: Option<State>,
}

impl Block {
    /// A live one.
    pub(super) const fn at(address: u64, size_bytes: u64) -> Self {
        Self { address, size_bytes, allocated_at: None, ended: None }
    }
}

/// The blocks, largest first, and the number of further ones. Without a pool they are those of storages.
fn chosen(which: &Which, graph: &Graph<'_>, pool: Result<&Pool, &Missing>) -> Result<(Vec<Block>, u64), Refused> {
    let refused = |missing: &Missing| match missing {
        Missing::Allocator => Refused::NoPool,
        Missing::Blocks => Refused::NoBlocks,
        Missing::Sense => Refused::OtherPool,
    };
    let live = || match pool {
        Ok(pool) => {
            let live = pool.blocks.iter().filter(|block| block.used_by == UsedBy::Program);
            Ok(live.map(|block| Block::at(block.address, block.size_bytes)).collect())
        }
        Err(missing) => {
            let storages = graph.storages().into_iter();
            let found: Vec<Block> = storages.map(|(address, size_bytes)| Block::at(address, size_bytes)).collect();
            if found.is_empty() { Err(refused(missing)) } else { Ok(found) }
        }
    };
    let (mut blocks, limit) = match which {
        Which::All => (live()?, MAX_BLOCKS),
        Which::Largest(count) => (live()?, *count),
        Which::These(asked) => (asked.iter().map(|asked| known(asked, pool.ok())).collect(), MAX_BLOCKS),
    };
    blocks.sort_by_key(|block| (std::cmp::Reverse(block.size_bytes), block.address));
    let more = blocks.len().saturating_sub(limit) as u64;
    blocks.truncate(limit);
    Ok((blocks, if matches!(which, Which::Largest(_)) { 0 } else { more }))
}

/// A block with the pool's facts about it: an address within one means that one.
fn known(asked: &Asked, pool: Option<&Pool>) -> Block {
    let known = pool.and_then(|pool| {
        let mut blocks = pool.blocks.iter();
        blocks.find(|block| (block.address..block.address + block.size_bytes).contains(&asked.address))
    });
    Block {
        address: known.filter(|block| block.used_by == UsedBy::Program).map_or(asked.address, |block| block.address),
        size_bytes: known.map(|block| block.size_bytes).or(asked.size_bytes).unwrap_or(0),
        allocated_at: asked.allocated_at.clone(),
        ended: known.and_then(ended),
    }
}

/// The state of a block that is not live.
pub(super) fn ended(block: &PoolBlock) -> Option<State> {
    match block.used_by {
        UsedBy::Program => None,
        UsedBy::Stream => Some(State::Waiting),
        UsedBy::Pool => Some(State::Free),
    }
}

/// Searches, then reads again: paths that have changed meanwhile are searched for once more, and shown only if they
/// stay.
pub(super) fn search_all(graph: &Graph<'_>, blocks: &[Block], paths: usize, deadline: Deadline) -> (Vec<Held>, u64) {
    let mut found: HashMap<usize, Found> = HashMap::default();
    let mut unsearched = 0;
    for (at, block) in blocks.iter().enumerate().filter(|(_, block)| block.ended.is_none()) {
        if deadline.is_over() {
            unsearched += 1;
            continue;
        }
        found.insert(at, graph.search(&wanted(block, paths)));
    }
    graph.forget();
    let mut torn: Vec<usize> = Vec::new();
    for (at, found) in &found {
        if !are_confirmed(graph, &blocks[*at], &found.paths) {
            torn.push(*at);
        }
    }
    for at in &torn {
        found.insert(*at, graph.search(&wanted(&blocks[*at], paths)));
    }
    if !torn.is_empty() {
        graph.forget();
    }
    let mut before: HashMap<usize, usize> = HashMap::default();
    for at in torn {
        let Some(found) = found.get_mut(&at) else { continue };
        before.insert(at, found.paths.len());
        found.paths.retain(|path| graph.confirms(&range(&blocks[at]), path));
    }
    for _ in 0..LIST_READINGS {
        if !search_lists(graph, blocks, paths, deadline, &mut found) {
            break;
        }
    }
    let mut held = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        match found.get(&at) {
            Some(found) => held.push(as_held(block, found, before.get(&at).copied().unwrap_or(found.paths.len()))),
            None => held.extend(block.ended.map(|state| unheld(block, state))),
        }
    }
    (held, unsearched)
}

/// Whether nothing is sure to hold a block: where a list has moved, a left-over may look like a holder.
fn is_open(found: &Found) -> bool {
    found.paths.iter().all(|path| path.proof == Proof::Weak) && !found.is_ring
}

/// Reads the lists again for blocks without a sure path, and searches for these. Whether some are still without one.
fn search_lists(
    graph: &Graph<'_>,
    blocks: &[Block],
    paths: usize,
    deadline: Deadline,
    found: &mut HashMap<usize, Found>,
) -> bool {
    let open: Vec<usize> = found.iter().filter(|(_, found)| is_open(found)).map(|(at, _)| *at).collect();
    let objects: HashSet<u64> = open.iter().flat_map(|at| found[at].on_way.iter().copied()).collect();
    if objects.is_empty() || deadline.is_over() {
        return false;
    }
    graph.forget();
    if !graph.read_lists(&objects) {
        return false;
    }
    let mut again = Vec::new();
    for at in open {
        if !deadline.is_over() {
            again.push((at, graph.search(&wanted(&blocks[at], paths))));
        }
    }
    graph.forget();
    for (at, mut now) in again {
        now.paths.retain(|path| graph.confirms(&range(&blocks[at]), path));
        if !is_open(&now) {
            found.insert(at, now);
        }
    }
    found.values().any(is_open)
}

fn wanted(block: &Block, paths: usize) -> Wanted {
    Wanted { range: range(block), paths: paths.max(1) }
}

fn range(block: &Block) -> Range<u64> {
    block.address..block.address.saturating_add(block.size_bytes.max(1))
}

fn are_confirmed(graph: &Graph<'_>, block: &Block, paths: &[Path]) -> bool {
    paths.iter().all(|path| graph.confirms(&range(block), path))
}

fn unheld(block: &Block, state: State) -> Held {
    Held {
        address: block.address,
        size_bytes: block.size_bytes,
        allocated_at: block.allocated_at.clone(),
        state,
        paths: Vec::new(),
    }
}

/// `before`: paths that there were before they were read again.
fn as_held(block: &Block, found: &Found, before: usize) -> Held {
    let state = match found {
        Found { paths, .. } if !paths.is_empty() => State::Held,
        _ if before > 0 => State::Changed,
        Found { objects: 0, .. } => State::Nothing,
        Found { is_ring: true, is_cut: false, .. } => State::Ring,
        _ => State::NoRoot,
    };
    let way = |path: &Path| Way { trail: path.trail.clone(), is_sure: path.proof > Proof::Weak };
    Held { paths: found.paths.iter().map(way).collect(), ..unheld(block, state) }
}

fn sums(pool: &Pool) -> PoolNow {
    let mut now = PoolNow {
        allocator: pool.class.clone(),
        devices: pool.devices as u64,
        segments: 0,
        size_bytes: 0,
        live: Sum::default(),
        waiting: Sum::default(),
        free: Sum::default(),
        unsure_devices: pool.unsure.clone(),
        private: Vec::new(),
    };
    let mut private: BTreeMap<(u32, (u64, u64)), PrivateNow> = BTreeMap::new();
    let mut segments = HashSet::default();
    for block in &pool.blocks {
        let PoolBlock { device, segment, size_bytes, private: number, .. } = *block;
        let is_new = u64::from(segments.insert((device, segment)));
        now.segments += is_new;
        now.size_bytes += size_bytes;
        let sum = match block.used_by {
            UsedBy::Program => &mut now.live,
            UsedBy::Stream => &mut now.waiting,
            UsedBy::Pool => &mut now.free,
        };
        sum.add(size_bytes);
        if number != (0, 0) {
            let own = private.entry((device, number)).or_default();
            (own.device, own.number) = (device, number);
            own.segments += is_new;
            own.size_bytes += size_bytes;
            let sum = match block.used_by {
                UsedBy::Program => &mut own.live,
                UsedBy::Stream => &mut own.waiting,
                UsedBy::Pool => &mut own.free,
            };
            sum.add(size_bytes);
        }
    }
    now.private = private.into_values().collect();
    now
}

pub(super) fn effort(pointers: &Pointers, begin: Instant) -> Effort {
    Effort {
        time_ns: u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX),
        scanned_bytes: pointers.figures.scanned_bytes,
        pointers: pointers.len() as u64,
        swapped_bytes: pointers.figures.swapped_bytes,
    }
}

/// Names the unknown parts.
fn notes(
    source: &dyn Source,
    python: &Result<Option<Python<'_>>, String>,
    pointers: &Pointers,
    heap: &Heap<'_>,
    pool: Result<&Pool, &Missing>,
) -> Vec<String> {
    let mut notes = Vec::new();
    match python {
        Err(why) => notes.push(format!("Python objects are not followed: {why}")),
        Ok(None) => notes.extend(
            python::other_interpreter(source)
                .map(|name| format!("Python objects are not followed: `{name}` is not CPython")),
        ),
        Ok(Some(_)) => {}
    }
    if let Some(name) = heap.unknown() {
        notes
            .push(format!("C++ objects are not followed: the process has {name}, an allocator with an unknown layout"));
    }
    let figures = pointers.figures;
    if figures.is_partial() {
        notes.push("the process has more host memory than is looked at: holders may be missing".to_owned());
    }
    if figures.swapped_bytes > 0 {
        let mib = figures.swapped_bytes.div_ceil(1 << 20);
        notes.push(format!("{mib} MiB of host memory are swapped out and were not read: holders may be missing"));
    }
    if pool.is_ok_and(|pool| !pool.unsure.is_empty()) {
        notes.push("the pool changed while it was read: its sums are near, not exact".to_owned());
    }
    notes
}
