//! Purposes that the holders of blocks show, beside those that rules name.

use std::collections::BTreeMap;

use super::classify::{Label, UNKNOWN};
use super::{HeldPart, Source};
use crate::model::{HeldAs, Name};

/// Components by which a rule says that it does not know the purpose.
const LAST_RESORT: [&str; 3] = ["unknown", "persistent", "temporary"];

/// The word that stands for the rule.
pub(super) const fn rule(held: HeldAs) -> Name {
    match held {
        HeldAs::Activation => Name::fixed(&"held-by-autograd"),
        HeldAs::KvCache => Name::fixed(&"held-by-a-cache"),
        HeldAs::OptimizerState => Name::fixed(&"held-by-an-optimizer"),
        HeldAs::Gradient => Name::fixed(&"held-as-gradient"),
        HeldAs::Weight => Name::fixed(&"held-by-a-module"),
    }
}

/// Whether the holder's word counts more than the rules'. That autograd has saved a block says little: inputs and weights are saved, too.
/// Where an optimizer `trains`, blocks of a module that persist and are not trained are a copy, such as the mean of the weights.
pub(super) fn counts_more(held: HeldAs, by_rule: Name, trains: bool) -> bool {
    let is_last_resort = LAST_RESORT.contains(&by_rule.as_str());
    match held {
        _ if by_rule == held.component() => false,
        HeldAs::Activation => is_last_resort,
        HeldAs::Weight => !(trains && by_rule.as_str() == "persistent"),
        HeldAs::KvCache | HeldAs::OptimizerState | HeldAs::Gradient => true,
    }
}

/// Both words on one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Evidence {
    pub(super) held_as: HeldAs,
    /// The component by rules; [`UNKNOWN`] of a block that was found, if none names it.
    pub(super) by_rule: Name,
    /// The component that counts.
    pub(super) taken: Name,
}

impl Evidence {
    /// Of a block that was found: its holders have named it where no rule has.
    pub(super) fn found(held_as: HeldAs, label: Label) -> Self {
        let by_rule = if label.source == Source::Holder { UNKNOWN } else { label.component };
        Self { held_as, by_rule, taken: label.component }
    }
}

/// Blocks by both words.
#[derive(Debug, Default)]
pub(super) struct Parts(BTreeMap<Evidence, (u64, u128)>);

impl Parts {
    pub(super) fn add(&mut self, evidence: Evidence, size_bytes: u64) {
        let (blocks, bytes) = self.0.entry(evidence).or_default();
        *blocks += 1;
        *bytes += u128::from(size_bytes);
    }

    /// Takes back what was added.
    pub(super) fn remove(&mut self, evidence: Evidence, size_bytes: u64) {
        if let Some((blocks, bytes)) = self.0.get_mut(&evidence) {
            *blocks -= 1;
            *bytes -= u128::from(size_bytes);
        }
    }

    /// Most bytes first.
    pub(super) fn close(self) -> Vec<HeldPart> {
        let parts = self.0.into_iter().filter(|(_, (blocks, _))| *blocks > 0);
        let part = |(Evidence { held_as, by_rule, taken }, (blocks, bytes)): (Evidence, (u64, u128))| HeldPart {
            held_as: held_as.component(),
            by_rule,
            taken,
            blocks,
            size_bytes: super::clamped(bytes),
        };
        let mut parts: Vec<HeldPart> = parts.map(part).collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.size_bytes));
        parts
    }
}
