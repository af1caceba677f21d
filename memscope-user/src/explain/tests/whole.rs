//! All cards of a run together.

use super::*;
use crate::analyses::script::{Script, run};
use crate::analyses::{HeldAnalysis, LedgerAnalysis, PeaksAnalysis, StepLeaksAnalysis};

/// The most urgent come first, and of those the ones about most bytes; beyond twenty they are counted.
#[test]
fn cards_are_sorted_and_bounded() {
    let failed = |number: u64| -> Finding {
        let frame: &'static str = Box::leak(format!("oom.py({number}): f").into_boxed_str());
        Oom { stacks: python(&[frame]), time_ns: number, ..oom(number * MIB, 0, 0) }.into()
    };
    let mut findings: Vec<Finding> = (1..=21).map(failed).collect();
    let hccl = ledger(GIB, &[(Item::Hccl, GIB / 2)]);
    findings.push(Ledger { device: Device::Npu(1), ..hccl }.into());
    let Explanation { cards, left_out, .. } = explain(&findings, &end());
    let sizes: Vec<u64> = cards.iter().map(|card| card.size_bytes).collect();
    assert_eq!(sizes, (2..=21).rev().map(|number| number * MIB).collect::<Vec<_>>());
    assert_eq!(left_out, 2);
}

/// Losses make a card doubtful.
#[test]
fn a_lossy_trace_says_so() {
    let lossy = RunEnd { lost: 1, ..end() };
    let explained = explain(&[oom(200 * MIB, 0, 0).into()], &lossy);
    assert_eq!(explained.cards[0].confidence, Confidence::Doubtful);
    let mut text = Vec::new();
    text::write(&explained, &lossy, &mut text).expect("memory takes everything");
    assert!(String::from_utf8(text).expect("text").ends_with("Events were lost, so figures may be off.\n"));
}

/// Each rule has a name of its own, and JSON has the same.
#[test]
fn rules_have_names() {
    let ids: Vec<&str> = Rule::ALL.iter().map(|rule| rule.id()).collect();
    let unique: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(unique.len(), 18);
    for rule in Rule::ALL {
        assert_eq!(serde_json::to_value(rule).expect("JSON"), rule.id());
        assert!(!rule.title().is_empty() && !rule.findings().is_empty());
    }
}

/// A program that frees all its memory, at any place: no rule has a card, and the text says so.
#[test]
fn a_calm_run_has_no_card() {
    let mut script = Script::new(PID, NPU0);
    script.stacks(&["train.py(3): step"], &[]);
    for step in 1..=20 {
        script.step_start(step).alloc(HAL, 0x10_0000, 64 * MIB).pool_alloc(PTA, 0x10_0000, 32 * MIB, 64 * MIB);
        script.free(PTA, 0x10_0000).free(HAL, 0x10_0000).step_end(step);
    }
    let run_end = end();
    let mut found = run(StepLeaksAnalysis::default(), script.events(), &run_end);
    found.extend(run(HeldAnalysis::default(), script.events(), &run_end));
    found.extend(run(LedgerAnalysis::default(), script.events(), &run_end));
    found.extend(run(PeaksAnalysis::default(), script.events(), &run_end));
    let explained = explain(&found, &run_end);
    assert_eq!(explained.cards, []);
    let mut text = Vec::new();
    text::write(&explained, &run_end, &mut text).expect("memory takes everything");
    let text = String::from_utf8(text).expect("text");
    assert!(text.starts_with("No rule applies to what was found.\nNot judged: "), "{text}");
}

/// A name that a program has chosen cannot forge a line, and has a bounded length.
#[test]
fn hostile_places_stay_on_a_line() {
    let frame: &'static str = Box::leak(format!("a\u{202e}\n\u{1b}[31m.py(1): {}", "f".repeat(4000)).into_boxed_str());
    let found = card(Rule::OomShort, &[Oom { stacks: python(&[frame]), ..oom(MIB, 0, 0) }.into()]).expect("a card");
    assert!(!found.text.contains(['\u{202e}', '\n', '\u{1b}']), "{:?}", found.text);
    assert!(found.text.len() < 400, "{}", found.text.len());
}
