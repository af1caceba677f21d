//! What keeps growing? For programs that mark no steps: servers.
//!
//! Blocks are grouped by origin ([`Site`]): the call stacks of their allocation, or their size where there are none.
//! The number of live blocks of each site is followed over time, and judged at the end. A site is reported, with the
//! evidence, if the number has risen in every part of the time and its blocks stay; or if it holds blocks of every
//! part. Blocks are counted, not bytes: a buffer that is replaced by a larger one is no leak. One that is replaced all the time is
//! an increase (`larger`). If no site of a pool stands out but the pool as a whole grows, that is reported.
//!
//! Where blocks come with their final owners ([`named`](super::named)), the owners of what stays are reported as well.
//!
//! Memory: about 1.2 KiB for each of at most 16 384 sites of a process; further ones count as one.

mod ages;
mod finding;
mod larger;
mod levels;
pub(super) mod running;
#[cfg(test)]
mod tests;
mod text;
mod verdict;

pub use self::finding::{GROWTH_PARTS, GrowingSite, Growth, Increase, NotJudged, Site};
pub use self::running::Trend;
pub use verdict::MIN_BLOCKS as MIN_GROWING_BLOCKS;

use std::{cmp::Reverse, collections::BTreeMap};

use self::{
    larger::Larger,
    levels::{Clock, Level},
    verdict::Evidence,
};
use super::{Analysis, Finding, concluded::Concluded};
use crate::hash::HashMap;
use crate::model::{
    Alloc, Block, Confidence, Device, Event, EventKind, Free, LiveSum, Name, OwnerSum, Pool, RunEnd, Stacks,
    UnknownFree,
};

/// Most sites of one process.
const MAX_SITES: usize = 1 << 14;
/// Shorter runs are not judged: a program that only starts grows as well.
const MIN_SPAN_NS: u64 = 10_000_000_000;
/// Growing sites that are reported, by device.
const MAX_GROWING: usize = 100;
/// An hour.
const HOUR_NS: u128 = 3_600_000_000_000;
/// Increases reported beside them.
const MAX_INCREASES: usize = 5;

/// Follows the number of live blocks of every site.
#[derive(Debug, Default)]
pub struct GrowthAnalysis {
    /// Blocks that end come with their final owners.
    named: bool,
    running: BTreeMap<u32, Process>,
    concluded: Concluded<Growth>,
}

/// A site, or (`None`) a pool as a whole.
type Key = (Device, Pool, Option<Site>);

/// The largest increase of a single site of each pool.
type MostBySite = HashMap<(Device, Pool), u64>;

#[derive(Debug)]
struct Process {
    clock: Clock,
    followed: HashMap<Key, Followed>,
    sites_full: bool,
    /// Frees of blocks older than the trace: a count that only rises.
    older_frees: HashMap<(Device, Pool), Level>,
    /// Owners of the blocks live at the end, filled there.
    owners: HashMap<Key, BTreeMap<Option<Name>, LiveSum>>,
}

#[derive(Debug, Default)]
struct Followed {
    level: Level,
    /// Of their bytes, with an end where the type has one.
    bytes: Level,
    /// Sizes come from the program: the sum of two may exceed their type.
    size_bytes: u128,
    allocations: u64,
    /// Bytes of all blocks so far.
    allocated_bytes: u128,
    last_alloc_ns: u64,
    ages: [u64; 4],
}

/// Change of a site's blocks by an event.
#[derive(Clone, Copy)]
enum Change {
    Comes,
    /// A reported free has failed.
    ComesBack,
    Goes,
    /// It was live at the end.
    Stays,
}

impl GrowthAnalysis {
    /// Reports owners: blocks that end have their final ones.
    #[must_use]
    pub fn named() -> Self {
        Self { named: true, ..Self::default() }
    }
}

impl Analysis for GrowthAnalysis {
    fn observe(&mut self, event: &Event) {
        let change = match &event.kind {
            // Older than the trace: no place allocates it, and its free is one of an older block.
            EventKind::Alloc(Alloc { block: Block { found: true, .. }, .. })
            | EventKind::Free(Free { block: Block { found: true, .. }, .. }) => None,
            EventKind::Alloc(alloc) => {
                let change = if alloc.restored { Change::ComesBack } else { Change::Comes };
                Some((&alloc.block, change))
            }
            EventKind::Free(free) => {
                let change = if free.cause.gave_back() { Change::Goes } else { Change::Stays };
                Some((&free.block, change))
            }
            _ => None,
        };
        if let Some((block, change)) = change {
            let new = || Process::new(event.time_ns);
            let process = self.running.entry(event.pid).or_insert_with(new);
            process.change(event.time_ns, block, change);
            if let (EventKind::Free(free), Change::Stays, true) = (&event.kind, change, self.named) {
                process.owned(block, free.owner);
            }
        } else if let Some(process) = self.running.get_mut(&event.pid) {
            process.clock.advance(event.time_ns);
            if let Some(place) = older_freed(event) {
                process.older_frees.entry(place).or_default().rise(1, &process.clock);
            }
        }
        if matches!(event.kind, EventKind::ProcessEnd)
            && let Some(process) = self.running.remove(&event.pid)
        {
            self.concluded.extend(process.conclude(event.pid, event.time_ns));
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for (pid, process) in std::mem::take(&mut self.running) {
            self.concluded.extend(process.conclude(pid, end.time_ns));
        }
        let confidence = Confidence::after(end);
        let finding = |growth| Finding::Growth(Growth { confidence, ..growth });
        self.concluded.take(|growth| (growth.pid, growth.device), finding)
    }
}

/// Where a block was freed that is older than the trace.
const fn older_freed(event: &Event) -> Option<(Device, Pool)> {
    match event.kind {
        EventKind::UnknownFree(UnknownFree { pool, maybe_older: true, refused: false, .. }) => {
            Some((event.device, pool))
        }
        EventKind::Free(Free { block: Block { found: true, device, pool, .. }, cause, .. }) if cause.gave_back() => {
            Some((device, pool))
        }
        _ => None,
    }
}

/// The origin of a block.
pub(crate) fn site_of(block: &Block) -> Site {
    let Block { pool, stacks, module_id, caller, .. } = *block;
    Site { pool, stacks, size_bytes: block.size_of_place(), module_id, caller }
}

/// Stands for the sites beyond [`MAX_SITES`].
const fn other_sites(pool: Pool) -> Site {
    Site {
        pool,
        stacks: Stacks { native: None, python: None, mixed: None },
        size_bytes: None,
        module_id: None,
        caller: None,
    }
}

impl Process {
    fn new(start_ns: u64) -> Self {
        let (followed, older_frees, owners) = (HashMap::default(), HashMap::default(), HashMap::default());
        Self { clock: Clock::new(start_ns), followed, sites_full: false, older_frees, owners }
    }

    /// A block is live at the end.
    fn owned(&mut self, block: &Block, owner: Option<Name>) {
        for site in [Some(site_of(block)), None] {
            let owners = self.owners.entry((block.device, block.pool, site)).or_default();
            owners.entry(owner).or_default().add(block.size_bytes);
        }
    }

    /// Owners of a site's blocks live at the end.
    fn owners(&self, key: &Key) -> Vec<OwnerSum> {
        let of = self.owners.get(key).into_iter().flatten();
        let mut sums: Vec<OwnerSum> = of.map(|(&owner, &live)| OwnerSum { owner, live }).collect();
        sums.sort_unstable_by_key(|sum| (Reverse((sum.live.size_bytes, sum.live.blocks)), sum.owner));
        sums
    }

    fn change(&mut self, time_ns: u64, block: &Block, change: Change) {
        self.clock.advance(time_ns);
        let site = site_of(block);
        let mut key = (block.device, block.pool, Some(site));
        if self.followed.len() >= MAX_SITES && !self.followed.contains_key(&key) {
            self.sites_full = true;
            key.2 = Some(other_sites(block.pool));
        }
        let age = self.quarter_of_age(time_ns, block);
        for key in [key, (block.device, block.pool, None)] {
            let followed = self.followed.entry(key).or_default();
            match change {
                Change::Comes | Change::ComesBack => {
                    followed.level.rise(1, &self.clock);
                    followed.bytes.rise(block.size_bytes, &self.clock);
                    followed.size_bytes += u128::from(block.size_bytes);
                    if matches!(change, Change::Comes) {
                        followed.allocations += 1;
                        followed.allocated_bytes += u128::from(block.size_bytes);
                        followed.last_alloc_ns = time_ns;
                    }
                }
                Change::Goes => {
                    followed.level.fall(1, &self.clock);
                    followed.bytes.fall(block.size_bytes, &self.clock);
                    followed.size_bytes = followed.size_bytes.saturating_sub(u128::from(block.size_bytes));
                }
                Change::Stays => followed.ages[age] += 1,
            }
        }
    }

    /// Age of a block in quarters of the time since the start.
    fn quarter_of_age(&self, time_ns: u64, block: &Block) -> usize {
        let age = u128::from(time_ns.saturating_sub(block.alloc_time_ns));
        let quarter = age * 4 / u128::from(self.clock.elapsed_ns(time_ns)).max(1);
        usize::try_from(quarter).unwrap_or(3).min(3)
    }

    fn conclude(mut self, pid: u32, end_ns: u64) -> Vec<Growth> {
        self.clock.advance(end_ns);
        let span_ns = self.clock.elapsed_ns(end_ns);
        let mut found: BTreeMap<Device, Growth> = BTreeMap::new();
        let mut most_by_site: MostBySite = HashMap::default();
        let mut followed: Vec<(Key, Followed)> = self.followed.drain().collect();
        // Pools as a whole come last: a pool with a growing site is not reported again.
        followed.sort_unstable_by_key(|(key, _)| key.2.is_none());
        for (key, followed) in followed {
            let (from_ns, sites_full) = (self.clock.start_ns(), self.sites_full);
            let growth = found
                .entry(key.0)
                .or_insert_with(|| Growth { sites_full, ..Growth::new(pid, key.0, from_ns, span_ns) });
            self.judge(key, followed, growth, &mut most_by_site);
        }
        found.into_values().map(|growth| self.close(growth)).collect()
    }

    /// Adds the verdict on a site, or on a pool as a whole.
    fn judge(&mut self, key: Key, mut followed: Followed, growth: &mut Growth, most_by_site: &mut MostBySite) {
        let (device, pool, site) = key;
        let lows = followed.level.lows(&self.clock);
        let is_judged = lows.len() >= verdict::MIN_WINDOWS && growth.span_ns >= MIN_SPAN_NS;
        growth.judged |= is_judged;
        let known = site.is_none() && growth.sites.iter().any(|site| site.pool == pool);
        let Some(low_blocks) = verdict::parts(lows).filter(|_| is_judged && !known) else { return };
        let lows = lows.to_vec();
        let Evidence { stays, accumulates, increase } =
            verdict::weigh(&lows, low_blocks, followed.level.now(), followed.ages);
        if site.is_some() {
            let most = most_by_site.entry((device, pool)).or_insert(0);
            *most = increase.max(*most);
        }
        // A pool as a whole accuses many places at once: both tests have to show it, and no place may make up most of
        // it, as a queue does.
        let most = most_by_site.get(&(device, pool)).copied().unwrap_or(0);
        let grows = if site.is_some() { stays || accumulates } else { stays && accumulates && 2 * most <= increase };
        if grows && !self.replaces(device, pool, &followed.level, low_blocks) {
            return growth.sites.push(followed.growing(pool, site, low_blocks, growth.span_ns));
        }
        let Some(site) = site else { return };
        if verdict::is_increase(increase, followed.ages) {
            growth.increases.push(followed.increase(site, increase));
        } else {
            let now_bytes = followed.bytes.now();
            let larger = larger::find(followed.bytes.lows(&self.clock), now_bytes);
            growth.increases.extend(larger.map(|larger| followed.larger(site, larger)));
        }
        growth.undetectable_bytes_per_hour =
            growth.undetectable_bytes_per_hour.max(followed.undetectable_bytes_per_hour(&self.clock, growth.span_ns));
    }

    /// Whether such blocks may replace older ones, as in a cache that was full before: at all times, and in the second
    /// half still. Blocks in use at the attach go in the first part.
    fn replaces(&mut self, device: Device, pool: Pool, level: &Level, low_blocks: [u64; GROWTH_PARTS]) -> bool {
        let older_frees = self.older_frees.get_mut(&(device, pool));
        let older_frees = older_frees.map_or([0; 2], |frees| [1, 3].map(|part| frees.since(part, &self.clock)));
        let rises = [1, 3].map(|part| level.now().saturating_sub(low_blocks[part]));
        verdict::replaces(older_frees, rises)
    }

    /// Sorts the finding: equal rates, or equal bytes, by the texts of their places.
    fn close(&self, mut growth: Growth) -> Growth {
        growth.not_judged = (!growth.judged).then_some(NotJudged::TooShort);
        growth
            .sites
            .sort_by(|a, b| b.bytes_per_second.total_cmp(&a.bytes_per_second).then_with(|| a.site.cmp(&b.site)));
        growth.sites.truncate(MAX_GROWING);
        growth.increases.sort_by_key(|increase| (Reverse(increase.size_bytes), increase.site));
        growth.increases.truncate(MAX_INCREASES);
        for site in &mut growth.sites {
            site.owners = self.owners(&(growth.device, site.pool, site.site));
        }
        for increase in &mut growth.increases {
            increase.owners = self.owners(&(growth.device, increase.site.pool, Some(increase.site)));
        }
        growth
    }
}

impl Followed {
    /// Bytes an hour below which growth of the place would go unnoticed: [`verdict::MIN_BLOCKS`] of its blocks in the
    /// three quarters of the time in which blocks have to stay. `None` for a place without allocations after the first
    /// part: it has stopped growing.
    fn undetectable_bytes_per_hour(&self, clock: &Clock, span_ns: u64) -> Option<u64> {
        let first_ns = clock.start_ns() + span_ns / GROWTH_PARTS as u64;
        if self.last_alloc_ns < first_ns || self.allocations == 0 {
            return None;
        }
        let blocks_bytes = u128::from(verdict::MIN_BLOCKS) * self.allocated_bytes / u128::from(self.allocations);
        let hourly = blocks_bytes * (HOUR_NS * 4 / 3) / u128::from(span_ns.max(1));
        Some(u64::try_from(hourly).unwrap_or(u64::MAX))
    }

    fn increase(&self, site: Site, blocks: u64) -> Increase {
        let live_blocks = self.level.now();
        let size_bytes = self.size_bytes * u128::from(blocks) / u128::from(live_blocks.max(1));
        let size_bytes = u64::try_from(size_bytes).unwrap_or(u64::MAX);
        let (low_bytes, owners) = (None, Vec::new());
        Increase { site, blocks, size_bytes, low_bytes, live_blocks, ages: self.ages, owners }
    }

    fn larger(&self, site: Site, Larger { low_bytes, more_bytes }: Larger) -> Increase {
        Increase { size_bytes: more_bytes, low_bytes: Some(low_bytes), ..self.increase(site, 0) }
    }

    #[expect(clippy::cast_precision_loss, reason = "rates are estimates")]
    fn growing(&self, pool: Pool, site: Option<Site>, low_blocks: [u64; GROWTH_PARTS], span_ns: u64) -> GrowingSite {
        let (blocks, size_bytes) = (self.level.now(), self.size_bytes);
        let grown = low_blocks[GROWTH_PARTS - 1].saturating_sub(low_blocks[1]) as f64;
        let seconds = span_ns as f64 / 1e9 * (GROWTH_PARTS - 2) as f64 / GROWTH_PARTS as f64;
        let blocks_per_second = grown / seconds;
        let bytes_per_second = blocks_per_second * size_bytes as f64 / blocks.max(1) as f64;
        GrowingSite {
            site,
            pool,
            blocks,
            size_bytes: u64::try_from(size_bytes).unwrap_or(u64::MAX),
            low_blocks,
            blocks_per_second,
            bytes_per_second,
            allocations: self.allocations,
            ages: self.ages,
            owners: Vec::new(),
        }
    }
}
