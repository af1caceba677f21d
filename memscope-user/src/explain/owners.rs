//! Rules about what single owners hold of a device.

use super::advice;
use super::card::{About, Level, Rule};
use super::facts::{Facts, Out, Says, is_share, least, percent};
use crate::model::{Confidence, Device};
use crate::text::numbers::{counted, rounded};

/// The KV cache, in percent of the device.
const KV_PERCENT: u64 = 60;
/// A device is full from this percentage on.
const FULL_PERCENT: u64 = 95;
/// Captured graphs, in percent of the device.
const GRAPHS_PERCENT: u64 = 5;

/// An owner's bytes at the peak of the pool in which it has the most. Pools nest, so pools are not added up.
struct Holds {
    device: Device,
    peak_bytes: u64,
    blocks: u64,
    confidence: Confidence,
}

fn holds(facts: &Facts<'_>, component: &str) -> Vec<Holds> {
    let of_pool = facts.owners().map(|found| {
        let parts = found.parts.iter().filter(|part| part.component.as_str() == component);
        let (peak_bytes, blocks) = parts.fold((0_u64, 0_u64), |sum, part| {
            (sum.0.saturating_add(part.peak_bytes), sum.1.saturating_add(part.peak_blocks))
        });
        Holds { device: found.device, peak_bytes, blocks, confidence: found.confidence }
    });
    let mut all: Vec<Holds> = of_pool.filter(|holds| holds.peak_bytes > 0).collect();
    all.sort_by_key(|holds| (holds.device, std::cmp::Reverse(holds.peak_bytes)));
    all.dedup_by_key(|holds| holds.device);
    all
}

const NO_CAPACITY: &str = "the size of the device is not known (no DCMI)";

/// `kv-cache-large`.
pub(super) fn kv_caches(out: &mut Out<'_, '_>) {
    for Holds { device, peak_bytes, confidence, .. } in holds(out.facts, "kv_cache") {
        let Some(capacity) = out.facts.capacity_bytes(device) else {
            out.cannot(Rule::KvCacheLarge, NO_CAPACITY);
            continue;
        };
        let has_failed = out.facts.ooms().any(|oom| oom.device == device);
        let used = out.facts.most_used_bytes(device).unwrap_or(0);
        if !is_share(peak_bytes, capacity, KV_PERCENT) || !(has_failed || is_share(used, capacity, FULL_PERCENT)) {
            continue;
        }
        let rest = rounded(capacity.saturating_sub(peak_bytes).into());
        let text = format!(
            "The KV cache holds {} of {} ({}); {rest} is left for weights, activations and graphs.",
            rounded(peak_bytes.into()),
            rounded(capacity.into()),
            percent(peak_bytes, capacity),
        );
        let mut evidence = vec![format!("at most {} of the device was in use, by all processes", rounded(used.into()))];
        if has_failed {
            evidence.push("a request failed".to_owned());
        }
        out.say(
            Rule::KvCacheLarge,
            Says {
                device,
                level: Level::Warning,
                text,
                size_bytes: peak_bytes,
                evidence,
                hints: &[advice::KV_SHARE, advice::KV_REQUESTS],
                confidence: least([confidence, out.facts.confidence()]),
                about: About::Own,
            },
        );
    }
}

/// `graph-capture`, where captured graphs hold much.
pub(super) fn graphs(out: &mut Out<'_, '_>) {
    for Holds { device, peak_bytes, blocks, confidence } in holds(out.facts, "graph_pool") {
        let Some(capacity) = out.facts.capacity_bytes(device) else {
            out.cannot(Rule::GraphCapture, NO_CAPACITY);
            continue;
        };
        if !is_share(peak_bytes, capacity, GRAPHS_PERCENT) {
            continue;
        }
        let text = format!(
            "Captured graphs hold {} of {} ({}).",
            rounded(peak_bytes.into()),
            rounded(capacity.into()),
            percent(peak_bytes, capacity),
        );
        out.say(
            Rule::GraphCapture,
            Says {
                device,
                level: Level::Info,
                text,
                size_bytes: peak_bytes,
                evidence: vec![format!("{} of graph pools at the peak", counted(blocks, "block"))],
                hints: &[advice::CAPTURE_SIZES, advice::EAGER],
                confidence: least([confidence, out.facts.confidence()]),
                about: About::Own,
            },
        );
    }
}
