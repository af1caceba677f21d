//! The current thread, its process, the processor, and the time.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{
    bpf_get_current_pid_tgid, bpf_get_current_task, bpf_get_smp_processor_id, bpf_ktime_get_ns,
};

/// The thread, as `pid_tgid`: its process above its own number.
#[inline(always)]
pub(crate) fn thread_id() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_current_pid_tgid() }
}

/// The process (the kernel's `tgid`).
#[inline(always)]
pub(crate) fn tgid() -> u32 {
    tgid_of(thread_id())
}

/// The process of a thread.
#[inline(always)]
pub(crate) const fn tgid_of(thread_id: u64) -> u32 {
    (thread_id >> 32) as u32
}

/// The kernel's `task_struct`.
#[inline(always)]
pub(crate) fn task() -> *mut c_void {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_current_task() as *mut c_void }
}

/// The processor's number.
#[inline(always)]
pub(crate) fn processor() -> u32 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_smp_processor_id() }
}

/// `CLOCK_MONOTONIC`, in nanoseconds.
#[inline(always)]
pub(crate) fn now_ns() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}
