//! Chooses the blocks with holders that are worth a look: a few of each of the places that seem to grow, and of those with the most
//! memory. Verdicts are made at the end of a trace; a process may be gone at the end.

use std::cmp::Reverse;

use super::Pipeline;
use super::domains::Effect;
use super::item::Item;
use super::process::Process;
use crate::analyses::growth::MIN_GROWING_BLOCKS;
use crate::backend::Backend;
use crate::capture::LookPlace;
use crate::hash::HashMap;
use crate::model::{AllocApi, Block, Device, Pool, PoolLevel, Stacks};

/// Processes of a look.
const MAX_PROCESSES: usize = 16;
/// Places of a process.
const MAX_PLACES: usize = 48;
/// Of these such that seem to grow.
const MAX_GROWING: usize = 32;
/// Blocks of a place, at random.
const MAX_BLOCKS: usize = 40;
/// Blocks of a process that are gone through. More are a sample: they come in the order of a table of hashes.
const MAX_LOOKED_THROUGH: usize = 1 << 20;
/// Places of these: beyond, further ones are left out.
const MAX_SITES: usize = 1 << 14;

/// Blocks of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToLookAt {
    /// The process.
    pub(crate) pid: u32,
    /// Bytes of its blocks.
    pub(crate) live_bytes: u64,
    /// Places seem to grow.
    pub(crate) grows: bool,
    /// The places that seem to grow, then the others, each with the most memory first.
    pub(crate) places: Vec<LookPlace>,
}

/// What has happened by which a look becomes urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Urgent {
    /// A request of this process has failed for want of memory; the first of several.
    pub(crate) failed: Option<u32>,
    /// A program begins to exit.
    pub(crate) exits: bool,
}

impl Urgent {
    pub(super) fn see(&mut self, pid: u32, effect: &Effect, backend: &dyn Backend) {
        if effect.failed_status().is_some_and(|status| backend.is_out_of_memory(status)) {
            self.failed = self.failed.or(Some(pid));
        }
        self.exits |= effect.ends_program();
    }
}

impl Pipeline {
    /// What has come since the last time, before it is in time order.
    pub(crate) fn take_urgent(&mut self) -> Urgent {
        std::mem::take(&mut self.urgent)
    }

    /// Whether most blocks of a process are known, but not in time order yet: those of a program that fills a device within milliseconds.
    pub(crate) fn is_behind(&self, pid: u32) -> bool {
        let begins = |item: &&Item| item.head.pid == pid && item.effect.begins_block();
        let waiting = self.order.items().chain(self.hold.items()).filter(begins).count();
        let known = self.processes.get(&pid).map_or(0, |process| process.blocks().all().take(waiting).count());
        known < waiting
    }

    /// Whether a process is traced without its pools.
    pub(crate) fn is_reduced(&self, pid: u32) -> bool {
        self.processes.get(&pid).is_some_and(Process::is_reduced)
    }

    /// Blocks with holders that are worth a look, of the processes with the most memory. A driver's block is held by its pool: of a process that is
    /// traced without pools, none.
    pub(crate) fn choose_blocks(&mut self) -> Vec<ToLookAt> {
        let (start_ns, now_ns) = (self.shared.out.start_ns(), self.clock.real(self.last_ns));
        let of_process = |(pid, process): (&u32, &Process)| of(*pid, process.blocks().all(), start_ns, now_ns);
        let whole = self.processes.iter().filter(|(_, process)| !process.is_reduced());
        let mut all: Vec<ToLookAt> = whole.map(of_process).collect();
        all.retain(|process| !process.places.is_empty());
        all.sort_by_key(|process| (Reverse(process.live_bytes), process.pid));
        all.truncate(MAX_PROCESSES);
        all
    }
}

/// The origin of blocks: their call stacks, or their size where there are none.
type Site = (Device, Pool, Stacks, Option<u64>);

#[derive(Debug)]
struct Sum {
    blocks: u64,
    size_bytes: u64,
    first_ns: u64,
    last_ns: u64,
    sample: Vec<(u64, u64)>,
}

impl Sum {
    /// Blocks that stay came over at least half of the time, and the last of them lately.
    const fn grows(&self, start_ns: u64, now_ns: u64) -> bool {
        let span_ns = now_ns.saturating_sub(start_ns);
        self.blocks >= MIN_GROWING_BLOCKS
            && self.last_ns.saturating_sub(self.first_ns) >= span_ns / 2
            && now_ns.saturating_sub(self.last_ns) <= span_ns / 4
    }
}

/// Of all live blocks of a process. Its first event was at `start_ns`.
pub(super) fn of(pid: u32, blocks: impl Iterator<Item = Block>, start_ns: u64, now_ns: u64) -> ToLookAt {
    let (mut sums, mut live_bytes) = (HashMap::<Site, Sum>::default(), 0_u64);
    let mut pools: Vec<Device> = Vec::new();
    for block in blocks.filter(is_memory).take(MAX_LOOKED_THROUGH) {
        let site = (block.device, block.pool, block.stacks, block.size_of_place());
        if !block.pool.is_driver() && !pools.contains(&block.device) {
            pools.push(block.device);
        }
        if sums.len() >= MAX_SITES && !sums.contains_key(&site) {
            continue;
        }
        live_bytes = live_bytes.saturating_add(block.size_bytes);
        let none = || Sum { blocks: 0, size_bytes: 0, first_ns: u64::MAX, last_ns: 0, sample: Vec::new() };
        let sum = sums.entry(site).or_insert_with(none);
        sum.blocks += 1;
        sum.size_bytes = sum.size_bytes.saturating_add(block.size_bytes);
        (sum.first_ns, sum.last_ns) = (sum.first_ns.min(block.alloc_time_ns), sum.last_ns.max(block.alloc_time_ns));
        if sum.sample.len() < MAX_BLOCKS {
            sum.sample.push((block.addr, block.size_bytes));
        }
    }
    // A driver's block in which a pool hands out its own is held by the pool.
    sums.retain(|(device, pool, ..), _| !pool.is_driver() || !pools.contains(device));
    let mut all: Vec<(bool, Site, Sum)> =
        sums.into_iter().map(|(site, sum)| (sum.grows(start_ns, now_ns), site, sum)).collect();
    all.sort_by_key(|(grows, site, sum)| (!grows, Reverse(sum.size_bytes), *site));
    let growing = all.iter().filter(|(grows, ..)| *grows).count();
    if growing > MAX_GROWING {
        all.drain(MAX_GROWING..growing);
    }
    let places = all.into_iter().take(MAX_PLACES).map(|(_, (_, pool, ..), sum)| LookPlace {
        pool: pool.event_type().to_owned(),
        live_blocks: sum.blocks,
        live_bytes: sum.size_bytes,
        blocks: sum.sample,
    });
    ToLookAt { pid, live_bytes, grows: growing > 0, places: places.collect() }
}

/// Memory of a device under an address.
fn is_memory(block: &Block) -> bool {
    block.api == AllocApi::Alloc && block.pool.level() != PoolLevel::Host && matches!(block.device, Device::Npu(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::{Stack, StackEnd};
    use crate::testing;

    fn block(pool: Pool, line: &str, addr: u64, size_bytes: u64, alloc_time_ns: u64) -> Block {
        let stacks = Stacks { python: Some(Stack::keep([line], StackEnd::Root)), ..Stacks::default() };
        Block { alloc_time_ns, stacks, ..testing::block(pool, addr, size_bytes) }
    }

    /// From 0 to 100: nine blocks at 10, 20, …, 90 grow; weights of the begin do not, though they are larger; nor does what comes late.
    #[test]
    fn places_that_grow_come_first() {
        let mut blocks: Vec<Block> = (1..10).map(|at| block(pools::PTA, "a.py(1): leak", at, 10, at * 10)).collect();
        blocks.extend((0..20).map(|at| block(pools::PTA, "a.py(2): weight", 100 + at, 1000, 1)));
        blocks.extend((0..20).map(|at| block(pools::PTA, "a.py(3): late", 200 + at, 100, 95)));
        blocks.push(block(pools::HAL, "a.py(4): segment", 300, 1 << 30, 1));
        let found = of(7, blocks.iter().copied(), 0, 100);
        let sums: Vec<(u64, u64)> = found.places.iter().map(|place| (place.live_blocks, place.live_bytes)).collect();
        assert_eq!((found.pid, found.grows, sums), (7, true, vec![(9, 90), (20, 20_000), (20, 2000)]));
        let mut leaked = found.places[0].blocks.clone();
        leaked.sort_unstable();
        assert_eq!(leaked, (1..10).map(|addr| (addr, 10)).collect::<Vec<_>>());
        assert!(!of(7, blocks[9..].iter().copied(), 0, 100).grows);
    }

    /// Without a pool the driver's blocks are the program's own. Handles and host memory are no addresses of a device.
    #[test]
    fn blocks_of_the_driver() {
        let own = block(pools::HAL, "a.c(1): f", 1, 512, 1);
        let handle = Block { api: AllocApi::Create, ..own };
        let host = Block { device: Device::Cpu, ..own };
        let found = of(7, [own, handle, host].into_iter(), 0, 100);
        let place = LookPlace { pool: "HAL".to_owned(), live_blocks: 1, live_bytes: 512, blocks: vec![(1, 512)] };
        assert_eq!((found.places, found.live_bytes), (vec![place], 512));
    }

    /// A few blocks of each of a few places, however many there are.
    #[test]
    fn looks_are_bounded() {
        let blocks = (0..100_000).map(|at| block(pools::PTA, &format!("a.py({}): f", at % 500), at, 1, at));
        let found = of(7, blocks, 0, 100_000);
        assert_eq!(found.places.len(), MAX_GROWING);
        let growing = |at: u64| block(pools::PTA, &format!("a.py({}): f", at % 500), at, 1, at);
        let others = (0..30).map(|at| block(pools::PTA, &format!("b.py({at}): f"), 1_000_000 + at, 1, 1));
        let found = of(7, (0..100_000).map(growing).chain(others), 0, 100_000);
        assert_eq!(found.places.len(), MAX_PLACES);
        assert!(found.places.iter().all(|place| place.blocks.len() <= MAX_BLOCKS));
    }
}
