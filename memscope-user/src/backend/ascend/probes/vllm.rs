//! vLLM's allocator for Ascend: C functions that `torch_npu` is configured to allocate with (ascend-abi §9).
//!
//! The blocks are addresses: while the server sleeps they stay live, and the driver's layer shows that no memory is
//! behind them. The functions are written in C++, so their own return instructions are probed.

use memscope_common::{Fetch, When};

use crate::probes::{CallKind, Field, Layer, PoolCall, ProbeSpec};

const VLLM: ProbeSpec = ProbeSpec {
    layer: Layer::Pta,
    libraries: &["vllm_ascend_C*.so"],
    pool: Some("vllm"),
    may_throw: true,
    returns_int: false,
    ..ProbeSpec::BASE
};

pub(super) const ROWS: &[ProbeSpec] = &[
    // void *my_malloc(ssize_t size, int device, aclrtStream stream)
    ProbeSpec {
        symbol: "my_malloc",
        meaning: CallKind::Pool(PoolCall::Alloc),
        when: When::OwnReturn,
        fields: &[(Field::Size, Fetch::arg(0)), (Field::Device, Fetch::arg(1))],
        ..VLLM
    },
    // void my_free(void *ptr, ssize_t size, int device, aclrtStream stream)
    ProbeSpec {
        symbol: "my_free",
        meaning: CallKind::Pool(PoolCall::Free),
        when: When::Entry,
        fields: &[(Field::Addr, Fetch::arg(0))],
        ..VLLM
    },
];
