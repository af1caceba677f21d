//! `MindSpore`: the functions of its memory pools (ascend-abi §10). They are C++ and throw when a device is full, so their
//! returns are seen at their own return instructions.

use memscope_common::{Fetch, When};

use super::{Field, Layer, Meaning, ProbeSpec};

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
    meaning: Meaning::PoolAlloc,
    when: When::OwnReturn,
    fields: &[(Field::Size, Fetch::arg(1))],
    ..MINDSPORE
};

/// `void …::FreeTensorMem(const DeviceMemPtr &device_addr)`: a reference to the pointer.
const FREE: ProbeSpec = ProbeSpec {
    meaning: Meaning::PoolFree,
    when: When::Entry,
    fields: &[(Field::Addr, Fetch::memory(1, 0))],
    ..MINDSPORE
};

/// `DoFreeTensorMem` is below the first `FreeTensorMem`, and the thunks of both classes jump into these.
pub(super) const ROWS: &[ProbeSpec] = &[
    ProbeSpec { symbol: "_ZN9mindspore6device22AbstractDynamicMemPool14AllocTensorMemEmbbj", ..ALLOC },
    ProbeSpec { symbol: "_ZN9mindspore6device21DynamicMemPoolBestFit14AllocTensorMemEmbbj", ..ALLOC },
    ProbeSpec { symbol: "_ZN9mindspore6device22AbstractDynamicMemPool13FreeTensorMemERKPv", ..FREE },
    ProbeSpec { symbol: "_ZN9mindspore6device21DynamicMemPoolBestFit13FreeTensorMemERKPv", ..FREE },
];
