//! Registers of the traced thread, for both architectures.

use core::ffi::c_void;

use aya_ebpf::bindings::pt_regs;
#[cfg(bpf_target_arch = "aarch64")]
use memscope_common::row::RESULT_SLOT;
use memscope_common::row::{REGISTER_ARGS, RETURNED_SLOT, STACK_SLOTS};

use crate::{thread::ARG_SLOTS, user_memory};

/// Registers that arguments and results come in, by number.
pub(crate) const REGISTER_SLOTS: usize = STACK_SLOTS as usize;

/// The registers at the probe. `ctx` is the context of a uprobe.
#[inline(always)]
pub(crate) fn of<'a>(ctx: *mut c_void) -> &'a pt_regs {
    // SAFETY: the context of a uprobe is the thread's registers.
    unsafe { &*ctx.cast::<pt_regs>() }
}

/// One register. Volatile: the compiler would turn a choice between registers into a choice between
/// addresses, which the verifier refuses on a context.
#[inline(always)]
fn register(register: &u64) -> u64 {
    // SAFETY: a valid reference.
    unsafe { core::ptr::read_volatile(register) }
}

#[inline(always)]
fn args(regs: &pt_regs) -> [u64; REGISTER_ARGS] {
    #[cfg(bpf_target_arch = "x86_64")]
    return [&regs.rdi, &regs.rsi, &regs.rdx, &regs.rcx, &regs.r8, &regs.r9].map(register);
    #[cfg(bpf_target_arch = "aarch64")]
    return [&regs.regs[0], &regs.regs[1], &regs.regs[2], &regs.regs[3], &regs.regs[4], &regs.regs[5]].map(register);
}

/// Keeps the first six C arguments.
#[inline(always)]
pub(crate) fn save_args(regs: &pt_regs, to: &mut [u64; ARG_SLOTS]) {
    for (slot, arg) in to.iter_mut().zip(args(regs)) {
        *slot = arg;
    }
}

/// Keeps all registers that arguments and results come in, by their slots.
#[inline(always)]
pub(crate) fn save_slots(regs: &pt_regs, to: &mut [u64; REGISTER_SLOTS]) {
    for (slot, arg) in to.iter_mut().zip(args(regs)) {
        *slot = arg;
    }
    to[RETURNED_SLOT as usize] = returned(regs);
    #[cfg(bpf_target_arch = "aarch64")]
    {
        to[6] = register(&regs.regs[6]);
        to[7] = register(&regs.regs[7]);
        to[RESULT_SLOT as usize] = register(&regs.regs[8]);
    }
}

/// Where the arguments on the stack begin, at the entry of a function.
#[inline(always)]
pub(crate) fn stack_args(stack_pointer: u64) -> u64 {
    #[cfg(bpf_target_arch = "x86_64")]
    return stack_pointer.wrapping_add(8);
    #[cfg(bpf_target_arch = "aarch64")]
    return stack_pointer;
}

/// One C argument. A choice and not an index: a variable cannot index the BPF stack.
#[inline(always)]
pub(crate) fn arg(regs: &pt_regs, n: u8) -> u64 {
    let [first, second, third, fourth, fifth, sixth] = args(regs);
    match n {
        0 => first,
        1 => second,
        2 => third,
        3 => fourth,
        4 => fifth,
        _ => sixth,
    }
}

/// The returned value.
#[inline(always)]
pub(crate) fn returned(regs: &pt_regs) -> u64 {
    #[cfg(bpf_target_arch = "x86_64")]
    return regs.rax;
    #[cfg(bpf_target_arch = "aarch64")]
    return regs.regs[0];
}

/// The stack pointer.
#[inline(always)]
pub(crate) fn stack_pointer(regs: &pt_regs) -> u64 {
    #[cfg(bpf_target_arch = "x86_64")]
    return regs.rsp;
    #[cfg(bpf_target_arch = "aarch64")]
    return regs.sp;
}

/// The frame pointer, if the program uses that register as one.
#[inline(always)]
pub(crate) fn frame_pointer(regs: &pt_regs) -> u64 {
    #[cfg(bpf_target_arch = "x86_64")]
    return regs.rbp;
    #[cfg(bpf_target_arch = "aarch64")]
    return register(&regs.regs[29]);
}

/// The link register; 0 on x86-64.
#[inline(always)]
pub(crate) fn link_register(regs: &pt_regs) -> u64 {
    #[cfg(bpf_target_arch = "x86_64")]
    {
        let _ = regs;
        0
    }
    #[cfg(bpf_target_arch = "aarch64")]
    return register(&regs.regs[30]);
}

/// The probed instruction.
#[inline(always)]
pub(crate) fn instruction_pointer(regs: &pt_regs) -> u64 {
    #[cfg(bpf_target_arch = "x86_64")]
    return regs.rip;
    #[cfg(bpf_target_arch = "aarch64")]
    return regs.pc;
}

/// The return address of a call, at its entry or at its return instruction; 0 if unreadable.
#[inline(always)]
pub(crate) fn return_address(regs: &pt_regs) -> u64 {
    if cfg!(bpf_target_arch = "aarch64") {
        return link_register(regs);
    }
    user_memory::word_or_zero(stack_pointer(regs))
}
