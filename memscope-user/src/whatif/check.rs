//! The self-check: does a replay under the recorded settings reproduce the recording? It is the licence of every other figure.

use schemars::JsonSchema;
use serde::Serialize;

use super::device::{Addresses, Card};
use super::pool::{Id, Pool};
use super::replay::{Look, Replay, Setup, Until};
use super::requests::Requests;
use super::settings::{Family, Release, Settings};

/// Settings that are tried if none are given, most likely first. A pool known to be expandable is tried with expandable
/// settings only.
const CANDIDATES: [&str; 9] = [
    "",
    "expandable_segments:True",
    "expandable_segments:True,base_addr_aligned_kb:0",
    "expandable_segments:True,segment_size_mb:128",
    "expandable_segments:True,page_size:1g",
    "page_size:1g",
    "multi_stream_lazy_reclaim:True",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
];

/// Agreement of a replay with the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SelfCheck {
    /// The allocator that it was replayed by.
    pub allocator: Family,
    /// Settings that the recording was replayed under.
    pub settings: String,
    /// They were found by replay: the recording does not have them.
    pub settings_found: bool,
    /// What the script sets later.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set_by_script: Vec<String>,
    /// Requests and frees of the recording.
    pub events: u64,
    /// Number of agreeing ones, up to the first difference.
    pub agreeing: u64,
    /// Extent of the comparison: places of blocks, too, or only their sizes and the pool's memory.
    pub places: bool,
    /// The recording has no blocks and no figures of the pool's memory.
    pub nothing_to_compare: bool,
    /// The first event that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<Difference>,
}

impl SelfCheck {
    /// Whether all of the recording is reproduced.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.first.is_none() && self.events > 0 && !self.nothing_to_compare
    }
}

/// An event that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Difference {
    /// Requests before it.
    pub request: u64,
    /// Time of the event or shortly before, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// In what.
    pub what: Differs,
    /// Bytes that the pool holds there; if that is the difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_bytes: Option<u64>,
    /// Bytes that it holds in the replay.
    pub replayed_bytes: u64,
}

/// The difference of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Differs {
    /// The size of a block.
    Size,
    /// Where it lies.
    Place,
    /// The memory that the pool holds.
    Reserved,
    /// A request fails in one of them.
    Failure,
}

/// Compares with the recording.
struct Compare<'a> {
    requests: &'a Requests,
    places: bool,
    number: u64,
    agreeing: u64,
    reserved_bytes: Vec<Option<u64>>,
    first: Option<Difference>,
}

impl Compare<'_> {
    fn differs(&mut self, what: Differs, recorded_bytes: Option<u64>, replayed_bytes: u64) -> bool {
        let time_ns = self.requests.time_of(self.number).unwrap_or(0);
        self.first = Some(Difference { request: self.number, time_ns, what, recorded_bytes, replayed_bytes });
        false
    }

    fn holds(&mut self, device: u8, pool: &Pool) -> bool {
        let replayed = pool.figures().reserved_bytes;
        match self.reserved_bytes[usize::from(device)] {
            Some(recorded) if recorded != replayed => self.differs(Differs::Reserved, Some(recorded), replayed),
            _ => {
                self.agreeing += 1;
                true
            }
        }
    }
}

impl Look for Compare<'_> {
    fn allocated(&mut self, device: u8, pool: &Pool, block: Id) -> bool {
        let ((addr, size), number) = (pool.place(block), self.number);
        let held = pool.figures().reserved_bytes;
        if self.requests.agrees_in_size(number, size) == Some(false) {
            return self.differs(Differs::Size, None, held);
        }
        if self.places && self.requests.agrees(number, addr, size) == Some(false) {
            return self.differs(Differs::Place, None, held);
        }
        let agrees = self.holds(device, pool);
        self.number += 1;
        agrees
    }

    fn freed(&mut self, device: u8, pool: &Pool) -> bool {
        self.holds(device, pool)
    }

    fn reserved(&mut self, device: u8, bytes: u64) {
        self.reserved_bytes[usize::from(device)] = Some(bytes);
    }
}

/// Replays under these settings and compares.
#[must_use]
pub fn check(requests: &Requests, text: &str, settings: &Settings, card: &Card) -> SelfCheck {
    let places = !requests.before.segments.is_empty() || requests.segments.iter().any(|segments| !segments.is_empty());
    let setup = |device: u8| {
        let segments = requests.segments.get(usize::from(device)).cloned().unwrap_or_default();
        let addresses = if places { Addresses::Recorded(segments.into()) } else { card.addresses.clone() };
        let card = Card { addresses, ..requests.recorded_card(device, card) };
        Setup { settings: settings.clone(), card, with_script: true, with_limits: true }
    };
    let reserved_bytes = vec![None; requests.devices.len()];
    let mut compare = Compare { requests, places, number: 0, agreeing: 0, reserved_bytes, first: None };
    let (outcome, _) = Replay::from_before(requests, setup, Until::Divergence).run(&mut compare);
    if let Some(parting) = outcome.parting
        && compare.first.is_none()
    {
        compare.number = parting.number;
        compare.differs(Differs::Failure, None, parting.reserved_bytes);
    }
    let Compare { agreeing, first, reserved_bytes, .. } = compare;
    let reported = reserved_bytes.into_iter().flatten().next();
    // Blocks from before are where they were: that is no merit of the model.
    let before = requests.before.events;
    let (events, agreeing) = (requests.count + requests.frees - before, agreeing.saturating_sub(before));
    let nothing_to_compare = events == 0 || !places && !requests.has_sizes() && reported.is_none();
    SelfCheck {
        allocator: settings.release.family(),
        settings: text.to_owned(),
        settings_found: false,
        set_by_script: requests.set_by_script(),
        events,
        agreeing,
        places,
        nothing_to_compare,
        first,
    }
}

/// The settings of the recording: those that reproduce it, or the largest part of it.
#[must_use]
pub fn find_settings(requests: &Requests, release: Release, card: &Card) -> (SelfCheck, Settings) {
    let mut best: Option<(SelfCheck, Settings)> = None;
    // The settings at the program's start come first; its script may have set others.
    let started_with = requests.configuration.as_deref().into_iter();
    for text in started_with.chain(CANDIDATES) {
        let Ok(settings) = Settings::parse(text, release) else { continue };
        if requests.expandable != settings.expandable && requests.script_settings.is_empty() {
            continue;
        }
        let settings_found = requests.configuration.as_deref() != Some(text);
        let found = SelfCheck { settings_found, ..check(requests, text, &settings, card) };
        let is_whole = found.is_whole();
        if best.as_ref().is_none_or(|(known, _)| known.agreeing < found.agreeing) {
            best = Some((found, settings));
        }
        if is_whole {
            break;
        }
    }
    best.unwrap_or_else(|| {
        let plain = Settings::of(release.family());
        (check(requests, "", &plain, card), plain)
    })
}
