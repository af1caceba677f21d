//! Counts calls that are seen and not reported.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use memscope_common::{Miss, miss::MISSES_PER_ROW, row::MAX_ROWS};

use crate::verifier::add;

/// Counters by [`Miss::counter`].
#[map]
static MISSES: PerCpuArray<u64> = PerCpuArray::with_max_entries(MAX_ROWS * MISSES_PER_ROW, 0);

/// Counts one miss.
#[inline(always)]
pub(crate) fn count(row: u16, miss: Miss) {
    if u32::from(row) >= MAX_ROWS {
        return;
    }
    if let Some(counter) = MISSES.get_ptr_mut(miss.counter(row)) {
        add(counter, 1);
    }
}
