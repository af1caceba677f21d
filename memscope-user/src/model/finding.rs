//! What analyses conclude. Sinks print findings; `--json` serializes them.

use serde::Serialize;

use super::{
    Confidence, Decomposition, Device, Fragmentation, Growth, Ledger, LiveGroups, LiveSum, Name, Peak, Pool,
    ProcessUsage, Span, Stacks,
};

/// A block that outlived the end of the step after its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leak {
    /// Whose.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
}

/// What is concluded of a place with blocks that outlived their steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepVerdict {
    /// It holds blocks of one step after the other, from long ago until now: a leak.
    Leak,
    /// Undecided: it holds blocks of fewer than three steps.
    FewSteps,
    /// Undecided: its oldest block is younger than a quarter of the run.
    Young,
    /// Undecided: its newest block is older than a quarter of the run, as in a cache that is full.
    Stopped,
    /// Undecided: it also freed blocks that had lived for more than half as many steps as its oldest, as a queue does.
    Replaced,
}

impl StepVerdict {
    /// Why, in words.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StepLeakPlace {
    /// Pool of the blocks.
    pub pool: Pool,
    /// What is concluded.
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

/// What the steps of a process are known by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepsFrom {
    /// Marks of the program.
    #[default]
    Marks,
    /// The ends of the optimizer's steps, as call stacks show them.
    Optimizer,
    /// The ends of backward passes, where no optimizer is seen.
    Backward,
}

impl StepsFrom {
    /// As a report says it behind a number of steps; nothing for marked ones.
    #[must_use]
    pub const fn note(self) -> &'static str {
        match self {
            Self::Marks => "",
            Self::Optimizer => ", inferred from the optimizer",
            Self::Backward => ", inferred from backward passes",
        }
    }
}

/// Step leaks of one process on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepLeaks {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// The same blocks by place: leaks, then what is undecided, each the largest first.
    pub places: Vec<StepLeakPlace>,
    /// Blocks that outlived the end of the step after their own, sorted by step, then pool, then address.
    pub leaks: Vec<Leak>,
    /// Blocks of the last step still live at the end: no later step ended that could have judged them.
    pub unjudged: Vec<Leak>,
    /// Blocks of steps that were held until the exit freed them, at places that do not grow from step to step.
    pub kept: Kept,
    /// Steps that ended.
    pub steps_ended: u32,
    /// What they are known by.
    pub steps_from: StepsFrom,
    /// How sure.
    pub confidence: Confidence,
}

/// A block that was allocated between marks A and B, and not freed until C.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MarkLeak {
    /// Whose.
    pub pool: Pool,
    /// Start of the block.
    pub addr: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Number of the block in its process.
    pub allocation_id: u64,
    /// Id of the event that told of it: `ID` of its MALLOC row.
    pub event_id: u64,
    /// It was freed after the third mark.
    pub freed_later: bool,
    /// Where it was allocated.
    #[serde(skip_serializing_if = "Stacks::is_empty")]
    pub stacks: Stacks,
}

/// Leaks between marks, of one process on one device (contract §8.7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

/// Way of holding a block longer than it is used (contract §8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InefficientBlock {
    /// Whose.
    pub pool: Pool,
    /// Start of the block.
    pub addr: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Number of the block in its process.
    pub allocation_id: u64,
    /// Id of the event that told of it: `ID` of its MALLOC row.
    pub event_id: u64,
    /// How, in the order found.
    pub kinds: Vec<InefficientKind>,
    /// Size times the time without use.
    pub wasted_byte_seconds: f64,
}

/// What one kind of inefficient use costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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

/// Blocks of one process on one device that were held longer than they were used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inefficient {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Uses of its blocks were seen; without any nothing can be judged.
    pub judged: bool,
    /// Blocks that were looked at.
    pub looked_at: LiveSum,
    /// Uses of them that were seen.
    pub accesses: u64,
    /// Sums by kind, in the order of [`InefficientKind::ALL`].
    pub kinds: [Waste; 3],
    /// The blocks, in the order of their allocation.
    pub blocks: Vec<InefficientBlock>,
    /// How sure.
    pub confidence: Confidence,
}

impl Inefficient {
    /// Nothing yet.
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
            blocks: Vec::new(),
            confidence: Confidence::Certain,
        }
    }
}

/// A block that was live when memory was out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suspect {
    /// Whose.
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

/// What a pool held when a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

/// A further attempt of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Retry {
    /// When it failed, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Driver memory of the process on the device that was given back since the attempt before, in bytes.
    pub given_back_bytes: u64,
}

/// A request that failed for good for want of memory. All figures are those of its last attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// Attempts after the first, the last sixteen of them.
    pub retries: Vec<Retry>,
    /// The pools of the process on the device.
    pub pools: Vec<PoolAtOom>,
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

/// Lowest over highest pool use within one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RatioRecord {
    /// `min / max`, 0 to 1.
    pub ratio: f64,
    /// Lowest use in the step.
    pub min_used_bytes: u64,
    /// The step.
    pub step: u32,
}

/// Variation of a pool's use inside steps (contract §8.3).
#[derive(Clone, Debug, PartialEq, Serialize)]
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

/// Bytes of one driver module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldModule {
    /// Module name as the driver's headers spell it, `UNKNOWN` for none.
    pub module: &'static str,
    /// Live blocks.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
}

/// What one process still holds of one pool on one device when it, or the trace, ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// The process was running before the trace: older blocks are in `unseen_bytes` and `peak_bytes` alone.
    pub attached: bool,
    /// Live blocks at the end.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
    /// Bytes that the pool says it has handed out beyond those blocks, as of its last call: from before the attach, or not seen. 0 where it
    /// says nothing, as the driver.
    pub unseen_bytes: u64,
    /// Most bytes handed out at a time, as the pool says where it says so.
    pub peak_bytes: u64,
    /// Blocks allocated during the trace.
    pub allocations: u64,
    /// Blocks freed by the program during the trace.
    pub frees: u64,
    /// Blocks that ended without a free of the program that was seen: their addresses were handed out again.
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
    /// So many addresses have to be handed out again before a pool without any free is suspected.
    pub const REUSED_ADDRESSES: u64 = 16;

    /// The pool hands out its addresses again, and no free was seen: the functions that free are not those that are probed.
    #[must_use]
    pub const fn frees_are_not_seen(&self) -> bool {
        self.replaced >= Self::REUSED_ADDRESSES && self.frees == 0 && self.older_frees == 0 && self.unknown_frees == 0
    }
}

/// What was allocated from one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StackSum {
    /// The place.
    pub stacks: Stacks,
    /// Live blocks at the end.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Blocks that were allocated.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
}

/// From where one process allocated memory of one pool on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ByStack {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// By place, that with the most live bytes first.
    pub sums: Vec<StackSum>,
    /// Places with less that are not told.
    pub left_out: u64,
}

/// What the driver said last of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceUse {
    /// Device.
    pub device: Device,
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Bytes in use, by whomever.
    pub used_bytes: u64,
    /// Bytes that the device has.
    pub total_bytes: u64,
    /// Who uses it; `None` when the driver does not tell.
    pub processes: Option<Vec<ProcessUsage>>,
}

/// Findings of a kind about processes that have ended, which were about less memory than those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// As the field `finding` names them.
    pub kind: &'static str,
    /// How many.
    pub count: u64,
}

/// A conclusion.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    /// Step leaks.
    StepLeaks(StepLeaks),
    /// Variation inside steps.
    Fluctuation(Fluctuation),
    /// Memory still held at the end.
    Held(Held),
    /// Where the memory of a device is.
    Ledger(Ledger),
    /// Leaks between marks.
    MarkLeaks(MarkLeaks),
    /// Memory was out.
    Oom(Oom),
    /// Blocks held longer than they were used.
    Inefficient(Inefficient),
    /// When the program worked, if its exit was seen.
    Span(Span),
    /// What becomes more and more.
    Growth(Growth),
    /// From where memory was allocated.
    ByStack(ByStack),
    /// Whose the memory of a pool is.
    Decompose(Decomposition),
    /// What was live when usage was highest.
    Peak(Peak),
    /// In what pieces memory is free.
    Fragmentation(Fragmentation),
    /// What the driver says of a device.
    DeviceUse(DeviceUse),
    /// What is not told.
    LeftOut(LeftOut),
}
