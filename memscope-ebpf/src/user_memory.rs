//! Memory of the traced program. A helper reads it and checks the address; unreadable bytes are zero.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::task_struct,
    helpers::generated::{
        bpf_copy_from_user, bpf_copy_from_user_task, bpf_get_current_task_btf, bpf_probe_read_user,
        bpf_probe_read_user_str,
    },
};

use crate::plain::Plain;

/// Copies `len` bytes. Returns whether they were readable.
///
/// # Safety
///
/// `to` has room for `len` bytes, of any value.
#[inline(always)]
pub(crate) unsafe fn copy_bytes(to: *mut c_void, len: u64, from: u64) -> bool {
    // SAFETY: the caller's; the helper checks `from`.
    unsafe { bpf_probe_read_user(to, len as u32, from as *const c_void) == 0 }
}

/// Fills `to`. Returns whether the memory was readable.
#[inline(always)]
pub(crate) fn copy<T: Plain>(to: &mut T, from: u64) -> bool {
    // SAFETY: its size, and any bytes are a value.
    unsafe { copy_bytes((&raw mut *to).cast(), size_of::<T>() as u64, from) }
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

/// Copies a C string, at most `len` bytes with its NUL. Returns how many, or an error below 0.
///
/// An empty string has 0 bytes on Linux 5.10 and 1 later: its NUL.
///
/// # Safety
///
/// `to` has room for `len` bytes, of any value.
#[inline(always)]
pub(crate) unsafe fn copy_string(to: *mut c_void, len: usize, from: u64) -> i64 {
    // SAFETY: the caller's; the helper checks `from`.
    unsafe { bpf_probe_read_user_str(to, len as u32, from as *const c_void) }
}

/// Faults in the pages of `len` bytes, less than a page. Only in sleepable programs (Linux 6.0).
/// Ignores unmapped pages.
#[inline(always)]
pub(crate) fn fault_in(from: u64, len: u64) {
    for at in [from, from.wrapping_add(len - 1)] {
        let mut byte = 0_u8;
        // SAFETY: `byte` has one byte; the helper checks the address.
        unsafe { bpf_copy_from_user((&raw mut byte).cast(), 1, at as *const c_void) };
    }
}

/// As [`copy`], and waits for the page. Only in sleepable programs (Linux 6.0).
#[inline(always)]
pub(crate) fn copy_waiting<T: Plain>(to: &mut T, from: u64) -> bool {
    // SAFETY: its size, and any bytes are a value; the helper checks the address. The task is the
    // current one.
    let result = unsafe {
        bpf_copy_from_user_task(
            (&raw mut *to).cast(),
            size_of::<T>() as u32,
            from as *const c_void,
            bpf_get_current_task_btf().cast::<task_struct>(),
            0,
        )
    };
    result == 0
}
