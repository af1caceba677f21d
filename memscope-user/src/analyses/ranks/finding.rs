//! Which rank of a job differs.

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::{Device, Pool, Stacks, StepsFrom};

/// A rank of the job: an input, or a process of one.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Rank {
    /// Its input.
    pub input: String,
    /// Its process, if the processes of its input are ranks.
    pub pid: Option<u32>,
    /// Devices that it has memory of.
    pub devices: Vec<Device>,
    /// Steps of it that ended.
    pub steps: u64,
    /// How its steps are known.
    pub steps_from: StepsFrom,
    /// How far its clock is before that of the first rank, if steps of all ranks end together; nanoseconds.
    pub clock_offset_ns: Option<i64>,
    /// How far the ends of its steps are from that offset at most; nanoseconds.
    pub clock_spread_ns: Option<u64>,
    /// It has more changes than are kept: what is behind them is not compared.
    pub cut: bool,
}

/// What a rank holds more, or less, than the others.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct RankDifference {
    /// Which rank: its place among the ranks, from 0.
    pub rank: u32,
    /// Pool.
    pub pool: Pool,
    /// Where its blocks were allocated; null: all blocks of the pool, or those of `size_bytes`.
    pub place: Option<Stacks>,
    /// Size of its blocks, where no call stack is known.
    pub size_bytes: Option<u64>,
    /// Since the end of this step it differs at every one; null where there are no steps.
    pub since_step: Option<u32>,
    /// When that was by the rank's own clock, nanoseconds since the Unix epoch.
    pub since_ns: u64,
    /// What it holds at the last common step.
    pub bytes: u64,
    /// The median of all ranks then.
    pub median_bytes: u64,
    /// What it holds more; negative: less.
    pub difference_bytes: i64,
    /// How the difference has grown since, a step; null where it was there at once.
    pub growth_bytes_per_step: Option<f64>,
}

/// How the ranks of a job differ.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Ranks {
    /// The ranks, in the order of the inputs.
    pub ranks: Vec<Rank>,
    /// Steps that all ranks have; 0: they are compared at their ends alone.
    pub common_steps: u64,
    /// The last of them.
    pub last_step: Option<u32>,
    /// Places are compared; otherwise totals alone, since some rank has call stacks and some has none.
    pub places: bool,
    /// Whole pools first, then places, each with those first that differ most.
    pub differences: Vec<RankDifference>,
    /// Further ones.
    pub left_out: u64,
}
