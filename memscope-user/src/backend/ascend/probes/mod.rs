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

#[cfg(test)]
mod tests {
    use memscope_common::{Fetch, row::ROW_ENDS_BLOCK};

    use super::TABLES;

    /// Functions that end a block, whatever their arguments are; of the report of a pool the size says it, 16 bytes behind its begin.
    #[test]
    fn ends_of_blocks() {
        let rows = || TABLES.iter().copied().flatten().map(|spec| (spec.symbol, spec.row()));
        let ends: Vec<&str> =
            rows().filter(|(_, row)| row.flags & ROW_ENDS_BLOCK != 0).map(|(symbol, _)| symbol).collect();
        for symbol in ["halMemFree", "halMemRelease", "aclrtHostUnregister", "mstxMemRegionsUnregister"] {
            assert!(ends.iter().any(|end| end.starts_with(symbol)), "{symbol} is not in {ends:?}");
        }
        assert!(ends.iter().all(|symbol| !symbol.contains("lloc") && !symbol.contains("Create")), "{ends:?}");
        let signs = rows().filter(|(_, row)| row.sign_of != 0);
        let signs: Vec<_> = signs.map(|(symbol, row)| (symbol, row.fetch[usize::from(row.sign_of) - 1])).collect();
        assert_eq!(signs, [("reportMemoryDataToNpuProfiler", Fetch::memory(0, 16))]);
    }
}
