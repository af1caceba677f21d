//! One question, one folder: the analysis, its findings, their text and their table columns. Pure: events in, findings
//! out; no clock, file or thread. `registry` has a line for each kind of finding.
//!
//! An analysis concludes its findings about a process when the process ends, so a later process with the same id starts
//! from nothing. Findings are ordered by process, then device.

mod answer;
pub mod by_stack;
pub mod compare;
mod concluded;
pub mod decompose;
pub mod device_use;
pub mod diff;
pub mod fluctuation;
pub mod fragmentation;
mod groups;
pub mod growth;
pub mod held;
pub mod held_by;
pub mod inefficient;
mod inferred;
pub mod judged;
pub mod ledger;
pub mod lifetimes;
pub mod live_use;
pub mod mark_leaks;
pub mod named;
#[cfg(test)]
mod one_owner;
pub mod oom;
pub mod peaks;
mod per_device;
mod question;
pub mod ranks;
pub(crate) mod registry;
mod returns;
pub mod sample;
mod scale;
#[cfg(test)]
pub(crate) mod script;
mod segments;
pub mod select;
mod set;
pub mod settings;
pub mod silent;
pub mod sleep;
pub mod step_leaks;
pub mod stepped;
pub mod table;
#[cfg(test)]
mod up_to_exit;
pub mod waits;
pub mod watched;

pub(crate) use answer::Context;
pub use answer::{Kind, Report, Subject};
pub use by_stack::ByStackAnalysis;
pub use concluded::LeftOut;
pub use decompose::DecomposeAnalysis;
pub use device_use::DeviceUseAnalysis;
pub use fluctuation::FluctuationAnalysis;
pub use fragmentation::FragmentationAnalysis;
pub use growth::GrowthAnalysis;
pub use held::HeldAnalysis;
pub use held_by::HeldByAnalysis;
pub use inefficient::{InefficientAnalysis, InefficientRules};
pub use judged::Judged;
pub use ledger::LedgerAnalysis;
pub use live_use::LiveUse;
pub use mark_leaks::MarkLeaksAnalysis;
pub use named::Named;
pub use oom::OomAnalysis;
pub use peaks::PeaksAnalysis;
pub use question::{AnalysisBit, Asked, Automatic, FilesCommand, Question, Questions, Sees};
pub use registry::Finding;
pub use set::AnalysisSet;
pub use settings::SettingsAnalysis;
pub use silent::SilentAnalysis;
pub use sleep::SleepAnalysis;
pub use step_leaks::StepLeaksAnalysis;
pub use stepped::Stepped;

use std::sync::Arc;

use self::decompose::RuleSet;
use self::select::Filter;
use crate::model::{Device, Event, Pool, RunEnd};

/// Watches enriched events and ends in findings.
pub trait Analysis: Send {
    /// Takes one event. Events come in time order, each block's free after its allocation.
    fn observe(&mut self, event: &Event);

    /// Ends the run and concludes, most important first.
    fn finish(&mut self, end: &RunEnd) -> Vec<Finding>;

    /// Findings so far, while the run goes on.
    fn now(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Takes a filter: the analysis is shown all blocks, and reports the chosen ones. `false`: it takes none, and is shown
    /// the chosen blocks alone. Before the first event.
    fn choose(&mut self, _filter: &Filter) -> bool {
        false
    }
}

/// Sees events and concludes nothing: it counts, records, or hands them on.
pub trait Observer: Send {
    /// Takes one event, in the same order as analyses.
    fn observe(&mut self, event: &Event);

    /// A round has ended: what others read may be handed to them.
    fn flush(&mut self) {}

    /// The run has ended.
    fn finish(&mut self, _end: &RunEnd) {}
}

/// The order of findings about pools: a framework's first, then the memory of the driver, which they are in.
const fn in_order(pid: u32, device: Device, pool: Pool) -> (u32, Device, bool, Pool) {
    (pid, device, pool.is_base(), pool)
}

/// Leaks of steps and growth.
#[must_use]
pub fn judged_leaks() -> Judged {
    judging(GrowthAnalysis::default())
}

/// The same, with the owners of what grows by these rules.
#[must_use]
pub fn judged_leaks_by(rules: &Arc<RuleSet>) -> Judged {
    judging(GrowthAnalysis::named()).naming(Arc::clone(rules))
}

fn judging(growth: GrowthAnalysis) -> Judged {
    Judged::leaks(vec![Box::new(Stepped::new::<StepLeaksAnalysis>()), Box::new(growth)])
}

/// What the first screen has beside leaks and costs no probe: requests that failed, and the free pieces of pools, unless
/// a filter splits these.
#[must_use]
pub fn beside_leaks(whole_pools: bool) -> Vec<Box<dyn Analysis>> {
    silent(|question| question.automatic == Automatic::Always && (whole_pools || question.sees != Sees::WholePools))
}

/// What the first screen has of requests that failed.
#[must_use]
pub fn of_failures() -> Vec<Box<dyn Analysis>> {
    silent(|question| question.word == oom::QUESTION.word)
}

fn silent(which: impl Fn(&Question) -> bool) -> Vec<Box<dyn Analysis>> {
    let chosen = Question::all().filter(|question| which(question));
    chosen.fold(AnalysisSet::judging().silent(), |set, question| (question.add)(Asked::default(), set)).into_vec()
}

/// Leak analyses for files: by the marks with the text `mark` if it is given, else by steps, growth and what is live at the end.
#[must_use]
pub fn of_leaks(mark: Option<String>, start_index: u64) -> Vec<Box<dyn Analysis>> {
    match mark {
        Some(text) => vec![Box::new(MarkLeaksAnalysis::new(text, start_index))],
        None => vec![
            Box::new(judged_leaks_by(&Arc::new(RuleSet::builtin())).marking(Box::new(ByStackAnalysis::default()))),
            Box::new(Stepped::new::<FluctuationAnalysis>()),
            Box::new(HeldAnalysis::default()),
            Box::new(HeldByAnalysis::default()),
        ],
    }
}
