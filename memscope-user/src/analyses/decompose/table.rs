//! What each rule has named, as rows.

use super::{Decomposition, OwnerPart};
use crate::analyses::{
    Finding,
    answer::Kind as _,
    table::{Cell, Rows, Table, Type, column},
};

/// A row for each part.
pub(super) const TABLE: &dyn Table<Finding> = &Rows::<Finding, Decomposition, OwnerPart> {
    columns: &[
        column("pid", Type::Unsigned, |found, _| found.pid.into()),
        column("device", Type::Text, |found, _| Cell::device(found.device)),
        column("pool", Type::Text, |found, _| Cell::word(found.pool)),
        column("owner", Type::Text, |_, part| Cell::word(part.owner)),
        column("component", Type::Text, |_, part| Cell::word(part.component)),
        column("rule", Type::Text, |_, part| Cell::word(part.rule)),
        column("source", Type::Text, |_, part| Cell::word(part.source)),
        column("peak_blocks", Type::Unsigned, |_, part| part.peak_blocks.into()),
        column("peak_bytes", Type::Unsigned, |_, part| part.peak_bytes.into()),
        column("end_blocks", Type::Unsigned, |_, part| part.end_blocks.into()),
        column("end_bytes", Type::Unsigned, |_, part| part.end_bytes.into()),
        column("mean_bytes", Type::Unsigned, |_, part| part.mean_bytes.into()),
        column("blocks", Type::Unsigned, |_, part| part.blocks.into()),
    ],
    each: |finding, row| {
        let Some(found) = Decomposition::of(finding) else { return };
        found.parts.iter().for_each(|part| row(found, part));
    },
};
