//! `MindSpore`: the functions of its memory pools (ascend-abi §10). They are C++ and throw when a device is full, so their
//! returns are seen at their own return instructions.

use memscope_common::{Fetch, When};

use crate::probes::{CallKind, Field, Layer, PoolCall, ProbeSpec};

const MINDSPORE: ProbeSpec = ProbeSpec {
    layer: Layer::MindSpore,
    libraries: &["libmindspore_memory_pool.so"],
    pool: Some("MINDSPORE"),
    may_throw: true,
    returns_int: false,
    ..ProbeSpec::BASE
};

/// `void *…::AllocTensorMem(size_t size, bool from_persistent_mem, bool need_recycle, uint32_t stream_id)`
const ALLOC: ProbeSpec = ProbeSpec {
    meaning: CallKind::Pool(PoolCall::Alloc),
    when: When::OwnReturn,
    fields: &[(Field::Size, Fetch::arg(1))],
    ..MINDSPORE
};

/// `std::pair<MemBuf *, MemBufAllocator *> …::AllocMemBuf(size_t align_size, bool from_persistent_mem, uint32_t
/// stream_id)`: every allocation of that class calls it, while `memory_tracker:True` puts a class before it that does
/// without `AllocTensorMem`. `MemBuf` has its size at 0x20 and its address at 0x28, as disassembled in the wheels of
/// 2.7.0 to 2.10.0, for both machines.
const ALLOC_BUFFER: ProbeSpec =
    ProbeSpec { fields: &[(Field::Size, Fetch::returned(0x20)), (Field::Addr, Fetch::returned(0x28))], ..ALLOC };

/// `void …(const DeviceMemPtr &device_addr)`: a reference to the pointer. Each class has one function that every free
/// calls: those above it, `FreeTensorMem` and `FreePartTensorMems`, are copied into virtual thunks by the compiler,
/// which then never call them.
const FREE: ProbeSpec = ProbeSpec {
    meaning: CallKind::Pool(PoolCall::Free),
    when: When::Entry,
    fields: &[(Field::Addr, Fetch::memory(1, 0))],
    ..MINDSPORE
};

/// As disassembled in the wheels of 2.7.0 to 2.10.0, for both machines: `FreeTensorMem` and its thunk call `DoFreeTensorMem` by the table of
/// virtual functions, `DoFreePartTensorMems` calls it by name. All of the other class call `FreeTensorMemInner` by name.
pub(super) const ROWS: &[ProbeSpec] = &[
    ProbeSpec { symbol: "_ZN9mindspore6device22AbstractDynamicMemPool11AllocMemBufEmbj", ..ALLOC_BUFFER },
    ProbeSpec { symbol: "_ZN9mindspore6device21DynamicMemPoolBestFit14AllocTensorMemEmbbj", ..ALLOC },
    ProbeSpec { symbol: "_ZN9mindspore6device22AbstractDynamicMemPool15DoFreeTensorMemERKPv", ..FREE },
    ProbeSpec { symbol: "_ZN9mindspore6device21DynamicMemPoolBestFit18FreeTensorMemInnerERKPv", ..FREE },
];
