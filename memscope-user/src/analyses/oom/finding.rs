//! Requests that failed for want of memory.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use super::Cause;
use crate::analyses::answer::{Answer, Context, Order, Subject};
use crate::analyses::held_by::HeldBy;
use crate::model::{Device, LiveGroups, LiveSum, Name, Pool, Stacks};

/// A block that was live when memory was out.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Suspect {
    /// The pool, or the driver.
    pub pool: Pool,
    /// Start of the block.
    pub addr: u64,
    /// Its size.
    pub size_bytes: u64,
    /// When it was allocated, nanoseconds since the Unix epoch.
    pub alloc_time_ns: u64,
    /// Where it was allocated.
    #[serde(skip_serializing_if = "Stacks::is_empty")]
    pub stacks: Stacks,
}

/// State of a pool when a request failed.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PoolAtOom {
    /// The pool.
    pub pool: Pool,
    /// Bytes handed out.
    pub used_bytes: u64,
    /// Bytes held reserved, where the pool reports it.
    pub reserved_bytes: Option<u64>,
    /// Largest free piece of the known segments; `None` without any.
    pub largest_free_bytes: Option<u64>,
    /// Live blocks by owner, place and size. Of the driver only blocks outside of pools: a segment counts as its pool.
    pub groups: LiveGroups,
    /// Sum of these blocks.
    pub live: LiveSum,
    /// Further places, with fewer bytes than those in `groups`.
    pub places_left_out: u64,
}

impl PoolAtOom {
    /// Bytes that the pool reserves and has not handed out; 0 where it does not report its reserved bytes.
    #[must_use]
    pub fn unused_bytes(&self) -> u64 {
        self.reserved_bytes.map_or(0, |reserved| reserved.saturating_sub(self.used_bytes))
    }
}

/// A further attempt of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Retry {
    /// When it failed, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Driver memory of the process on the device that was given back since the attempt before, in bytes.
    pub given_back_bytes: u64,
}

/// A request that failed for good because memory was out. All figures are those of its last attempt.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Oom {
    /// Process.
    pub pid: u32,
    /// Thread that asked.
    pub tid: u32,
    /// Device.
    pub device: Device,
    /// When the last attempt failed, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Function that failed.
    pub function: Option<Name>,
    /// Requested size in bytes.
    pub size_bytes: u64,
    /// Where the request was made.
    #[serde(skip_serializing_if = "Stacks::is_empty")]
    pub stacks: Stacks,
    /// Attempts of the request.
    pub attempts: u32,
    /// Attempts after the first; at most the last sixteen.
    pub retries: Vec<Retry>,
    /// The pools of the process on the device.
    pub pools: Vec<PoolAtOom>,
    /// Why.
    pub cause: Cause,
    /// Bytes that the framework's pools reserve and have not handed out.
    pub unused_bytes: u64,
    /// Bytes that the request lacks beyond them; 0 if it would fit, were they one piece.
    pub missing_bytes: u64,
    /// The state at the failed attempt was not kept: figures are those of the moment at which the failure was certain.
    pub late: bool,
    /// The newest blocks, newest first; empty within two seconds after another failure with lists.
    pub recent: Vec<Suspect>,
    /// The largest blocks, largest first.
    pub top: Vec<Suspect>,
    /// The last events of the process before the attempt, oldest first.
    pub last_events: Vec<String>,
}

impl Oom {
    /// The pool with the most unused bytes: its settings may help.
    #[must_use]
    pub fn most_unused(&self) -> Option<Pool> {
        let with_unused = self.pools.iter().filter(|pool| pool.unused_bytes() > 0);
        with_unused.max_by_key(|pool| pool.unused_bytes()).map(|pool| pool.pool)
    }
}

impl Answer for Oom {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, self.device)
    }

    /// In the order in which they happened.
    fn order(&self) -> Order {
        (Device::None, self.time_ns, None)
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        let held_by: Vec<&HeldBy> = context.others().collect();
        super::text::write(self, &held_by, context.clock, out)
    }
}
