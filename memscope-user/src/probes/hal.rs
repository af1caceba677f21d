//! Driver entry points, as declared in `ascend_hal_base.h`.

use memscope_common::{Fetch, When};

use super::{Field, Layer, Meaning, ProbeSpec};

const HAL: ProbeSpec = ProbeSpec { layer: Layer::Hal, libraries: &["libascend_hal.so"], ..ProbeSpec::BASE };

pub(super) const ROWS: &[ProbeSpec] = &[
    // drvError_t halMemAlloc(void **pp, unsigned long long size, unsigned long long flag)
    ProbeSpec {
        symbol: "halMemAlloc",
        meaning: Meaning::HalAlloc,
        fields: &[(Field::Addr, Fetch::out(0)), (Field::Size, Fetch::arg(1)), (Field::Flags, Fetch::arg(2))],
        ..HAL
    },
    // drvError_t halMemFree(void *pp): reported at entry, before the driver can hand the address out again.
    ProbeSpec {
        symbol: "halMemFree",
        meaning: Meaning::HalFree,
        when: When::EntryAndNonZero,
        fields: &[(Field::Addr, Fetch::arg(0))],
        ..HAL
    },
    // drvError_t halMemCreate(drv_mem_handle_t **handle, size_t size, const struct drv_mem_prop *prop, uint64_t flag)
    ProbeSpec {
        symbol: "halMemCreate",
        meaning: Meaning::HalCreate,
        fields: &[
            (Field::Addr, Fetch::out(0)),
            (Field::Size, Fetch::arg(1)),
            (Field::PropSideDevice, Fetch::memory(2, 0)),
            (Field::PropModulePage, Fetch::memory(2, 8)),
        ],
        ..HAL
    },
    // drvError_t halMemRelease(drv_mem_handle_t *handle)
    ProbeSpec {
        symbol: "halMemRelease",
        meaning: Meaning::HalRelease,
        when: When::EntryAndNonZero,
        fields: &[(Field::Addr, Fetch::arg(0))],
        ..HAL
    },
];
