//! Tensors of ATB's operations: bytes that the kernel side copied become addresses and shapes .
//!
//! The program may have anything in those bytes: if the backend recognises no tensor, none is reported.

use std::sync::Arc;

use super::super::super::rows::Unusable;
use crate::backend::{Backend, Tensor};
use crate::decode::{ObjectCopy, Objects};
use crate::model::{Access, AccessKind, Pool};
use crate::probes::{Field, RowInfo};

/// Tensors of an operation that begins.
#[derive(Debug)]
pub(in crate::pipeline) struct AtbTensors {
    name: Arc<str>,
    pub(super) tensors: Vec<(AccessKind, Tensor)>,
    /// Tensors that were unreadable, or did not fit.
    pub(super) left_out: u64,
}

impl AtbTensors {
    /// The tensors in a record of this row.
    pub(super) fn of(backend: &dyn Backend, row: &RowInfo, objects: &Objects<'_>) -> Result<Self, Unusable> {
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
            let tensor = if object.readable { backend.operation_tensor(object.head) } else { None };
            match tensor {
                // Tensors without elements, and those in host memory, are not reported.
                Some(tensor) if tensor.addr == 0 || tensor.size_bytes == 0 => {}
                Some(tensor) => found.tensors.push((kind, tensor)),
                None => found.left_out += 1,
            }
        }
        Ok(found)
    }

    /// The use of one of the tensors, which lies in a pool's block.
    pub(super) fn access(&self, (kind, tensor): &(AccessKind, Tensor), pool: Pool, allocation_id: u64) -> Access {
        let Tensor { addr, size_bytes, dtype, format, ref shape } = *tensor;
        let (kind, op, shape) = (*kind, Arc::clone(&self.name), Arc::clone(shape));
        Access { kind, op, allocation_id, pool, addr, size_bytes, dtype, format: Some(format), shape }
    }
}

fn name(object: &ObjectCopy<'_>) -> Arc<str> {
    let bytes = if object.readable { object.head } else { &[] };
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into()
}
