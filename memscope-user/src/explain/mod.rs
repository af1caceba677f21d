//! What do the findings of a run mean, and what may help? Rules over findings; each puts its result into a card, with
//! evidence and advice, or is silent.
//!
//! Pure: findings in, cards out. A rule never repeats a finding's decision: it uses verdicts and figures. Settings in
//! force are not advised ([`settings`](crate::settings)). Of two rules that explain the same bytes the more special one
//! counts: the first in [`Rule::ALL`].

pub mod advice;
mod card;
mod device;
mod facts;
mod owners;
mod places;
mod pools;
mod requests;
mod sleep;
#[cfg(test)]
mod tests;
pub mod text;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::card::{Advice, Card, Level, NotJudged, Rule};
use self::facts::{Facts, Out};
use crate::analyses::decompose::RuleSet;
use crate::analyses::device_use::DeviceUse;
use crate::analyses::{
    self, Analysis, DecomposeAnalysis, DeviceUseAnalysis, Finding, FragmentationAnalysis, HeldAnalysis, HeldByAnalysis,
    InefficientAnalysis, Kind as _, LedgerAnalysis, OomAnalysis, PeaksAnalysis, SettingsAnalysis, SleepAnalysis,
    waits::WaitsAnalysis,
};
use crate::model::RunEnd;

/// Most cards of a run.
pub const MAX_CARDS: usize = 20;

/// The cards of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The most urgent first, then those about most bytes.
    pub cards: Vec<Card>,
    /// Further ones.
    pub left_out: u64,
    /// Rules without the findings they need.
    pub not_judged: Vec<NotJudged>,
}

/// The rules, in the order of [`Rule::ALL`]; one may look at several kinds of findings.
const RULES: [fn(&mut Out<'_, '_>); 18] = [
    requests::while_captured,
    requests::of_others,
    requests::in_pieces,
    requests::too_large,
    sleep::expandable,
    sleep::keeps,
    places::of_steps,
    pools::workspaces,
    places::growing,
    places::caches,
    owners::kv_caches,
    owners::graphs,
    device::buffers,
    pools::late_frees,
    pools::stream_waits,
    pools::in_pieces,
    pools::caches,
    device::unexplained,
];

/// The analyses that rules need; `rules` name owners. With fewer of them fewer rules have a result.
#[must_use]
pub fn analyses(rules: &Arc<RuleSet>) -> Vec<Box<dyn Analysis>> {
    // Memory freed by the exit is no answer.
    let judged = analyses::judged_leaks_by(rules)
        .freezing(Box::new(FragmentationAnalysis::new(Arc::clone(rules))))
        .freezing(Box::new(DecomposeAnalysis::new(Arc::clone(rules))))
        .marking(Box::new(InefficientAnalysis::default()));
    vec![
        Box::new(judged),
        Box::new(OomAnalysis::new(Arc::clone(rules))),
        Box::new(LedgerAnalysis::default()),
        Box::new(HeldAnalysis::default()),
        Box::new(HeldByAnalysis::default()),
        Box::new(DeviceUseAnalysis::default()),
        Box::new(PeaksAnalysis::new(Arc::clone(rules))),
        Box::new(SleepAnalysis::default()),
        Box::new(SettingsAnalysis::default()),
        Box::new(WaitsAnalysis::default()),
    ]
}

/// Explains the findings of a run.
#[must_use]
pub fn explain(findings: &[Finding], end: &RunEnd) -> Explanation {
    let mut by_process: BTreeMap<u32, Vec<&Finding>> = BTreeMap::new();
    let mut devices = Vec::new();
    for finding in findings {
        if let Some(found) = DeviceUse::of(finding) {
            devices.push(found);
        } else if let Some(pid) = finding.subject().and_then(|subject| subject.pid) {
            by_process.entry(pid).or_default().push(finding);
        }
    }
    let mut explanation = Explanation::default();
    for (pid, of_process) in by_process {
        let facts = Facts::new(pid, of_process, devices.clone(), end);
        if facts.devices().is_empty() {
            continue;
        }
        let mut out = Out { facts: &facts, cards: Vec::new(), not_judged: Vec::new() };
        for rule in RULES {
            rule(&mut out);
        }
        let Out { cards, not_judged, .. } = out;
        explanation.cards.extend(cards);
        explanation.not_judged.extend(not_judged);
    }
    explanation.cards.sort_by_key(|card| (card.level, Reverse(card.size_bytes), card.rule, card.pid, card.device));
    explanation.left_out = explanation.cards.len().saturating_sub(MAX_CARDS) as u64;
    explanation.cards.truncate(MAX_CARDS);
    explanation
}
