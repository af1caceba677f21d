//! The ledger: where the memory of a device is, as sums that agree.
//!
//! Each [`Sheet`] is one equation: its total is the sum of its parts, those with a minus subtracted. A difference is a
//! part with its own name, so no figure is ever negative, cut, or left over.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Order, Subject};
use crate::model::{Confidence, Device, Pool};

/// The meaning of an entry of a sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema, Serialize)]
#[serde(tag = "item", rename_all = "snake_case")]
pub enum Item {
    /// The device's bytes in use.
    DeviceUsed,
    /// Live driver blocks of one module, for any user.
    Module {
        /// Name of the module.
        module: &'static str,
    },
    /// Driver blocks given back since the driver's figures were taken.
    GivenBackSince,
    /// Driver blocks that came since then.
    AllocatedSince,
    /// Bytes that the driver counts for the process beyond its driver blocks.
    BeyondHal,
    /// Driver blocks that the driver does not count for the process.
    NotInProcess,
    /// Another process.
    OtherProcess {
        /// Its number on the host.
        pid: u32,
    },
    /// The rest of the device's figure.
    Unexplained,
    /// The deficit of the device's figure.
    Overexplained,
    /// All live driver blocks.
    Hal,
    /// Blocks that a pool has handed out, in known driver memory.
    PoolAllocated {
        /// The pool.
        pool: Pool,
    },
    /// Driver memory that a pool holds and has not handed out.
    PoolCached {
        /// The pool.
        pool: Pool,
    },
    /// Blocks of a pool in driver memory that is mapped more than once.
    PoolShared {
        /// The pool.
        pool: Pool,
    },
    /// Driver blocks of the runtime.
    Runtime,
    /// Driver blocks of HCCL.
    Hccl,
    /// All other driver blocks.
    Rest,
    /// Bytes handed out by the pool's own figure.
    PoolOwnAllocated {
        /// The pool.
        pool: Pool,
    },
    /// Blocks of a pool inside of another pool's memory.
    PoolNested {
        /// The pool.
        pool: Pool,
    },
    /// Blocks of a pool at addresses that no driver memory seen is behind.
    PoolElsewhere {
        /// The pool.
        pool: Pool,
    },
    /// Bytes that a pool has handed out in unseen blocks.
    PoolOlder {
        /// The pool.
        pool: Pool,
    },
    /// Seen blocks that the pool does not count.
    PoolNotCounted {
        /// The pool.
        pool: Pool,
    },
    /// Reserved bytes by the pool's own figure.
    PoolOwnReserved {
        /// The pool.
        pool: Pool,
    },
    /// Driver memory that a pool was seen to hold.
    PoolSegments {
        /// The pool.
        pool: Pool,
    },
    /// Blocks of another pool that hold this pool's blocks, with driver memory behind them.
    SegmentsNested {
        /// The pool.
        pool: Pool,
    },
    /// Such blocks without driver memory: it was given back, and they stayed.
    SegmentsElsewhere {
        /// The pool.
        pool: Pool,
    },
    /// Bytes beyond that by the pool's own figure.
    SegmentsOlder {
        /// The pool.
        pool: Pool,
    },
    /// Seen bytes of a pool beyond its own figure.
    SegmentsNewer {
        /// The pool.
        pool: Pool,
    },
}

impl Item {
    /// The source of the figure, in words.
    #[must_use]
    pub const fn source(&self) -> &'static str {
        match self {
            Self::DeviceUsed => "the driver's figure of the device (DCMI)",
            Self::Module { .. } => "live blocks of halMemAlloc and halMemCreate by their module",
            Self::GivenBackSince => "such blocks freed since the driver's figures were taken",
            Self::AllocatedSince => "such blocks made since the driver's figures were taken",
            Self::BeyondHal => {
                "the driver's figure of the process (DCMI) less its blocks: blocks older than the trace, rounding, overhead"
            }
            Self::NotInProcess => "blocks beyond the driver's figure of the process (DCMI)",
            Self::OtherProcess { .. } => "the driver's figure of that process (DCMI)",
            Self::Unexplained => "the driver's figure of the device less all other lines",
            Self::Overexplained => "the other lines less the driver's figure of the device",
            Self::Hal => "live blocks of halMemAlloc and halMemCreate",
            Self::PoolAllocated { .. } => "the pool's reports of blocks, in blocks of the driver",
            Self::PoolCached { .. } => "blocks of the driver that the pool holds, less what it handed out",
            Self::PoolShared { .. } => "the pool's reports of blocks, in memory that is mapped more than once",
            Self::Runtime => "blocks of driver module RUNTIME outside of pools",
            Self::Hccl => "blocks of driver module HCCL outside of pools",
            Self::Rest => "blocks of other driver modules outside of pools",
            Self::PoolOwnAllocated { .. } => {
                "the pool's own figure in its last report, or the sum of its blocks where it has none"
            }
            Self::PoolNested { .. } => "the pool's reports of blocks, inside of another pool's memory",
            Self::PoolElsewhere { .. } => {
                "the pool's reports of blocks, where no block of the driver was seen: older than the trace, or asleep"
            }
            Self::PoolOlder { .. } => "that figure less the blocks here: handed out before the trace, or ended unseen",
            Self::PoolNotCounted { .. } => "the blocks here less that figure: their frees were not seen",
            Self::PoolOwnReserved { .. } => "the pool's own figure in its last report, which may be out of date",
            Self::PoolSegments { .. } => "blocks of the driver that the pool was seen to hold",
            Self::SegmentsNested { .. } => "blocks of another pool that this pool hands out parts of",
            Self::SegmentsElsewhere { .. } => {
                "such blocks, where no block of the driver was seen: older than the trace, or asleep"
            }
            Self::SegmentsOlder { .. } => {
                "the pool's own figure less those blocks: older than the trace, or given back since the report"
            }
            Self::SegmentsNewer { .. } => "those blocks less the pool's own figure: got since the report",
        }
    }
}

/// How an entry counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// It is added.
    Plus,
    /// It is taken off.
    Minus,
}

/// One figure of a sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Entry {
    /// Its meaning.
    #[serde(flatten)]
    pub item: Item,
    /// Its sign in the sum.
    pub sign: Sign,
    /// Bytes. Wide enough for any sum of sizes, so that sums agree whatever a program claims.
    pub size_bytes: u128,
    /// The source of the figure.
    pub source: &'static str,
}

impl Entry {
    /// A figure to add.
    #[must_use]
    pub const fn plus(item: Item, size_bytes: u128) -> Self {
        Self { item, sign: Sign::Plus, size_bytes, source: item.source() }
    }

    /// A figure to subtract.
    #[must_use]
    pub const fn minus(item: Item, size_bytes: u128) -> Self {
        Self { item, sign: Sign::Minus, size_bytes, source: item.source() }
    }
}

/// One equation.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Sheet {
    /// The sum.
    pub total: Entry,
    /// Its parts.
    pub parts: Vec<Entry>,
}

impl Sheet {
    /// Whether the parts make up the total.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let sum = |sign| self.parts.iter().filter(|part| part.sign == sign).map(|part| part.size_bytes).sum::<u128>();
        sum(Sign::Plus) == self.total.size_bytes + sum(Sign::Minus)
    }

    /// The bytes of an item; 0 when it is not there.
    #[must_use]
    pub fn bytes(&self, item: Item) -> u128 {
        self.parts.iter().find(|part| part.item == item).map_or(0, |part| part.size_bytes)
    }
}

/// When a ledger was drawn up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// When the process held the most driver memory on the device; of those moments, when pools had the most handed
    /// out.
    Peak,
    /// When the process, or the trace, ended.
    End,
    /// While it runs.
    Now,
}

/// A pool's own figures, against the seen memory.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PoolSheets {
    /// The pool.
    pub pool: Pool,
    /// The memory it has handed out.
    pub allocated: Sheet,
    /// The memory it holds.
    pub reserved: Sheet,
}

/// The memory of a device, as far as it concerns one process.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Ledger {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// When.
    pub moment: Moment,
    /// The same, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The process was running before the trace.
    pub attached: bool,
    /// The device's bytes in use; `None` when the driver's figures are unknown.
    pub used: Option<Sheet>,
    /// When those were taken, in nanoseconds since the Unix epoch.
    pub used_time_ns: Option<u64>,
    /// Bytes that the device has.
    pub capacity_bytes: Option<u64>,
    /// The process's driver blocks.
    pub hal: Sheet,
    /// Each pool with figures of its own.
    pub pools: Vec<PoolSheets>,
    /// How sure.
    pub confidence: Confidence,
}

impl Answer for Ledger {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, self.device)
    }

    fn weight_bytes(&self) -> u64 {
        self.hal.total.size_bytes.try_into().unwrap_or(u64::MAX)
    }

    fn order(&self) -> Order {
        (self.device, self.moment as u64, None)
    }

    fn write(&self, _: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A subtracted part counts on the other side.
    #[test]
    fn sheets_agree_or_not() {
        let mut sheet = Sheet {
            total: Entry::plus(Item::Hal, 10),
            parts: vec![Entry::plus(Item::Runtime, 8), Entry::plus(Item::Rest, 5), Entry::minus(Item::Hccl, 3)],
        };
        assert!(sheet.agrees());
        assert_eq!([Item::Rest, Item::Unexplained].map(|item| sheet.bytes(item)), [5, 0]);
        sheet.parts[2].sign = Sign::Plus;
        assert!(!sheet.agrees());
    }
}
