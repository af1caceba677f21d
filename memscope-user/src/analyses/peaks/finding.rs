//! Live memory at the peak.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::analyses::held_by::HeldBy;
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
    /// First seen allocation of the pool, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// When the peak was reached for the first time, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Step during which it was; 0 before the first, or, of inferred steps, before the first has ended.
    pub step: u32,
    /// The origin of the steps.
    pub steps_from: StepsFrom,
    /// Bytes in use then: by the pool's own figure where it has one, else the sum of the live blocks.
    pub peak_bytes: u64,
    /// The part of them in blocks with a seen allocation.
    pub seen: LiveSum,
    /// The part of the pool's own figure beyond those: blocks older than the trace, or missed allocations.
    pub unseen_bytes: u64,
    /// The seen blocks, in groups; without places if no stack is known of any.
    pub groups: LiveGroups,
    /// Places with fewer bytes that are not listed.
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
        let held_by: Vec<&HeldBy> = context.others().collect();
        super::text::write(self, &held_by, context.clock, out)
    }
}
