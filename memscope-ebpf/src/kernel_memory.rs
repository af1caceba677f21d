//! Memory of the kernel: events of tracepoints, and tasks with what hangs on them.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;

use crate::plain::Plain;

/// Fills `to`. Returns whether the memory was readable.
#[inline(always)]
fn copy<T: Plain>(to: &mut T, from: u64) -> bool {
    // SAFETY: its size, and any bytes are a value; the helper checks the address.
    unsafe { bpf_probe_read_kernel((&raw mut *to).cast(), size_of::<T>() as u32, from as *const c_void) == 0 }
}

/// Eight bytes, if readable.
#[inline(always)]
pub(crate) fn word(from: u64) -> Option<u64> {
    let mut word = 0;
    copy(&mut word, from).then_some(word)
}

/// Eight bytes; 0 if unreadable.
#[inline(always)]
pub(crate) fn word_or_zero(from: u64) -> u64 {
    let mut word = 0;
    copy(&mut word, from);
    word
}

/// The field at `offset` of an event or a kernel object; 0 if unreadable, as the helper leaves it. A branch for that would double what
/// the verifier has to follow, at each field.
#[inline(always)]
pub(crate) fn field<T: Plain + Default>(of: *mut c_void, offset: u32) -> T {
    let mut value = T::default();
    let from = of.cast::<u8>().wrapping_add(offset as usize);
    copy(&mut value, from as u64);
    value
}

/// The pointer at `offset` of a kernel object; null if unreadable.
#[inline(always)]
pub(crate) fn pointer(of: *mut c_void, offset: u32) -> *mut c_void {
    field::<u64>(of, offset) as *mut c_void
}

/// Argument of a raw tracepoint.
#[inline(always)]
pub(crate) fn argument(ctx: *mut c_void, number: usize) -> u64 {
    // SAFETY: the verifier checks that the event has this argument.
    unsafe { ctx.cast::<u64>().add(number).read_volatile() }
}
