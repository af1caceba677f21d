//! `torch_npu`: its caching allocator and its workspaces (ascend-abi §6).

use memscope_common::{Fetch, When};

use crate::probes::{CallKind, Field, Layer, Locator, PoolCall, PoolFunction, ProbeSpec};

const PTA: ProbeSpec = ProbeSpec {
    layer: Layer::Pta,
    libraries: &["libtorch_npu.so"],
    may_throw: true,
    when: When::Entry,
    returns_int: false,
    ..ProbeSpec::BASE
};

/// A member function of a graph: its first argument is the graph's address.
const GRAPH: ProbeSpec = ProbeSpec { fields: &[(Field::Handle, Fetch::arg(0))], ..PTA };
// void c10_npu::NPUGraph::capture_begin(MempoolId_t pool, aclmdlRICaptureMode capture_mode)
/// At its end: what it requests itself is of the default pool. The pair of numbers takes two registers.
const CAPTURE_BEGIN: ProbeSpec = ProbeSpec {
    symbol: "_ZN7c10_npu8NPUGraph13capture_beginESt4pairIyyE19aclmdlRICaptureMode",
    meaning: CallKind::Pool(PoolCall::GraphBegin),
    when: When::OwnReturn,
    fields: &[(Field::Handle, Fetch::arg(0)), (Field::PoolFirst, Fetch::arg(1)), (Field::PoolSecond, Fetch::arg(2))],
    ..GRAPH
};

// void NpuCachingAllocator::beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool, std::function<bool(aclrtStream)> filter)
/// The same without a filter: `endAllocateToPool`, `releasePool`.
const OWN_POOL: ProbeSpec = ProbeSpec {
    fields: &[(Field::Device, Fetch::arg(1)), (Field::PoolFirst, Fetch::arg(2)), (Field::PoolSecond, Fetch::arg(3))],
    ..PTA
};
// c10_npu::MemPool::MemPool(std::shared_ptr<NPUAllocator> allocator, bool is_user_created, …)
/// It gives the pool its number, so at its end.
const MEM_POOL: ProbeSpec = ProbeSpec { when: When::OwnReturn, ..PTA };

pub(super) const ROWS: &[ProbeSpec] = &[
    // void torch_npu::profiler::reportMemoryDataToNpuProfiler(const MemoryUsage &data): hidden, called for every block
    // that either allocator hands out or takes back (ascend-abi §6.2 has the layout of `MemoryUsage`).
    ProbeSpec {
        symbol: "reportMemoryDataToNpuProfiler",
        locator: Some(Locator::PtaReport),
        meaning: CallKind::Pool(PoolCall::Report),
        fields: &[
            (Field::PtaKind, Fetch::memory(0, 0)),
            (Field::Addr, Fetch::memory(0, 8)),
            (Field::Size, Fetch::memory(0, 16)),
            (Field::PoolAllocated, Fetch::memory(0, 24)),
            (Field::PoolReserved, Fetch::memory(0, 32)),
            (Field::PoolActive, Fetch::memory(0, 40)),
            (Field::Stream, Fetch::memory(0, 48)),
        ],
        ..PTA
    },
    // c10::DataPtr NpuCachingAllocator::allocate(size_t size): the requested size; the block that is reported next on
    // this thread may be larger. x86-64 passes the address of the result as an argument before `this`, aarch64 does
    // not.
    ProbeSpec {
        symbol: "NpuCachingAllocator::allocate",
        locator: Some(Locator::PtaAllocate),
        meaning: CallKind::Pool(PoolCall::Request),
        fields: &[(Field::Size, Fetch::arg(if cfg!(target_arch = "x86_64") { 2 } else { 1 }))],
        ..PTA
    },
    // void *NpuCachingAllocator::raw_alloc(size_t size)
    ProbeSpec {
        symbol: "NpuCachingAllocator::raw_alloc",
        locator: Some(Locator::PtaRawAlloc),
        meaning: CallKind::Pool(PoolCall::Request),
        fields: &[(Field::Size, Fetch::arg(1))],
        ..PTA
    },
    // void *NpuCachingAllocator::raw_alloc_with_stream(size_t size, aclrtStream stream)
    ProbeSpec {
        symbol: "NpuCachingAllocator::raw_alloc_with_stream",
        locator: Some(Locator::PtaRawAllocWithStream),
        meaning: CallKind::Pool(PoolCall::Request),
        fields: &[(Field::Size, Fetch::arg(1))],
        ..PTA
    },
    // void NpuCachingAllocator::recordStream(const c10::DataPtr &ptr, c10_npu::NPUStream stream): `Tensor.record_stream()`, and collectives of
    // HCCL. A `DataPtr` begins with the address; a tensor without memory has none. The stream is passed by reference or in registers.
    ProbeSpec {
        symbol: "NpuCachingAllocator::recordStream",
        locator: Some(Locator::PtaRecordStream),
        meaning: CallKind::Pool(PoolCall::RecordStream),
        fields: &[(Field::Addr, Fetch::memory(1, 0))],
        ..PTA
    },
    // void NpuCachingAllocator::emptyCache(MempoolId_t mempool_id): `torch.accelerator.empty_cache()`; with a number where a
    // pool of the program's own goes.
    ProbeSpec {
        symbol: "NpuCachingAllocator::emptyCache",
        locator: Some(Locator::PtaEmptyCache),
        meaning: CallKind::Pool(PoolCall::EmptyCache),
        fields: &[(Field::PoolFirst, Fetch::arg(1)), (Field::PoolSecond, Fetch::arg(2))],
        ..PTA
    },
    // PyObject *THNPModule_emptyCache(PyObject *self, PyObject *noargs): `torch.npu.empty_cache()`, also where there is nothing to give back.
    ProbeSpec {
        symbol: "_npu_emptyCache",
        locator: Some(Locator::PtaMethod { name: "_npu_emptyCache", has_arguments: false }),
        meaning: CallKind::Pool(PoolCall::EmptyCache),
        ..PTA
    },
    // void c10_npu::NPUCachingAllocator::setAllocatorSettings(const std::string &settings): `torch.npu.memory._set_allocator_settings()`.
    // It throws what it refuses, so at its return they are in force.
    ProbeSpec {
        symbol: "_ZN7c10_npu19NPUCachingAllocator20setAllocatorSettingsERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        meaning: CallKind::Pool(PoolCall::Settings),
        when: When::OwnReturn,
        text_arg: Some(0),
        text_at: Some(0),
        ..PTA
    },
    // PyObject *THNPModule_setMemoryFraction(PyObject *self, PyObject *args): `torch.npu.set_per_process_memory_fraction()`, with a tuple of
    // a `float` and an `int`. In CPython 3.8 to 3.14, a tuple's items begin at 24, a `float`'s value is at 16, an `int`'s lowest digit at 24.
    ProbeSpec {
        symbol: "_npu_setMemoryFraction",
        locator: Some(Locator::PtaMethod { name: "_npu_setMemoryFraction", has_arguments: true }),
        meaning: CallKind::Pool(PoolCall::Fraction),
        fields: &[(Field::Fraction, Fetch::behind(1, 24, 16)), (Field::Device, Fetch::behind(1, 32, 24))],
        ..PTA
    },
    CAPTURE_BEGIN,
    // The same with `bool report_shape` behind it.
    ProbeSpec { symbol: "_ZN7c10_npu8NPUGraph13capture_beginESt4pairIyyE19aclmdlRICaptureModeb", ..CAPTURE_BEGIN },
    // void c10_npu::NPUGraph::capture_end()
    ProbeSpec { symbol: "_ZN7c10_npu8NPUGraph11capture_endEv", meaning: CallKind::Pool(PoolCall::GraphEnd), ..GRAPH },
    // void c10_npu::NPUGraph::reset(), also where the graph was reset before, and when its object goes
    ProbeSpec { symbol: "_ZN7c10_npu8NPUGraph5resetEv", meaning: CallKind::Pool(PoolCall::GraphReset), ..GRAPH },
    ProbeSpec {
        symbol: "NpuCachingAllocator::beginAllocateToPool",
        locator: Some(Locator::PtaPool(PoolFunction::Begin)),
        meaning: CallKind::Pool(PoolCall::OwnPoolBegin),
        ..OWN_POOL
    },
    ProbeSpec {
        symbol: "NpuCachingAllocator::endAllocateToPool",
        locator: Some(Locator::PtaPool(PoolFunction::End)),
        meaning: CallKind::Pool(PoolCall::OwnPoolEnd),
        ..OWN_POOL
    },
    ProbeSpec {
        symbol: "NpuCachingAllocator::releasePool",
        locator: Some(Locator::PtaPool(PoolFunction::Release)),
        meaning: CallKind::Pool(PoolCall::OwnPoolRelease),
        ..OWN_POOL
    },
    // Releases that count the object among those that hold the pool, from 2.9.0.post9 to 2.12: the number is behind the allocator, a
    // shared pointer.
    ProbeSpec {
        symbol: "_ZN7c10_npu7MemPoolC1ESt10shared_ptrINS_19NPUCachingAllocator12NPUAllocatorEEb",
        meaning: CallKind::Pool(PoolCall::MemPoolOfAllMade),
        fields: &[
            (Field::Handle, Fetch::arg(0)),
            (Field::PoolFirst, Fetch::memory(0, 24)),
            (Field::PoolSecond, Fetch::memory(0, 32)),
        ],
        ..MEM_POOL
    },
    // From 2.13 on, with `bool use_on_oom, bool no_split`: the object does not keep the allocator. With `no_split` its last call takes the place of its
    // return.
    ProbeSpec {
        symbol: "_ZN7c10_npu7MemPoolC1ESt10shared_ptrINS_19NPUCachingAllocator12NPUAllocatorEEbbb",
        meaning: CallKind::Pool(PoolCall::MemPoolMade),
        fields: &[
            (Field::Handle, Fetch::arg(0)),
            (Field::PoolFirst, Fetch::memory(0, 8)),
            (Field::PoolSecond, Fetch::memory(0, 16)),
            (Field::PoolOnOom, Fetch::arg(3)),
            (Field::PoolNoSplit, Fetch::arg(4)),
        ],
        ..MEM_POOL
    },
    // c10_npu::MemPool::~MemPool()
    ProbeSpec { symbol: "_ZN7c10_npu7MemPoolD1Ev", meaning: CallKind::Pool(PoolCall::MemPoolGone), ..GRAPH },
];
