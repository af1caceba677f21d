//! Owners of the live memory at each peak, as rows.

use super::Peak;
use crate::analyses::{
    Finding,
    answer::Kind as _,
    table::{Cell, Rows, Table, Type, column},
};
use crate::model::OwnerSum;

/// A row for each owner.
pub(super) const TABLE: &dyn Table<Finding> = &Rows::<Finding, Peak, OwnerSum> {
    columns: &[
        column("pid", Type::Unsigned, |peak, _| peak.pid.into()),
        column("device", Type::Text, |peak, _| Cell::device(peak.device)),
        column("pool", Type::Text, |peak, _| Cell::word(peak.pool)),
        column("time_ns", Type::Unsigned, |peak, _| peak.time_ns.into()),
        column("step", Type::Unsigned, |peak, _| peak.step.into()),
        column("peak_bytes", Type::Unsigned, |peak, _| peak.peak_bytes.into()),
        column("owner", Type::Text, |_, sum| Cell::word(sum.owner)),
        column("blocks", Type::Unsigned, |_, sum| sum.live.blocks.into()),
        column("size_bytes", Type::Unsigned, |_, sum| sum.live.size_bytes.into()),
    ],
    each: |finding, row| {
        let Some(peak) = Peak::of(finding) else { return };
        peak.groups.owners.iter().for_each(|sum| row(peak, sum));
    },
};
