//! Block watch: sends a thread to the watch's handler, by a signal, at the two sides of an operator.
//!
//! The signal is `SIGURG`: without a handler, and without us, it is ignored. The kernel delivers it when the thread goes back to its program, which
//! is right behind the probed instruction, never in a system call.

use aya_ebpf::{
    bindings::pt_regs,
    helpers::generated::{
        bpf_get_current_task, bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_probe_read_user, bpf_probe_read_user_str,
        bpf_send_signal_thread,
    },
    macros::map,
    maps::{Array, HashMap},
};
use memscope_common::{
    Miss, ProbeRow, WatchSite, WatchStart, WatchedProcess,
    miss::MAX_DEPTH,
    row::{REGISTER_ARGS, ROW_BOUNDARY, ROW_CAPTURE_BEGIN, ROW_CAPTURE_END, ROW_CLOSED, ROW_TEXT, ROW_TEXT_POINTED},
    watch::START_BYTES,
};

use crate::{
    calls::bounded,
    maps::{ROWS, Thread, setting},
    misses::{add, count},
    regs, stacks,
};

/// The same on x86-64 and aarch64.
const SIGURG: u32 = 23;

/// Watched processes. Only user space adds some; sized by it.
#[map]
static WATCHED: HashMap<u32, WatchedProcess> = HashMap::with_max_entries(1, 0);

/// Where threads were sent there, by `pid_tgid`. Sized by user space.
#[map]
static WATCH_SITES: HashMap<u64, WatchSite> = HashMap::with_max_entries(1, 0);

/// Watched processes in which nothing is watched yet, and those that cannot be watched. Sized by user space.
#[map]
static WATCH_IDLE: HashMap<u32, u32> = HashMap::with_max_entries(1, 0);

/// The operator that watching begins with.
#[map]
static WATCH_START: Array<WatchStart> = Array::with_max_entries(1, 0);

/// Whether a call of this row is a side of an operator, or of what captures them.
#[inline(always)]
pub(crate) fn is_side(row: &ProbeRow) -> bool {
    setting!(watch) != 0 && row.flags & (ROW_BOUNDARY | ROW_CAPTURE_BEGIN | ROW_CAPTURE_END) != 0
}

/// Whether a thread runs a call that the handler makes, which is nobody's.
#[inline(always)]
pub(crate) fn is_own_call(tgid: u32, stack_pointer: u64) -> bool {
    if setting!(watch) == 0 {
        return false;
    }
    // SAFETY: a live map value; `from` and `to` are written before signals are sent.
    WATCHED
        .get_ptr(&tgid)
        .is_some_and(|process| unsafe { stack_pointer >= (*process).from && stack_pointer < (*process).to })
}

/// Whether user space has to know at once that a call of this row was made: the process waits to be set up for a watch. Later the
/// threads themselves come to it, and waking it at each operator would cost more than all the rest.
#[inline(always)]
pub(crate) fn has_to_know(row: &ProbeRow, tgid: u32) -> bool {
    if setting!(watch) == 0 || row.flags & ROW_BOUNDARY == 0 {
        return false;
    }
    // Without `START` only what a script names is watched.
    let has_start = WATCH_START.get(0).is_some_and(|start| start.name[0] != 0);
    (has_start || !row.is_paired()) && WATCHED.get_ptr(&tgid).is_none() && WATCH_IDLE.get_ptr(&tgid).is_none()
}

/// The process has another program. When it ends user space forgets it, once it has read what was counted.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    if setting!(watch) != 0 {
        let _ = WATCHED.remove(&tgid);
        let _ = WATCH_IDLE.remove(&tgid);
    }
}

/// A thread ends.
#[inline(always)]
pub(crate) fn forget_thread(id: u64) {
    if setting!(watch) != 0 {
        let _ = WATCH_SITES.remove(&id);
    }
}

/// One of the two sides of a call whose arguments the thread holds.
#[inline(always)]
pub(crate) fn pass(id: u64, thread: &mut Thread, row: &ProbeRow, number: u16, regs: &pt_regs, returned: bool) {
    if is_side(row) {
        boundary(id, thread, number, regs, returned.into());
    }
}

/// Calls that the thread is inside of, that of the boundary itself left out, during which the runtime may hold its locks: a call of
/// ours could wait for one of them for ever.
#[inline(always)]
fn is_closed(thread: &Thread, own: u32) -> bool {
    for depth in 0..MAX_DEPTH {
        if depth as u32 + own >= thread.depth {
            return false;
        }
        if let Some(row) = ROWS.get(thread.frames[depth].row.into())
            && row.flags & ROW_CLOSED != 0
        {
            return true;
        }
    }
    false
}

/// Eight bytes of the kernel.
#[inline(always)]
fn kernel_word(at: u64) -> Option<u64> {
    let mut word = 0_u64;
    // SAFETY: the helper writes eight bytes into `word`, or fails.
    let read = unsafe { bpf_probe_read_kernel((&raw mut word).cast(), 8, at as *const _) };
    (read == 0).then_some(word)
}

/// Whether the thread's process has another handler for the signal than `ours`. Where that cannot be known, it has not.
#[inline(always)]
fn has_other_handler(ours: u64) -> bool {
    let at = setting!(task_sighand);
    if at == 0 || ours == 0 {
        return false;
    }
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    let signals = kernel_word(task.wrapping_add(at.into()));
    let handler = signals.and_then(|signals| kernel_word(signals.wrapping_add(setting!(urgent_handler).into())));
    handler.is_some_and(|handler| handler != ours)
}

/// Whether watching may begin here: the call's text is the name of the operator that it begins with, or cannot be read.
#[inline(always)]
fn may_start(thread: &Thread, row: &ProbeRow) -> bool {
    let Some(start) = WATCH_START.get(0) else { return false };
    if start.name[0] == 0 || row.flags & ROW_TEXT == 0 {
        return false;
    }
    // SAFETY: below the number of arguments.
    let mut at = unsafe { *thread.args.get_unchecked(bounded(row.text_arg.into())) };
    let mut name = [0_u64; START_BYTES / 8];
    // SAFETY: the helpers write as many bytes as there are, or fail.
    unsafe {
        if row.flags & ROW_TEXT_POINTED != 0 {
            let from = at.wrapping_add(row.text_at.into());
            if bpf_probe_read_user((&raw mut at).cast(), 8, from as *const _) != 0 {
                return true;
            }
        }
        if bpf_probe_read_user_str(name.as_mut_ptr().cast(), START_BYTES as u32, at as *const _) < 0 {
            return true;
        }
    }
    name.iter().zip(&start.name).fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs)) == 0
}

/// Whether nothing is to be done at this side, because nothing is watched and watching does not begin here. Calls by which a
/// script names blocks are no operators: they have one side.
#[inline(always)]
fn is_idle(tgid: u32, thread: &Thread, row: &ProbeRow, returned: u32) -> bool {
    row.is_paired() && WATCH_IDLE.get_ptr(&tgid).is_some() && (returned == 0 || !may_start(thread, row))
}

/// Nothing was sent: it would have come to the program's own handler.
#[inline(always)]
fn note_unsent(process: *mut WatchedProcess) {
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: a live map value; the times are written at once, and of several threads any is right.
    unsafe {
        add(&raw mut (*process).unsent, 1);
        if (&raw const (*process).unsent_since_ns).read_volatile() == 0 {
            (&raw mut (*process).unsent_since_ns).write_volatile(now);
        }
        (&raw mut (*process).unsent_until_ns).write_volatile(now);
    }
}

#[inline(never)]
fn boundary(id: u64, thread: &mut Thread, number: u16, regs: &pt_regs, returned: u32) -> u32 {
    let tgid = (id >> 32) as u32;
    let Some(process) = WATCHED.get_ptr_mut(&tgid) else { return 0 };
    let Some(row) = ROWS.get(number.into()) else { return 0 };
    // SAFETY: a live map value.
    let capturing = unsafe { &raw mut (*process).capturing };
    if row.flags & ROW_CAPTURE_BEGIN != 0 {
        add(capturing, 1);
    } else if row.flags & ROW_CAPTURE_END != 0 {
        add(capturing, u64::MAX);
    }
    if row.flags & ROW_BOUNDARY == 0 {
        return 0;
    }
    if is_idle(tgid, thread, row, returned) {
        return 0;
    }
    // SAFETY: as above.
    if has_other_handler(unsafe { (*process).from }) {
        note_unsent(process);
        count(number, Miss::HandlerTaken);
        return 0;
    }
    let own = u32::from(returned == 0 && row.is_paired());
    // SAFETY: as above.
    if unsafe { capturing.read_volatile() } != 0 || is_closed(thread, own) {
        count(number, Miss::NotWatched);
        return 0;
    }
    let mut args = [0; REGISTER_ARGS];
    for (to, from) in args.iter_mut().zip(thread.args) {
        *to = from;
    }
    // SAFETY: a helper without arguments.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    // SAFETY: a live map value, which only this thread writes.
    let sent = WATCH_SITES.get_ptr(&id).map_or(0, |site| unsafe { (*site).sent }).wrapping_add(1);
    let site = WatchSite {
        time_ns,
        stack_pointer: regs::stack_pointer(regs),
        instruction_pointer: regs::instruction_pointer(regs),
        args,
        row: number,
        returned: returned as u16,
        sent,
        caller: stacks::caller(regs),
    };
    // SAFETY: the helper signals the current thread.
    if WATCH_SITES.insert(&id, &site, 0).is_err() || unsafe { bpf_send_signal_thread(SIGURG) } != 0 {
        count(number, Miss::NotWatched);
    }
    0
}
