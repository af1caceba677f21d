//! Blocks held longer than they were used.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Confidence, Device, LiveSum, Pool, Stacks};

/// Way of holding a block longer than it is used (contract §8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InefficientKind {
    /// Some API gave memory back between its allocation and its first use.
    EarlyAllocation,
    /// Some API took memory between its last use and its free.
    LateDeallocation,
    /// Too many APIs between two uses.
    TemporaryIdleness,
}

impl InefficientKind {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::EarlyAllocation, Self::LateDeallocation, Self::TemporaryIdleness];

    /// As msMemScope spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EarlyAllocation => "early_allocation",
            Self::LateDeallocation => "late_deallocation",
            Self::TemporaryIdleness => "temporary_idleness",
        }
    }
}

/// A block that was held longer than it was used.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct InefficientBlock {
    /// The pool, or the driver.
    pub pool: Pool,
    /// Start of the block.
    pub addr: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Number of the block in its process.
    pub allocation_id: u64,
    /// Id of its allocation's event: `ID` of its MALLOC row.
    pub event_id: u64,
    /// How, in the order found; empty if the exit freed it late and nothing else was found.
    pub kinds: Vec<InefficientKind>,
    /// The exit freed it, some time after its last use: a late deallocation for msMemScope, and for nothing else.
    pub late_at_exit: bool,
    /// Size times the time without use.
    pub wasted_byte_seconds: f64,
}

impl InefficientBlock {
    /// Its kinds as msMemScope counts them, which takes frees of an exit for frees.
    pub fn marks(&self) -> impl Iterator<Item = InefficientKind> {
        self.kinds.iter().copied().chain(self.late_at_exit.then_some(InefficientKind::LateDeallocation))
    }
}

/// Blocks of one place that were held longer than they were used.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct InefficientPlace {
    /// The pool.
    pub pool: Pool,
    /// How, in the order of [`InefficientKind::ALL`].
    pub kinds: Vec<InefficientKind>,
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
    /// Size of each, where no call stack names the place.
    pub each_bytes: Option<u64>,
    /// Sum of size times time without use.
    pub wasted_byte_seconds: f64,
    /// Where they were allocated.
    pub stacks: Stacks,
}

/// The cost of one kind of inefficient use.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Waste {
    /// The kind.
    pub kind: InefficientKind,
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
    /// Sum of size times time without use.
    pub wasted_byte_seconds: f64,
}

/// Bytes held too long that are worth a word.
const WORTH_BYTES: u64 = 64 << 20;
/// The same in percent of the peak.
const LATE_PERCENT: u64 = 5;

/// Blocks of one process on one device that were held longer than they were used.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Inefficient {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Uses of its blocks were seen; without any nothing can be judged.
    pub judged: bool,
    /// Judged blocks.
    pub looked_at: LiveSum,
    /// Seen accesses to them.
    pub accesses: u64,
    /// Sums by kind, in the order of [`InefficientKind::ALL`].
    pub kinds: [Waste; 3],
    /// Blocks that the exit freed, some time after their last access: part of no sum.
    pub late_at_exit: LiveSum,
    /// Of them, those that were live and without use when their pool had its peak: it was higher by as much.
    pub idle_at_peak: LiveSum,
    /// The places, the largest waste first; at most 512.
    pub places: Vec<InefficientPlace>,
    /// The blocks, in the order of their allocation.
    pub blocks: Vec<InefficientBlock>,
    /// How sure.
    pub confidence: Confidence,
}

impl Inefficient {
    /// Empty.
    #[must_use]
    pub fn new(pid: u32, device: Device) -> Self {
        let none = |kind| Waste { kind, blocks: 0, size_bytes: 0, wasted_byte_seconds: 0.0 };
        Self {
            pid,
            device,
            judged: false,
            looked_at: LiveSum::default(),
            accesses: 0,
            kinds: InefficientKind::ALL.map(none),
            late_at_exit: LiveSum::default(),
            idle_at_peak: LiveSum::default(),
            places: Vec::new(),
            blocks: Vec::new(),
            confidence: Confidence::Certain,
        }
    }
}

impl Inefficient {
    /// Bytes in blocks after their last use, on average over the judged time; `None` if that is little: less than 64 MiB,
    /// or than 5 % of the peak.
    #[must_use]
    pub fn late_bytes(&self, judged_ns: u64, peak_bytes: u64) -> Option<u64> {
        let late = self.kinds.iter().find(|waste| waste.kind == InefficientKind::LateDeallocation)?;
        let seconds = judged_ns as f64 / 1e9;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an average, rounded down")]
        let mean_bytes = if seconds > 0.0 { (late.wasted_byte_seconds / seconds) as u64 } else { 0 };
        let is_share = u128::from(mean_bytes) * 100 >= u128::from(peak_bytes) * u128::from(LATE_PERCENT);
        (mean_bytes >= WORTH_BYTES && is_share).then_some(mean_bytes)
    }
}

impl Answer for Inefficient {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, self.device)
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, &context.report, out)
    }
}
