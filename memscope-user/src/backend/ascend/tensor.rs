//! Tensors of ATB's operations, as they lie in memory (ascend-abi §7).

use crate::backend::Tensor;

/// `atb::Tensor`: offsets of type (four bytes), format (four), dimensions, their number, address on the device, and size.
const TYPE_AT: usize = 0;
const FORMAT_AT: usize = 4;
const DIMENSIONS_AT: usize = 8;
const RANK_AT: usize = 72;
const DEVICE_DATA_AT: usize = 80;
const SIZE_AT: usize = 96;
/// `atb::MAX_DIM`.
const MAX_RANK: u64 = 8;

/// Placeholder of an unknown type or format.
const UNKNOWN: &str = "N/A";

/// Reads an `atb::Tensor`; `None` with more dimensions than a tensor can have, or negative ones.
pub(super) fn read(bytes: &[u8]) -> Option<Tensor> {
    let word = |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map(u64::from_le_bytes);
    let number = |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map(i32::from_le_bytes);
    let rank = word(RANK_AT).filter(|rank| *rank <= MAX_RANK)?;
    let size = |index: u64| word(DIMENSIONS_AT + 8 * index as usize).map(u64::cast_signed).filter(|size| *size >= 0);
    Some(Tensor {
        addr: word(DEVICE_DATA_AT)?,
        size_bytes: word(SIZE_AT)?,
        dtype: type_name(number(TYPE_AT)?),
        format: format_name(number(FORMAT_AT)?),
        shape: (0..rank).map(size).collect::<Option<_>>()?,
    })
}

/// `aclDataType`.
const fn type_name(number: i32) -> &'static str {
    match number {
        -1 => "ACL_DT_UNDEFINED",
        0 => "ACL_FLOAT",
        1 => "ACL_FLOAT16",
        2 => "ACL_INT8",
        3 => "ACL_INT32",
        4 => "ACL_UINT8",
        6 => "ACL_INT16",
        7 => "ACL_UINT16",
        8 => "ACL_UINT32",
        9 => "ACL_INT64",
        10 => "ACL_UINT64",
        11 => "ACL_DOUBLE",
        12 => "ACL_BOOL",
        13 => "ACL_STRING",
        16 => "ACL_COMPLEX64",
        17 => "ACL_COMPLEX128",
        27 => "ACL_BF16",
        29 => "ACL_INT4",
        30 => "ACL_UINT1",
        33 => "ACL_COMPLEX32",
        34 => "ACL_HIFLOAT8",
        35 => "ACL_FLOAT8_E5M2",
        36 => "ACL_FLOAT8_E4M3FN",
        37 => "ACL_FLOAT8_E8M0",
        38 => "ACL_FLOAT6_E3M2",
        39 => "ACL_FLOAT6_E2M3",
        40 => "ACL_FLOAT4_E2M1",
        41 => "ACL_FLOAT4_E1M2",
        _ => UNKNOWN,
    }
}

/// `aclFormat`.
const fn format_name(number: i32) -> &'static str {
    match number {
        -1 => "ACL_FORMAT_UNDEFINED",
        0 => "ACL_FORMAT_NCHW",
        1 => "ACL_FORMAT_NHWC",
        2 => "ACL_FORMAT_ND",
        3 => "ACL_FORMAT_NC1HWC0",
        4 => "ACL_FORMAT_FRACTAL_Z",
        12 => "ACL_FORMAT_NC1HWC0_C04",
        16 => "ACL_FORMAT_HWCN",
        27 => "ACL_FORMAT_NDHWC",
        29 => "ACL_FORMAT_FRACTAL_NZ",
        30 => "ACL_FORMAT_NCDHW",
        32 => "ACL_FORMAT_NDC1HWC0",
        33 => "ACL_FRACTAL_Z_3D",
        35 => "ACL_FORMAT_NC",
        47 => "ACL_FORMAT_NCL",
        _ => UNKNOWN,
    }
}
