//! Holders of blocks of places, for a trace that goes on meanwhile: bounded in time and memory, and only where paths have names.

use std::time::{Duration, Instant};

use super::{
    answer::{Effort, State},
    deadline::Allowed,
    graph::Graph,
    group::{self, Held},
    heap::Heap,
    live::Process,
    look::{Block, effort, ended, search_all},
    memory::Memory,
    pointers::{Figures, Limits, Pointers},
    pool,
    python::{self, Python},
    source::Source,
};
use crate::{hash::HashMap, model::HeldAs};

/// Holders kept of a place.
const MAX_HOLDERS: usize = 8;
/// Paths of a block.
const PATHS: usize = 3;
/// Threads of the pass: the program goes on meanwhile, maybe on few cores.
const THREADS: usize = 1;

/// Bounds of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Longest pass over its memory, in processor time; what is beyond is not looked at.
    pub scan: Duration,
    /// Longest search for paths after that, in processor time; blocks beyond are not searched for.
    pub search: Duration,
    /// All of it, by the clock.
    pub longest: Duration,
    /// Most pointers kept, of eight bytes each.
    pub pointers: usize,
    /// Show keys of dicts, which are data of the program.
    pub keys: bool,
}

/// Why holders were not looked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLooked {
    /// There is no interpreter.
    #[error("not CPython{}", .0.as_ref().map(|name| format!(" (`{name}`)")).unwrap_or_default())]
    NoPython(Option<String>),
    /// It is none that is understood.
    #[error("{0}")]
    OtherPython(String),
    /// It ended meanwhile.
    #[error("the process has ended or runs another program now")]
    Gone,
}

/// A block, and which of its place's holders hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundBlock {
    /// Its address.
    pub address: u64,
    /// Indexes of its holders.
    pub by: Vec<usize>,
    /// Without a holder: only a ring of Python objects refers to it.
    pub is_garbage: bool,
    /// Its purpose, if a sure holder shows it.
    pub held_as: Option<HeldAs>,
}

/// The blocks of a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundPlace {
    /// Paths, and whether each is sure.
    pub holders: Vec<(String, bool)>,
    /// The blocks that were searched for and that the pool has not got back.
    pub blocks: Vec<FoundBlock>,
}

/// Why memory of a process was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    /// It has too much.
    #[error("the process has more host memory than a trace looks at")]
    Memory,
    /// The time ran out.
    #[error("the processors were busy, and the time for it ran out")]
    Time,
    /// Some is swapped out, and reading it would bring it in.
    #[error("{mib} MiB of its host memory are swapped out")]
    Swapped {
        /// MiB, rounded up.
        mib: u64,
    },
}

impl Cut {
    pub(super) fn of(figures: &Figures) -> Option<Self> {
        match figures {
            Figures { is_late: true, .. } => Some(Self::Time),
            figures if figures.is_partial() => Some(Self::Memory),
            Figures { swapped_bytes: 0, .. } => None,
            Figures { swapped_bytes, .. } => Some(Self::Swapped { mib: swapped_bytes.div_ceil(1 << 20) }),
        }
    }
}

/// The outcome of a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundPlaces {
    /// In the order of the question.
    pub places: Vec<FoundPlace>,
    /// Memory was left out: holders may be missing.
    pub cut: Option<Cut>,
    /// Its cost.
    pub effort: Effort,
}

/// Looks for the holders of blocks (address and size) of several places. One thread works; the process is not stopped.
///
/// # Errors
///
/// Why it was not looked at.
pub fn of_places(process: &Process, places: &[Vec<(u64, u64)>], budget: Budget) -> Result<FoundPlaces, NotLooked> {
    look(process, places, budget)
}

pub(super) fn look(source: &dyn Source, places: &[Vec<(u64, u64)>], budget: Budget) -> Result<FoundPlaces, NotLooked> {
    let begin = Instant::now();
    let mut found = look_once(source, places, budget)?;
    // Items of a list or dict that grows may have moved meanwhile. Another pass takes as long as the first.
    if found.places.iter().any(is_open) && begin.elapsed() * 2 < budget.longest {
        let renewed = source.renewed();
        let left = Budget { longest: budget.longest.saturating_sub(begin.elapsed()), ..budget };
        let again = look_once(renewed.as_deref().unwrap_or(source), places, left)?;
        if renewed.is_some() && !source.is_same() {
            return Err(NotLooked::Gone);
        }
        for (place, again) in found.places.iter_mut().zip(again.places) {
            if is_open(place) && !is_open(&again) {
                *place = again;
            }
        }
        found.cut = found.cut.or(again.cut);
        found.effort.time_ns = found.effort.time_ns.saturating_add(again.effort.time_ns);
    }
    Ok(found)
}

/// Whether most blocks of a place that are not garbage have no holder that is sure.
fn is_open(place: &FoundPlace) -> bool {
    let is_sure = |holder: &usize| place.holders.get(*holder).is_some_and(|(_, is_sure)| *is_sure);
    let (mut held, mut asked) = (0, 0);
    for block in place.blocks.iter().filter(|block| !block.is_garbage) {
        asked += 1;
        held += usize::from(block.by.iter().any(is_sure));
    }
    held * 2 < asked
}

fn look_once(source: &dyn Source, places: &[Vec<(u64, u64)>], budget: Budget) -> Result<FoundPlaces, NotLooked> {
    let begin = Instant::now();
    let memory = Memory::new(source);
    // Before the pass, which is the cost.
    let python = Python::find(&memory).map_err(NotLooked::OtherPython)?;
    let Some(python) = python else { return Err(NotLooked::NoPython(python::other_interpreter(source))) };
    let ranges: Vec<_> =
        places.iter().flatten().map(|(address, size)| *address..address.saturating_add((*size).max(1))).collect();
    let until = begin + budget.longest;
    let time = Some(Allowed { work: Some(budget.scan), until });
    let limits = Limits { pointers: budget.pointers, threads: THREADS, time, ..Python::limits(Some(&python)) };
    let pointers = Pointers::of(source, &ranges, limits);
    let heap = Heap::new(&memory, &pointers, Some(python.layout.pool_bytes()));
    let mut graph = Graph::new(&memory, &pointers, &heap, Some(&python));
    let pool = pool::find(&graph);
    let mut states: HashMap<u64, State> = HashMap::default();
    if let Ok(pool) = &pool {
        graph.set_pool(pool.own.iter().copied(), pool.live());
        let sure = pool.blocks.iter().filter(|block| !pool.unsure.contains(&block.device));
        states.extend(sure.filter_map(|block| Some((block.address, ended(block)?))));
    }
    let blocks = in_turn(places, &states);
    let (held, _) = search_all(&graph, &blocks, PATHS, Allowed { work: Some(budget.search), until }.begin());
    if !source.is_same() {
        return Err(NotLooked::Gone);
    }
    Ok(FoundPlaces {
        places: by_place(places, held, budget.keys),
        cut: Cut::of(&pointers.figures),
        effort: effort(&pointers, begin),
    })
}

/// The first block of each place, then the second: at the end of the time each has some.
fn in_turn(places: &[Vec<(u64, u64)>], states: &HashMap<u64, State>) -> Vec<Block> {
    let most = places.iter().map(Vec::len).max().unwrap_or(0);
    let turn = |at: usize| places.iter().filter_map(move |place| place.get(at));
    let block = |(address, size_bytes): &(u64, u64)| Block {
        ended: states.get(address).copied(),
        ..Block::at(*address, *size_bytes)
    };
    (0..most).flat_map(turn).map(block).collect()
}

fn by_place(places: &[Vec<(u64, u64)>], held: Vec<Held>, keys: bool) -> Vec<FoundPlace> {
    let held = held.into_iter().filter(|block| !matches!(block.state, State::Free | State::Waiting | State::Changed));
    let mut by_address: HashMap<u64, Held> = held.map(|block| (block.address, block)).collect();
    if !keys {
        for way in by_address.values_mut().flat_map(|block| &mut block.paths) {
            way.trail = std::mem::take(&mut way.trail).without_keys();
        }
    }
    let of = |place: &Vec<(u64, u64)>| {
        let blocks: Vec<&Held> = place.iter().filter_map(|(address, _)| by_address.get(address)).collect();
        let (holders, by) = group::by_way(&blocks, MAX_HOLDERS);
        let found = blocks.iter().zip(by).map(|(block, by)| FoundBlock {
            address: block.address,
            is_garbage: by.is_empty() && block.state == State::Ring,
            held_as: block.held_as(),
            by,
        });
        let blocks = found.collect();
        FoundPlace { holders: holders.into_iter().map(|holder| (holder.path, holder.is_sure)).collect(), blocks }
    };
    places.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gravest reason is given.
    #[test]
    fn why_memory_was_left_out() {
        let swapped = Figures { swapped_bytes: (2 << 20) + 1, ..Figures::default() };
        let partial = Figures { left_out_bytes: 1, ..swapped };
        let late = Figures { is_late: true, ..partial };
        let said = [Figures::default(), swapped, partial, late].map(|figures| Cut::of(&figures));
        assert_eq!(said, [None, Some(Cut::Swapped { mib: 3 }), Some(Cut::Memory), Some(Cut::Time)]);
    }
}
