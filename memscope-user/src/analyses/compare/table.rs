//! Operators and kernels of two runs side by side, as rows.

use super::{ComparedRow, EntryKind, Figures};
use crate::analyses::table::{Cell, Rows, Table, Type, column};

/// A row for each entry.
pub const TABLE: &dyn Table<ComparedRow> = &Rows::<ComparedRow, (), ComparedRow> {
    columns: &[
        column("device", Type::Unsigned, |(), row| row.device.into()),
        column("kind", Type::Text, |(), row| Cell::text(if row.kind == EntryKind::Op { "op" } else { "kernel" })),
        column("name", Type::Text, |(), row| Cell::text(&*row.name)),
        column("base_bytes", Type::Signed, |(), row| delta(row.base).map_or(Cell::Missing, Cell::Signed)),
        column("compare_bytes", Type::Signed, |(), row| delta(row.compare).map_or(Cell::Missing, Cell::Signed)),
        column("grown_bytes", Type::Signed, |(), row| {
            Cell::Signed(delta(row.compare).unwrap_or(0).saturating_sub(delta(row.base).unwrap_or(0)))
        }),
    ],
    each: |compared, row| row(&(), compared),
};

fn delta(figures: Option<Figures>) -> Option<i64> {
    figures.map(|figures| figures.delta_bytes)
}
