//! Blocks that outlived the step after their own.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Report, Subject};
use crate::analyses::held_by::HeldBy;
use crate::model::{Confidence, Device, Pool, Stacks, StepsFrom};

/// A block that outlived the end of the step after its own.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Leak {
    /// The pool, or the driver.
    pub pool: Pool,
    /// Start of the block.
    pub addr: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Step of its allocation.
    pub step: u32,
    /// Step ends that it survived after its own step.
    pub survived_steps: u32,
    /// Kernel launches before it.
    pub kernel_index: u64,
    /// Number of the block in its process.
    pub allocation_id: u64,
    /// Where it was allocated.
    #[serde(skip_serializing_if = "Stacks::is_empty")]
    pub stacks: Stacks,
}

/// Blocks that are held, and no leak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Kept {
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
}

/// The verdict on a place with blocks that outlived their steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepVerdict {
    /// It holds blocks of one step after the other, from long ago until now: a leak.
    Leak,
    /// Undecided: it holds blocks of fewer than three steps.
    FewSteps,
    /// Undecided: its oldest block is younger than a quarter of the run.
    Young,
    /// Undecided: its newest block is older than a quarter of the run, as in a full cache.
    Stopped,
    /// Undecided: it also freed blocks that had lived for more than half as many steps as its oldest, as a queue does.
    Replaced,
}

impl StepVerdict {
    /// The reason, in words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Leak => "blocks of one step after the other stay",
            Self::FewSteps => "of fewer than three steps",
            Self::Young => "none is older than a quarter of the run",
            Self::Stopped => "none is younger than a quarter of the run",
            Self::Replaced => "blocks as old were freed, as in a queue",
        }
    }
}

/// A place with blocks that outlived the end of the step after their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct StepLeakPlace {
    /// Pool of the blocks.
    pub pool: Pool,
    /// The verdict.
    pub verdict: StepVerdict,
    /// Its blocks among the leaks.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
    /// Steps they come from.
    pub steps: u32,
    /// First and last of these.
    pub step_range: [u32; 2],
    /// Size of each block in bytes, where no call stack names the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub each_bytes: Option<u64>,
    /// Where they were allocated.
    #[serde(skip_serializing_if = "Stacks::is_empty")]
    pub stacks: Stacks,
}

/// Step leaks of one process on one device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct StepLeaks {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// The same blocks by place: leaks, then undecided places, each the largest first.
    pub places: Vec<StepLeakPlace>,
    /// Blocks that outlived the end of the step after their own, sorted by step, then pool, then address.
    pub leaks: Vec<Leak>,
    /// Blocks of the last step still live at the end: no later step ended that could have judged them.
    pub unjudged: Vec<Leak>,
    /// Blocks of steps that were held until the exit freed them, at places that do not grow from step to step.
    pub kept: Kept,
    /// Steps that ended.
    pub steps_ended: u32,
    /// The origin of the steps.
    pub steps_from: StepsFrom,
    /// How sure.
    pub confidence: Confidence,
}

impl Answer for StepLeaks {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, self.device)
    }

    fn weight_bytes(&self) -> u64 {
        self.leaks.iter().chain(&self.unjudged).map(|leak| leak.size_bytes).fold(0, u64::saturating_add)
    }

    fn set_steps_from(&mut self, steps_from: StepsFrom) {
        self.steps_from = steps_from;
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        let held_by: Vec<&HeldBy> = context.others().collect();
        super::text::write(self, &held_by, context.report.place_lines, out)
    }

    /// The places first, then the blocks.
    fn write_all(found: &[&Self], context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        found.iter().try_for_each(|found| found.write(context, out))?;
        if !context.report.leak_blocks {
            return Ok(());
        }
        // The reference infers no steps.
        let marked = found.iter().filter(|found| found.steps_from == StepsFrom::Marks);
        marked.into_iter().try_for_each(|found| super::text::write_blocks(found, context.report.leak_lines, out))
    }

    fn write_end(found: &[&Self], report: Report, out: &mut dyn Write) -> io::Result<()> {
        let marked = found.iter().any(|leaks| leaks.steps_ended > 0);
        if report.step_hint && !marked { super::text::write_hint(out) } else { Ok(()) }
    }
}
