//! The first screen of a report: one verdict, the places behind it, memory, checks. Findings in, an [`Overview`] out; [`write()`] writes it
//! in 24 lines of 80 columns.

mod checks;
mod gate;
mod memory;
mod oom;
mod places;
mod text;

use std::collections::BTreeMap;

pub use self::{
    checks::{Check, Checked, Topic},
    gate::{Failed, Gate, Unseen},
    memory::{MemoryRow, MemoryTable, OwnersTable, When},
    oom::FailedRequest,
    places::{Detail, Place, Role},
    text::{Look, NOTHING_SELECTED, Piece, Tone, write},
};
use crate::analyses::{Finding, Kind as _, held::Held, judged::Span};
use crate::explain::{Card, Level, explain};
use crate::model::{Confidence, Device, RunEnd};

/// The conclusion about a process, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// A request for memory failed.
    OutOfMemory,
    /// Blocks of one step after the other stay.
    Leak,
    /// Live blocks of a place keep growing.
    Growing,
    /// Memory increased, and the evidence is too weak for a verdict.
    Undecided,
    /// Nothing was found.
    NothingFound,
    /// No check could be made.
    NotJudged,
}

/// The first screen of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessOverview {
    /// Process.
    pub pid: u32,
    /// Devices that it used.
    pub devices: Vec<Device>,
    /// The conclusion.
    pub verdict: Verdict,
    /// The start of its exit, nanoseconds since the Unix epoch; `None` if no exit was seen.
    pub exit_ns: Option<u64>,
    /// The places behind the verdict, or those with the most memory; the largest first.
    pub places: Vec<Place>,
    /// Why holders of the first place's blocks were not looked for, where that was wanted.
    pub holders_not_looked_for: Option<String>,
    /// Owners of the fullest pool's blocks, if they were asked for.
    pub owners: Option<OwnersTable>,
    /// The last request that failed.
    pub failed_request: Option<FailedRequest>,
    /// The first advice of the most urgent card, if a problem was found.
    pub advice: Option<Advised>,
    /// Memory, one table for each device; if a request failed, that of its device at that moment.
    pub memory: Vec<MemoryTable>,
    /// Most bytes in use on a device at a time: of driver and pools, which nest, the layer with the most.
    pub peak_bytes: u64,
    /// Growth of a place below this, in bytes an hour, would go unnoticed; `None` if unknown.
    pub undetectable_bytes_per_hour: Option<u64>,
    /// The checks.
    pub checks: Vec<Check>,
    /// The process was running before the trace.
    pub attached: bool,
    /// A place has a call stack.
    pub has_stacks: bool,
    /// How sure.
    pub confidence: Confidence,
}

/// An advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advised {
    /// What, in short.
    pub text: String,
    /// It is a setting.
    pub is_setting: bool,
}

/// The first screen of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    /// Processes with device memory, the most urgent verdict first.
    pub processes: Vec<ProcessOverview>,
}

impl Overview {
    /// Makes the screen of the findings of a run.
    #[must_use]
    pub fn new(findings: &[Finding], end: &RunEnd) -> Self {
        let mut by_process: BTreeMap<u32, Vec<&Finding>> = BTreeMap::new();
        for finding in findings {
            if let Some(pid) = finding.subject().and_then(|subject| subject.pid) {
                by_process.entry(pid).or_default().push(finding);
            }
        }
        let mut processes: Vec<ProcessOverview> =
            by_process.into_iter().filter_map(|(pid, of)| ProcessOverview::new(pid, &of, end)).collect();
        let cards = explain(findings, end).cards;
        for process in &mut processes {
            process.advice = advised(process, &cards);
        }
        processes.sort_by_key(|process| (process.verdict, std::cmp::Reverse(process.total_bytes()), process.pid));
        Self { processes }
    }

    /// Whether requests failed that no analysis looked at.
    #[must_use]
    pub fn has_unread_failures(&self) -> bool {
        let checks = self.processes.iter().flat_map(|process| &process.checks);
        checks.into_iter().any(|check| (check.topic, check.checked) == (Topic::OutOfMemory, checks::REQUESTS_FAILED))
    }
}

impl ProcessOverview {
    /// `None` for a process without device memory.
    fn new(pid: u32, findings: &[&Finding], end: &RunEnd) -> Option<Self> {
        let mut devices: Vec<Device> = findings
            .iter()
            .filter_map(|finding| finding.subject().map(|subject| subject.device))
            .filter(|device| matches!(device, Device::Npu(_)))
            .collect();
        devices.sort_unstable();
        devices.dedup();
        if devices.is_empty() {
            return None;
        }
        let checks = checks::of(findings, end);
        let exit_ns = findings.iter().find_map(|finding| Span::of(finding)).map(|span| span.until_ns);
        let verdict = checks::verdict(&checks);
        let (places, holders_not_looked_for) = places::of(verdict, findings);
        let has_stacks = places.iter().any(|place| !place.stacks.is_empty());
        Some(Self {
            pid,
            verdict,
            exit_ns,
            failed_request: oom::of(findings),
            advice: None,
            memory: match places::last_oom(findings) {
                Some(oom) => vec![memory::at_failure(oom)],
                None => devices.iter().filter_map(|device| memory::of(*device, findings, exit_ns.is_some())).collect(),
            },
            peak_bytes: peak_bytes(findings),
            undetectable_bytes_per_hour: places::undetectable_bytes_per_hour(findings),
            devices,
            attached: helds(findings).any(|held| held.attached),
            has_stacks,
            places,
            holders_not_looked_for,
            owners: memory::owners(findings),
            checks,
            confidence: Confidence::after(end),
        })
    }

    /// Bytes of all tables.
    fn total_bytes(&self) -> u128 {
        self.memory.iter().map(|table| table.total_bytes).sum()
    }
}

/// The first advice of a process's cards; if a request failed, of the last one's.
fn advised(process: &ProcessOverview, cards: &[Card]) -> Option<Advised> {
    let of_process = cards.iter().filter(|card| card.pid == process.pid && card.level != Level::Info);
    let mut wanted = of_process.filter(|card| match &process.failed_request {
        Some(failed) => card.is_of_request(failed.time_ns),
        None => true,
    });
    let first = wanted.find_map(|card| card.advice.first())?;
    Some(Advised { text: first.short.clone(), is_setting: first.setting.is_some() })
}

fn peak_bytes(findings: &[&Finding]) -> u64 {
    let of_devices = helds(findings).filter(|held| matches!(held.device, Device::Npu(_)));
    of_devices.map(|held| held.peak_bytes).max().unwrap_or(0)
}

fn helds<'a>(findings: &'a [&Finding]) -> impl Iterator<Item = &'a Held> {
    findings.iter().filter_map(|finding| Held::of(finding))
}
