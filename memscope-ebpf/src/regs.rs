//! The traced thread's registers, for both architectures.

use aya_ebpf::bindings::pt_regs;
#[cfg(bpf_target_arch = "aarch64")]
use memscope_common::row::RESULT_SLOT;
use memscope_common::row::{REGISTER_ARGS, RETURNED_SLOT};

use crate::{maps::ARG_SLOTS, tensors::SLOTS};

/// One register. Volatile: the compiler must not turn a choice between registers into a choice between addresses,
/// which the verifier does not allow on a context.
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

/// Keeps what arguments and results come in, by their slots.
#[inline(always)]
pub(crate) fn save_slots(regs: &pt_regs, to: &mut [u64; SLOTS]) {
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

/// One C argument. A choice, not an index: a stack slot cannot be indexed by a variable.
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

/// The frame pointer, where the program uses that register so.
#[inline(always)]
pub(crate) fn frame_pointer(regs: &pt_regs) -> u64 {
    #[cfg(bpf_target_arch = "x86_64")]
    return regs.rbp;
    #[cfg(bpf_target_arch = "aarch64")]
    return register(&regs.regs[29]);
}

/// The link register; 0 where there is none.
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
