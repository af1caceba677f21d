//! Description of libtorch's operators, which are found in the library itself (`locate/ops`).

use memscope_common::stack::{STACK_NATIVE, STACK_PYTHON};
use memscope_common::{Fetch, When};
use serde::{Deserialize, Serialize};

/// Defines the operators.
pub const TORCH_LIBRARY: &str = "libtorch_cpu.so";

/// How an operator uses the tensors of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Use {
    /// Reads them.
    #[serde(rename = "r")]
    Read,
    /// Writes them.
    #[serde(rename = "w")]
    Write,
}

/// One operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpInfo {
    /// With overload, as Python names it: `aten.add.Tensor`.
    pub name: String,
    /// Uses of the tensors at its beginning, by the values of its row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub enter: Vec<Use>,
    /// Uses of the tensors at its end, by the values of that row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leave: Vec<Use>,
}

/// Offsets in the copied bytes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorLayout {
    /// Number of dimensions, then the sizes.
    pub sizes_at: u16,
    /// First element within the storage.
    pub offset_at: u16,
    /// Number of elements.
    pub count_at: u16,
    /// Type of the elements, two bytes.
    pub type_at: u16,
    /// Kind of device, its number, whether there is one; a byte each.
    pub device_at: u16,
}

/// Values of rows that this module's users make; in a test, to be sure that they fit.
pub(crate) const MAX_USES: usize = memscope_common::row::MAX_VALUES;

/// Defines [`CATCH`].
pub const CXX_LIBRARY: &str = "libstdc++.so";
/// Called by every handler of an exception.
pub const CATCH: &str = "__cxa_begin_catch";

/// The row of a place in a function: `values` lead to tensors.
#[must_use]
pub fn place_row(when: When, values: &[Fetch], param: i64) -> memscope_common::ProbeRow {
    let mut fetch = [Fetch::NONE; MAX_USES];
    for (slot, value) in fetch.iter_mut().zip(values) {
        *slot = *value;
    }
    memscope_common::ProbeRow {
        when: when as u8,
        values: values.len().min(MAX_USES) as u8,
        param,
        fetch,
        stacks: if matches!(when, When::ObjectsCatch) { 0 } else { STACK_NATIVE | STACK_PYTHON },
        ..Default::default()
    }
}
