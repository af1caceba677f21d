//! Probe rows by number.

use aya_ebpf::{macros::map, maps::Array};
use memscope_common::{Miss, ProbeRow, row::MAX_ROWS};

use crate::misses::count;

/// Written by user space before the row's first probe is attached.
#[map]
static ROWS: Array<ProbeRow> = Array::with_max_entries(MAX_ROWS, 0);

/// The row with this number; counts one that does not exist.
pub(crate) fn row_of(number: u32) -> Option<&'static ProbeRow> {
    let row = if number < MAX_ROWS { ROWS.get(number) } else { None };
    match row {
        Some(row) if row.when != 0 => Some(row),
        _ => {
            count(0, Miss::UnknownRow);
            None
        }
    }
}

/// The row of a call that a probe has reported already.
#[inline(always)]
pub(crate) fn known_row(number: u16) -> Option<&'static ProbeRow> {
    ROWS.get(number.into())
}
