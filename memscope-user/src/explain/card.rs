//! The result of a rule: a card.

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::{Confidence, Device, Pool, Stacks};

/// A rule, by its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A request failed while graphs were captured, or captured graphs hold much.
    GraphCapture,
    /// A request failed, and other processes hold at least as much of the device.
    OomOther,
    /// A request failed: no free piece was large enough.
    OomFragmented,
    /// A request failed, and a piece that was large enough was free.
    OomApart,
    /// A request failed, and all pools together could not give it.
    OomShort,
    /// Sleep mode and expandable segments are in use together.
    SleepExpandable,
    /// Much stays while a server sleeps.
    SleepKeeps,
    /// Each step leaves blocks behind.
    StepLeak,
    /// The largest workspace becomes larger.
    WorkspaceGrowth,
    /// A place keeps growing.
    Growth,
    /// Blocks are kept, and do not become more.
    CacheNotLeak,
    /// The KV cache leaves little for the rest.
    KvCacheLarge,
    /// Communicators hold buffers.
    HcclBuffers,
    /// Blocks are held longer than they are used.
    LateFree,
    /// No request failed, and much freed memory of a pool waited for streams at its peak.
    StreamWaits,
    /// No request failed, and the free memory of a pool lies in small pieces.
    InPieces,
    /// A pool holds memory that it has not handed out.
    CachedHigh,
    /// The driver counts memory that no block explains.
    Unexplained,
}

impl Rule {
    /// All of them, in order: of two that explain the same bytes the first one counts.
    pub const ALL: [Self; 18] = [
        Self::GraphCapture,
        Self::OomOther,
        Self::OomFragmented,
        Self::OomApart,
        Self::OomShort,
        Self::SleepExpandable,
        Self::SleepKeeps,
        Self::StepLeak,
        Self::WorkspaceGrowth,
        Self::Growth,
        Self::CacheNotLeak,
        Self::KvCacheLarge,
        Self::HcclBuffers,
        Self::LateFree,
        Self::StreamWaits,
        Self::InPieces,
        Self::CachedHigh,
        Self::Unexplained,
    ];

    /// Its name, as in JSON.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::GraphCapture => "graph-capture",
            Self::OomOther => "oom-other",
            Self::OomFragmented => "oom-fragmented",
            Self::OomApart => "oom-apart",
            Self::OomShort => "oom-short",
            Self::SleepExpandable => "sleep-expandable",
            Self::SleepKeeps => "sleep-keeps",
            Self::StepLeak => "step-leak",
            Self::WorkspaceGrowth => "workspace-growth",
            Self::Growth => "growth",
            Self::CacheNotLeak => "cache-not-leak",
            Self::KvCacheLarge => "kv-cache-large",
            Self::HcclBuffers => "hccl-buffers",
            Self::LateFree => "late-free",
            Self::StreamWaits => "stream-waits",
            Self::InPieces => "in-pieces",
            Self::CachedHigh => "cached-high",
            Self::Unexplained => "unexplained",
        }
    }

    /// Its message, in a few words.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::GraphCapture => "Graph capture takes memory",
            Self::OomOther => "Other processes hold the device's memory",
            Self::OomFragmented => "Enough memory was free, in pieces",
            Self::OomApart => "A free piece was large enough, and not given",
            Self::OomShort => "Not enough memory for the request",
            Self::SleepExpandable => "Sleep mode together with expandable segments",
            Self::SleepKeeps => "Memory stays while the server sleeps",
            Self::StepLeak => "Each step leaves blocks behind",
            Self::WorkspaceGrowth => "The largest workspace becomes larger",
            Self::Growth => "A place keeps growing",
            Self::CacheNotLeak => "Kept, and no longer growing: a cache",
            Self::KvCacheLarge => "The KV cache leaves little for the rest",
            Self::HcclBuffers => "Communicators hold buffers",
            Self::LateFree => "Blocks are held longer than they are used",
            Self::StreamWaits => "Freed memory waits for other streams",
            Self::InPieces => "Free memory of the pool is in small pieces",
            Self::CachedHigh => "The pool keeps memory for reuse",
            Self::Unexplained => "The driver counts memory that no block explains",
        }
    }

    /// Findings that it is computed from, by their field `finding`.
    #[must_use]
    pub const fn findings(self) -> &'static [&'static str] {
        match self {
            Self::GraphCapture => &["oom", "decompose", "ledger"],
            Self::OomOther => &["oom", "ledger"],
            Self::OomFragmented => &["oom", "fragmentation"],
            Self::OomApart | Self::OomShort => &["oom"],
            Self::SleepExpandable => &["sleeps", "settings"],
            Self::SleepKeeps => &["sleeps"],
            Self::StepLeak => &["step_leaks"],
            Self::WorkspaceGrowth => &["peak"],
            Self::Growth => &["growth", "device_use"],
            Self::CacheNotLeak => &["step_leaks", "growth"],
            Self::KvCacheLarge => &["decompose", "ledger", "device_use"],
            Self::HcclBuffers | Self::Unexplained => &["ledger"],
            Self::LateFree => &["inefficient", "held"],
            Self::StreamWaits => &["waits"],
            Self::InPieces => &["fragmentation"],
            Self::CachedHigh => &["ledger", "fragmentation"],
        }
    }
}

/// How urgent a card is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The program has failed for it.
    Error,
    /// It becomes worse, or is close to a failure.
    Warning,
    /// Good to know.
    Info,
}

/// An advice.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Advice {
    /// What, in a sentence.
    pub text: String,
    /// The same in fewer words: of a setting only its value.
    #[serde(skip)]
    pub short: String,
    /// The setting, as it is written: `NAME=value`, or an argument.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<&'static str>,
    /// Versions that it holds for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versions: Option<&'static str>,
    /// Its documentation.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub sources: &'static [&'static str],
}

/// The result of a rule for a process on a device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Card {
    /// The rule.
    pub rule: Rule,
    /// How urgent.
    pub level: Level,
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// The problem, in a few words.
    pub title: &'static str,
    /// The same with figures.
    pub text: String,
    /// Bytes that it explains.
    pub size_bytes: u64,
    /// What shows it, a line each.
    pub evidence: Vec<String>,
    /// The advice, the most promising first.
    pub advice: Vec<Advice>,
    /// Findings that it is computed from, by their field `finding`.
    pub findings: &'static [&'static str],
    /// Confidence: the lowest of those findings.
    pub confidence: Confidence,
    /// Its subject.
    #[serde(skip)]
    pub(super) about: About,
}

impl Card {
    /// Whether it explains the request that failed then.
    #[must_use]
    pub fn is_of_request(&self, time_ns: u64) -> bool {
        self.about == About::Request { time_ns }
    }
}

/// The subject of a card. Two cards with the same subject explain the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// A failed request.
    Request {
        /// When.
        time_ns: u64,
    },
    /// Blocks of a place.
    Place(Pool, Stacks, Option<u64>),
    /// All blocks of a pool.
    Blocks(Pool),
    /// Memory that a pool holds and has not handed out.
    Cache(Pool),
    /// What stays while a server sleeps.
    Asleep,
    /// Nothing that another rule explains.
    Own,
}

impl About {
    /// Whether this explains all that the other does, and maybe more.
    pub(super) fn covers(self, other: Self) -> bool {
        match (self, other) {
            (Self::Own, _) => false,
            (Self::Blocks(pool), Self::Place(of, ..)) => pool == of,
            _ => self == other,
        }
    }
}

/// A rule that could not be judged of a process, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct NotJudged {
    /// The rule.
    pub rule: Rule,
    /// Process.
    pub pid: u32,
    /// The missing input.
    pub why: &'static str,
}
