//! What was live when usage was highest.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Confidence, Device, LiveGroups, LiveSum, Pool, StepsFrom};

/// The peak of one pool of one process on one device.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Peak {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// The process was running before the trace: older blocks are in no group.
    pub attached: bool,
    /// First allocation of the pool that was seen, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// When the peak was reached for the first time, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Step during which it was; 0 before the first, or, of inferred steps, before the first has ended.
    pub step: u32,
    /// What the steps are known by.
    pub steps_from: StepsFrom,
    /// Bytes used then: as the pool says where it does, else the sum of the live blocks.
    pub peak_bytes: u64,
    /// The blocks of them that were seen allocated.
    pub seen: LiveSum,
    /// What the pool said beyond those: blocks older than the trace, or allocations that were missed.
    pub unseen_bytes: u64,
    /// The blocks that were seen, in groups; without places if no stack is known of any.
    pub groups: LiveGroups,
    /// Places with less that are not told.
    pub places_left_out: u64,
    /// How sure.
    pub confidence: Confidence,
}

impl Answer for Peak {
    fn subject(&self) -> Subject {
        Subject::pool(self.pid, self.device, self.pool)
    }

    fn weight_bytes(&self) -> u64 {
        self.peak_bytes
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, context.clock, out)
    }
}
