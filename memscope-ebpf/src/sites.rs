//! Arguments at probes behind a function's entry: where they are is in [`SITES`], the probe's number there in its cookie.

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{
    bindings::pt_regs,
    helpers::generated::{bpf_probe_read_kernel, bpf_probe_read_user},
};
use memscope_common::{ArgPlace, row::REGISTER_ARGS, site::MAX_SITES};

use crate::{
    maps::{ARG_SLOTS, SITES},
    regs,
};

/// Whether the probe is not at the entry.
#[inline(always)]
pub(crate) const fn is_later(cookie: u64) -> bool {
    cookie >> 32 != 0
}

/// Keeps the arguments; gives the stack pointer at the entry.
#[inline(always)]
pub(crate) fn save_args(ctx: *mut c_void, regs: &pt_regs, cookie: u64, to: &mut [u64; ARG_SLOTS]) -> u64 {
    let stack_pointer = regs::stack_pointer(regs);
    let number = (cookie >> 32) as u32;
    let places = if number < MAX_SITES { SITES.get(number) } else { None };
    let Some(places) = places else { return stack_pointer };
    for (slot, place) in to.iter_mut().zip(&places.args) {
        *slot = value(ctx, stack_pointer, *place);
    }
    stack_pointer.wrapping_add(places.stack)
}

/// One of them.
#[inline(always)]
pub(crate) fn arg(ctx: *mut c_void, regs: &pt_regs, cookie: u64, n: u8) -> u64 {
    let number = (cookie >> 32) as u32;
    let places = if number < MAX_SITES { SITES.get(number) } else { None };
    let Some(places) = places else { return 0 };
    let at = usize::from(n);
    if at >= REGISTER_ARGS {
        return 0;
    }
    value(ctx, regs::stack_pointer(regs), places.args[at])
}

/// What is there. By a helper: a program may not read its context at an offset that the verifier does not know.
#[inline(always)]
fn value(ctx: *mut c_void, stack_pointer: u64, place: ArgPlace) -> u64 {
    let mut value = 0_u64;
    let to = (&raw mut value).cast();
    let offset = i64::from(place.offset) as u64;
    // A context that is moved has to stay near itself.
    let mut register = offset;
    // SAFETY: changes a register.
    unsafe { asm!("{register} &= 255", register = inout(reg) register) };
    match place.kind {
        // SAFETY: `value` has eight bytes; the helper checks the address, and zeroes it on a fault.
        ArgPlace::REGISTER => unsafe {
            bpf_probe_read_kernel(to, 8, (ctx as u64).wrapping_add(register) as *const c_void);
        },
        // SAFETY: as above.
        ArgPlace::STACK => unsafe {
            bpf_probe_read_user(to, 8, stack_pointer.wrapping_add(offset) as *const c_void);
        },
        _ => {}
    }
    value
}
