//! Rules about places that keep blocks.

use super::advice::{self, Hint};
use super::card::{About, Level, Rule};
use super::facts::{Facts, Out, Says, at_place, bytes};
use crate::analyses::growth::{GrowingSite, Growth, Increase};
use crate::analyses::step_leaks::{StepLeakPlace, StepLeaks, StepVerdict};
use crate::model::{OwnerSum, Pool, PoolOperators, Stacks};
use crate::text::numbers::{counted, rounded};

/// Places of one finding that get a card.
const MAX_PLACES: usize = 5;
/// Smaller caches are not worth a card.
const CACHE_BYTES: u64 = 1 << 20;
/// Steps after which a place that leaves a block in each of them would have shown.
const ENOUGH_STEPS: u32 = 6;

/// Advice for a place; none if no call stack names the place.
fn hints(pool: Pool, stacks: Stacks, is_torch: &'static [Hint], others: &'static [Hint]) -> &'static [Hint] {
    match pool.operators() {
        _ if stacks.is_empty() => &[],
        Some(PoolOperators::Torch) => is_torch,
        _ => others,
    }
}

/// Blocks without a known call stack.
fn unnamed(stacks: Stacks) -> Option<String> {
    stacks.is_empty().then(|| "no call stack says where: add --call-stack=python".to_owned())
}

fn owners(owners: &[OwnerSum]) -> Option<String> {
    let OwnerSum { owner, live } = owners.first()?;
    Some(format!("the largest owner is {}, with {}", (*owner)?.as_str(), rounded(live.size_bytes.into())))
}

/// `step-leak`.
pub(super) fn of_steps(out: &mut Out<'_, '_>) {
    let mut has_steps = false;
    for leaks in out.facts.step_leaks().filter(|leaks| leaks.steps_ended > 0) {
        has_steps = true;
        let found = leaks.places.iter().filter(|place| place.verdict == StepVerdict::Leak);
        for place in found.take(MAX_PLACES) {
            out.say(Rule::StepLeak, of_step(leaks, place));
        }
    }
    if !has_steps {
        out.cannot(Rule::StepLeak, "no step was marked or inferred");
    }
}

fn of_step(leaks: &StepLeaks, place: &StepLeakPlace) -> Says<'static> {
    let StepLeakPlace { pool, blocks, size_bytes, steps, step_range: [first, last], each_bytes, stacks, .. } = *place;
    let each = rounded((size_bytes / u64::from(steps.max(1))).into());
    let text = format!(
        "{} in {}{}, from {} of {} ({first} to {last}): about {each} a step, not freed while the program worked.",
        rounded(size_bytes.into()),
        counted(blocks, "block"),
        at_place(stacks),
        steps,
        counted(leaks.steps_ended.into(), "step"),
    );
    Says {
        device: leaks.device,
        level: Level::Warning,
        text,
        size_bytes,
        evidence: unnamed(stacks).into_iter().collect(),
        hints: hints(pool, stacks, &[advice::VALUES, advice::BOUND], &[advice::BOUND]),
        confidence: leaks.confidence,
        about: About::Place(pool, stacks, each_bytes),
    }
}

/// `growth`.
pub(super) fn growing(out: &mut Out<'_, '_>) {
    let mut is_judged = false;
    for growth in out.facts.growths().filter(|growth| growth.judged) {
        is_judged = true;
        for site in growth.sites.iter().take(MAX_PLACES) {
            let says = of_site(out.facts, growth, site);
            out.say(Rule::Growth, says);
        }
    }
    if !is_judged {
        out.cannot(Rule::Growth, "needs 10 s of work");
    }
}

fn of_site(facts: &Facts<'_>, growth: &Growth, site: &GrowingSite) -> Says<'static> {
    let stacks = site.site.map(|site| site.stacks).unwrap_or_default();
    let text = format!(
        "{} more an hour{}: {} in {} live after {:.0} s.",
        hourly(site.bytes_per_second),
        at_place(stacks),
        rounded(site.size_bytes.into()),
        counted(site.blocks, "block"),
        growth.span_ns as f64 / 1e9,
    );
    let lows: Vec<String> = site.low_blocks.iter().map(u64::to_string).collect();
    let mut evidence = vec![format!("live blocks never went below {} in the parts of the time", lows.join(", "))];
    evidence.extend(full_in(facts, growth, site));
    evidence.extend(owners(&site.owners));
    evidence.extend(unnamed(stacks));
    let each_bytes = site.site.and_then(|site| site.size_bytes);
    Says {
        device: growth.device,
        level: Level::Warning,
        text,
        size_bytes: site.size_bytes,
        evidence,
        hints: hints(site.pool, stacks, &[advice::BOUND, advice::VALUES], &[advice::BOUND]),
        confidence: growth.confidence,
        about: About::Place(site.pool, stacks, each_bytes),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, rounded")]
fn hourly(bytes_per_second: f64) -> String {
    rounded((bytes_per_second * 3600.0) as u128)
}

/// When the device is full at this rate, by the driver's last figures.
fn full_in(facts: &Facts<'_>, growth: &Growth, site: &GrowingSite) -> Option<String> {
    let used = facts.device_use(growth.device)?;
    let free_bytes = used.total_bytes.saturating_sub(used.used_bytes);
    let hours = free_bytes as f64 / site.bytes_per_second / 3600.0;
    let free = rounded(free_bytes.into());
    (hours.is_finite() && hours >= 0.0)
        .then(|| format!("{free} of the device was free: full in {hours:.1} h at this rate"))
}

/// `cache-not-leak`.
pub(super) fn caches(out: &mut Out<'_, '_>) {
    for leaks in out.facts.step_leaks() {
        for place in leaks.places.iter().filter(|place| is_cache(leaks, place)).take(MAX_PLACES) {
            out.say(Rule::CacheNotLeak, of_steps_cache(leaks, place));
        }
    }
    for growth in out.facts.growths().filter(|growth| growth.judged) {
        let stopped = |it: &&Increase| {
            it.low_bytes.is_none() && it.ages[0] == 0 && it.live_blocks > 0 && it.size_bytes >= CACHE_BYTES
        };
        for increase in growth.increases.iter().filter(stopped).take(MAX_PLACES) {
            out.say(Rule::CacheNotLeak, of_increase(growth, increase));
        }
    }
}

/// Blocks that are kept for long, and no newer ones. In a run of few steps a leak looks the same.
fn is_cache(leaks: &StepLeaks, place: &StepLeakPlace) -> bool {
    let kind = match place.verdict {
        StepVerdict::Stopped => true,
        StepVerdict::FewSteps => place.step_range[1].saturating_mul(4) <= leaks.steps_ended.saturating_mul(3),
        _ => false,
    };
    kind && leaks.steps_ended >= ENOUGH_STEPS && place.size_bytes >= CACHE_BYTES
}

fn of_steps_cache(leaks: &StepLeaks, place: &StepLeakPlace) -> Says<'static> {
    let StepLeakPlace { pool, blocks, size_bytes, step_range: [first, last], each_bytes, stacks, .. } = *place;
    let text = format!(
        "{} in {}{}, kept since {} of {}; none is newer.",
        rounded(size_bytes.into()),
        counted(blocks, "block"),
        at_place(stacks),
        if first == last { format!("step {first}") } else { format!("steps {first} to {last}") },
        leaks.steps_ended,
    );
    Says {
        device: leaks.device,
        level: Level::Info,
        text,
        size_bytes,
        evidence: unnamed(stacks).into_iter().collect(),
        hints: &[advice::CACHE],
        confidence: leaks.confidence,
        about: About::Place(pool, stacks, each_bytes),
    }
}

fn of_increase(growth: &Growth, increase: &Increase) -> Says<'static> {
    let Increase { site, blocks, size_bytes, live_blocks, ref owners, .. } = *increase;
    let text = format!(
        "{} in {} more{}, {live_blocks} live; none is younger than a quarter of the time ({:.0} s).",
        rounded(size_bytes.into()),
        counted(blocks, "block"),
        at_place(site.stacks),
        growth.span_ns as f64 / 1e9,
    );
    let evidence = self::owners(owners).into_iter().chain(unnamed(site.stacks)).collect();
    Says {
        device: growth.device,
        level: Level::Info,
        text,
        size_bytes: bytes(size_bytes.into()),
        evidence,
        hints: &[advice::CACHE],
        confidence: growth.confidence,
        about: About::Place(site.pool, site.stacks, site.size_bytes),
    }
}
