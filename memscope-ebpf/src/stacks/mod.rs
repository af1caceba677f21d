//! Call stacks: taken where a call is reported, told once, and from then on an id.

mod native;
mod python;
mod slot_lock;

use core::ffi::c_void;

use aya_ebpf::{bindings::pt_regs, helpers::generated::bpf_probe_read_user};
use memscope_common::{
    ProbeRow,
    stack::{STACK_NATIVE, STACK_PYTHON},
};

use crate::{
    maps::{Thread, setting},
    regs,
};

/// What the walks need to know of the call that is about to be reported.
pub(crate) struct Site {
    pub(crate) ctx: *mut c_void,
    pub(crate) generation: u64,
    pub(crate) row: u16,
}

/// A child has what its parent has.
#[inline(always)]
pub(crate) fn forked(parent: u32, child: u32) {
    if setting!(stacks) & u32::from(STACK_PYTHON) != 0 {
        python::forked(parent, child);
    }
}

/// The process has another program, or none.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    if setting!(stacks) & u32::from(STACK_PYTHON) != 0 {
        python::forget(tgid);
    }
}

/// The interpreter of this process frees a code object.
#[inline(always)]
pub(crate) fn code_freed() {
    python::freed();
}

/// Whether the row's records have stacks.
#[inline(always)]
pub(crate) fn are_wanted(row: &ProbeRow) -> bool {
    row.stacks & setting!(stacks) as u8 != 0
}

/// Takes the stacks that the row's records have, and puts their ids into the record that the thread builds.
/// `LOOPS`: the program may refer to the bodies of loops, which kernels before 5.13 refuse, even where none is run. Without
/// it no Python stacks are taken.
#[inline(always)]
pub(crate) fn take<const LOOPS: bool>(
    ctx: *mut c_void,
    thread: &mut Thread,
    generation: u64,
    row: &ProbeRow,
    number: u16,
) {
    // Volatile: the compiler would call `memset` for both, which is a loop over bytes.
    for id in [&raw mut thread.call.native_stack, &raw mut thread.call.python_stack] {
        // SAFETY: a field of the thread's.
        unsafe { id.write_volatile(0) };
    }
    let wanted = row.stacks & setting!(stacks) as u8;
    if wanted == 0 {
        return;
    }
    let site = Site { ctx, generation, row: number };
    if wanted & STACK_NATIVE != 0 {
        native::take::<LOOPS>(&site, thread);
    }
    if LOOPS && wanted & STACK_PYTHON != 0 {
        python::take(&site, thread);
    }
}

/// Where the call that is entered returns to, if a return probe is about to take its place; else 0, as without stacks.
#[inline(always)]
pub(crate) fn return_address(regs: &pt_regs, row: &ProbeRow) -> u64 {
    if setting!(stacks) & u32::from(STACK_NATIVE) == 0 || row.has_own_return() {
        return 0;
    }
    caller(regs)
}

/// Where the call returns to that is at its entry, or at its return instruction.
#[inline(always)]
pub(crate) fn caller(regs: &pt_regs) -> u64 {
    if cfg!(bpf_target_arch = "aarch64") {
        return regs::link_register(regs);
    }
    let mut address = 0_u64;
    // SAFETY: `address` has eight bytes; the helper checks the address, and zeroes them on a fault.
    unsafe { bpf_probe_read_user((&raw mut address).cast(), 8, regs::stack_pointer(regs) as *const c_void) };
    address
}

/// Calls `body` with a number and `context` until it gives 1, `times` at most.
///
/// As the helper itself, with a count of 64 bits: kernels that make the loop part of the program compare the whole
/// register, whose upper half is noise after a value of 32 bits.
///
/// # Safety
///
/// `body` is a function that takes these two.
#[inline(always)]
pub(crate) unsafe fn bpf_loop(times: u64, body: *mut c_void, context: *mut c_void) -> i64 {
    const NUMBER: usize = 181;
    // SAFETY: the number is that of the helper, and this is what it takes.
    let helper: extern "C" fn(u64, *mut c_void, *mut c_void, u64) -> i64 = unsafe { core::mem::transmute(NUMBER) };
    helper(times, body, context, 0)
}
