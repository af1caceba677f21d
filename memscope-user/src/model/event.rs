//! Enriched events: what happened, to which block, on which device. Analyses and sinks see nothing else.

use std::sync::Arc;

use serde::Serialize;

/// Where an event belongs. The number is the physical NPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Device {
    /// An NPU.
    Npu(u32),
    /// Host memory.
    Cpu,
    /// Not known, or none: the row goes to every device file of the process.
    None,
}

/// Who hands out the block. Each pool is its own address space of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Pool {
    /// The driver: the only complete truth for device memory.
    Hal,
    /// Host memory handed out by the driver (pinned).
    Host,
    /// `torch_npu`'s caching allocator.
    Pta,
    /// `torch_npu`'s workspace allocator.
    PtaWorkspace,
    /// ATB.
    Atb,
    /// `MindSpore`'s pool.
    MindSpore,
}

/// Page size of a driver block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum PageType {
    /// 4 KiB or 64 KiB.
    #[default]
    Normal,
    /// 2 MiB.
    Huge,
    /// 1 GiB.
    Giant,
}

/// Driver call that made a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum AllocApi {
    /// `halMemAlloc`: an address.
    #[default]
    Alloc,
    /// `halMemCreate`: a physical handle, whose value stands for the address.
    Create,
}

/// One block, from its allocation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of the block in its process, from 1.
    pub allocation_id: u64,
    /// Who handed it out.
    pub pool: Pool,
    /// Device that the memory is on ([`Device::Cpu`] for host memory).
    pub device: Device,
    /// What the caller got: address, or handle for [`AllocApi::Create`].
    pub addr: u64,
    /// Requested size in bytes.
    pub size_bytes: u64,
    /// Time of the allocation, nanoseconds since the Unix epoch.
    pub alloc_time_ns: u64,
    /// Event id of the allocation.
    pub alloc_id: u64,
    /// Step during which it was allocated; 0 before the first.
    pub step: u32,
    /// Kernel launches of the process seen before it.
    pub kernel_index: u64,
    /// Driver module that asked for it, where known.
    pub module_id: Option<u8>,
    /// Page size.
    pub page: PageType,
    /// Driver call.
    pub api: AllocApi,
}

/// A block was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alloc {
    /// The block.
    pub block: Block,
    /// Live bytes of this pool, process and device after the event.
    pub used_bytes: u64,
    /// Bytes that the pool holds reserved, where it tells.
    pub total_bytes: Option<u64>,
    /// Not a call that was seen: the block is put back after a free that turned out to have failed.
    pub restored: bool,
}

/// Why a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeCause {
    /// The program freed it.
    Program,
    /// The process ended with the block alive.
    ProcessEnd,
    /// The pool handed out the same address again: the free was not seen.
    Replaced,
    /// The trace ended with the block alive.
    TraceEnd,
}

/// A block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// The block.
    pub block: Block,
    /// Live bytes of this pool, process and device after the event.
    pub used_bytes: u64,
    /// Bytes that the pool holds reserved, where it tells.
    pub total_bytes: Option<u64>,
    /// Why.
    pub cause: FreeCause,
}

/// A free of a block that is not known: allocated before the trace, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFree {
    /// Whose.
    pub pool: Pool,
    /// What the caller passed.
    pub addr: u64,
    /// The process was running before the trace began, so the block may be older.
    pub maybe_older: bool,
}

/// An allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocFailed {
    /// Whose.
    pub pool: Pool,
    /// Requested size in bytes.
    pub size_bytes: u64,
    /// Returned code.
    pub status: i32,
    /// The flag word of the request.
    pub flags: u64,
}

/// A kernel launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Kernel name from its registration, else the handle as `0x…`.
    pub name: Arc<str>,
    /// Stream pointer as the caller passed it; 0 is the default stream.
    pub stream: u64,
    /// The runtime's number of the stream, where the program asked for it.
    pub stream_id: Option<i64>,
}

/// A mark of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A point.
    Point {
        /// Text as given, made valid UTF-8; `None` for a null pointer.
        text: Option<Arc<str>>,
    },
    /// A range begins.
    RangeStart {
        /// As above.
        text: Option<Arc<str>>,
        /// The tool's own id of the range.
        range_id: u64,
    },
    /// A range ends.
    RangeEnd {
        /// Id of the range that ends; `None` when no open range matches.
        range_id: Option<u64>,
        /// Id that the program passed.
        passed_id: u64,
    },
}

/// About the traced process as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// `aclInit` succeeded.
    AclInit,
    /// `aclFinalize` was called.
    AclFinalize,
}

/// A process joined the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStart {
    /// Process that forked it; 0 for those named by the user.
    pub parent: u32,
    /// It was running before the trace began.
    pub attached: bool,
    /// Short name of the program, made printable.
    pub command: Arc<str>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A block was handed out.
    Alloc(Alloc),
    /// A block ended.
    Free(Free),
    /// A free of a block that is not known.
    UnknownFree(UnknownFree),
    /// An allocation failed.
    AllocFailed(AllocFailed),
    /// A kernel launch.
    Launch(Launch),
    /// A mark of the user.
    Mark(Mark),
    /// About the process's use of ACL.
    System(System),
    /// Step `step` of (process, device) begins. Follows the mark that caused it.
    StepStart {
        /// Number, from 1.
        step: u32,
    },
    /// Step `step` of (process, device) ends. Follows the mark that caused it.
    StepEnd {
        /// Number, from 1.
        step: u32,
    },
    /// A process joined the trace.
    ProcessStart(ProcessStart),
    /// A process ended; its live blocks were freed by [`FreeCause::ProcessEnd`] events before this one.
    ProcessEnd,
}

/// One event. Events leave the pipeline in time order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the event in its process, from 0; gaps are normal.
    pub id: u64,
    /// Nanoseconds since the Unix epoch; never decreases.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Device.
    pub device: Device,
    /// What happened.
    pub kind: EventKind,
}

impl Pool {
    /// Spelling in the `Event Type` column (contract §6.1).
    #[must_use]
    pub const fn event_type(self) -> &'static str {
        match self {
            Self::Hal => "HAL",
            Self::Host => "HOST",
            Self::Pta => "PTA",
            Self::PtaWorkspace => "PTA_WORKSPACE",
            Self::Atb => "ATB",
            Self::MindSpore => "MINDSPORE",
        }
    }

    /// Name in reports (contract §8.2).
    #[must_use]
    pub const fn display_name(self) -> &'static str {
        match self {
            Self::Hal => "Hal memory",
            Self::Host => "Host memory",
            Self::Pta => "Pytorch Caching memory pool",
            Self::PtaWorkspace => "Pytorch Workspace memory pool",
            Self::Atb => "ATB memory pool",
            Self::MindSpore => "Mindspore memory pool",
        }
    }
}
