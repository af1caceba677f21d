//! An [`Item`] is something that happened: the unit of the stages from time order to the process.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::atb::AtbTensors;
use super::domains::MstxCall;
use super::labels::LabelIds;
use super::ops::OpCall;
use super::stacks::Code;
use super::trace::TraceRow;
use super::wishes::Settings;
use crate::capture::Note;
use crate::decode::{Phase, Values};
use crate::model::{AllocApi, AtbOp, Device, Name, PageType, Pool, RegionKind, Snapshot, System};

/// Something that happened, not yet in time order.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) head: Head,
    pub(super) action: Action,
}

/// When, where, and as the how manieth record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) time_ns: u64,
    /// Number of the record in the stream: decides between equal times.
    pub(super) seq: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) row: u16,
    /// Row of the outermost allocation call that the thread is inside of; 0 is none.
    pub(super) outer: u16,
    pub(super) stacks: StackIds,
}

/// What a call's stacks are known by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StackIds {
    pub(super) native: Option<NonZeroU64>,
    pub(super) python: Option<NonZeroU64>,
    /// The call had returned already: its function is not on the native stack.
    pub(super) returned: bool,
}

#[derive(Debug)]
pub(super) enum Action {
    Alloc(Request),
    AllocFailed(Failure),
    /// Something ends; told before it does.
    End(Ending),
    /// The thread's last end by this row has failed; some kernels' records repeat the address.
    EndFailed {
        addr: Option<u64>,
    },
    /// The handle is one more reference to what is mapped at the address.
    Retain {
        handle: u64,
        addr: u64,
    },
    /// The handle stands for memory of another process.
    Import {
        handle: u64,
    },
    Map {
        addr: u64,
        size_bytes: u64,
        handle: u64,
    },
    Region {
        kind: RegionKind,
        addr: u64,
        size_bytes: u64,
    },
    /// A framework's pool tells.
    Pool(PoolReport),
    /// The thread asks a pool for this much.
    PoolRequest {
        size_bytes: u64,
    },
    /// Nothing that this row's function says is to be believed: the wrong function was found.
    Mislocated {
        symbol: Name,
    },
    /// The thread asks how much memory is left: pools do so when a request has failed for good.
    MemoryInfo,
    SetDevice {
        device: u32,
    },
    CreateContext {
        context: u64,
        device: u32,
    },
    SetContext {
        context: u64,
    },
    Launch {
        handle: u64,
        stream: u64,
        name: Option<Arc<str>>,
    },
    Op(Box<OpCall>),
    AtbOp(AtbOp),
    AtbTensors(Box<AtbTensors>),
    Workspace(Workspace),
    KernelName {
        handle: u64,
        name: Arc<str>,
    },
    StreamId {
        stream: u64,
        id: i64,
    },
    System(System),
    /// `domain`: its handle, if it is a mark of one.
    Mark {
        text: Option<Arc<str>>,
        domain: Option<u64>,
    },
    RangeStart {
        text: Option<Arc<str>>,
        domain: Option<u64>,
    },
    /// The program's own id of the range that the thread has just started.
    RangeId {
        id: u64,
    },
    RangeEnd {
        id: u64,
        domain: Option<u64>,
    },
    Mstx(MstxCall),
    /// A script says something.
    Script(ScriptCall),
    /// A code object of Python is at this address.
    Code {
        address: u64,
        fingerprint: u32,
        code: Arc<Code>,
    },
    Fork {
        child: u32,
    },
    Exec,
    Note(Box<Note>),
}

/// What a script says by the Python package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScriptCall {
    /// Before the `Config` that it belongs to.
    Settings(Settings),
    Config(Wanted),
    Start,
    Stop,
    Step,
    /// Of the calling thread.
    Labels(LabelIds),
    LabelText {
        id: u16,
        text: String,
    },
    LabelBlock {
        addr: u64,
        ids: LabelIds,
    },
    /// `device`: as the program numbers it.
    Snapshot {
        device: u32,
        snapshot: Snapshot,
    },
    /// Ends; `start_mono_ns` is a time of the records' clock.
    Range {
        name: Arc<str>,
        start_mono_ns: u64,
    },
    TraceText {
        id: u32,
        text: String,
    },
    TraceRows(Vec<TraceRow>),
}

/// What a script wants, in the bits of contract §1.5; of devices 32 is all NPUs and 33 the host, of events 4 is `block_free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) events: u64,
    pub(super) levels: u64,
    pub(super) devices: u64,
}

/// What ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// `halMemFree`, `aclrtHostUnregister`: the block; `halMemRelease`: one reference to it.
    Block { api: AllocApi, addr: u64 },
    /// `halMemUnmap`.
    Mapping { addr: u64 },
    /// Another region.
    Region { kind: RegionKind, addr: u64 },
}

impl Ending {
    pub(super) const fn addr(self) -> u64 {
        match self {
            Self::Block { addr, .. } | Self::Mapping { addr } | Self::Region { addr, .. } => addr,
        }
    }
}

/// An allocation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) pool: Pool,
    /// `None`: that of the thread.
    pub(super) device: Option<Device>,
    pub(super) size_bytes: u64,
    pub(super) flags: u64,
    pub(super) status: i32,
    pub(super) caller: Option<Name>,
    /// The driver was asked for huge pages, and no function around it is known that tells how the request ends.
    pub(super) huge: bool,
}

/// Memory that an operation of ATB works in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Workspace {
    /// The operation begins; otherwise it has returned.
    pub(super) begins: bool,
    pub(super) addr: u64,
    pub(super) size_bytes: u64,
}

/// What a pool tells of one of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolReport {
    pub(super) pool: Pool,
    pub(super) change: PoolChange,
    /// As the program numbers it; `None`: that of the thread.
    pub(super) device: Option<u32>,
    pub(super) addr: u64,
    /// `None` where only the address is told.
    pub(super) size_bytes: Option<u64>,
    pub(super) totals: Option<PoolTotals>,
}

/// What a pool did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolChange {
    /// Handed a block out.
    Alloc,
    /// The program gave the block back.
    Free,
    /// The pool can hand the block out again.
    Returned,
}

/// A pool's own sums after the event.
#[expect(clippy::struct_field_names, reason = "units end names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolTotals {
    /// `None` where it does not tell.
    pub(super) used_bytes: Option<u64>,
    pub(super) reserved_bytes: u64,
    pub(super) active_bytes: u64,
}

/// What an allocation asked for and got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) addr: u64,
    pub(super) size_bytes: u64,
    pub(super) flags: u64,
    pub(super) pool: Pool,
    pub(super) device: Device,
    pub(super) module_id: Option<u8>,
    pub(super) page: PageType,
    pub(super) api: AllocApi,
    pub(super) caller: Option<Name>,
}

/// A call whose text is complete.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) head: Head,
    pub(super) phase: Phase,
    pub(super) status: i64,
    pub(super) values: Values,
    /// `None` for a null pointer.
    pub(super) text: Option<String>,
}
