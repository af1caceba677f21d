//! Growth: the leaks of programs without steps.

use std::hash::{Hash, Hasher};
use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::analyses::held_by::HeldBy;
use crate::analyses::step_leaks::StepLeaks;
use crate::model::{Confidence, Device, Module, Name, OwnerSum, Pool, Stacks};

/// Equal parts of the observed time.
pub const GROWTH_PARTS: usize = 6;

/// Where blocks come from, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
pub struct Site {
    /// The pool, or the driver.
    pub pool: Pool,
    /// Call stacks of the allocations.
    pub stacks: Stacks,
    /// Size of each block, where there are no stacks.
    pub size_bytes: Option<u64>,
    /// Driver module that asked, where known.
    pub module_id: Option<Module>,
    /// Outermost function of ACL or runtime, where known.
    pub caller: Option<Name>,
}

/// By the fields that nearly always differ between sites: they are looked up for every event, and hashing all takes
/// longer than comparing.
impl Hash for Site {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.stacks.native, self.stacks.python, self.size_bytes).hash(state);
    }
}

/// Blocks of one site that become more and more.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct GrowingSite {
    /// The site; `None` for a pool as a whole without a single site that stands out.
    pub site: Option<Site>,
    /// The pool, or the driver.
    pub pool: Pool,
    /// Live blocks at the end.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
    /// Live blocks that each part of the time never went below: the evidence.
    pub low_blocks: [u64; GROWTH_PARTS],
    /// Blocks that became more per second, the first part left out.
    pub blocks_per_second: f64,
    /// The same in bytes, at the mean size of the live ones.
    pub bytes_per_second: f64,
    /// Allocations of the site.
    pub allocations: u64,
    /// Live blocks by age, in quarters of the time, the youngest first.
    pub ages: [u64; 4],
    /// Final owners of its live blocks, the largest first; empty where no rules were given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<OwnerSum>,
}

/// Why growth was not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NotJudged {
    /// The time was too short: a program that only starts grows as well.
    TooShort,
}

/// Live blocks of a site that became more, or larger, in the judged time, and are not judged to keep growing.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Increase {
    /// The site.
    pub site: Site,
    /// Blocks more than at the end of the first part of the time; 0 where they became larger.
    pub blocks: u64,
    /// Their bytes, at the mean size of the live ones; where blocks became larger, bytes more than then.
    pub size_bytes: u64,
    /// Where blocks became larger: bytes that each part of the time never went below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_bytes: Option<[u64; GROWTH_PARTS]>,
    /// Live blocks at the end.
    pub live_blocks: u64,
    /// Live blocks by age, in quarters of the time, the youngest first.
    pub ages: [u64; 4],
    /// Final owners of its live blocks, the largest first; empty where no rules were given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<OwnerSum>,
}

/// What keeps growing in one process on one device.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Growth {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Its begin, nanoseconds since the Unix epoch.
    pub from_ns: u64,
    /// Observed time, in nanoseconds.
    pub span_ns: u64,
    /// The time was long enough to judge.
    pub judged: bool,
    /// Why it is not judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_judged: Option<NotJudged>,
    /// Growth of one place below this cannot be excluded, in bytes an hour: fewer than 8 of its largest blocks stay.
    /// `None` where it is not judged, or if every place without growth has stopped allocating.
    pub undetectable_bytes_per_hour: Option<u64>,
    /// The largest increases beside the growing places, most bytes first.
    pub increases: Vec<Increase>,
    /// What grows, the fastest first (bytes).
    pub sites: Vec<GrowingSite>,
    /// The limit of sites was reached; blocks of further ones were judged as one.
    pub sites_full: bool,
    /// How sure.
    pub confidence: Confidence,
}

impl Growth {
    /// Not judged yet.
    pub(super) const fn new(pid: u32, device: Device, from_ns: u64, span_ns: u64) -> Self {
        Self {
            pid,
            device,
            from_ns,
            span_ns,
            judged: false,
            not_judged: None,
            undetectable_bytes_per_hour: None,
            increases: Vec::new(),
            sites: Vec::new(),
            sites_full: false,
            confidence: Confidence::Certain,
        }
    }
}

impl Answer for Growth {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, self.device)
    }

    fn weight_bytes(&self) -> u64 {
        self.sites.iter().map(|site| site.size_bytes).fold(self.sites.len() as u64, u64::saturating_add)
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        let stepped = context.others::<StepLeaks>().any(|leaks| leaks.steps_ended > 0);
        let held_by: Vec<&HeldBy> = context.others().collect();
        super::text::write((self, &held_by), stepped, context.clock, context.report.growth_lines, out)
    }
}
