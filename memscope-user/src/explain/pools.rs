//! Rules about what pools hold.

use super::advice::{self, Hint};
use super::card::{About, Level, Rule};
use super::facts::{Facts, Out, Says, WORTH_BYTES, bytes, is_share, least, percent, place};
use super::requests::{MAX_LISTED, pinning};
use crate::analyses::fragmentation::{Fragmentation, FreeSpaceMoment, FreeSpaceSample, PiecesVerdict};
use crate::analyses::inefficient::{Inefficient, InefficientKind, Waste};
use crate::analyses::ledger::{Item, Ledger, Moment, PoolSheets};
use crate::analyses::peaks::Peak;
use crate::analyses::waits::{PlaceWaits, Waits};
use crate::model::{Confidence, Device, Pool, PoolLevel, PoolOperators, StepsFrom};
use crate::text::numbers::{counted, rounded};

/// Cached bytes, in percent of the bytes that a pool holds.
const CACHED_PERCENT: u64 = 30;
/// Workspaces, in percent of the driver's peak.
const WORKSPACE_PERCENT: u64 = 10;
/// A workspace that is larger after this step follows the shapes.
const SETTLED_STEP: u32 = 3;

/// `workspace-growth`.
pub(super) fn workspaces(out: &mut Out<'_, '_>) {
    for peak in out.facts.peaks().filter(|peak| peak.pool.level() == PoolLevel::Workspace) {
        let Some(whole) = out.facts.peaks().find(|it| it.device == peak.device && it.pool.is_driver()) else {
            out.cannot(Rule::WorkspaceGrowth, "no driver memory was seen");
            continue;
        };
        if is_share(peak.peak_bytes, whole.peak_bytes, WORKSPACE_PERCENT)
            && peak.peak_bytes >= WORTH_BYTES
            && peak.step > SETTLED_STEP
        {
            out.say(Rule::WorkspaceGrowth, of_workspace(peak, whole));
        }
    }
}

fn of_workspace(peak: &Peak, whole: &Peak) -> Says<'static> {
    let text = format!(
        "{} in workspaces, {} of the driver's peak; the most was first in step {}. The largest shape sets it, for each stream.",
        rounded(peak.peak_bytes.into()),
        percent(peak.peak_bytes, whole.peak_bytes),
        peak.step,
    );
    let steps = match peak.steps_from {
        StepsFrom::Marks => "steps are marked",
        StepsFrom::Optimizer => "steps are inferred from the optimizer",
        StepsFrom::Backward => "steps are inferred from backward passes",
    };
    let hints: &[Hint] = &[advice::BUCKETS, advice::TASK_QUEUE_1];
    Says {
        device: peak.device,
        level: Level::Warning,
        text,
        size_bytes: peak.peak_bytes,
        evidence: vec![steps.to_owned(), format!("the driver's peak is {}", rounded(whole.peak_bytes.into()))],
        hints,
        confidence: least([peak.confidence, whole.confidence]),
        about: About::Blocks(peak.pool),
    }
}

/// `late-free`.
pub(super) fn late_frees(out: &mut Out<'_, '_>) {
    let mut is_judged = false;
    for uses in out.facts.uses().filter(|uses| uses.judged) {
        is_judged = true;
        if let Some(says) = late_free(out.facts, uses) {
            out.say(Rule::LateFree, says);
        }
    }
    if !is_judged {
        out.cannot(Rule::LateFree, "no uses of blocks are recorded (--analysis=inefficient while tracing)");
    }
}

fn late_free(facts: &Facts<'_>, uses: &Inefficient) -> Option<Says<'static>> {
    let late = uses.kinds.iter().find(|waste| waste.kind == InefficientKind::LateDeallocation)?;
    let peak = facts.held().filter(|held| held.device == uses.device).map(|held| held.peak_bytes).max()?;
    let Waste { blocks, .. } = *late;
    let mean_bytes = uses.late_bytes(facts.until_ns().saturating_sub(facts.end.start_ns), peak)?;
    let text = format!(
        "{} on average in blocks after their last use ({} of the peak): {} of {} were freed late.",
        rounded(mean_bytes.into()),
        percent(mean_bytes, peak),
        blocks,
        counted(uses.looked_at.blocks, "block"),
    );
    Some(Says {
        device: uses.device,
        level: Level::Info,
        text,
        size_bytes: mean_bytes,
        evidence: vec![format!("{} of blocks were seen", counted(uses.accesses, "use"))],
        hints: &[advice::DELETE, advice::STREAM_REUSE],
        confidence: least([uses.confidence, facts.confidence()]),
        about: About::Own,
    })
}

/// `stream-waits`.
pub(super) fn stream_waits(out: &mut Out<'_, '_>) {
    let is_worth = |found: &&Waits| found.is_large() && found.all.pool_peak_bytes >= WORTH_BYTES;
    let large: Vec<&Waits> =
        out.facts.waits().filter(is_worth).filter(|found| !out.facts.has_failed(found.device)).collect();
    for found in large {
        out.say(Rule::StreamWaits, waits(found));
    }
}

fn waits(found: &Waits) -> Says<'static> {
    let Waits { all, reserved_peak_bytes, .. } = found;
    let text = format!(
        "{} of the {} that the {} held at its peak ({}) was freed, and waited for other streams: the pool took more instead.",
        rounded(all.pool_peak_bytes.into()),
        rounded((*reserved_peak_bytes).into()),
        found.pool.title(),
        percent(all.pool_peak_bytes, *reserved_peak_bytes),
    );
    let at_peak = found.places.iter().filter(|of| of.sum.pool_peak_bytes > 0);
    let line = |of: &PlaceWaits| {
        let blocks = counted(of.sum.pool_peak_blocks, "block");
        let used = place(of.record_stream).map(|at| format!(", record_stream at {at}")).unwrap_or_default();
        Some(format!("{} in {blocks} of {}{used}", rounded(of.sum.pool_peak_bytes.into()), place(of.stacks)?))
    };
    Says {
        device: found.device,
        level: Level::Warning,
        text,
        size_bytes: all.pool_peak_bytes,
        evidence: at_peak.filter_map(line).take(MAX_LISTED).collect(),
        hints: &[advice::WAIT_FOR_STREAM],
        confidence: found.confidence,
        about: About::Cache(found.pool),
    }
}

/// `in-pieces`.
pub(super) fn in_pieces(out: &mut Out<'_, '_>) {
    let scattered: Vec<&Fragmentation> = out
        .facts
        .pieces()
        .filter(|found| found.verdict == PiecesVerdict::Found && !found.pool.is_base())
        .filter(|found| !out.facts.has_failed(found.device))
        .collect();
    for found in scattered {
        out.say(Rule::InPieces, pieces(found));
    }
}

fn pieces(found: &Fragmentation) -> Says<'static> {
    let FreeSpaceMoment { space, .. } = found.judged();
    let kept_bytes = space.free_bytes.saturating_sub(space.returnable_bytes);
    let [free, largest] = [kept_bytes, space.largest_kept_bytes()].map(|bytes| rounded(bytes.into()));
    let text = format!(
        "{free} of the {} that the {} held was free beside live blocks, in pieces of at most {largest}: a larger request takes more of the device.",
        rounded(space.total_bytes.into()),
        found.pool.title(),
    );
    let is_torch = found.pool.operators() == Some(PoolOperators::Torch);
    let hints: &[Hint] = if is_torch { &[advice::EXPANDABLE, advice::MAX_SPLIT] } else { &[advice::SMALLER] };
    Says {
        device: found.device,
        level: Level::Warning,
        text,
        size_bytes: space.scattered_bytes,
        evidence: pinning(found.judged()),
        hints,
        confidence: found.confidence,
        about: About::Cache(found.pool),
    }
}

/// `cached-high`.
pub(super) fn caches(out: &mut Out<'_, '_>) {
    for device in out.facts.devices().into_iter().filter(|device| !out.facts.has_failed(*device)) {
        let at_peak = out.facts.ledgers().find(|ledger| ledger.device == device && ledger.moment == Moment::Peak);
        for (pool, reserved, cached) in at_peak.map(cached_of).unwrap_or_default() {
            if is_share(cached, reserved, CACHED_PERCENT) && cached >= WORTH_BYTES {
                let when = "at the peak of the driver's memory";
                let confidence = at_peak.map_or_else(|| out.facts.confidence(), |ledger| ledger.confidence);
                out.say(Rule::CachedHigh, cache(device, pool, (cached, reserved), when, confidence));
            }
        }
        let pools = out.facts.pieces().filter(|found| found.device == device && !found.pool.is_base());
        for found in pools.collect::<Vec<_>>() {
            if let Some(mean) = cached_for_half(found, out.facts.until_ns()) {
                out.say(
                    Rule::CachedHigh,
                    cache(device, found.pool, mean, "for at least half of the time", found.confidence),
                );
            }
        }
    }
}

/// Of pools in the driver's memory: bytes they hold, and bytes of them not handed out.
fn cached_of(ledger: &Ledger) -> Vec<(Pool, u64, u64)> {
    let reported = ledger.pools.iter().map(|PoolSheets { pool, allocated, reserved }| {
        let (reserved, allocated) = (bytes(reserved.total.size_bytes), bytes(allocated.total.size_bytes));
        (*pool, reserved, reserved.saturating_sub(allocated))
    });
    let has_sheets =
        |pool: Pool| ledger.pools.iter().any(|sheets| sheets.pool == pool && sheets.reserved.total.size_bytes > 0);
    let seen = ledger.hal.parts.iter().filter_map(|part| match part.item {
        Item::PoolCached { pool } if !has_sheets(pool) => {
            let cached = bytes(part.size_bytes);
            let used = bytes(ledger.hal.bytes(Item::PoolAllocated { pool }));
            Some((pool, used.saturating_add(cached), cached))
        }
        _ => None,
    });
    reported.filter(|(_, reserved, _)| *reserved > 0).chain(seen).collect()
}

/// Mean bytes (cached, held) of the time in which much was cached, if that was at least half of the time up to
/// `until_ns`.
fn cached_for_half(found: &Fragmentation, until_ns: u64) -> Option<(u64, u64)> {
    let is_high = |sample: &FreeSpaceSample| {
        is_share(sample.last.free_bytes, sample.last.total_bytes, CACHED_PERCENT)
            && sample.last.free_bytes >= WORTH_BYTES
    };
    let (mut start_ns, mut high_ns, mut sums) = (found.start_ns, 0_u64, (0_u128, 0_u128));
    for sample in &found.series {
        let end_ns = sample.time_ns.min(until_ns);
        let span_ns = end_ns.saturating_sub(start_ns);
        if is_high(sample) {
            high_ns += span_ns;
            sums.0 += u128::from(sample.last.free_bytes) * u128::from(span_ns);
            sums.1 += u128::from(sample.last.total_bytes) * u128::from(span_ns);
        }
        start_ns = end_ns.max(start_ns);
    }
    let all_ns = start_ns.saturating_sub(found.start_ns);
    (high_ns > 0 && is_share(high_ns, all_ns, 50))
        .then(|| (bytes(sums.0 / u128::from(high_ns)), bytes(sums.1 / u128::from(high_ns))))
}

fn cache(device: Device, pool: Pool, (cached, held): (u64, u64), when: &str, confidence: Confidence) -> Says<'static> {
    let text = format!(
        "{} of the {} that the {} held ({}) was not handed out, {when}: kept for reuse, not leaked.",
        rounded(cached.into()),
        rounded(held.into()),
        pool.title(),
        percent(cached, held),
    );
    let is_torch = pool.operators() == Some(PoolOperators::Torch);
    let hints: &[Hint] =
        if is_torch { &[advice::POOL_CACHE, advice::EMPTY_CACHE, advice::COLLECT] } else { &[advice::POOL_CACHE] };
    Says {
        device,
        level: Level::Info,
        text,
        size_bytes: cached,
        evidence: Vec::new(),
        hints,
        confidence,
        about: About::Cache(pool),
    }
}
