//! The traced thread's registers, for both architectures.

use aya_ebpf::bindings::pt_regs;
use memscope_common::row::REGISTER_ARGS;

use crate::maps::ARG_SLOTS;

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

/// The probed instruction.
#[inline(always)]
pub(crate) fn instruction_pointer(regs: &pt_regs) -> u64 {
    #[cfg(bpf_target_arch = "x86_64")]
    return regs.rip;
    #[cfg(bpf_target_arch = "aarch64")]
    return regs.pc;
}
