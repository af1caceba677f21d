//! What was checked, each with one of three answers, or why there is none.

use super::Verdict;
use crate::analyses::{Finding, step_leaks::StepVerdict};

/// A question of the first screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Requests that failed.
    OutOfMemory,
    /// Blocks that outlive their steps, or marks.
    Leaks,
    /// Places that grow without end.
    Growth,
    /// Free memory in pieces.
    Fragmentation,
}

impl Topic {
    /// Its word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::OutOfMemory => "oom",
            Self::Leaks => "leaks",
            Self::Growth => "growth",
            Self::Fragmentation => "fragmentation",
        }
    }
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checked {
    /// It was looked for and is there.
    Found,
    /// The evidence is too weak.
    Undecided,
    /// It was looked for and is not there.
    NotFound,
    /// It could not be judged, and why.
    NotJudged(&'static str),
}

/// A question and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// The question.
    pub topic: Topic,
    /// The answer.
    pub checked: Checked,
}

/// Free bytes outside of the largest free piece, in percent of a pool's memory, from which on a pool counts as fragmented.
const FRAGMENTED_PERCENT: u64 = 25;
/// Less is no trouble.
const FRAGMENTED_BYTES: u64 = 64 << 20;

/// All checks of a process.
pub(super) fn of(findings: &[&Finding]) -> Vec<Check> {
    let check = |topic, checked| Check { topic, checked };
    vec![
        check(Topic::OutOfMemory, out_of_memory(findings)),
        check(Topic::Leaks, leaks(findings)),
        check(Topic::Growth, growth(findings)),
        check(Topic::Fragmentation, fragmentation(findings)),
    ]
}

/// The most urgent answer.
pub(super) fn verdict(checks: &[Check]) -> Verdict {
    let has = |topic, checked| checks.contains(&Check { topic, checked });
    if has(Topic::OutOfMemory, Checked::Found) {
        Verdict::OutOfMemory
    } else if has(Topic::Leaks, Checked::Found) {
        Verdict::Leak
    } else if has(Topic::Growth, Checked::Found) {
        Verdict::Growing
    } else if checks.iter().any(|check| check.checked == Checked::Undecided) {
        Verdict::Undecided
    } else if has(Topic::Leaks, Checked::NotFound) || has(Topic::Growth, Checked::NotFound) {
        Verdict::NothingFound
    } else {
        Verdict::NotJudged
    }
}

/// The best answer there is: found beats undecided, and any answer beats none.
fn strongest(answers: impl Iterator<Item = Checked>, none: &'static str) -> Checked {
    answers.min().unwrap_or(Checked::NotJudged(none))
}

fn out_of_memory(findings: &[&Finding]) -> Checked {
    if findings.iter().any(|finding| matches!(finding, Finding::Oom(_))) {
        return Checked::Found;
    }
    let failed = |finding: &&Finding| match finding {
        Finding::Held(held) => Some(held.failed),
        _ => None,
    };
    match findings.iter().filter_map(failed).max() {
        Some(0) => Checked::NotFound,
        Some(_) => Checked::NotJudged("requests failed; --analysis=oom says why"),
        None => Checked::NotJudged("no analysis of it"),
    }
}

fn leaks(findings: &[&Finding]) -> Checked {
    let answer = |finding: &&Finding| match finding {
        Finding::StepLeaks(leaks) if leaks.steps_ended == 0 => None,
        Finding::StepLeaks(leaks) if leaks.places.iter().any(|place| place.verdict == StepVerdict::Leak) => {
            Some(Checked::Found)
        }
        Finding::StepLeaks(leaks) if !leaks.places.is_empty() => Some(Checked::Undecided),
        Finding::StepLeaks(_) => Some(Checked::NotFound),
        Finding::MarkLeaks(leaks) if !leaks.judged => None,
        Finding::MarkLeaks(leaks) if leaks.leaks.is_empty() => Some(Checked::NotFound),
        Finding::MarkLeaks(_) => Some(Checked::Found),
        _ => None,
    };
    strongest(findings.iter().filter_map(answer), "no steps were marked")
}

fn growth(findings: &[&Finding]) -> Checked {
    let answer = |finding: &&Finding| match finding {
        Finding::Growth(growth) if !growth.judged => None,
        Finding::Growth(growth) if !growth.sites.is_empty() => Some(Checked::Found),
        Finding::Growth(growth) if !growth.increases.is_empty() => Some(Checked::Undecided),
        Finding::Growth(_) => Some(Checked::NotFound),
        _ => None,
    };
    strongest(findings.iter().filter_map(answer), "needs 10 s of work")
}

fn fragmentation(findings: &[&Finding]) -> Checked {
    let answer = |finding: &&Finding| match finding {
        Finding::Fragmentation(found) => {
            let space = found.worst.as_ref().unwrap_or(&found.end).space;
            let scattered = space.free_bytes.saturating_sub(space.largest_free_bytes);
            let is_much = u128::from(scattered) * 100 >= u128::from(space.total_bytes) * u128::from(FRAGMENTED_PERCENT);
            let found = is_much && scattered >= FRAGMENTED_BYTES;
            Some(if found { Checked::Found } else { Checked::NotFound })
        }
        _ => None,
    };
    strongest(findings.iter().filter_map(answer), "--analysis=fragmentation")
}
