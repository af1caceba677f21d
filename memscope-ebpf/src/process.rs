//! Follows traced processes: children join at `fork`, and a process leaves at its end.

use core::ffi::c_void;

use memscope_common::{
    Kind, Miss, ProcessRecord,
    config::{PROCESS_FOLLOW, PROCESS_SHARES, ProcessState},
};

use crate::{
    current,
    filter::{self, PROCESSES},
    kernel_memory::{argument, field},
    mappings,
    misses::count,
    settings::setting,
    stacks, tensors, thread_slots,
    transport::{header, send},
    verifier::{read_once, write_once},
    waits, watch,
};

const CLONE_THREAD: u64 = 0x0001_0000;

/// The task that is a raw tracepoint's first argument, as its number.
#[inline(always)]
fn pid_of_task(ctx: *mut c_void) -> u32 {
    field(argument(ctx, 0) as *mut c_void, setting!(task_pid))
}

/// `task_newtask`: in the parent, before the child runs. `RAW`: a raw tracepoint.
#[inline(always)]
pub(crate) fn forked<const RAW: bool>(ctx: *mut c_void) {
    let tgid = current::tgid();
    let Some(parent) = filter::state_of(tgid) else { return };
    // SAFETY: a live map value.
    let state = unsafe { *parent };
    let clone_flags: u64 = if RAW { argument(ctx, 1) } else { field(ctx, setting!(newtask_flags)) };
    if clone_flags & CLONE_THREAD != 0 || state.flags & PROCESS_FOLLOW == 0 {
        return;
    }
    let child = if RAW { pid_of_task(ctx) } else { field(ctx, setting!(newtask_pid)) };
    let flags = state.flags | PROCESS_SHARES;
    // SAFETY: as above. Other bits change only before the process runs.
    unsafe { (*parent).flags = flags };
    add_child(ctx, child, &ProcessState { parent: tgid, flags, first_ended: 0, ..state });
}

/// Adds a child to the trace, and reports it.
#[inline(always)]
fn add_child(ctx: *mut c_void, child: u32, state: &ProcessState) {
    const LEN: u16 = size_of::<ProcessRecord>() as u16;
    if PROCESSES.insert(&child, state, 0).is_err() {
        return count(0, Miss::ProcessesFull);
    }
    filter::changed();
    stacks::forked(state.parent, child);
    let mut record = ProcessRecord { header: header(Kind::Fork, 0, LEN), child, stopped: 0 };
    send(ctx, (&raw mut record).cast(), LEN.into(), 0, true);
}

/// `sched_process_exec`: the loader is mapped, the program has not run yet. `IMAGES`: see
/// [`waits::report_program`].
#[inline(always)]
pub(crate) fn executed<const IMAGES: bool>(ctx: *mut c_void) {
    let id = current::thread_id();
    let tgid = current::tgid_of(id);
    let Some(state) = filter::state_of(tgid) else { return };
    thread_slots::forget(id);
    tensors::forget(id);
    // SAFETY: a live map value; the process has one thread now.
    let state = unsafe { &mut *state };
    mappings::replace(state);
    // The thread that runs the program took the place of the first one.
    state.first_ended = 0;
    stacks::forget(tgid);
    watch::forget(tgid);
    waits::report_program::<IMAGES>(ctx, tgid, state.flags);
}

/// `sched_process_exit`: a thread ends.
#[inline(always)]
pub(crate) fn exited() {
    let id = current::thread_id();
    let tgid = current::tgid_of(id);
    let traced = filter::is_traced(tgid);
    // A process that is no longer traced may have left slots.
    if traced || setting!(thread_slots) != 0 {
        thread_slots::forget(id);
    }
    if traced {
        tensors::forget(id);
        watch::forget_thread(id);
        if id as u32 == tgid {
            first_thread_ended(tgid);
        }
    }
}

#[inline(always)]
fn first_thread_ended(tgid: u32) {
    if let Some(state) = filter::state_of(tgid) {
        // SAFETY: a live map value.
        unsafe { write_once(&raw mut (*state).first_ended, 1) };
    }
}

/// `sched_process_free`: a thread is gone, and the process with its first thread. The kernel reports it after a grace
/// period (RCU), and may have given the number to another process meanwhile, which is in the map then.
#[inline(always)]
pub(crate) fn freed<const RAW: bool>(ctx: *mut c_void) {
    let pid = if RAW { pid_of_task(ctx) } else { field(ctx, setting!(free_pid)) };
    let Some(state) = filter::state_of(pid) else { return };
    // SAFETY: a live map value.
    if unsafe { read_once(&raw const (*state).first_ended) } != 0 {
        filter::forget(pid);
        stacks::forget(pid);
        waits::forget(pid);
    }
}
