//! Room for what does not fit onto the stack, one walk at a time.
//!
//! Memory of a CPU is not enough: the program may be interrupted, and another thread's program run on the same CPU. So
//! there are a few slots per CPU, and a walk takes one that nobody has. Taking is an insertion into a hash map that fails
//! if the key is there: kernels before 5.12 refuse the instruction that would be meant for it.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::generated::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id},
    maps::HashMap,
};

/// Slots of one CPU; user space sizes the maps by it.
const PER_CPU: u32 = memscope_common::stack::SCRATCH_PER_CPU;

/// Takes a slot that is free; `None` if there is none. Every slot must be given back ([`release`]) on every path.
#[inline(always)]
pub(crate) fn claim(owners: &HashMap<u32, u64>) -> Option<u32> {
    // SAFETY: helpers without arguments.
    let (cpu, id) = unsafe { (bpf_get_smp_processor_id(), bpf_get_current_pid_tgid()) };
    for at in 0..PER_CPU {
        let slot = cpu * PER_CPU + at;
        if owners.insert(&slot, &id, BPF_NOEXIST.into()).is_ok() {
            return Some(slot);
        }
    }
    None
}

/// Gives a slot back.
#[inline(always)]
pub(crate) fn release(owners: &HashMap<u32, u64>, slot: u32) {
    let _ = owners.remove(&slot);
}
