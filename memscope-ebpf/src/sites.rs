//! Arguments at a probe behind a function's entry, where they may be in other registers, or on the
//! stack.
//!
//! The upper half of the probe's cookie is the number of its description; 0 is a probe at the entry.

use core::ffi::c_void;

use aya_ebpf::{bindings::pt_regs, macros::map, maps::Array};
use memscope_common::{ArgPlace, SitePlaces, row::REGISTER_ARGS, site::MAX_SITES};

use crate::{kernel_memory, regs, thread::ARG_SLOTS, user_memory, verifier::masked};

/// Where the arguments are, by the site's number.
#[map]
static SITES: Array<SitePlaces> = Array::with_max_entries(MAX_SITES, 0);

/// Whether the probe is behind the entry.
#[inline(always)]
const fn is_later(cookie: u64) -> bool {
    cookie >> 32 != 0
}

/// The description of a probe.
#[inline(always)]
fn places(cookie: u64) -> Option<&'static SitePlaces> {
    let number = (cookie >> 32) as u32;
    if number < MAX_SITES { SITES.get(number) } else { None }
}

/// Keeps the arguments. Returns the stack pointer at the entry. `LATER`: the program serves such
/// probes.
#[inline(always)]
pub(crate) fn save_args<const LATER: bool>(
    ctx: *mut c_void,
    regs: &pt_regs,
    cookie: u64,
    to: &mut [u64; ARG_SLOTS],
) -> u64 {
    if LATER && is_later(cookie) {
        return save_later(ctx, regs, cookie, to);
    }
    regs::save_args(regs, to);
    regs::stack_pointer(regs)
}

/// As [`save_args`], behind the entry.
#[inline(always)]
fn save_later(ctx: *mut c_void, regs: &pt_regs, cookie: u64, to: &mut [u64; ARG_SLOTS]) -> u64 {
    let stack_pointer = regs::stack_pointer(regs);
    let Some(places) = places(cookie) else { return stack_pointer };
    for (slot, place) in to.iter_mut().zip(&places.args) {
        *slot = value(ctx, stack_pointer, *place);
    }
    stack_pointer.wrapping_add(places.stack)
}

/// One argument.
#[inline(always)]
pub(crate) fn arg(ctx: *mut c_void, regs: &pt_regs, cookie: u64, n: u8) -> u64 {
    if !is_later(cookie) {
        return regs::arg(regs, n);
    }
    let Some(places) = places(cookie) else { return 0 };
    let at = usize::from(n);
    if at >= REGISTER_ARGS {
        return 0;
    }
    value(ctx, regs::stack_pointer(regs), places.args[at])
}

/// The argument in this place. A helper reads the register: a program may not index its context by
/// a variable.
#[inline(always)]
fn value(ctx: *mut c_void, stack_pointer: u64, place: ArgPlace) -> u64 {
    let offset = i64::from(place.offset) as u64;
    // The verifier refuses a context that is moved far.
    let register = masked::<0xff>(offset);
    match place.kind {
        ArgPlace::REGISTER => kernel_memory::word_or_zero((ctx as u64).wrapping_add(register)),
        ArgPlace::STACK => user_memory::word_or_zero(stack_pointer.wrapping_add(offset)),
        _ => 0,
    }
}
