//! What calls mean: one enum for each domain, which is also the name of the file in `pipeline/domains` that understands it.
//!
//! A new kind is a variant here, an arm there, and a row of a table. In captures kinds are one flat list of words.

use serde::{Deserialize, Serialize};

/// The meaning of a call, by its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CallKind {
    /// Memory and address space of the driver.
    Memory(MemoryCall),
    /// Requests above the driver, which are reported if they fail.
    Failing(FailingCall),
    /// Devices of threads, begin and end of the runtime.
    Runtime(RuntimeCall),
    /// Kernels.
    Launch(LaunchCall),
    /// Marks, ranges, and pools by mstx.
    Mstx(MstxCall),
    /// Pools that report by functions of their own.
    Pool(PoolCall),
    /// Operations of ATB.
    Atb(AtbCall),
    /// Operators of `PyTorch`.
    Torch(TorchCall),
    /// Markers of the Python package.
    Script(ScriptCall),
    /// Block watch alone.
    Watch(WatchCall),
}

/// Calls of the driver about memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryCall {
    /// `halMemAlloc`-like: `Addr`, `Size`, `Flags` (driver flag word).
    #[serde(rename = "hal_alloc")]
    Alloc,
    /// `halMemCreate`-like: `Addr` (handle), `Size`, `PropSideDevice`, `PropModulePage`.
    #[serde(rename = "hal_create")]
    Create,
    /// `halMemFree`-like: `Addr`.
    #[serde(rename = "hal_free")]
    Free,
    /// `halMemRelease`-like: `Addr` (handle).
    #[serde(rename = "hal_release")]
    Release,
    /// `halMemRetainAllocationHandle`: `Handle`, `Addr`.
    #[serde(rename = "hal_retain")]
    Retain,
    /// A handle of another process's memory: `Handle`.
    #[serde(rename = "hal_import")]
    Import,
    /// Addresses are reserved: `Addr`, `Size`.
    #[serde(rename = "hal_reserve")]
    Reserve,
    /// `Addr` is unreserved.
    #[serde(rename = "hal_unreserve")]
    Unreserve,
    /// `Addr`, `Size` get the memory of `Handle`.
    #[serde(rename = "hal_map")]
    Map,
    /// Nothing is mapped at `Addr` any more.
    #[serde(rename = "hal_unmap")]
    Unmap,
    /// The program's memory is made known to the device: `Addr`, `Size`.
    #[serde(rename = "hal_register")]
    Register,
    /// `Addr` is unregistered.
    #[serde(rename = "hal_unregister")]
    Unregister,
    /// The program's memory at `Addr`, `Size` is registered; `Flags` include whether it is pinned.
    #[serde(rename = "host_pin")]
    Pin,
    /// `Addr` is unregistered.
    #[serde(rename = "host_unpin")]
    Unpin,
}

/// Calls above the driver that request memory, or query its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailingCall {
    /// An allocation of device memory through ACL or runtime: `Size`, `Flags` (policy); reported only if it fails.
    #[serde(rename = "api_alloc")]
    Alloc,
    /// The same for host memory.
    #[serde(rename = "api_alloc_host")]
    AllocHost,
    /// The thread queries the free memory.
    #[serde(rename = "memory_info")]
    MemoryInfo,
}

/// Calls about devices, and about the runtime as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RuntimeCall {
    /// The calling thread's device becomes `Device`.
    #[serde(rename = "set_device")]
    SetDevice,
    /// `Handle` is a context of `Device`, and the calling thread's from here on.
    #[serde(rename = "create_context")]
    CreateContext,
    /// The calling thread's device becomes that of context `Handle`.
    #[serde(rename = "set_context")]
    SetContext,
    /// ACL was initialised.
    #[serde(rename = "acl_init")]
    Init,
    /// ACL is shut down.
    #[serde(rename = "acl_finalize")]
    Finalize,
    /// The process begins to end.
    #[serde(rename = "process_exit")]
    Exit,
    /// Its Python interpreter begins to end.
    #[serde(rename = "python_finalize")]
    PythonEnds,
}

/// Calls about kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchCall {
    /// A kernel launch: `Handle`, `Stream`; the text, if any, is its name.
    Launch,
    /// `Handle` gets the text as its kernel name.
    KernelName,
    /// `Stream` gets the number `StreamId`.
    StreamId,
}

/// Calls of mstx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MstxCall {
    /// A mark with text; of `Domain`, if the row has one.
    Mark,
    /// A range with text begins; the returned value is its id, if not 0. As above.
    RangeStart,
    /// Range `RangeId` ends. As above.
    RangeEnd,
    /// The text names a domain; the returned value is its handle, which is 0 without a tool.
    DomainCreate,
    /// `Domain` ends.
    DomainDestroy,
    /// A heap of `Domain`: `Device`, `Addr`, `Size`; the returned value is its handle, which is 0 without a tool.
    HeapRegister,
    /// Heap `Handle` of `Domain` ends.
    HeapUnregister,
    /// A block of `Domain`: `Device`, `Addr`, `Size`, and `Handle`, which is 0 without a tool.
    RegionRegister,
    /// The block of `Domain` ends that `Addr` is the address of, or the handle (`ReferenceKind`).
    RegionUnregister,
}

/// Calls of a pool's own functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PoolCall {
    /// A pool hands out `Size` bytes (times `Count`) of `Device`: at `Addr`, or at the returned address.
    #[serde(rename = "pool_alloc")]
    Alloc,
    /// A pool takes back the block at `Addr`.
    #[serde(rename = "pool_free")]
    Free,
    /// `torch_npu` reports a block: `PtaKind`, `Addr`, `Size` (negative when it ends), `PoolAllocated`,
    /// `PoolReserved`, `PoolActive`, `Stream`.
    #[serde(rename = "pta_report")]
    Report,
    /// The thread requests `Size` bytes from a pool; the block may be larger.
    #[serde(rename = "pool_request")]
    Request,
    /// The program has another stream use the block at `Addr`: its pool has it back when that stream has done.
    #[serde(rename = "record_stream")]
    RecordStream,
    /// The program has `torch_npu` give unused memory of all devices back to the driver.
    #[serde(rename = "pta_empty_cache")]
    EmptyCache,
    /// The program changes settings of `torch_npu`'s pool: the text is as in `PYTORCH_NPU_ALLOC_CONF`.
    #[serde(rename = "pool_settings")]
    Settings,
    /// The program limits itself to a part of the memory of `Device`: `Fraction`.
    #[serde(rename = "pool_fraction")]
    Fraction,
    /// The thread has begun to capture graph `Handle` of `torch_npu`, for the pool with the numbers `PoolFirst` and `PoolSecond`.
    #[serde(rename = "graph_begin")]
    GraphBegin,
    /// The capture of graph `Handle` ends.
    #[serde(rename = "graph_end")]
    GraphEnd,
    /// Graph `Handle` is given up.
    #[serde(rename = "graph_reset")]
    GraphReset,
    /// `Handle`, an object `MemPool` of `torch_npu`, is made for the pool with the numbers `PoolFirst` and `PoolSecond`. In releases with
    /// this kind, only requests of the thread that uses it are of the pool, and of nested uses the last takes them.
    #[serde(rename = "mem_pool_made")]
    MemPoolMade,
    /// The same in releases in which the requests of all threads are of it, and of nested uses the first takes them.
    #[serde(rename = "mem_pool_of_all_made")]
    MemPoolOfAllMade,
    /// The object `Handle` is gone.
    #[serde(rename = "mem_pool_gone")]
    MemPoolGone,
    /// Requests on `Device` begin to be of the pool with the numbers `PoolFirst` and `PoolSecond`.
    #[serde(rename = "own_pool_begin")]
    OwnPoolBegin,
    /// They are of it no longer.
    #[serde(rename = "own_pool_end")]
    OwnPoolEnd,
    /// It is held once less.
    #[serde(rename = "own_pool_release")]
    OwnPoolRelease,
}

/// Calls of ATB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AtbCall {
    /// An operation of ATB begins: `WorkspaceAddr`, `WorkspaceSize`, `IntermediateSize`; the text is its name.
    #[serde(rename = "atb_start")]
    Start,
    /// It has returned; as above.
    #[serde(rename = "atb_end")]
    End,
    /// An operator's tensors at its start, and its name: objects with the values `Name`, `Inputs` and `Outputs`.
    #[serde(rename = "atb_tensors")]
    Tensors,
    /// An operation of ATB is called with memory to work in: `Addr`, `Size`.
    #[serde(rename = "workspace_begin")]
    WorkspaceBegin,
    /// That call returns; as above.
    #[serde(rename = "workspace_end")]
    WorkspaceEnd,
}

/// Operators of `torch_npu` and libtorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TorchCall {
    /// An operator of `torch_npu` is submitted to the device; the text is its name.
    #[serde(rename = "npu_op")]
    Submit,
    /// An operator of libtorch begins; the record's detail identifies it, its objects are its tensors.
    #[serde(rename = "op_enter")]
    Enter,
    /// An operator of libtorch returns; as above.
    #[serde(rename = "op_leave")]
    Leave,
    /// An exception was caught; it has no records, only counts of operators that were left by one.
    #[serde(rename = "op_catch")]
    Catch,
}

/// Markers of the Python package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScriptCall {
    /// Further settings of a script: `Analyses`, `StackDepths`, `Named`. `Config` follows.
    #[serde(rename = "script_settings")]
    Settings,
    /// A script's settings: `Events`, `Levels`, `Devices`.
    #[serde(rename = "script_config")]
    Config,
    /// It begins to collect.
    #[serde(rename = "script_start")]
    Start,
    /// It stops collecting.
    #[serde(rename = "script_stop")]
    Stop,
    /// A step ends.
    #[serde(rename = "script_step")]
    Step,
    /// The calling thread's labels: `LabelsLow`, `LabelsHigh`.
    #[serde(rename = "thread_labels")]
    ThreadLabels,
    /// The text of label `LabelId`.
    #[serde(rename = "label_text")]
    LabelText,
    /// The live block at `Addr` gets `LabelsLow`, `LabelsHigh`.
    #[serde(rename = "block_labels")]
    BlockLabels,
    /// The memory of a pool and of `Device`; the text is a name.
    #[serde(rename = "script_snapshot")]
    Snapshot,
    /// A range of the calling thread ends that began at `StartTime`; the text is its name.
    #[serde(rename = "script_range")]
    Range,
    /// A callable of the script's Python trace has a text: `LabelId`.
    #[serde(rename = "trace_text")]
    TraceText,
    /// Rows of the script's Python trace: objects with the value `TraceRows`.
    #[serde(rename = "trace_rows")]
    TraceRows,
}

/// Calls that only block watch looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WatchCall {
    /// Watch `Size` bytes at `Addr`, for `Count` comparisons; the text is their name.
    #[serde(rename = "watch_block")]
    Watch,
    /// Stop watching the bytes at `Addr`.
    #[serde(rename = "unwatch_block")]
    Unwatch,
    /// An operator of `torch_npu` has been submitted to the device; the text is its name.
    #[serde(rename = "npu_op_end")]
    NpuOpEnd,
    /// An operator of CANN's library has launched its kernels; the caller identifies it.
    #[serde(rename = "aclnn_op")]
    AclnnOp,
    /// A graph begins to be captured, or ends.
    #[serde(rename = "capture")]
    Capture,
}

impl CallKind {
    /// Whether it is about a single block of a pool: the frequent calls of a program, which reduced processes go without.
    #[must_use]
    pub const fn is_about_pool_block(self) -> bool {
        match self {
            Self::Pool(call) => {
                matches!(
                    call,
                    PoolCall::Alloc | PoolCall::Free | PoolCall::Report | PoolCall::Request | PoolCall::RecordStream
                )
            }
            Self::Mstx(call) => matches!(call, MstxCall::RegionRegister | MstxCall::RegionUnregister),
            _ => false,
        }
    }

    /// Whether the call ends a block, whatever its values are.
    #[must_use]
    pub const fn ends_block(self) -> bool {
        match self {
            Self::Memory(call) => matches!(call, MemoryCall::Free | MemoryCall::Release | MemoryCall::Unpin),
            Self::Pool(call) => matches!(call, PoolCall::Free),
            Self::Mstx(call) => matches!(call, MstxCall::RegionUnregister),
            _ => false,
        }
    }

    /// Whether it is worth knowing from where the call was made: what outputs have a row for, or a block.
    #[must_use]
    pub const fn has_stacks(self) -> bool {
        match self {
            Self::Memory(call) => matches!(
                call,
                MemoryCall::Alloc
                    | MemoryCall::Create
                    | MemoryCall::Free
                    | MemoryCall::Release
                    | MemoryCall::Pin
                    | MemoryCall::Unpin
            ),
            Self::Launch(call) => matches!(call, LaunchCall::Launch),
            Self::Mstx(call) => matches!(
                call,
                MstxCall::Mark
                    | MstxCall::RangeStart
                    | MstxCall::RangeEnd
                    | MstxCall::RegionRegister
                    | MstxCall::RegionUnregister
            ),
            Self::Pool(call) => {
                matches!(call, PoolCall::Alloc | PoolCall::Free | PoolCall::Report | PoolCall::RecordStream)
            }
            Self::Failing(_) | Self::Atb(_) => true,
            Self::Torch(call) => !matches!(call, TorchCall::Catch),
            Self::Runtime(_) | Self::Script(_) | Self::Watch(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words in captures of all versions so far, in the order of the enums above.
    const WORDS: [&str; 79] = [
        "hal_alloc",
        "hal_create",
        "hal_free",
        "hal_release",
        "hal_retain",
        "hal_import",
        "hal_reserve",
        "hal_unreserve",
        "hal_map",
        "hal_unmap",
        "hal_register",
        "hal_unregister",
        "host_pin",
        "host_unpin",
        "api_alloc",
        "api_alloc_host",
        "memory_info",
        "set_device",
        "create_context",
        "set_context",
        "acl_init",
        "acl_finalize",
        "process_exit",
        "python_finalize",
        "launch",
        "kernel_name",
        "stream_id",
        "mark",
        "range_start",
        "range_end",
        "domain_create",
        "domain_destroy",
        "heap_register",
        "heap_unregister",
        "region_register",
        "region_unregister",
        "pool_alloc",
        "pool_free",
        "pta_report",
        "pool_request",
        "record_stream",
        "pta_empty_cache",
        "pool_settings",
        "pool_fraction",
        "graph_begin",
        "graph_end",
        "graph_reset",
        "mem_pool_made",
        "mem_pool_of_all_made",
        "mem_pool_gone",
        "own_pool_begin",
        "own_pool_end",
        "own_pool_release",
        "atb_start",
        "atb_end",
        "atb_tensors",
        "workspace_begin",
        "workspace_end",
        "npu_op",
        "op_enter",
        "op_leave",
        "op_catch",
        "script_settings",
        "script_config",
        "script_start",
        "script_stop",
        "script_step",
        "thread_labels",
        "label_text",
        "block_labels",
        "script_snapshot",
        "script_range",
        "trace_text",
        "trace_rows",
        "watch_block",
        "unwatch_block",
        "npu_op_end",
        "aclnn_op",
        "capture",
    ];

    /// Captures of earlier versions can be read, and later ones use the same words; no word is used for two kinds.
    #[test]
    fn captures_spell_kinds_as_one_list_of_words() {
        let mut kinds = crate::hash::HashSet::default();
        for word in WORDS {
            let json = format!("\"{word}\"");
            let kind: CallKind = serde_json::from_str(&json).expect(word);
            assert_eq!(serde_json::to_string(&kind).expect(word), json);
            assert!(kinds.insert(kind), "{word} is a second word for {kind:?}");
        }
        serde_json::from_str::<CallKind>("\"hal_unheard_of\"").expect_err("no such kind");
    }
}
