//! The checks, each with one of three answers, or the reason why it has none.

use super::Verdict;
use crate::analyses::{
    Finding, Kind as _,
    fragmentation::{Fragmentation, PiecesVerdict},
    growth::Growth,
    held::Held,
    inefficient::Inefficient,
    judged::Span,
    mark_leaks::MarkLeaks,
    oom::Oom,
    step_leaks::{StepLeaks, StepVerdict},
};
use crate::model::RunEnd;

/// A question of the first screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Requests that failed.
    OutOfMemory,
    /// Blocks that outlive their steps, or marks.
    Leaks,
    /// Places that keep growing.
    Growth,
    /// Free memory in pieces.
    Fragmentation,
    /// Blocks held after their last use; asked where uses were seen.
    Inefficient,
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
            Self::Inefficient => "inefficient",
        }
    }

    /// Its word in `--fail-on`.
    #[must_use]
    pub const fn condition(self) -> &'static str {
        if matches!(self, Self::Leaks) { "leak" } else { self.word() }
    }
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checked {
    /// It was searched for and found.
    Found,
    /// The evidence is too weak.
    Undecided,
    /// It was searched for and not found.
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

/// Requests failed, and nothing of them was looked at.
pub(super) const REQUESTS_FAILED: Checked = Checked::NotJudged("requests failed; --analysis=oom says why");

/// What was asked for holds no block.
const NOTHING_SELECTED: Checked = Checked::NotJudged("no block is selected");

/// All checks of a process.
pub(super) fn of(findings: &[&Finding], end: &RunEnd) -> Vec<Check> {
    let check = |topic, checked| Check { topic, checked };
    // An answer about no block at all would read as one about the run.
    let of_blocks = |answer| if end.nothing_selected { NOTHING_SELECTED } else { answer };
    let always = [
        check(Topic::OutOfMemory, out_of_memory(findings)),
        check(Topic::Leaks, of_blocks(leaks(findings))),
        check(Topic::Growth, of_blocks(growth(findings))),
        check(Topic::Fragmentation, fragmentation(findings)),
    ];
    let used = inefficient(findings, end).map(|checked| check(Topic::Inefficient, checked));
    always.into_iter().chain(used).collect()
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
    } else if has(Topic::OutOfMemory, REQUESTS_FAILED) {
        Verdict::NotJudged
    } else if has(Topic::Leaks, Checked::NotFound) || has(Topic::Growth, Checked::NotFound) {
        Verdict::NothingFound
    } else {
        Verdict::NotJudged
    }
}

/// The strongest answer: found beats undecided, and any answer beats none.
fn strongest(answers: impl Iterator<Item = Checked>, none: &'static str) -> Checked {
    answers.min().unwrap_or(Checked::NotJudged(none))
}

fn out_of_memory(findings: &[&Finding]) -> Checked {
    if findings.iter().any(|finding| Oom::of(finding).is_some()) {
        return Checked::Found;
    }
    match findings.iter().filter_map(|finding| Held::of(finding)).map(|held| held.failed).max() {
        Some(0) => Checked::NotFound,
        Some(_) => REQUESTS_FAILED,
        None => Checked::NotJudged("no analysis of it"),
    }
}

fn leaks(findings: &[&Finding]) -> Checked {
    let of_steps = findings.iter().filter_map(|finding| StepLeaks::of(finding)).filter_map(leaks_of_steps);
    let of_marks = findings.iter().filter_map(|finding| MarkLeaks::of(finding)).filter_map(leaks_of_marks);
    strongest(of_steps.chain(of_marks), "no steps were marked")
}

fn leaks_of_steps(leaks: &StepLeaks) -> Option<Checked> {
    if leaks.steps_ended == 0 {
        return None;
    }
    let is_leak = leaks.places.iter().any(|place| place.verdict == StepVerdict::Leak);
    Some(match leaks.places.is_empty() {
        _ if is_leak => Checked::Found,
        false => Checked::Undecided,
        true => Checked::NotFound,
    })
}

fn leaks_of_marks(leaks: &MarkLeaks) -> Option<Checked> {
    leaks.judged.then_some(if leaks.leaks.is_empty() { Checked::NotFound } else { Checked::Found })
}

fn growth(findings: &[&Finding]) -> Checked {
    let answer = |growth: &Growth| match (growth.sites.is_empty(), growth.increases.is_empty()) {
        (false, _) => Checked::Found,
        (true, false) => Checked::Undecided,
        (true, true) => Checked::NotFound,
    };
    let judged = findings.iter().filter_map(|finding| Growth::of(finding)).filter(|growth| growth.judged);
    strongest(judged.map(answer), "needs 10 s of work")
}

fn fragmentation(findings: &[&Finding]) -> Checked {
    let answer = |found: &Fragmentation| match found.verdict {
        PiecesVerdict::Found => Checked::Found,
        PiecesVerdict::NotFound => Checked::NotFound,
        PiecesVerdict::NotJudged => Checked::NotJudged("most of the pool is older than the trace"),
    };
    let found = findings.iter().filter_map(|finding| Fragmentation::of(finding));
    let has_pool = findings.iter().filter_map(|finding| Held::of(finding)).any(|held| !held.pool.is_base());
    let none = if has_pool { "--analysis=fragmentation" } else { "no pool was seen" };
    strongest(found.map(answer), none)
}

/// As the rule `late-free` decides; `None` where no uses were seen.
fn inefficient(findings: &[&Finding], end: &RunEnd) -> Option<Checked> {
    let uses = findings.iter().filter_map(|finding| Inefficient::of(finding)).filter(|uses| uses.judged);
    let until_ns = findings.iter().find_map(|finding| Span::of(finding)).map_or(end.time_ns, |span| span.until_ns);
    let is_late = |uses: &Inefficient| {
        let helds = findings.iter().filter_map(|finding| Held::of(finding));
        let peak = helds.filter(|held| held.device == uses.device).map(|held| held.peak_bytes).max().unwrap_or(0);
        uses.late_bytes(until_ns.saturating_sub(end.start_ns), peak).is_some()
    };
    uses.map(|uses| if is_late(uses) { Checked::Found } else { Checked::NotFound }).min()
}
