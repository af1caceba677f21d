//! The probed functions, a file for each library: prototypes and meanings.

mod acl;
mod aclnn;
mod atb;
mod graphs;
mod hal;
mod mindspore;
mod mstx;
mod npu_ops;
mod pta;
mod runtime;
mod vllm;

use crate::probes::ProbeSpec;

/// Rows of every trace.
pub(super) const TABLES: &[&[ProbeSpec]] = &[
    hal::ROWS,
    runtime::ROWS,
    acl::ROWS,
    mstx::ROWS,
    pta::ROWS,
    mindspore::ROWS,
    atb::ROWS,
    npu_ops::ROWS,
    vllm::ROWS,
];

/// Rows for block watch only.
pub(super) const WATCH_TABLES: &[&[ProbeSpec]] = &[&npu_ops::ENDS, graphs::ROWS, aclnn::ROWS];

/// Whether the function begins to capture a graph; the others of its kind end that.
pub(super) fn begins_capture(symbol: &str) -> bool {
    symbol == graphs::CAPTURE_BEGIN.symbol
}
