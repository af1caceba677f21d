//! Variation of use inside steps.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Order, Subject};
use crate::model::{Device, Pool, StepsFrom};

/// Lowest over highest pool use within one step.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct RatioRecord {
    /// `min / max`, 0 to 1.
    pub ratio: f64,
    /// Lowest use in the step.
    pub min_used_bytes: u64,
    /// The step.
    pub step: u32,
}

/// Variation of a pool's use inside steps (contract §8.3).
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Fluctuation {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// Step with the smallest ratio; `None` when no step could be judged.
    pub min_gap: Option<RatioRecord>,
    /// Step with the largest ratio.
    pub max_gap: Option<RatioRecord>,
    /// What steps are known by.
    pub steps_from: StepsFrom,
}

impl Answer for Fluctuation {
    fn subject(&self) -> Subject {
        Subject::pool(self.pid, self.device, self.pool)
    }

    /// A finding without a judged step weighs nothing.
    fn weight_bytes(&self) -> u64 {
        self.max_gap.as_ref().map_or(0, |gap| gap.min_used_bytes.saturating_add(1))
    }

    /// The reference knows no gaps of driver memory, so readers of its output expect those of the pools first.
    fn order(&self) -> Order {
        (self.device, u64::from(self.pool.is_driver()), Some(self.pool))
    }

    fn set_steps_from(&mut self, steps_from: StepsFrom) {
        self.steps_from = steps_from;
    }

    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        // The reference infers no steps.
        if context.report.leak_blocks && self.steps_from != StepsFrom::Marks {
            return Ok(());
        }
        super::text::write(self, out)
    }
}
