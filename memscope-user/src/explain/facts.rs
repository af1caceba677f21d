//! The findings about one process, by kind, and further inputs of rules.

use super::advice::{Advised, Hint, advise};
use super::card::{About, Card, Level, NotJudged, Rule};
use crate::analyses::{
    Finding, Kind as _, decompose::Decomposition, device_use::DeviceUse, fragmentation::Fragmentation, growth::Growth,
    held::Held, inefficient::Inefficient, judged::Span, ledger::Ledger, oom::Oom, peaks::Peak, settings::Settings,
    sleep::Sleeps, step_leaks::StepLeaks, waits::Waits,
};
use crate::model::{Confidence, Device, RunEnd, Setting, Stacks};
use crate::printable::OneLine;
use crate::text::user_frames::{self, UserFrame};

/// Less is not worth a card, where nothing failed, leaks or grows.
pub(super) const WORTH_BYTES: u64 = 64 << 20;
/// Characters of a place.
const MAX_PLACE: usize = 120;

/// The facts about a process.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) pid: u32,
    findings: Vec<&'a Finding>,
    devices: Vec<&'a DeviceUse>,
    pub(super) end: &'a RunEnd,
}

macro_rules! kinds {
    ($($name:ident: $type:ty;)*) => {
        impl<'a> Facts<'a> {
            $(pub(super) fn $name(&self) -> impl Iterator<Item = &'a $type> {
                self.findings.iter().filter_map(|finding| <$type>::of(finding))
            })*
        }
    };
}

kinds! {
    ooms: Oom;
    step_leaks: StepLeaks;
    growths: Growth;
    ledgers: Ledger;
    peaks: Peak;
    pieces: Fragmentation;
    owners: Decomposition;
    uses: Inefficient;
    held: Held;
    spans: Span;
    settings: Settings;
    sleeps: Sleeps;
    waits: Waits;
}

impl<'a> Facts<'a> {
    pub(super) fn new(pid: u32, findings: Vec<&'a Finding>, devices: Vec<&'a DeviceUse>, end: &'a RunEnd) -> Self {
        Self { pid, findings, devices, end }
    }

    /// Devices with findings, in order.
    pub(super) fn devices(&self) -> Vec<Device> {
        let of = |finding: &&Finding| finding.subject().map(|subject| subject.device);
        let mut devices: Vec<Device> =
            self.findings.iter().filter_map(of).filter(|device| matches!(device, Device::Npu(_))).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// The driver's last figures of a device.
    pub(super) fn device_use(&self, device: Device) -> Option<&'a DeviceUse> {
        self.devices.iter().find(|found| found.device == device).copied()
    }

    /// Bytes of a device, where the driver reports them.
    pub(super) fn capacity_bytes(&self, device: Device) -> Option<u64> {
        let of_ledger = self.ledgers().filter(|ledger| ledger.device == device).find_map(|it| it.capacity_bytes);
        of_ledger.or_else(|| self.device_use(device).map(|found| found.total_bytes)).filter(|bytes| *bytes > 0)
    }

    /// Most bytes of a device in use by all processes, of the moments with figures of the driver.
    pub(super) fn most_used_bytes(&self, device: Device) -> Option<u64> {
        let of_ledgers = self.ledgers().filter(|ledger| ledger.device == device);
        let used = of_ledgers.filter_map(|ledger| ledger.used.as_ref()).map(|sheet| bytes(sheet.total.size_bytes));
        used.chain(self.device_use(device).map(|found| found.used_bytes)).max()
    }

    /// Whether a request has failed on a device.
    pub(super) fn has_failed(&self, device: Device) -> bool {
        self.ooms().any(|oom| oom.device == device) || self.held().any(|held| held.device == device && held.failed > 0)
    }

    /// When the program stopped to work.
    pub(super) fn until_ns(&self) -> u64 {
        self.spans().map(|span| span.until_ns).next().unwrap_or(self.end.time_ns)
    }

    /// The settings that the program was started with.
    pub(super) fn in_force(&self) -> InForce<'a> {
        InForce(self.settings().next().map(|found| &found.settings[..]))
    }

    /// The confidence of a finding without one of its own, after the losses.
    pub(super) fn confidence(&self) -> Confidence {
        Confidence::after(self.end)
    }
}

/// Settings that a program was started with; `None`: unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct InForce<'a>(pub(super) Option<&'a [Setting]>);

/// Knowledge of a variable at the start of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known<'a> {
    /// Nothing.
    No,
    /// It was not set.
    NotSet,
    /// It had this value.
    Set(&'a str),
}

impl<'a> InForce<'a> {
    /// The knowledge of a variable.
    pub(super) fn value(self, name: &str) -> Known<'a> {
        let Some(settings) = self.0 else { return Known::No };
        settings.iter().find(|setting| setting.name == name).map_or(Known::NotSet, |setting| Known::Set(&setting.value))
    }

    /// Whether a variable's value, or one of its options, is this; `None` if unknown.
    pub(super) fn has(self, name: &str, text: &str) -> Option<bool> {
        match self.value(name) {
            Known::No => None,
            Known::NotSet => Some(false),
            Known::Set(value) => Some(value.split(',').any(|part| part.trim().eq_ignore_ascii_case(text))),
        }
    }
}

/// Cards of a process in the making.
#[derive(Debug)]
pub(super) struct Out<'a, 'b> {
    pub(super) facts: &'b Facts<'a>,
    pub(super) cards: Vec<Card>,
    pub(super) not_judged: Vec<NotJudged>,
}

/// A rule's own part of a card.
#[derive(Debug)]
pub(super) struct Says<'a> {
    pub(super) device: Device,
    pub(super) level: Level,
    pub(super) text: String,
    pub(super) size_bytes: u64,
    pub(super) evidence: Vec<String>,
    pub(super) hints: &'a [Hint],
    pub(super) confidence: Confidence,
    pub(super) about: About,
}

impl Out<'_, '_> {
    /// Adds a card, unless one explains the same already.
    pub(super) fn say(&mut self, rule: Rule, says: Says<'_>) {
        let is_explained = |card: &Card| card.device == says.device && card.about.covers(says.about);
        if self.cards.iter().any(is_explained) {
            return;
        }
        let Advised { advice, in_force } = advise(says.hints, &self.facts.in_force());
        let mut evidence = says.evidence;
        evidence.extend(in_force);
        self.cards.push(Card {
            rule,
            level: says.level,
            pid: self.facts.pid,
            device: says.device,
            title: rule.title(),
            text: says.text,
            size_bytes: says.size_bytes,
            evidence,
            advice,
            findings: rule.findings(),
            confidence: says.confidence,
            about: says.about,
        });
    }

    /// A rule has nothing to go by.
    pub(super) fn cannot(&mut self, rule: Rule, why: &'static str) {
        let silence = NotJudged { rule, pid: self.facts.pid, why };
        if !self.not_judged.contains(&silence) {
            self.not_judged.push(silence);
        }
    }
}

/// The least sure.
pub(super) fn least(all: impl IntoIterator<Item = Confidence>) -> Confidence {
    let doubtful = all.into_iter().any(|confidence| confidence == Confidence::Doubtful);
    if doubtful { Confidence::Doubtful } else { Confidence::Certain }
}

/// The innermost frame of the user's own code, on one line.
pub(super) fn place(stacks: Stacks) -> Option<String> {
    let UserFrame { at, function } = user_frames::of(stacks, 1).into_iter().next()?;
    let text = OneLine(if function.is_empty() { at } else { format!("{at} {function}") }).to_string();
    Some(match text.char_indices().nth(MAX_PLACE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    })
}

/// ` at PLACE`, or nothing.
pub(super) fn at_place(stacks: Stacks) -> String {
    place(stacks).map(|place| format!(" at {place}")).unwrap_or_default()
}

/// A sum that may be larger than any size.
pub(super) fn bytes(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// Whether it is at least this percentage of the whole.
pub(super) fn is_share(part: u64, whole: u64, percent: u64) -> bool {
    whole > 0 && u128::from(part) * 100 >= u128::from(whole) * u128::from(percent)
}

/// A part of the whole in percent: `37 %`.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{} %", u128::from(part) * 100 / u128::from(whole.max(1)))
}
