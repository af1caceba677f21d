//! Memory that waits for streams as rows: one for each place.

use super::{PlaceWaits, Waits};
use crate::analyses::{
    Finding,
    answer::Kind as _,
    table::{Cell, Rows, Table, Type, column},
};

/// A row for each place.
pub(super) const TABLE: &dyn Table<Finding> = &Rows::<Finding, Waits, PlaceWaits> {
    columns: &[
        column("pid", Type::Unsigned, |found, _| found.pid.into()),
        column("device", Type::Text, |found, _| Cell::device(found.device)),
        column("pool", Type::Text, |found, _| Cell::word(found.pool)),
        column("blocks", Type::Unsigned, |_, place| place.sum.blocks.into()),
        column("most_bytes", Type::Unsigned, |_, place| place.sum.most_bytes.into()),
        column("pool_peak_bytes", Type::Unsigned, |_, place| place.sum.pool_peak_bytes.into()),
        column("longest_ns", Type::Unsigned, |_, place| place.sum.longest_ns.into()),
        column("python_stack", Type::Text, |_, place| Cell::frames(place.stacks.python)),
        column("native_stack", Type::Text, |_, place| Cell::frames(place.stacks.native)),
        column("record_stream_python_stack", Type::Text, |_, place| Cell::frames(place.record_stream.python)),
        column("record_stream_native_stack", Type::Text, |_, place| Cell::frames(place.record_stream.native)),
    ],
    each: |finding, row| {
        let Some(found) = Waits::of(finding) else { return };
        found.places.iter().for_each(|place| row(found, place));
    },
};
