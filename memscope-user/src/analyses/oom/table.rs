//! Requests that failed, as rows: one for each pool at that moment.

use super::{Oom, PoolAtOom};
use crate::analyses::{
    Finding,
    answer::Kind as _,
    table::{Cell, Rows, Table, Type, column},
};

/// A row for each request and pool.
pub(super) const TABLE: &dyn Table<Finding> = &Rows::<Finding, Oom, PoolAtOom> {
    columns: &[
        column("pid", Type::Unsigned, |found, _| found.pid.into()),
        column("tid", Type::Unsigned, |found, _| found.tid.into()),
        column("device", Type::Text, |found, _| Cell::device(found.device)),
        column("time_ns", Type::Unsigned, |found, _| found.time_ns.into()),
        column("function", Type::Text, |found, _| {
            found.function.map_or(Cell::Missing, |name| Cell::text(name.as_str()))
        }),
        column("size_bytes", Type::Unsigned, |found, _| found.size_bytes.into()),
        column("attempts", Type::Unsigned, |found, _| found.attempts.into()),
        column("missing_bytes", Type::Unsigned, |found, _| found.missing_bytes.into()),
        column("pool", Type::Text, |_, pool| Cell::word(pool.pool)),
        column("used_bytes", Type::Unsigned, |_, pool| pool.used_bytes.into()),
        column("reserved_bytes", Type::Unsigned, |_, pool| pool.reserved_bytes.into()),
        column("largest_free_bytes", Type::Unsigned, |_, pool| pool.largest_free_bytes.into()),
        column("python_stack", Type::Text, |found, _| Cell::frames(found.stacks.python)),
        column("native_stack", Type::Text, |found, _| Cell::frames(found.stacks.native)),
    ],
    each: |finding, row| {
        let Some(found) = Oom::of(finding) else { return };
        found.pools.iter().for_each(|pool| row(found, pool));
    },
};
