//! Which processes are traced: membership follows `fork`, ends with the process.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_probe_read_kernel};
use memscope_common::{
    Kind, Miss, ProcessRecord,
    config::{INNER_CHANGES, OUTER_CHANGES, PROCESS_FOLLOW, PROCESS_SHARES, ProcessState},
};

use crate::{
    calls,
    emit::{header, send},
    maps::{KNOWN_PROCESSES, NEW_IMAGES, PROCESS_CHANGES, PROCESSES, PROCESSES_KNOWN, STOPS, setting},
    misses::{add, count},
    stacks, tensors, waits, watch,
};

/// Bits of a process's number (`PID_MAX_LIMIT`).
const NUMBER_BITS: u32 = 22;
const TRACED: u64 = 1 << NUMBER_BITS;

/// The current thread, if its process is traced.
#[inline(always)]
pub(crate) fn traced_thread() -> Option<u64> {
    // SAFETY: a helper without arguments.
    let id = unsafe { bpf_get_current_pid_tgid() };
    is_traced((id >> 32) as u32).then_some(id)
}

/// Whether a process is traced. A look into a hash map takes longer than all else that a program of an untraced process does, so
/// what it said is kept, together with how often anything has changed by then: an answer is good as long as nothing has.
#[inline(always)]
pub(crate) fn is_traced(tgid: u32) -> bool {
    let (Some(outer), Some(inner)) = (PROCESS_CHANGES.get(OUTER_CHANGES), PROCESS_CHANGES.get(INNER_CHANGES)) else {
        return false;
    };
    // Before the look: what changes meanwhile makes the answer old.
    // SAFETY: live map values, which others change.
    let changes = unsafe { (&raw const *outer).read_volatile() + (&raw const *inner).read_volatile() };
    let question = changes << (NUMBER_BITS + 1) | u64::from(tgid);
    let Some(known) = PROCESSES_KNOWN.get_ptr_mut(tgid & (KNOWN_PROCESSES - 1)) else { return false };
    // SAFETY: as above; eight bytes that are read and written at once.
    let answer = unsafe { known.read_volatile() };
    if answer & !TRACED == question {
        return answer & TRACED != 0;
    }
    let traced = PROCESSES.get_ptr(&tgid).is_some();
    // SAFETY: as above.
    unsafe { known.write_volatile(question | if traced { TRACED } else { 0 }) };
    traced
}

/// Who is traced has changed. Nobody asks for a process that is just being made, or is gone.
#[inline(always)]
fn processes_changed() {
    if let Some(changes) = PROCESS_CHANGES.get_ptr_mut(INNER_CHANGES) {
        add(changes, 1);
    }
}

const CLONE_THREAD: u64 = 0x0001_0000;

/// The loader has changed the mappings, or is about to (`r_debug.r_state`): addresses from before may soon mean
/// something else. What is only added takes no address away, but two processes that share a generation may add
/// different things at the same address.
#[inline(always)]
pub(crate) fn mappings_change(process: &mut ProcessState, state: u32) {
    const CONSISTENT: u32 = 0;
    const DELETING: u32 = 2;
    let shares = process.flags & PROCESS_SHARES != 0;
    if state == CONSISTENT && process.unmapping == 0 && !shares {
        return;
    }
    process.flags &= !PROCESS_SHARES;
    process.unmapping = (state == DELETING).into();
    process.generation = new_generation();
}

/// A number for mappings that no process has had. The time alone would do if no two processes changed theirs at once.
#[inline(always)]
fn new_generation() -> u64 {
    const PROCESS_SHIFT: u32 = 40;
    // SAFETY: helpers without arguments.
    let (time_ns, id) = unsafe { (bpf_ktime_get_ns(), bpf_get_current_pid_tgid()) };
    time_ns ^ (id >> 32) << PROCESS_SHIFT
}

/// Reads four or eight bytes of a tracepoint's event, or of a task.
#[inline(always)]
pub(crate) fn field<T: Copy + Default>(of: *mut c_void, offset: u32) -> T {
    let mut value = T::default();
    // SAFETY: `value` has the size that is asked for; the helper checks the address.
    let result = unsafe {
        bpf_probe_read_kernel(
            (&raw mut value).cast(),
            size_of::<T>() as u32,
            of.cast::<u8>().wrapping_add(offset as usize).cast(),
        )
    };
    if result == 0 { value } else { T::default() }
}

/// Argument of a raw tracepoint.
#[inline(always)]
pub(crate) fn argument(ctx: *mut c_void, number: usize) -> u64 {
    // SAFETY: the context has all arguments of its event; the verifier checks that.
    unsafe { ctx.cast::<u64>().add(number).read_volatile() }
}

/// Number of the task that a raw tracepoint has as its first argument.
#[inline(always)]
fn number_of_task(ctx: *mut c_void) -> u32 {
    field(argument(ctx, 0) as *mut c_void, setting!(task_pid))
}

/// `task_newtask`: in the parent, before the child can run.
#[inline(always)]
pub(crate) fn forked<const RAW: bool>(ctx: *mut c_void) {
    // SAFETY: a helper without arguments.
    let tgid = (unsafe { bpf_get_current_pid_tgid() } >> 32) as u32;
    let Some(parent) = PROCESSES.get_ptr_mut(&tgid) else { return };
    // SAFETY: a live map value.
    let state = unsafe { *parent };
    let clone_flags: u64 = if RAW { argument(ctx, 1) } else { field(ctx, setting!(newtask_flags)) };
    if clone_flags & CLONE_THREAD != 0 || state.flags & PROCESS_FOLLOW == 0 {
        return;
    }
    let child = if RAW { number_of_task(ctx) } else { field(ctx, setting!(newtask_pid)) };
    let flags = state.flags | PROCESS_SHARES;
    // SAFETY: as above. Other bits change before the process runs only.
    unsafe { (*parent).flags = flags };
    if PROCESSES.insert(&child, &ProcessState { parent: tgid, flags, ..state }, 0).is_err() {
        count(0, Miss::ProcessesFull);
        return;
    }
    processes_changed();
    stacks::forked(tgid, child);
    let mut record =
        ProcessRecord { header: header(Kind::Fork, 0, size_of::<ProcessRecord>() as u16), child, stopped: 0 };
    send(ctx, (&raw mut record).cast(), size_of::<ProcessRecord>() as u64, 0, true);
}

/// `sched_process_exec`: the new program has not run yet, its loader is mapped.
/// `IMAGES`: the file that it runs can be found (`bpf_find_vma`, 5.17).
#[inline(always)]
pub(crate) fn executed<const IMAGES: bool>(ctx: *mut c_void) {
    // SAFETY: a helper without arguments.
    let id = unsafe { bpf_get_current_pid_tgid() };
    let tgid = (id >> 32) as u32;
    let Some(state) = PROCESSES.get_ptr_mut(&tgid) else { return };
    calls::forget_thread(id);
    tensors::forget(id);
    // SAFETY: a live map value; the process has one thread now.
    let state = unsafe { &mut *state };
    state.generation = new_generation();
    state.flags &= !PROCESS_SHARES;
    state.unmapping = 0;
    stacks::forget(tgid);
    watch::forget(tgid);
    waits::report_program::<IMAGES>(ctx, tgid, state.flags);
}

/// `sched_process_exit`: a thread ends; forget what it was inside of.
#[inline(always)]
pub(crate) fn exited() {
    // SAFETY: a helper without arguments.
    let id = unsafe { bpf_get_current_pid_tgid() };
    let traced = is_traced((id >> 32) as u32);
    // A seat may be left from when it was.
    if traced || setting!(seats) != 0 {
        calls::forget_thread(id);
    }
    if traced {
        tensors::forget(id);
        watch::forget_thread(id);
    }
}

/// `sched_process_free`: the process is gone with all its threads; its number may be used again.
#[inline(always)]
pub(crate) fn freed<const RAW: bool>(ctx: *mut c_void) {
    let pid = if RAW { number_of_task(ctx) } else { field(ctx, setting!(free_pid)) };
    if PROCESSES.get_ptr(&pid).is_some() {
        let _ = PROCESSES.remove(&pid);
        processes_changed();
        stacks::forget(pid);
        let _ = STOPS.remove(&pid);
        let _ = NEW_IMAGES.remove(&pid);
    }
}
