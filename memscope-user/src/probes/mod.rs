//! Rows of a table of traced functions. A backend has its own tables ([`crate::backend`]); here are those of no
//! backend.
//!
//! A [`ProbeSpec`] names a function and its libraries, the meaning of a call, and the arguments with their values.
//! [`ProbeSpec::row`] turns the second half into the [`ProbeRow`] that the kernel side follows; decode uses the same
//! fields to name the values that come back. No stage knows a function by its name.

mod kinds;
pub mod ops;
mod process;
mod script;
pub mod user;

pub use kinds::{
    AtbCall, CallKind, FailingCall, LaunchCall, MemoryCall, MstxCall, PoolCall, RuntimeCall, ScriptCall, TorchCall,
    WatchCall,
};
pub use script::{PRESENCE, SEMAPHORE, WATCH_MARKERS, lacks_python_calls};

use memscope_common::row::{
    GROUP_API, MAX_VALUES, ROW_ENDS_BLOCK, ROW_LIST, ROW_POOL_BLOCK, ROW_RETURNS_INT, ROW_TEXT, ROW_TEXT_POINTED,
};
use memscope_common::stack::{STACK_NATIVE, STACK_PYTHON};
use memscope_common::{ArrayShape, Fetch, ListShape, ProbeRow, When};
use serde::{Deserialize, Serialize};

/// File name of our tool for mstx.
pub const MSTX_TOOL: &str = "libmemscope_mstx.so";

/// Part of the stack that a probe belongs to, the most important first: where the kernel side cannot serve all
/// rows, it serves the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Driver.
    Hal,
    /// `libruntime`.
    Runtime,
    /// `aclrt*`.
    Acl,
    /// Defined by the user.
    User,
    /// Markers of the Python package.
    Script,
    /// Marks, and pools that programs report by them.
    Mstx,
    /// `torch_npu`'s allocators.
    Pta,
    /// `MindSpore`'s allocators.
    MindSpore,
    /// ATB's operations.
    Atb,
    /// Operators.
    Ops,
    /// The end of a process: no part of the stack.
    Process,
}

impl Layer {
    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hal => "hal",
            Self::Runtime => "runtime",
            Self::Acl => "acl",
            Self::User => "user",
            Self::Script => "script",
            Self::Mstx => "mstx",
            Self::Pta => "pta",
            Self::MindSpore => "mindspore",
            Self::Atb => "atb",
            Self::Ops => "ops",
            Self::Process => "process",
        }
    }
}

/// Name of a fetched value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// Address or handle of a block.
    Addr,
    /// Bytes.
    Size,
    /// Driver flag word (ascend-abi: bits 0-9 device, 10-13 space, 17 huge, 31 giant, 56-63 module), or the policy or
    /// flags of another function.
    Flags,
    /// `drv_mem_prop` bytes 0-7: side (0 host, 1 device, 2 host NUMA) and device.
    PropSideDevice,
    /// `drv_mem_prop` bytes 8-15: module and page type (0 normal, 1 huge, 2 giant).
    PropModulePage,
    /// Device number (low 32 bits).
    Device,
    /// Handle of a kernel (or its stub or function pointer), of physical memory, of a context.
    Handle,
    /// Stream pointer.
    Stream,
    /// The runtime's stream number (low 32 bits).
    StreamId,
    /// Range id.
    RangeId,
    /// `MemoryUsage` bytes 0-7: device type, device, component, data type, allocator type, padding.
    PtaKind,
    /// Bytes of the pool that are handed out.
    PoolAllocated,
    /// Bytes that the pool holds from the runtime.
    PoolReserved,
    /// Bytes that are handed out or wait for a stream.
    PoolActive,
    /// Handle of a domain.
    Domain,
    /// Low 32 bits: 0 is an address, 1 a handle.
    ReferenceKind,
    /// Number of units of that size.
    Count,
    /// Address of an operation's workspace.
    WorkspaceAddr,
    /// Its bytes.
    WorkspaceSize,
    /// Bytes for what operations hand on to each other.
    IntermediateSize,
    /// Name of an operation.
    Name,
    /// Input tensors.
    Inputs,
    /// Tensors that it writes.
    Outputs,
    /// Bits of events: alloc 1, free 2, launch 4, access 8, `block_free` 16.
    Events,
    /// Bits of levels: op 1, kernel 2.
    Levels,
    /// Bit N is NPU N, 32 all of them, 33 the host.
    Devices,
    /// Analyses that a script requests, as bits, and in bits 16 to 31 the number of blocks named when memory is out.
    Analyses,
    /// Call stacks that a script requests: frames plus one of C (bits 0 to 15) and Python (16 to 31), 0 for none; bit
    /// 32: mixed.
    StackDepths,
    /// Bits of the settings that a script has named.
    Named,
    /// Numbers of the labels of levels 0 to 3, 16 bits each, level 0 in the lowest.
    LabelsLow,
    /// The same of levels 4 to 7.
    LabelsHigh,
    /// Number of a label.
    LabelId,
    /// The most bytes so far that the pool held from the runtime.
    PoolMaxReserved,
    /// Maximum so far of bytes handed out.
    PoolMaxAllocated,
    /// Bytes that the device has.
    DeviceTotal,
    /// Free bytes of the device.
    DeviceFree,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    StartTime,
    /// Rows of a Python trace.
    TraceRows,
    /// First number of a pool of its own.
    PoolFirst,
    /// The second.
    PoolSecond,
    /// Requests that would fail may use a pool of its own (low 8 bits).
    PoolOnOom,
    /// Whether the pool's blocks are handed out whole.
    PoolNoSplit,
    /// Kind of memory that a call asks about.
    MemoryKind,
    /// Part of a device's memory: the bits of a number of double precision.
    Fraction,
}

/// Functions that nest in each other and are reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Group {
    /// Not grouped.
    None = 0,
    /// Kernel launches: `aclrtLaunchKernel` calls `rts…` calls `rt…`.
    Launch = 1,
    /// The `libascendcl` facade calls the same function of `libacl_rt`.
    Init = 2,
    /// Allocations through ACL and runtime, which call each other and then the driver. Must be [`GROUP_API`].
    Alloc = GROUP_API,
    /// mstx: the first call of a process makes the function set itself up and call itself again, and an injected tool has
    /// functions of the same names.
    Mstx = 4,
}

/// Finds a function that its library does not export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Locator {
    /// `torch_npu::profiler::reportMemoryDataToNpuProfiler` (ascend-abi §6.2).
    PtaReport,
    /// `NpuCachingAllocator::allocate(size_t)`, a virtual function (ascend-abi §6.3).
    PtaAllocate,
    /// `NpuCachingAllocator::raw_alloc(size_t)`.
    PtaRawAlloc,
    /// `NpuCachingAllocator::raw_alloc_with_stream(size_t, aclrtStream)`.
    PtaRawAllocWithStream,
    /// `NpuCachingAllocator::emptyCache(MempoolId_t)`, which `c10::DeviceAllocator` has since `torch_npu` 2.13.
    PtaEmptyCache,
    /// `NpuCachingAllocator::recordStream(const c10::DataPtr &, c10_npu::NPUStream)`.
    PtaRecordStream,
    /// `NpuCachingAllocator`'s virtual functions for pools of their own.
    PtaPool(PoolFunction),
    /// A function that `torch_npu` gives to Python by this name, by a table of methods.
    PtaMethod {
        /// The method.
        name: &'static str,
        /// It has a tuple of arguments (`METH_VARARGS`), or none (`METH_NOARGS`).
        has_arguments: bool,
    },
    /// A static function of the Python module `mstx`, by the module's table of methods.
    MstxMethod(&'static str),
    /// The call by which such a function has its arguments parsed; its C argument `place` points to the slot for the
    /// text's address.
    MstxParse {
        /// The method.
        method: &'static str,
        /// C argument, from 0.
        place: u8,
    },
}

/// The allocator's functions for pools of their own, in the order of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolFunction {
    /// `beginAllocateToPool`.
    Begin = 0,
    /// `endAllocateToPool`.
    End = 1,
    /// `releasePool`.
    Release = 2,
}

/// One function to probe.
#[derive(Clone, Copy, Debug)]
pub struct ProbeSpec {
    /// Part of the stack.
    pub layer: Layer,
    /// File names of the libraries that define it, without the part after `.so`.
    pub libraries: &'static [&'static str],
    /// Exported name, or what people call it.
    pub symbol: &'static str,
    /// Function that a library must define, too, for the row to apply: it identifies a build.
    pub requires: Option<&'static str>,
    /// How to find it, if it is not exported.
    pub locator: Option<Locator>,
    /// The meaning of a call.
    pub meaning: CallKind,
    /// When it is reported.
    pub when: When,
    /// The values fetched, in order.
    pub fields: &'static [(Field, Fetch)],
    /// C argument that points to a text.
    pub text_arg: Option<u8>,
    /// The argument does not point to the text: the pointer to the text is this many bytes behind it.
    pub text_at: Option<u8>,
    /// List with elements that are reported one by one.
    pub list: Option<ListShape>,
    /// How the arrays are laid out that values lead to.
    pub array: Option<ArrayShape>,
    /// Pool of the calls: the `Event Type` of one of ours, or another name.
    pub pool: Option<&'static str>,
    /// The return type is `int`: only the lower half of the register counts.
    pub returns_int: bool,
    /// Only the outermost call of this group is reported.
    pub group: Group,
    /// C++: it may throw through its caller. A return probe would end the program then (the unwinder does not get past
    /// the kernel's trampoline), so such a row has none: it is [`When::Entry`] or [`When::OwnReturn`].
    pub may_throw: bool,
}

impl ProbeSpec {
    /// Defaults for a table row: reported at return, returns an error code, no text, no group.
    pub(crate) const BASE: Self = Self {
        layer: Layer::Hal,
        libraries: &[],
        symbol: "",
        requires: None,
        locator: None,
        meaning: CallKind::Mstx(MstxCall::Mark),
        when: When::Return,
        fields: &[],
        text_arg: None,
        text_at: None,
        list: None,
        array: None,
        pool: None,
        returns_int: true,
        group: Group::None,
        may_throw: false,
    };

    /// Whether it replaces a function of mstx that cannot be probed itself.
    #[must_use]
    pub const fn is_stand_in(&self) -> bool {
        matches!(self.layer, Layer::Mstx) && self.locator.is_some()
    }

    /// The row for the kernel side.
    #[must_use]
    pub fn row(&self) -> ProbeRow {
        let mut fetch = [Fetch::NONE; MAX_VALUES];
        for (slot, (_, source)) in fetch.iter_mut().zip(self.fields) {
            *slot = *source;
        }
        let int = if self.returns_int { ROW_RETURNS_INT } else { 0 };
        let text = if self.text_arg.is_some() { ROW_TEXT } else { 0 };
        let pointed = if self.text_at.is_some() { ROW_TEXT_POINTED } else { 0 };
        let list = if self.list.is_some() { ROW_LIST } else { 0 };
        let block = if self.meaning.is_about_pool_block() { ROW_POOL_BLOCK } else { 0 };
        let end = if self.meaning.ends_block() { ROW_ENDS_BLOCK } else { 0 };
        ProbeRow {
            when: self.when as u8,
            values: self.fields.len().min(MAX_VALUES) as u8,
            flags: int | text | pointed | list | block | end,
            text_arg: self.text_arg.unwrap_or(0),
            group: self.group as u8,
            text_at: self.text_at.unwrap_or(0),
            stacks: if self.meaning.has_stacks() { STACK_NATIVE | STACK_PYTHON } else { 0 },
            together: ProbeRow::values_together(&fetch),
            sign_of: self.sign_of(),
            reserved: [0; 6],
            param: self.list.map(ListShape::to_param).or(self.array.map(ArrayShape::to_param)).unwrap_or(0),
            fetch,
        }
    }

    /// [`ProbeRow::sign_of`]: a pool's report of an end has the size with a minus.
    fn sign_of(&self) -> u8 {
        if !matches!(self.meaning, CallKind::Pool(PoolCall::Report)) {
            return 0;
        }
        self.fields.iter().position(|(field, _)| *field == Field::Size).map_or(0, |at| at as u8 + 1)
    }

    /// The row for readers of the records.
    #[must_use]
    pub fn describe(&self) -> RowInfo {
        RowInfo {
            layer: self.layer,
            symbol: self.symbol.to_owned(),
            meaning: self.meaning,
            fields: self.fields.iter().map(|(field, _)| *field).collect(),
            pool: self.pool.map(str::to_owned),
            own_return: self.when == When::OwnReturn,
        }
    }
}

/// A row for readers of the records; stored in captures, so they explain themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowInfo {
    /// Part of the stack.
    pub layer: Layer,
    /// Function.
    pub symbol: String,
    /// The meaning of a call.
    pub meaning: CallKind,
    /// Names of the values, in order.
    pub fields: Vec<Field>,
    /// Pool of the calls: the `Event Type` of one of ours, or another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Its returns are seen before they happen, at its own return instructions: it is still on the stack.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_return: bool,
}

/// Rows of no backend: markers of the Python package, ends of processes.
pub const OWN: &[&[ProbeSpec]] = &[script::ROWS, process::ROWS];
