//! The places behind a verdict, or those with the most memory.

use std::cmp::Reverse;

use super::Verdict;
use crate::analyses::{
    Finding, Kind as _,
    by_stack::{ByStack, FoundSum},
    growth::{GROWTH_PARTS, GrowingSite, Growth, Increase},
    held_by::{self, HeldBy},
    mark_leaks::MarkLeaks,
    oom::Oom,
    peaks::Peak,
    step_leaks::{StepLeaks, StepVerdict},
};
use crate::hash::HashMap;
use crate::model::{Device, LiveGroups, LiveSum, Pool, Stacks};

/// The role of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leaks.
    Leaks,
    /// It keeps growing.
    Grows,
    /// It increased.
    Undecided,
    /// It holds memory.
    Holds,
}

/// Further facts about the place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Detail {
    /// Steps that the blocks come from: number, first and last.
    Steps(u32, [u32; 2]),
    /// Bytes a second, and live blocks that each part of the time never went below.
    Rate(f64, [u64; GROWTH_PARTS]),
    /// Bytes and blocks more than at the begin.
    Increase(LiveSum),
    /// Nothing.
    None,
}

/// A place.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Its role.
    pub role: Role,
    /// Device.
    pub device: Device,
    /// Pool of its blocks.
    pub pool: Pool,
    /// Its blocks.
    pub live: LiveSum,
    /// Its part of all places of its role, 0 to 1: of bytes, or of what grows in bytes a second.
    pub share: f64,
    /// More.
    pub detail: Detail,
    /// Where the blocks were allocated.
    pub stacks: Stacks,
    /// Size of each block, where no call stack names the place.
    pub each_bytes: Option<u64>,
    /// Of those without a call stack: blocks from before the attach, by what they are for.
    pub found: Vec<FoundSum>,
    /// What held its blocks, a line each; empty where that is unknown.
    pub held_by: Vec<String>,
}

/// Places for a verdict, the largest first, with what held their blocks; and why that was not looked for.
pub(super) fn of(verdict: Verdict, findings: &[&Finding]) -> (Vec<Place>, Option<String>) {
    let held_by: Vec<&HeldBy> = findings.iter().filter_map(|finding| HeldBy::of(finding)).collect();
    let failed = verdict == Verdict::OutOfMemory;
    let mut places = behind(verdict, findings);
    let key = |place: &Place| (place.device, place.pool, place.stacks, place.each_bytes);
    for place in &mut places {
        place.held_by = held_by::short_lines(held_by.iter().copied(), key(place), failed);
    }
    let why = places.first().and_then(|first| held_by::why_not(held_by.iter().copied(), key(first), failed));
    let why = why.map(str::to_owned);
    (places, why)
}

fn behind(verdict: Verdict, findings: &[&Finding]) -> Vec<Place> {
    let found = match verdict {
        Verdict::OutOfMemory => at_oom(findings),
        Verdict::Leak => merged(leaks(findings), growing(findings)),
        Verdict::Growing => growing(findings),
        Verdict::Undecided => undecided(findings),
        Verdict::NothingFound | Verdict::NotJudged => Vec::new(),
    };
    if found.is_empty() { holders(findings) } else { found }
}

/// The last failed request's holders, pools apart from the driver.
fn at_oom(findings: &[&Finding]) -> Vec<Place> {
    let Some(oom) = last_oom(findings) else { return Vec::new() };
    let total: u64 = oom.pools.iter().map(|pool| pool.live.size_bytes).fold(0, u64::saturating_add);
    let of_pool = |pool: &crate::analyses::oom::PoolAtOom| holding(oom.device, pool.pool, &pool.groups, total);
    sorted(oom.pools.iter().flat_map(of_pool).collect())
}

/// The last failed request.
pub(super) fn last_oom<'a>(findings: &[&'a Finding]) -> Option<&'a Oom> {
    findings.iter().filter_map(|finding| Oom::of(finding)).max_by_key(|oom| oom.time_ns)
}

fn leaks(findings: &[&Finding]) -> Vec<Place> {
    let mut all = Vec::new();
    for finding in findings {
        if let Some(leaks) = StepLeaks::of(finding) {
            all.extend(of_steps(leaks, StepVerdict::Leak, Role::Leaks));
        }
        if let Some(leaks) = MarkLeaks::of(finding) {
            all.extend(of_marks(leaks));
        }
    }
    with_shares(all)
}

fn of_marks(leaks: &MarkLeaks) -> Vec<Place> {
    let mut sums: HashMap<(Pool, Stacks), LiveSum> = HashMap::default();
    for leak in &leaks.leaks {
        sums.entry((leak.pool, leak.stacks)).or_default().add(leak.size_bytes);
    }
    let place = |((pool, stacks), live)| Place {
        role: Role::Leaks,
        device: leaks.device,
        pool,
        live,
        share: 0.0,
        detail: Detail::None,
        stacks,
        each_bytes: None,
        found: Vec::new(),
        held_by: Vec::new(),
    };
    sums.into_iter().map(place).collect()
}

fn of_steps(leaks: &StepLeaks, verdict: StepVerdict, role: Role) -> Vec<Place> {
    let of = leaks.places.iter().filter(|place| place.verdict == verdict);
    of.map(|place| Place {
        role,
        device: leaks.device,
        pool: place.pool,
        live: LiveSum { blocks: place.blocks, size_bytes: place.size_bytes },
        share: 0.0,
        detail: Detail::Steps(place.steps, place.step_range),
        stacks: place.stacks,
        each_bytes: place.each_bytes,
        found: Vec::new(),
        held_by: Vec::new(),
    })
    .collect()
}

fn growths<'a>(findings: &'a [&Finding]) -> impl Iterator<Item = &'a Growth> {
    findings.iter().filter_map(|finding| Growth::of(finding)).filter(|growth| growth.judged)
}

/// The most that would not have been noticed on a device.
pub(super) fn undetectable_bytes_per_hour(findings: &[&Finding]) -> Option<u64> {
    growths(findings).filter_map(|growth| growth.undetectable_bytes_per_hour).max()
}

/// The fastest first.
fn growing(findings: &[&Finding]) -> Vec<Place> {
    let rate: f64 = growths(findings).flat_map(|growth| &growth.sites).map(|site| site.bytes_per_second).sum();
    let place = |device: Device, found: &GrowingSite| Place {
        role: Role::Grows,
        device,
        pool: found.pool,
        live: LiveSum { blocks: found.blocks, size_bytes: found.size_bytes },
        share: if rate > 0.0 { found.bytes_per_second / rate } else { 0.0 },
        detail: Detail::Rate(found.bytes_per_second, found.low_blocks),
        stacks: found.site.map(|site| site.stacks).unwrap_or_default(),
        each_bytes: found.site.and_then(|site| site.size_bytes),
        found: Vec::new(),
        held_by: Vec::new(),
    };
    let mut all: Vec<Place> =
        growths(findings).flat_map(|growth| growth.sites.iter().map(|found| place(growth.device, found))).collect();
    all.sort_by(|a, b| b.share.total_cmp(&a.share));
    all
}

/// Leaks of steps, and what grows beside them at other places.
fn merged(mut leaks: Vec<Place>, growing: Vec<Place>) -> Vec<Place> {
    for place in growing {
        let is_known = |known: &Place| {
            (known.device, known.pool, known.stacks, known.each_bytes)
                == (place.device, place.pool, place.stacks, place.each_bytes)
        };
        if !leaks.iter().any(is_known) {
            leaks.push(place);
        }
    }
    leaks
}

fn undecided(findings: &[&Finding]) -> Vec<Place> {
    const UNDECIDED: [StepVerdict; 4] =
        [StepVerdict::FewSteps, StepVerdict::Young, StepVerdict::Stopped, StepVerdict::Replaced];
    let mut all = Vec::new();
    for finding in findings {
        if let Some(leaks) = StepLeaks::of(finding) {
            all.extend(UNDECIDED.iter().flat_map(|verdict| of_steps(leaks, *verdict, Role::Undecided)));
        }
    }
    let place = |device: Device, found: &Increase| Place {
        role: Role::Undecided,
        device,
        pool: found.site.pool,
        live: LiveSum { blocks: found.live_blocks, size_bytes: found.size_bytes },
        share: 0.0,
        detail: Detail::Increase(LiveSum { blocks: found.blocks, size_bytes: found.size_bytes }),
        stacks: found.site.stacks,
        each_bytes: found.site.size_bytes,
        found: Vec::new(),
        held_by: Vec::new(),
    };
    let increases: Vec<Place> =
        growths(findings).flat_map(|growth| growth.increases.iter().map(|found| place(growth.device, found))).collect();
    with_shares(merged(all, increases))
}

/// The places with the most memory at the peak of a pool; without that analysis, those at the end.
fn holders(findings: &[&Finding]) -> Vec<Place> {
    let peaks = findings.iter().filter_map(|finding| Peak::of(finding)).filter(|peak| !peak.pool.is_host());
    if let Some(peak) = peaks.max_by_key(|peak| (!peak.pool.is_base(), peak.peak_bytes)) {
        return sorted(holding(peak.device, peak.pool, &peak.groups, peak.peak_bytes));
    }
    let mut all = Vec::new();
    for finding in findings {
        if let Some(by_stack) = ByStack::of(finding) {
            let live = by_stack.sums.iter().filter(|sum| sum.live_blocks > 0 && !by_stack.pool.is_base());
            all.extend(live.map(|sum| Place {
                role: Role::Holds,
                device: by_stack.device,
                pool: by_stack.pool,
                live: LiveSum { blocks: sum.live_blocks, size_bytes: sum.live_bytes },
                share: 0.0,
                detail: Detail::None,
                stacks: sum.stacks,
                each_bytes: None,
                found: if sum.stacks.is_empty() { by_stack.found.clone() } else { Vec::new() },
                held_by: Vec::new(),
            }));
        }
    }
    with_shares(all)
}

/// Places of groups of live blocks; those without a stack have none.
fn holding(device: Device, pool: Pool, groups: &LiveGroups, total_bytes: u64) -> Vec<Place> {
    let places = groups.places.iter().filter(|sum| !sum.stacks.is_empty());
    places
        .map(|sum| Place {
            role: Role::Holds,
            device,
            pool,
            live: sum.live,
            share: if total_bytes > 0 { sum.live.size_bytes as f64 / total_bytes as f64 } else { 0.0 },
            detail: Detail::None,
            stacks: sum.stacks,
            each_bytes: None,
            found: Vec::new(),
            held_by: Vec::new(),
        })
        .collect()
}

/// Shares of bytes among the places.
fn with_shares(mut places: Vec<Place>) -> Vec<Place> {
    let total: f64 = places.iter().map(|place| place.live.size_bytes as f64).sum();
    for place in &mut places {
        place.share = if total > 0.0 { place.live.size_bytes as f64 / total } else { 0.0 };
    }
    sorted(places)
}

fn sorted(mut places: Vec<Place>) -> Vec<Place> {
    places.sort_by_key(|place| (Reverse(place.live.size_bytes), place.device, place.pool, place.stacks));
    places
}
