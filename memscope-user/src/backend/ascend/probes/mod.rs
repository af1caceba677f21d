//! The functions that are probed, a file for each library: prototypes and meanings.

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

/// Rows that are always there.
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

/// Rows that are there only if blocks are watched.
pub(super) const WATCH_TABLES: &[&[ProbeSpec]] = &[&npu_ops::ENDS, graphs::ROWS, aclnn::ROWS];

/// Whether the function begins to capture a graph; the others of its kind end that.
pub(super) fn begins_capture(symbol: &str) -> bool {
    symbol == graphs::CAPTURE_BEGIN.symbol
}
