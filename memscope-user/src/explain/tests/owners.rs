//! Owners that hold much of a device.

use super::*;
use crate::analyses::decompose::{Decomposition, OwnerPart, OwnerTimeline, Source};
use crate::model::Name;

fn owners(component: &str, peak_bytes: u64) -> Finding {
    let part = OwnerPart {
        owner: None,
        component: Name::keep(component),
        rule: Name::keep("rule"),
        source: Source::Stack,
        peak_blocks: 32,
        peak_bytes,
        end_blocks: 0,
        end_bytes: 0,
        mean_bytes: 0,
        blocks: 32,
    };
    Decomposition {
        pid: PID,
        device: NPU0,
        pool: PTA,
        attached: false,
        steps: 0,
        start_ns: SECOND_NS,
        end_ns: 101 * SECOND_NS,
        peak_ns: 51 * SECOND_NS,
        peak_bytes,
        peak_untracked_bytes: 0,
        end_bytes: 0,
        end_untracked_bytes: 0,
        mean_bytes: 0,
        peak_by_source: [0; 7],
        held: Vec::new(),
        parts: vec![part],
        tree: Vec::new(),
        timeline: OwnerTimeline::default(),
        confidence: Confidence::Certain,
    }
    .into()
}

/// 60 % of 64 GiB are 38.4 GiB; 95 % are 60.8 GiB.
const KV: u64 = 64 * GIB * 60 / 100 + 1;
const FULL: u64 = 64 * GIB * 95 / 100 + 1;

/// The cache is large, and the device full or a request failed. Of two pools with the same blocks the larger figure counts.
#[test]
fn a_kv_cache_that_leaves_little() {
    let found = card(Rule::KvCacheLarge, &[owners("kv_cache", KV), owners("kv_cache", KV), device_use(FULL)]);
    let found = found.expect("a card");
    assert_eq!((found.level, found.size_bytes), (Level::Warning, KV));
    let text =
        "The KV cache holds 38.40 GiB of 64.00 GiB (60 %); 25.60 GiB is left for weights, activations and graphs.";
    assert_eq!(found.text, text);
    assert_eq!(rules(&[owners("kv_cache", KV - 2), device_use(FULL)]), []);
    assert_eq!(rules(&[owners("kv_cache", KV), device_use(FULL - 2)]), []);
    let failed = [owners("kv_cache", KV), device_use(FULL - 2), oom(200 * MIB, 0, 0).into()];
    assert_eq!(rules(&failed), [Rule::OomShort, Rule::KvCacheLarge]);
}

/// The size of the device is unknown: no card, and the reason.
#[test]
fn a_device_of_unknown_size_is_not_judged() {
    let explained = explain(&[owners("kv_cache", KV), owners("graph_pool", KV)], &end());
    assert_eq!(explained.cards, []);
    let silent: Vec<Rule> = explained.not_judged.iter().map(|it| it.rule).collect();
    assert!(silent.contains(&Rule::KvCacheLarge) && silent.contains(&Rule::GraphCapture), "{silent:?}");
}

/// 5 % of 64 GiB are 3.2 GiB.
#[test]
fn graphs_that_hold_much() {
    let least = 64 * GIB * 5 / 100 + 1;
    let found = card(Rule::GraphCapture, &[owners("graph_pool", least), device_use(GIB)]).expect("a card");
    assert_eq!((found.level, found.text.as_str()), (Level::Info, "Captured graphs hold 3.20 GiB of 64.00 GiB (5 %)."));
    assert_eq!(rules(&[owners("graph_pool", least - 2), device_use(GIB)]), []);
}
