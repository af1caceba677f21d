//! Counting what is not reported.

use core::arch::asm;

use memscope_common::{Miss, row::MAX_ROWS};

use crate::maps::MISSES;

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

/// Adds to eight bytes of a map. One atomic instruction, because a program can be preempted by another on the same CPU.
/// Written as assembly: the target declares no atomics to Rust, though every kernel since 3.19 has this one.
#[inline(always)]
pub(crate) fn add(to: *mut u64, number: u64) {
    // SAFETY: a live map value, aligned to eight bytes, which this instruction alone changes.
    unsafe { asm!("lock *(u64 *)({to} + 0) += {number}", to = in(reg) to, number = in(reg) number) };
}
