//! Free memory over time, as rows.

use super::{Fragmentation, FreeSpaceSample};
use crate::analyses::{
    Finding,
    answer::Kind as _,
    table::{Cell, Rows, Table, Type, column},
};

/// A row for each sample.
pub(super) const TABLE: &dyn Table<Finding> = &Rows::<Finding, Fragmentation, FreeSpaceSample> {
    columns: &[
        column("pid", Type::Unsigned, |found, _| found.pid.into()),
        column("device", Type::Text, |found, _| Cell::device(found.device)),
        column("pool", Type::Text, |found, _| Cell::word(found.pool)),
        column("time_ns", Type::Unsigned, |_, sample| sample.time_ns.into()),
        column("total_bytes", Type::Unsigned, |_, sample| sample.last.total_bytes.into()),
        column("used_bytes", Type::Unsigned, |_, sample| sample.last.used_bytes.into()),
        column("free_bytes", Type::Unsigned, |_, sample| sample.last.free_bytes.into()),
        column("largest_free_bytes", Type::Unsigned, |_, sample| sample.last.largest_free_bytes.into()),
        column("ratio", Type::Float, |_, sample| sample.last.ratio.into()),
        column("worst_ratio", Type::Float, |_, sample| sample.worst.ratio.into()),
    ],
    each: |finding, row| {
        let Some(found) = Fragmentation::of(finding) else { return };
        found.series.iter().for_each(|sample| row(found, sample));
    },
};
