//! Leaks between marks.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Confidence, Device, Pool, Stacks};
use crate::text::stacks;

/// A block that was allocated between marks A and B, and not freed until C.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct MarkLeak {
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
    /// It was freed after the third mark.
    pub freed_later: bool,
    /// Where it was allocated.
    #[serde(skip_serializing_if = "Stacks::is_empty")]
    pub stacks: Stacks,
}

/// Leaks between marks, of one process on one device (contract §8.7).
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct MarkLeaks {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Text of the marks.
    pub text: String,
    /// Number of the first of the three marks, from 0.
    pub start_index: u64,
    /// Marks with this text.
    pub marks: u64,
    /// All three marks were there; otherwise nothing could be judged.
    pub judged: bool,
    /// Leaks, in the order of their allocation.
    pub leaks: Vec<MarkLeak>,
    /// How sure.
    pub confidence: Confidence,
}

impl Answer for MarkLeaks {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, self.device)
    }

    fn weight_bytes(&self) -> u64 {
        self.leaks.iter().map(|leak| leak.size_bytes).fold(self.marks, u64::saturating_add)
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        super::text::write(self, context.report.leak_lines, out)?;
        let blocks = self.leaks.iter().map(|leak| (leak.stacks, leak.size_bytes));
        stacks::write_blocks("Leaked on device", self.device, blocks, out)
    }
}
