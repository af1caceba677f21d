//! Tensors of ATB's operations: bytes that the kernel side copied become addresses and shapes (ascend-abi §7).
//!
//! The program may have anything in those bytes. What has more dimensions than a tensor can have, or negative ones, is not
//! reported.

use std::sync::Arc;

use super::super::super::rows::Unusable;
use crate::decode::{ObjectCopy, Objects, word};
use crate::model::{Access, AccessKind, Pool};
use crate::probes::{Field, RowInfo};

/// `atb::Tensor`: offsets of type (four bytes), format (four), dimensions, their number, address on the device, and size.
const TYPE_AT: usize = 0;
const FORMAT_AT: usize = 4;
const DIMENSIONS_AT: usize = 8;
const RANK_AT: usize = 72;
const DEVICE_DATA_AT: usize = 80;
const SIZE_AT: usize = 96;
/// `atb::MAX_DIM`.
const MAX_RANK: u64 = 8;

/// Of a type or format that is not known here.
const UNKNOWN: &str = "N/A";

/// Tensors of an operation that begins.
#[derive(Debug)]
pub(in crate::pipeline) struct AtbTensors {
    name: Arc<str>,
    pub(super) tensors: Vec<AtbTensor>,
    /// Tensors that could not be read, or for which there was no room.
    pub(super) left_out: u64,
}

/// A tensor on a device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AtbTensor {
    kind: AccessKind,
    pub(super) addr: u64,
    size_bytes: u64,
    dtype: &'static str,
    format: &'static str,
    shape: Arc<[i64]>,
}

impl AtbTensors {
    /// What a record of this row says.
    pub(super) fn of(row: &RowInfo, objects: &Objects<'_>) -> Result<Self, Unusable> {
        let mut found = Self { name: Arc::from(""), tensors: Vec::new(), left_out: objects.left_out.into() };
        for object in objects.iter() {
            // Whether an input is only read is not known (contract §6.2).
            let kind = match row.fields.get(usize::from(object.value)).ok_or(Unusable)? {
                Field::Name => {
                    found.name = name(&object);
                    continue;
                }
                Field::Outputs => AccessKind::Write,
                Field::Inputs => AccessKind::Unknown,
                _ => return Err(Unusable),
            };
            match tensor(&object, kind) {
                // Of tensors without elements, and of those in host memory, there is nothing to tell.
                Some(tensor) if tensor.addr == 0 || tensor.size_bytes == 0 => {}
                Some(tensor) => found.tensors.push(tensor),
                None => found.left_out += 1,
            }
        }
        Ok(found)
    }

    /// The use of one of the tensors.
    pub(super) fn access(&self, tensor: &AtbTensor, allocation_id: u64) -> Access {
        let AtbTensor { kind, addr, size_bytes, dtype, format, ref shape } = *tensor;
        let (op, shape) = (Arc::clone(&self.name), Arc::clone(shape));
        Access { kind, op, allocation_id, pool: Pool::Atb, addr, size_bytes, dtype, format: Some(format), shape }
    }
}

fn name(object: &ObjectCopy<'_>) -> Arc<str> {
    let bytes = if object.readable { object.head } else { &[] };
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into()
}

fn tensor(object: &ObjectCopy<'_>, kind: AccessKind) -> Option<AtbTensor> {
    let at = |at: usize| word(object.head, at);
    let number = |at: usize| object.head.get(at..).and_then(<[u8]>::first_chunk).copied().map(i32::from_le_bytes);
    let rank = at(RANK_AT).filter(|rank| object.readable && *rank <= MAX_RANK)?;
    let size = |index: u64| at(DIMENSIONS_AT + 8 * index as usize).map(u64::cast_signed).filter(|size| *size >= 0);
    Some(AtbTensor {
        kind,
        addr: at(DEVICE_DATA_AT)?,
        size_bytes: at(SIZE_AT)?,
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
