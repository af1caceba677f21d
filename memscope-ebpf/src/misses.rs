//! Counting what is not reported.

use core::arch::asm;

use memscope_common::{Miss, row::MAX_ROWS};

use crate::maps::MISSES;

/// Counts one miss. One atomic instruction, because a program can be preempted by another on the same CPU.
/// Written as assembly: the target declares no atomics to Rust, though every kernel since 3.19 has this one.
#[inline(always)]
pub(crate) fn count(row: u16, miss: Miss) {
    if u32::from(row) >= MAX_ROWS {
        return;
    }
    if let Some(counter) = MISSES.get_ptr_mut(miss.counter(row)) {
        // SAFETY: a live map value, aligned to eight bytes, only ever changed by this instruction.
        unsafe { asm!("lock *(u64 *)({counter} + 0) += {one}", counter = in(reg) counter, one = in(reg) 1_u64) };
    }
}
