//! What the verifier has to see and the compiler would hide: all assembly of the crate.
//!
//! The verifier tracks registers and knows nothing of Rust's types. A bound has to be an
//! instruction right before the access, a loop has to cost one look and not one per turn, and
//! memory that other processors change has to be read once. All of this runs on Linux 5.10, but for
//! [`compare_exchange`] and [`bpf_loop`].

use core::{arch::asm, ffi::c_void, mem::transmute, ptr::null_mut};

use aya_ebpf::helpers::bpf_tail_call;

/// Has a program run on the stack of its thread.
///
/// Where the kernel can (Linux 6.13 on x86, 6.17 on arm64), a program of this kind runs on a stack of its own, one for each
/// processor. Nothing keeps a second thread from running the program while the first one sleeps in it, or was preempted: it then finds the
/// locals of the other. A program that may jump to another is exempt (`check_max_stack_depth`). This one never does, and the verifier, which
/// knows the number, removes the jump.
#[inline(always)]
pub(crate) fn keep_stack(ctx: *mut c_void) {
    let mut never: u64;
    // SAFETY: changes a register.
    unsafe { asm!("{never} = 0", never = out(reg) never) };
    if never != 0 {
        // SAFETY: is not reached.
        unsafe { bpf_tail_call(ctx, null_mut(), 0) };
    }
}

/// `value & MASK`, as an instruction.
///
/// The verifier needs the bound at the access itself, and the compiler drops a mask that it proves
/// superfluous.
#[inline(always)]
pub(crate) fn masked<const MASK: u16>(value: u64) -> u64 {
    let mut value = value;
    // SAFETY: changes a register.
    unsafe { asm!("{value} &= {mask}", value = inout(reg) value, mask = const MASK) };
    value
}

/// Copies a byte opaquely: the verifier learns nothing about the original from comparisons of the copy.
///
/// Otherwise it tracks the original's range and forks its state on every turn of a loop.
#[inline(always)]
pub(crate) fn opaque(value: u8) -> u64 {
    masked::<0xff>(value.into())
}

/// The element at `index` modulo the array's length, a power of two.
#[inline(always)]
pub(crate) fn element<T, const N: usize>(array: &[T; N], index: u64) -> &T {
    // SAFETY: below the array's length.
    unsafe { array.get_unchecked(wrapped::<N>(index)) }
}

/// The element at `index` modulo the array's length, a power of two.
#[inline(always)]
pub(crate) fn element_mut<T, const N: usize>(array: &mut [T; N], index: u64) -> &mut T {
    // SAFETY: below the array's length.
    unsafe { array.get_unchecked_mut(wrapped::<N>(index)) }
}

/// `index` modulo `N`.
#[inline(always)]
fn wrapped<const N: usize>(index: u64) -> usize {
    const { assert!(N.is_power_of_two() && N <= 1 << 16, "a mask of 16 bits bounds the index") };
    let mut index = index;
    // SAFETY: changes a register.
    unsafe { asm!("{index} &= {mask}", index = inout(reg) index, mask = const N - 1) };
    index as usize
}

/// Reads a value that other programs or user space change: once, and whole if it has eight bytes at
/// most.
///
/// # Safety
///
/// `at` points into a live map value.
#[inline(always)]
pub(crate) unsafe fn read_once<T: Copy>(at: *const T) -> T {
    // SAFETY: the caller's.
    unsafe { at.read_volatile() }
}

/// Writes a value that other programs or user space read: once, and whole if it has eight bytes at
/// most.
///
/// Also keeps the compiler from joining zeroes into a call of `memset`, a loop over bytes.
///
/// # Safety
///
/// `at` points into a live map value.
#[inline(always)]
pub(crate) unsafe fn write_once<T: Copy>(at: *mut T, value: T) {
    // SAFETY: the caller's.
    unsafe { at.write_volatile(value) }
}

/// Adds to eight bytes of a map value, atomically: another program can preempt this one on the same
/// processor.
///
/// The target declares no atomics to Rust, though every kernel since 3.19 has this instruction.
#[inline(always)]
pub(crate) fn add(to: *mut u64, number: u64) {
    // SAFETY: a live map value, aligned to eight bytes.
    unsafe { asm!("lock *(u64 *)({to} + 0) += {number}", to = in(reg) to, number = in(reg) number) };
}

/// Writes `new` if the word is `old`. Returns the word found.
///
/// Kernels before 5.12 refuse a program with this instruction, even if it never runs.
#[inline(always)]
pub(crate) fn compare_exchange(word: *mut u64, old: u64, new: u64) -> u64 {
    let found;
    // SAFETY: a live map value, aligned to eight bytes.
    unsafe {
        asm!(
            "r0 = cmpxchg_64({word} + 0, r0, {new})",
            word = in(reg) word,
            new = in(reg) new,
            inout("r0") old => found,
        );
    };
    found
}

/// Calls `body` with the turn's number and `context` until it returns 1, at most `turns` times
/// (Linux 5.17).
///
/// The verifier looks at `body` once. The count has 64 bits, unlike the generated helper's: kernels
/// that inline the loop compare the whole register, and the upper half of a 32-bit value is noise.
///
/// # Safety
///
/// `body` is a function of these two arguments.
#[inline(always)]
pub(crate) unsafe fn bpf_loop(turns: u64, body: *mut c_void, context: *mut c_void) -> i64 {
    const NUMBER: usize = 181;
    // SAFETY: the number and the signature are the helper's.
    let helper: extern "C" fn(u64, *mut c_void, *mut c_void, u64) -> i64 = unsafe { transmute(NUMBER) };
    helper(turns, body, context, 0)
}
