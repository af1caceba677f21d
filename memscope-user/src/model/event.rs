//! Enriched events, each with its block and device. Analyses and sinks see nothing else.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Block, Device, Look, Name, Pool, Stacks};

/// The driver's last figures of the device of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverFigures {
    /// Bytes in use by the process; `None` when it was not listed.
    pub process_used_bytes: Option<u64>,
    /// Bytes in use by all processes; `None` when unknown.
    pub device_used_bytes: Option<u64>,
}

/// The request to a pool that a block answers, where the pool reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// When, nanoseconds since the Unix epoch: the driver calls since then were made for it.
    pub time_ns: Option<u64>,
    /// Stream that the block belongs to, as a pointer; 0 is the default stream.
    pub stream: Option<u64>,
}

/// A block was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alloc {
    /// The block.
    pub block: Block,
    /// Live bytes of this pool, process and device after the event.
    pub used_bytes: u64,
    /// Bytes that the pool holds reserved, where it reports them.
    pub total_bytes: Option<u64>,
    /// The driver's figures.
    pub driver: DriverFigures,
    /// Not a call: the block is restored after a free that failed, or was live already at the start of the events
    /// ([`Window`](crate::analyses::select::Window)).
    pub restored: bool,
    /// Not the moment of its allocation: it was live already when its script began to collect (contract §7.3).
    pub promoted: bool,
    /// The request to its pool.
    pub asked: Asked,
}

impl Alloc {
    /// Whether a call handed the block out at this moment: it is not restored, and was not live before.
    #[must_use]
    pub const fn is_call(&self) -> bool {
        !self.restored && !self.promoted && !self.block.found
    }
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
    /// The program freed it while its script had stopped collecting: reported when collection starts again, or at the
    /// end.
    Unwatched,
    /// The program freed it during its exit: held as long as the program worked. Only analyses inside of
    /// [`Judged`](crate::analyses::Judged) see it.
    Exit,
}

impl FreeCause {
    /// Whether the memory was given back, seen or not; otherwise it was held to the end.
    #[must_use]
    pub const fn gave_back(self) -> bool {
        match self {
            Self::Program | Self::Replaced | Self::Unwatched => true,
            Self::ProcessEnd | Self::TraceEnd | Self::Exit => false,
        }
    }
}

/// A block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// The block.
    pub block: Block,
    /// Live bytes of this pool, process and device after the event.
    pub used_bytes: u64,
    /// Bytes that the pool holds reserved, where it reports them.
    pub total_bytes: Option<u64>,
    /// The driver's figures.
    pub driver: DriverFigures,
    /// Why.
    pub cause: FreeCause,
    /// The owner, if labels have named it after its allocation.
    pub owner: Option<Name>,
    /// Time of its row, nanoseconds since the Unix epoch, if not that of the event: collection had stopped before.
    pub row_time_ns: Option<u64>,
    /// The dump has no row for it: its address came back, or the dump ended.
    pub without_row: bool,
}

/// A free of an unknown block: allocated before the trace, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFree {
    /// The pool, or the driver.
    pub pool: Pool,
    /// The address in the call.
    pub addr: u64,
    /// Its size, where the pool or the row has it.
    pub size_bytes: Option<u64>,
    /// The process was running before the trace began, so the block may be older.
    pub maybe_older: bool,
    /// The driver has refused it after all: takes back the event before, which had the same address.
    pub refused: bool,
}

/// An allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocFailed {
    /// The pool, or the driver.
    pub pool: Pool,
    /// Requested size in bytes.
    pub size_bytes: u64,
    /// Returned code.
    pub status: i32,
    /// The flag word of a driver call, the policy of an ACL or runtime call.
    pub flags: u64,
    /// Function that failed: the outermost one.
    pub caller: Option<Name>,
    /// The code means that memory was out; otherwise the request was refused for another reason.
    pub out_of_memory: bool,
    /// Number of the request in its process, from 1. Attempts of one request have the same.
    pub request: u64,
    /// Number of the attempt within the request, from 1.
    pub attempt: u32,
}

/// A failed request succeeded at a further attempt: the pool had given its cache back, for instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocRecovered {
    /// The pool, or the driver.
    pub pool: Pool,
    /// Number of the request, see [`AllocFailed::request`].
    pub request: u64,
    /// Attempts that failed.
    pub failed_attempts: u32,
    /// Requested size in bytes.
    pub size_bytes: u64,
}

/// A request to a pool has ended without a block: the thread's next call to the pool shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRefused {
    /// Requested size in bytes.
    pub size_bytes: u64,
    /// When it was made, nanoseconds since the Unix epoch.
    pub asked_ns: u64,
}

/// A graph of `PyTorch`'s. What is requested while it is captured is of a pool of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Its address: another graph may have it once this one is gone.
    pub handle: u64,
    /// The change.
    pub change: GraphChange,
}

/// A change of a pool of its own within `PyTorch`'s pool: a graph's or a `MemPool`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnPool {
    /// An object `MemPool` is made, which holds the pool with this number.
    Made {
        /// The object's address.
        handle: u64,
        /// The pool's number.
        pool: (u64, u64),
        /// Its rules.
        rules: OwnRules,
    },
    /// The object is gone. If it was the last to hold its pool, the pool's memory is given back.
    Gone {
        /// The object's address.
        handle: u64,
    },
    /// The pool is held once more, and requests begin to be of it.
    Begins {
        /// Its number.
        pool: (u64, u64),
    },
    /// Requests are of it no longer.
    Ends {
        /// Its number.
        pool: (u64, u64),
    },
    /// It is held once less.
    Released {
        /// Its number.
        pool: (u64, u64),
    },
}

/// Rules of the pool of a `MemPool`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnRules {
    /// Only requests of the thread that uses it are of the pool, not those of all threads; of nested uses, the last takes them, not the
    /// first. A request that does not fit is retried without the cache of the default pool, and does not fail at once.
    pub of_thread: bool,
    /// Requests of the default pool that would fail may have its free blocks (`use_on_oom`).
    pub on_oom: bool,
    /// Its blocks are handed out whole (`no_split`).
    pub no_split: bool,
}

/// A change of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphChange {
    /// The thread begins to capture it.
    Begins {
        /// Number of its pool, which graphs can share; 0 and 0: one is made for it.
        pool: (u64, u64),
    },
    /// It is captured.
    Ends,
    /// It is given up, if it was not before.
    Reset,
}

/// A pool has a block back for good and can hand it out again. The [`Free`] of the block, at the time when the program
/// gave it back, comes right behind; or it came before, if a stream was still using the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockReturned {
    /// The pool.
    pub pool: Pool,
    /// Number of the block; `None` when it is older than the trace.
    pub allocation_id: Option<u64>,
    /// Its start.
    pub addr: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes handed out after the event.
    pub used_bytes: u64,
    /// Bytes that the pool holds reserved.
    pub total_bytes: u64,
    /// Bytes handed out, or still in use by streams.
    pub active_bytes: u64,
}

/// The program has another stream use a block of a pool (`record_stream`). If that stream has not done when the program frees the block, the
/// pool has it back later ([`BlockReturned`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamUse {
    /// The pool.
    pub pool: Pool,
    /// Number of the block.
    pub allocation_id: u64,
    /// Its start.
    pub addr: u64,
}

/// A request has failed for good: the request itself, or a block that was live at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfMemory {
    /// The request.
    Trigger(AllocFailed),
    /// One of the blocks allocated last, the newest first.
    Recent(Block),
    /// One of the largest blocks, the largest first.
    Top(Block),
}

/// Address space that the driver manages, and that is no memory by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionKind {
    /// `halMemAddressReserve`: addresses without memory.
    Reservation,
    /// `halMemMap`: reserved addresses get the memory of a handle.
    Mapping,
    /// `halHostRegister`: memory of the program for the device, or the reverse.
    Registration,
}

/// A region begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its kind.
    pub kind: RegionKind,
    /// It begins; otherwise it ends.
    pub begins: bool,
    /// Its start.
    pub addr: u64,
    /// Its size in bytes; 0 for the end of an unknown region.
    pub size_bytes: u64,
    /// Of a mapping: number of the mapped block; `None` when that is older than the trace, or of another process.
    pub allocation_id: Option<u64>,
    /// Bytes of all regions of this kind of the process after the event.
    pub live_bytes: u64,
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

/// When an operator is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpPhase {
    /// It begins.
    Start,
    /// It has returned. One that throws does not.
    End,
    /// Submitted to the device; its end is not reported.
    Submit,
}

/// An operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// When.
    pub phase: OpPhase,
    /// `torch._ops.aten.add.Tensor`, or what `torch_npu` calls it.
    pub name: Arc<str>,
}

/// How an operator uses a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Reads it.
    Read,
    /// Writes it.
    Write,
    /// Unknown.
    Unknown,
}

/// An operator uses a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// How.
    pub kind: AccessKind,
    /// The operator, as in [`Op`].
    pub op: Arc<str>,
    /// Block of the tensor; 0 when unknown.
    pub allocation_id: u64,
    /// Pool of that block, known or not.
    pub pool: Pool,
    /// First element.
    pub addr: u64,
    /// Bytes of all elements.
    pub size_bytes: u64,
    /// Type of the elements, as Python names it: `torch.float32`; as ACL does for a tensor of ATB: `ACL_FLOAT`.
    pub dtype: &'static str,
    /// Layout of an ATB tensor, as ACL names it: `ACL_FORMAT_ND`; `None` for others.
    pub format: Option<&'static str>,
    /// Sizes of the dimensions.
    pub shape: Arc<[i64]>,
}

/// An operation of ATB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtbOp {
    /// It begins; otherwise it has returned. One that throws does not.
    pub begins: bool,
    /// Its name.
    pub name: Arc<str>,
    /// Start of its workspace; 0 is none.
    pub workspace_addr: u64,
    /// Bytes of the workspace, with those for what operations hand on to each other.
    pub workspace_bytes: u64,
}

/// A mark of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A point.
    Point {
        /// The text, made valid UTF-8; `None` for a null pointer.
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
    /// `exit` was called, or `main` has returned. Has no row.
    Exit,
    /// `Py_FinalizeEx` was called: Python ends as soon as its threads have. Has no row.
    PythonEnds,
    /// The script starts to collect: free and total bytes of device 0, where the driver reports them.
    TraceStart {
        /// Both.
        free_and_total_bytes: Option<(u64, u64)>,
    },
    /// The script stops collecting.
    TraceStop,
}

/// A script's snapshot of `PyTorch`'s pool and the device: figures of the pool and the driver, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Chosen by the script.
    pub name: Arc<str>,
    /// Driver memory that the pool holds.
    pub reserved_bytes: u64,
    /// Its maximum so far.
    pub max_reserved_bytes: u64,
    /// Bytes handed out.
    pub allocated_bytes: u64,
    /// Their maximum so far.
    pub max_allocated_bytes: u64,
    /// Memory of the device.
    pub total_bytes: u64,
    /// Free memory of the device.
    pub free_bytes: u64,
}

/// A demand of a script's `config()` that the tracer was not started with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unmet {
    /// Settings, as the script would write them.
    pub settings: Arc<str>,
    /// Options that the tracer would need.
    pub options: Arc<str>,
}

/// A setting that a program was started with: a variable of its environment.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Setting {
    /// Name of the variable, one of [`settings::NAMES`](crate::settings::NAMES).
    pub name: &'static str,
    /// Its value, as the program was started with it.
    pub value: String,
}

/// A change of the rules of `PyTorch`'s pool by the program itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolSet {
    /// Settings, as in `PYTORCH_NPU_ALLOC_CONF`: of all devices.
    Settings {
        /// The text.
        text: Arc<str>,
    },
    /// The part of the device's memory that the process may have.
    Fraction(Fraction),
}

/// A part of a whole, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction(u64);

impl Fraction {
    /// Of its value.
    #[must_use]
    pub const fn of(value: f64) -> Self {
        Self(value.to_bits())
    }

    /// Its value.
    #[must_use]
    pub const fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
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
    /// Its number in its own pid namespace, if it has one there.
    pub pid_within: Option<u32>,
}

/// One process's use of a device, by the driver's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ProcessUsage {
    /// Process.
    pub pid: u32,
    /// Its bytes.
    pub used_bytes: u64,
}

/// The driver's figures of a whole device. Such events have process number 0, and no row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Bytes in use, by whomever.
    pub used_bytes: u64,
    /// Bytes that the device has.
    pub total_bytes: u64,
    /// The processes on it; `None` when the driver does not list them. In a container the list may be incomplete.
    pub processes: Option<Arc<[ProcessUsage]>>,
}

/// The runtime's answer to the program about the memory of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that the device has.
    pub total_bytes: u64,
    /// Free bytes of it then.
    pub free_bytes: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A block was handed out.
    Alloc(Alloc),
    /// A block ended.
    Free(Free),
    /// A free of an unknown block.
    UnknownFree(UnknownFree),
    /// An allocation failed.
    AllocFailed(AllocFailed),
    /// A request that had failed succeeded after all.
    AllocRecovered(AllocRecovered),
    /// A request has failed for good, for want of memory.
    OutOfMemory(OutOfMemory),
    /// A pool had no block for a request. Has no row.
    PoolRefused(PoolRefused),
    /// The program has `PyTorch`'s pool give unused memory of all devices back to the driver. Has no row.
    CacheEmptied,
    /// The program has asked for the memory of its device. Has no row.
    DeviceMemory(DeviceMemory),
    /// The program changes the rules of `PyTorch`'s pool. Has no row.
    PoolSet(PoolSet),
    /// A graph of `PyTorch`'s is captured, or given up. Has no row.
    Graph(Graph),
    /// A pool of its own within `PyTorch`'s pool is made, used or given up. Has no row.
    OwnPool(OwnPool),
    /// The calls about blocks of the process's pools are passed over from here on: their blocks are known no longer. Has no row.
    PoolsLeftOut,
    /// A pool has got a block back for good.
    BlockReturned(BlockReturned),
    /// The program has another stream use a block. Has no row.
    StreamUse(StreamUse),
    /// Address space changes.
    Region(Region),
    /// A kernel launch.
    Launch(Launch),
    /// An operator begins, or has ended.
    Op(Op),
    /// An operator uses a tensor.
    Access(Access),
    /// An operator uses tensors that are in no [`Access`]: they are too many, or could not be read. Has no row.
    UsesLeftOut,
    /// An operation of ATB begins, or has returned.
    AtbOp(AtbOp),
    /// A mark of the user.
    Mark(Mark),
    /// A user's mark in its own domain.
    DomainMark {
        /// Name of the domain.
        domain: Name,
        /// The mark.
        mark: Mark,
    },
    /// About the process as a whole.
    System(System),
    /// The script ends step `step`. The events of the steps follow.
    Step {
        /// Number, from 1.
        step: u32,
    },
    /// The script asks for a snapshot of memory.
    Snapshot(Snapshot),
    /// A range that the script has named ends.
    NamedRange {
        /// The name.
        name: Arc<str>,
        /// Nanoseconds since the Unix epoch; `None` if unknown, or if the script's value is impossible.
        start_ns: Option<u64>,
        /// The same; the event's own time is that of the report.
        end_ns: Option<u64>,
    },
    /// The program marks steps by ranges and by its script. The first kind seen counts, the other is ignored.
    StepsRefused,
    /// A script has asked for something that this trace does not have; once for each such demand.
    Unmet(Unmet),
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
    /// A hidden function was located wrongly, as its arguments show: the process's calls of it are ignored from here
    /// on.
    ProbeDisabled {
        /// The function that was searched for.
        symbol: Name,
    },
    /// The driver's figures of a device.
    DeviceUsage(DeviceUsage),
    /// A process joined the trace.
    ProcessStart(ProcessStart),
    /// Settings of the process's program, on which advice depends. Has no row.
    Settings(Arc<[Setting]>),
    /// Holders of its blocks were looked for. Has no row.
    Looked(Arc<Look>),
    /// A process ended; its live blocks were freed by [`FreeCause::ProcessEnd`] events before this one.
    ProcessEnd,
}

impl EventKind {
    /// Whether a run may begin with it. Figures of a device and looks belong to no run, and settings are older.
    #[must_use]
    pub const fn is_of_run(&self) -> bool {
        !matches!(self, Self::DeviceUsage(_) | Self::Settings(_) | Self::Looked(_))
    }
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
    /// Where the call was made that the event is of; of a block that memory ran out with, where it was allocated.
    pub stacks: Stacks,
    /// What happened.
    pub kind: EventKind,
}
