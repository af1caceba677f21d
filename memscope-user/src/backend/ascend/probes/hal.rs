//! Driver entry points, as declared in `ascend_hal_base.h`.

use memscope_common::{Fetch, When};

use crate::probes::{CallKind, Field, Layer, MemoryCall, ProbeSpec};

const HAL: ProbeSpec = ProbeSpec { layer: Layer::Hal, libraries: &["libascend_hal.so"], ..ProbeSpec::BASE };

/// The memory, mapping or region at the first argument ends: reported at entry, before the driver can use the address
/// again.
const END: ProbeSpec = ProbeSpec { when: When::EntryAndNonZero, fields: &[(Field::Addr, Fetch::arg(0))], ..HAL };

const MAP: ProbeSpec = ProbeSpec {
    meaning: CallKind::Memory(MemoryCall::Map),
    fields: &[(Field::Addr, Fetch::arg(0)), (Field::Size, Fetch::arg(1)), (Field::Handle, Fetch::arg(3))],
    ..HAL
};

pub(super) const ROWS: &[ProbeSpec] = &[
    // drvError_t halMemAlloc(void **pp, unsigned long long size, unsigned long long flag)
    ProbeSpec {
        symbol: "halMemAlloc",
        meaning: CallKind::Memory(MemoryCall::Alloc),
        fields: &[(Field::Addr, Fetch::out(0)), (Field::Size, Fetch::arg(1)), (Field::Flags, Fetch::arg(2))],
        ..HAL
    },
    // drvError_t halMemFree(void *pp)
    ProbeSpec { symbol: "halMemFree", meaning: CallKind::Memory(MemoryCall::Free), ..END },
    // drvError_t halMemCreate(drv_mem_handle_t **handle, size_t size, const struct drv_mem_prop *prop, uint64_t flag)
    ProbeSpec {
        symbol: "halMemCreate",
        meaning: CallKind::Memory(MemoryCall::Create),
        fields: &[
            (Field::Addr, Fetch::out(0)),
            (Field::Size, Fetch::arg(1)),
            (Field::PropSideDevice, Fetch::memory(2, 0)),
            (Field::PropModulePage, Fetch::memory(2, 8)),
        ],
        ..HAL
    },
    // drvError_t halMemRelease(drv_mem_handle_t *handle)
    ProbeSpec { symbol: "halMemRelease", meaning: CallKind::Memory(MemoryCall::Release), ..END },
    // drvError_t halMemRetainAllocationHandle(drv_mem_handle_t **handle, void *ptr): the new reference needs its own release.
    ProbeSpec {
        symbol: "halMemRetainAllocationHandle",
        meaning: CallKind::Memory(MemoryCall::Retain),
        fields: &[(Field::Handle, Fetch::out(0)), (Field::Addr, Fetch::arg(1))],
        ..HAL
    },
    // drvError_t halMemImportFromShareableHandle(uint64_t shareable, uint32_t devid, drv_mem_handle_t **handle)
    ProbeSpec {
        symbol: "halMemImportFromShareableHandle",
        meaning: CallKind::Memory(MemoryCall::Import),
        fields: &[(Field::Handle, Fetch::out(2))],
        ..HAL
    },
    // drvError_t halMemAddressReserve(void **ptr, size_t size, size_t alignment, void *addr, uint64_t flag)
    ProbeSpec {
        symbol: "halMemAddressReserve",
        meaning: CallKind::Memory(MemoryCall::Reserve),
        fields: &[(Field::Addr, Fetch::out(0)), (Field::Size, Fetch::arg(1))],
        ..HAL
    },
    // drvError_t halMemAddressFree(void *ptr)
    ProbeSpec { symbol: "halMemAddressFree", meaning: CallKind::Memory(MemoryCall::Unreserve), ..END },
    // drvError_t halMemMap(void *ptr, size_t size, size_t offset, drv_mem_handle_t *handle, uint64_t flag)
    ProbeSpec { symbol: "halMemMap", ..MAP },
    // The same arguments; the mapping has no access rights yet.
    ProbeSpec { symbol: "halMemMapNoAccess", ..MAP },
    // drvError_t halMemUnmap(void *ptr)
    ProbeSpec { symbol: "halMemUnmap", meaning: CallKind::Memory(MemoryCall::Unmap), ..END },
    // drvError_t halHostRegister(void *src, UINT64 size, UINT32 flag, UINT32 devid, void **dst)
    ProbeSpec {
        symbol: "halHostRegister",
        meaning: CallKind::Memory(MemoryCall::Register),
        fields: &[(Field::Addr, Fetch::arg(0)), (Field::Size, Fetch::arg(1))],
        ..HAL
    },
    // drvError_t halHostUnregister(void *src, UINT32 devid)
    ProbeSpec { symbol: "halHostUnregister", meaning: CallKind::Memory(MemoryCall::Unregister), ..END },
    // drvError_t halHostUnregisterEx(void *src, UINT32 devid, UINT32 flag)
    ProbeSpec { symbol: "halHostUnregisterEx", meaning: CallKind::Memory(MemoryCall::Unregister), ..END },
];
