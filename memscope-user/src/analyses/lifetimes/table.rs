//! Lifetimes as rows: one for each bar of each size class.

use super::{LIMITS_NS, Lifetimes};
use crate::analyses::{
    Finding,
    answer::Kind as _,
    table::{Cell, Rows, Table, Type, column},
};

/// Blocks of a size class with similar lifetimes.
struct Bar {
    least_bytes: u64,
    /// `None` for blocks live at the end.
    at_least_ns: Option<u64>,
    blocks: u64,
}

/// A row for each bar that counts a block.
pub(super) const TABLE: &dyn Table<Finding> = &Rows::<Finding, Lifetimes, Bar> {
    columns: &[
        column("pid", Type::Unsigned, |found, _| found.pid.into()),
        column("device", Type::Text, |found, _| Cell::device(found.device)),
        column("pool", Type::Text, |found, _| Cell::word(found.pool)),
        column("least_bytes", Type::Unsigned, |_, bar| bar.least_bytes.into()),
        column("at_least_ns", Type::Unsigned, |_, bar| bar.at_least_ns.into()),
        column("blocks", Type::Unsigned, |_, bar| bar.blocks.into()),
    ],
    each: |finding, row| {
        let Some(found) = Lifetimes::of(finding) else { return };
        for size in &found.sizes {
            let least_bytes = size.least_bytes;
            let limits = [0].into_iter().chain(LIMITS_NS).map(Some);
            let freed = limits.zip(size.histogram.freed);
            for (at_least_ns, blocks) in freed.chain([(None, size.histogram.live_blocks)]) {
                if blocks > 0 {
                    row(found, &Bar { least_bytes, at_least_ns, blocks });
                }
            }
        }
    },
};
