//! Memory still held at the end.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::analyses::judged::{ExitFreed, Span};
use crate::model::{Device, LiveSum, Pool};

/// Bytes of one driver module.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct HeldModule {
    /// Module name as the driver's headers spell it, `UNKNOWN` for none.
    pub module: &'static str,
    /// Live blocks.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
}

/// Memory that one process holds of one pool on one device when it, or the trace, ends.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Held {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// The process was running before the trace: older blocks that were not found are in `unseen_bytes` and `peak_bytes` alone.
    pub attached: bool,
    /// Live blocks at the end.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
    /// Of these: blocks from before the attach, found in the pool's own books.
    pub found: LiveSum,
    /// All blocks from before the attach were found: none is missing from `blocks`.
    pub older_known: bool,
    /// Bytes handed out beyond those blocks, by the pool's figure in its last call: from before the attach, or not
    /// seen. 0 where it has no figure, as the driver.
    pub unseen_bytes: u64,
    /// Most bytes handed out at a time, by the pool's figure where it has one.
    pub peak_bytes: u64,
    /// Blocks allocated during the trace.
    pub allocations: u64,
    /// Blocks freed by the program during the trace.
    pub frees: u64,
    /// Blocks without a seen free: their addresses were handed out again.
    pub replaced: u64,
    /// Frees of blocks older than the trace.
    pub older_frees: u64,
    /// Frees of blocks that were never seen, in a process traced from its start.
    pub unknown_frees: u64,
    /// Requests that failed, however often they were tried.
    pub failed: u64,
    /// Requests that failed at first and succeeded at a further attempt.
    pub recovered: u64,
    /// Live bytes by module, largest first (driver blocks only).
    pub by_module: Vec<HeldModule>,
}

impl Held {
    /// Fewest reused addresses before a pool without any free is suspected.
    pub const REUSED_ADDRESSES: u64 = 16;

    /// The pool reuses its addresses, and no free was seen: it is freed by functions that are not probed.
    #[must_use]
    pub const fn frees_are_not_seen(&self) -> bool {
        self.replaced >= Self::REUSED_ADDRESSES && self.frees == 0 && self.older_frees == 0 && self.unknown_frees == 0
    }
}

impl Answer for Held {
    fn subject(&self) -> Subject {
        Subject::pool(self.pid, self.device, self.pool)
    }

    fn weight_bytes(&self) -> u64 {
        self.peak_bytes
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        let freed = context.others::<Span>().flat_map(|span| &span.freed);
        let of_pool = |freed: &&ExitFreed| (freed.device, freed.pool) == (self.device, self.pool) && freed.blocks > 0;
        let freed = freed.filter(of_pool);
        super::text::write(self, freed, out)
    }
}
