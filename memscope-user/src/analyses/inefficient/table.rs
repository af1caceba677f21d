//! Blocks that were held longer than they were used, as rows.

use super::{Inefficient, InefficientBlock, InefficientKind};
use crate::analyses::{
    Finding,
    answer::Kind as _,
    table::{Cell, Rows, Table, Type, column},
};

/// A row for each block.
pub(super) const TABLE: &dyn Table<Finding> = &Rows::<Finding, Inefficient, InefficientBlock> {
    columns: &[
        column("pid", Type::Unsigned, |found, _| found.pid.into()),
        column("device", Type::Text, |found, _| Cell::device(found.device)),
        column("pool", Type::Text, |_, block| Cell::word(block.pool)),
        column("addr", Type::Unsigned, |_, block| block.addr.into()),
        column("size_bytes", Type::Unsigned, |_, block| block.size_bytes.into()),
        column("allocation_id", Type::Unsigned, |_, block| block.allocation_id.into()),
        column("event_id", Type::Unsigned, |_, block| block.event_id.into()),
        column("kinds", Type::Text, |_, block| {
            let kinds: Vec<&str> = block.kinds.iter().copied().map(InefficientKind::as_str).collect();
            Cell::Text(kinds.join(","))
        }),
        column("wasted_byte_seconds", Type::Float, |_, block| block.wasted_byte_seconds.into()),
    ],
    each: |finding, row| {
        let Some(found) = Inefficient::of(finding) else { return };
        // Those without a kind are msMemScope's marks alone.
        found.blocks.iter().filter(|block| !block.kinds.is_empty()).for_each(|block| row(found, block));
    },
};
