//! Owners of what changed between two moments, as rows.

use super::{Diff, OwnerDiff, PoolDiff};
use crate::analyses::table::{Cell, Rows, Table, Type, column};

/// A row for each owner.
pub const TABLE: &dyn Table<Diff> = &Rows::<Diff, PoolDiff, OwnerDiff> {
    columns: &[
        column("device", Type::Text, |pool, _| Cell::device(pool.device)),
        column("pool", Type::Text, |pool, _| Cell::word(pool.pool)),
        column("owner", Type::Text, |_, owner| Cell::word(owner.owner)),
        column("from_blocks", Type::Unsigned, |_, owner| owner.change.from.blocks.into()),
        column("from_bytes", Type::Unsigned, |_, owner| owner.change.from.size_bytes.into()),
        column("to_blocks", Type::Unsigned, |_, owner| owner.change.to.blocks.into()),
        column("to_bytes", Type::Unsigned, |_, owner| owner.change.to.size_bytes.into()),
        column("grown_blocks", Type::Signed, |_, owner| Cell::signed(owner.change.grown_blocks)),
        column("grown_bytes", Type::Signed, |_, owner| Cell::signed(owner.change.grown_bytes)),
    ],
    each: |diff, row| {
        for pool in &diff.pools {
            pool.owners.iter().for_each(|owner| row(pool, owner));
        }
    },
};
