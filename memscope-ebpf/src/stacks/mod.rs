//! Call stacks: taken where a call is reported, sent once, and from then on an id.

mod native;
mod python;
mod slot_lock;

use core::ffi::c_void;

use aya_ebpf::{bindings::pt_regs, macros::map, maps::Array};
use memscope_common::{
    Miss, ProbeRow,
    row::ROW_ENDS_BLOCK,
    stack::{STACK_NATIVE, STACK_NATIVE_WITHOUT_PYTHON, STACK_PYTHON, STACKS_AT_ENDS, STACKS_VARY},
};

pub(crate) use self::python::code_freed;
use crate::{
    misses::count,
    regs,
    settings::setting,
    thread::Thread,
    transport::crowds_out,
    user_memory,
    verifier::{element, read_once, write_once},
};

/// A child has the interpreter of its parent.
#[inline(always)]
pub(crate) fn forked(parent: u32, child: u32) {
    if setting!(stacks) & u32::from(STACK_PYTHON) != 0 {
        python::forked(parent, child);
    }
}

/// Forgets a process that is gone, or runs another program.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    if setting!(stacks) & u32::from(STACK_PYTHON) != 0 {
        python::forget(tgid);
    }
}

/// `STACK_*` bits of stacks that are not taken at the moment, and [`STACKS_AT_ENDS`]: a tracer that has a budget changes them while it
/// runs.
#[map]
static STACKS_LEFT_OUT: Array<u32> = Array::with_max_entries(1, 0);

#[inline(always)]
fn left_out() -> u8 {
    if setting!(stacks) & STACKS_VARY == 0 {
        return 0;
    }
    // SAFETY: a live map value.
    STACKS_LEFT_OUT.get(0).map_or(0, |left_out| unsafe { read_once(left_out) } as u8)
}

/// The stacks that the row's records carry: `STACK_*` bits.
#[inline(always)]
pub(crate) fn of_row(row: &ProbeRow) -> u8 {
    let wanted = row.stacks & setting!(stacks) as u8;
    if wanted == 0 { 0 } else { wanted & !left_out() }
}

/// The stacks that the record of the thread's call carries: `STACK_*` bits. Where the ring is too full for them,
/// counts it against row `number`.
#[inline(always)]
pub(crate) fn of_call(thread: &mut Thread, row: &ProbeRow, number: u16) -> u8 {
    let wanted = without(left_out(), row.stacks & setting!(stacks) as u8, thread, row);
    if wanted == 0 {
        return 0;
    }
    let crowded_out = crowds_out(thread);
    if crowded_out == 0 {
        return wanted;
    }
    let taken = without(crowded_out, wanted, thread, row);
    if taken == 0 {
        count(number, Miss::StackLeftOut);
    }
    taken
}

/// The wanted stacks but for those left out.
#[inline(always)]
fn without(left_out: u8, wanted: u8, thread: &Thread, row: &ProbeRow) -> u8 {
    if left_out & STACKS_AT_ENDS != 0 && wanted != 0 && ends_block(thread, row) { 0 } else { wanted & !left_out }
}

/// Whether the call ends a block.
#[inline(always)]
fn ends_block(thread: &Thread, row: &ProbeRow) -> bool {
    if row.sign_of == 0 {
        return row.flags & ROW_ENDS_BLOCK != 0;
    }
    let fetch = element(&row.fetch, u64::from(row.sign_of) - 1);
    let from = thread.arg(fetch.arg).wrapping_add(fetch.offset.into());
    (user_memory::word_or_zero(from) as i64) < 0
}

/// Takes these stacks, `STACK_*` bits, and puts their ids into the thread's record.
///
/// `LOOPS`: the program may contain `bpf_loop` and compare-and-exchange. Kernels before 5.13 refuse callbacks of a loop
/// even if it never runs. Without it no Python stacks are taken.
#[inline(always)]
pub(crate) fn take<const LOOPS: bool>(ctx: *mut c_void, thread: &mut Thread, generation: u64, wanted: u8, number: u16) {
    clear(thread);
    let python = LOOPS && wanted & STACK_PYTHON != 0 && python::take(ctx, thread, generation, number) > 0;
    let suffices = python && setting!(stacks) & u32::from(STACK_NATIVE_WITHOUT_PYTHON) != 0;
    if wanted & STACK_NATIVE != 0 && !suffices {
        native::take::<LOOPS>(ctx, thread, generation, number);
    }
}

/// The thread's record has no stacks.
#[inline(always)]
fn clear(thread: &mut Thread) {
    // SAFETY: fields of a live map value.
    unsafe {
        write_once(&raw mut thread.call.native_stack, 0);
        write_once(&raw mut thread.call.python_stack, 0);
    }
}

/// The return address of an entered call, if a return probe is about to replace it and native
/// stacks need it; else 0.
#[inline(always)]
pub(crate) fn return_address(regs: &pt_regs, row: &ProbeRow) -> u64 {
    if setting!(stacks) & u32::from(STACK_NATIVE) == 0 || row.has_own_return() {
        return 0;
    }
    regs::return_address(regs)
}
