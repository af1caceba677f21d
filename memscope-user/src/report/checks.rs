//! The checks and their results: found, not found, undecided, or not judged.

use serde_json::{Value, json};

use super::trie::Trie;
use super::view::{Failed, View};
use crate::analyses::fragmentation::{Fragmentation, PiecesVerdict};
use crate::analyses::growth::{GrowingSite, Growth, Increase};
use crate::analyses::held_by::{self, HeldBy};
use crate::analyses::oom::Oom;
use crate::analyses::step_leaks::{StepLeakPlace, StepLeaks, StepVerdict};
use crate::analyses::{Finding, Kind};
use crate::model::{Device, Pool, Stacks};

/// Places shown of one check; further ones are counted.
const MAX_PLACES: usize = 12;

/// The checks of a process on a device, the most important for a reader first.
pub(super) fn checks(findings: &[Finding], view: &View, tells_failures: bool, trie: &mut Trie) -> Vec<Value> {
    let (pid, device) = (view.pid, view.device);
    let mut all = Vec::new();
    let failed = of::<Oom>(findings, pid, device);
    all.push(match failed.as_slice() {
        [] if view.failed.is_empty() && !tells_failures => not_judged("oom", "no_failures"),
        [] => oom_rows(&view.failed),
        failed => oom(failed, trie),
    });
    let holders = Holders { device, found: of(findings, pid, device) };
    let stepped = of::<StepLeaks>(findings, pid, device);
    all.push(steps(stepped.first().copied(), &holders, trie));
    let grown = of::<Growth>(findings, pid, device);
    all.push(growth(grown.first().copied(), &holders, trie));
    all.push(fragmentation(&of(findings, pid, device)));
    all
}

/// What held the blocks of a process on a device.
struct Holders<'a> {
    device: Device,
    found: Vec<&'a HeldBy>,
}

impl Holders<'_> {
    /// Lines about a place.
    fn of(&self, pool: Pool, stacks: Stacks, each_bytes: Option<u64>) -> Vec<String> {
        held_by::lines(self.found.iter().copied(), (self.device, pool, stacks, each_bytes), false)
    }
}

/// Findings of a kind about a process on a device.
fn of<T: Kind>(findings: &[Finding], pid: u32, device: Device) -> Vec<&T> {
    let about = |finding: &&Finding| {
        finding.subject().is_some_and(|subject| subject.pid == Some(pid) && subject.device == device)
    };
    findings.iter().filter(about).filter_map(T::of).collect()
}

fn place(stacks: Stacks, bytes: u64, blocks: u64, trie: &mut Trie) -> Value {
    json!({ "bytes": bytes, "blocks": blocks, "python": trie.node(stacks.python), "native": trie.node(stacks.native_or_mixed()) })
}

fn with(mut value: Value, more: Value) -> Value {
    if let (Some(to), Value::Object(more)) = (value.as_object_mut(), more) {
        to.extend(more);
    }
    value
}

fn not_judged(check: &str, why: &str) -> Value {
    json!({ "check": check, "status": "not_judged", "why": why, "bytes": 0, "count": 0, "places": [] })
}

/// Failed requests with known sizes only.
fn oom_rows(failed: &[Failed]) -> Value {
    let place = |it: &Failed| json!({ "bytes": it.size_bytes, "blocks": 1, "python": 0, "native": 0 });
    let places: Vec<Value> = failed.iter().take(MAX_PLACES).map(place).collect();
    let bytes = failed.iter().map(|it| it.size_bytes).max().unwrap_or(0);
    let status = if failed.is_empty() { "not_found" } else { "found" };
    json!({ "check": "oom", "status": status, "bytes": bytes, "count": failed.len(), "places": places })
}

fn oom(found: &[&Oom], trie: &mut Trie) -> Value {
    let places = found.iter().take(MAX_PLACES).map(|oom| {
        let more = json!({
            "function": oom.function, "attempts": oom.attempts, "unused_bytes": oom.unused_bytes,
            "missing_bytes": oom.missing_bytes, "cause": oom.cause, "time_ns": oom.time_ns.to_string(),
        });
        with(place(oom.stacks, oom.size_bytes, 1, trie), more)
    });
    let places: Vec<Value> = places.collect();
    let bytes = found.iter().map(|oom| oom.size_bytes).max().unwrap_or(0);
    json!({ "check": "oom", "status": "found", "bytes": bytes, "count": found.len(), "places": places })
}

fn steps(found: Option<&StepLeaks>, holders: &Holders<'_>, trie: &mut Trie) -> Value {
    let Some(found) = found.filter(|found| found.steps_ended > 0) else {
        return not_judged("steps", "no_steps");
    };
    let (leaks, open): (Vec<&StepLeakPlace>, Vec<&StepLeakPlace>) =
        found.places.iter().partition(|place| place.verdict == StepVerdict::Leak);
    let status = match (leaks.is_empty(), open.is_empty()) {
        (false, _) => "found",
        (true, false) => "undecided",
        (true, true) => "not_found",
    };
    let listed = if leaks.is_empty() { &open } else { &leaks };
    let sum = |of: fn(&StepLeakPlace) -> u64| listed.iter().fold(0_u64, |sum, place| sum.saturating_add(of(place)));
    let (bytes, blocks) = (sum(|place| place.size_bytes), sum(|place| place.blocks));
    let places: Vec<Value> = leaks
        .iter()
        .take(MAX_PLACES)
        .chain(open.iter().take(MAX_PLACES))
        .map(|it| {
            let more = json!({
                "pool": it.pool, "steps": it.steps, "first": it.step_range[0], "last": it.step_range[1],
                "each_bytes": it.each_bytes, "undecided": (it.verdict != StepVerdict::Leak).then(|| it.verdict.reason()),
                "held_by": holders.of(it.pool, it.stacks, it.each_bytes),
            });
            with(place(it.stacks, it.size_bytes, it.blocks, trie), more)
        })
        .collect();
    json!({
        "check": "steps", "status": status, "bytes": bytes, "blocks": blocks, "count": listed.len(), "steps_ended": found.steps_ended,
        "steps_from": found.steps_from, "confidence": found.confidence, "places": places,
    })
}

fn growth(found: Option<&Growth>, holders: &Holders<'_>, trie: &mut Trie) -> Value {
    let Some(found) = found.filter(|found| found.judged || !found.increases.is_empty()) else {
        return not_judged("growth", "too_short");
    };
    let status = match (found.sites.is_empty(), found.judged) {
        (false, _) => "found",
        (true, false) => "not_judged",
        (true, true) if found.increases.is_empty() => "not_found",
        (true, true) => "undecided",
    };
    let grown = |it: &GrowingSite, trie: &mut Trie| {
        let stacks = it.site.map(|site| site.stacks).unwrap_or_default();
        let held_by = it.site.map(|site| holders.of(it.pool, site.stacks, site.size_bytes));
        let more = json!({
            "pool": it.pool, "per_second": it.bytes_per_second, "low_blocks": it.low_blocks, "held_by": held_by,
        });
        with(place(stacks, it.size_bytes, it.blocks, trie), more)
    };
    let more = |it: &Increase, trie: &mut Trie| {
        // Where blocks become larger none is new.
        let blocks = if it.low_bytes.is_some() { it.live_blocks } else { it.blocks };
        with(
            place(it.site.stacks, it.size_bytes, blocks, trie),
            json!({
                "pool": it.site.pool, "undecided": "growth",
                "held_by": holders.of(it.site.pool, it.site.stacks, it.site.size_bytes),
            }),
        )
    };
    let mut places: Vec<Value> = found.sites.iter().take(MAX_PLACES).map(|it| grown(it, trie)).collect();
    places.extend(found.increases.iter().take(MAX_PLACES).map(|it| more(it, trie)));
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let (bytes, count) = if found.sites.is_empty() {
        (sum(&mut found.increases.iter().map(|it| it.size_bytes)), found.increases.len())
    } else {
        (sum(&mut found.sites.iter().map(|it| it.size_bytes)), found.sites.len())
    };
    let per_second: f64 = found.sites.iter().map(|it| it.bytes_per_second).sum();
    json!({
        "check": "growth", "status": status, "why": found.not_judged.map(|_| "too_short"), "bytes": bytes, "count": count,
        "per_second": per_second,
        "span_ns": found.span_ns, "confidence": found.confidence, "places": places,
    })
}

/// Scattered free memory at its maximum: of the pool with the clearest verdict.
fn fragmentation(found: &[&Fragmentation]) -> Value {
    let scattered = |it: &Fragmentation| it.judged().space.scattered_bytes;
    let Some(worst) = found.iter().max_by_key(|it| (it.verdict == PiecesVerdict::Found, scattered(it))) else {
        return not_judged("fragmentation", "no_segments");
    };
    json!({
        "check": "fragmentation", "status": worst.verdict, "why": "older_segments", "bytes": scattered(worst),
        "total_bytes": worst.judged().space.total_bytes, "count": found.len(), "pool": worst.pool,
        "confidence": worst.confidence, "places": [],
    })
}
