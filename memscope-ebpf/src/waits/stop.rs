//! Stops a process by `SIGSTOP`, and keeps our stops apart from those of others.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_get_current_uid_gid, bpf_send_signal},
    macros::map,
    maps::HashMap,
};
use memscope_common::{
    Miss,
    config::{ANY_USER, STOP_AGAIN, STOP_OURS, STOP_THEIRS},
    record::{WAITS_STOPPED, WITHHELD_DEBUGGER, WITHHELD_JOB, WITHHELD_PARENT, WITHHELD_STOPPED, WITHHELD_USER},
};

use crate::{
    current, filter,
    kernel_memory::{argument, field, pointer},
    misses::count,
    settings::setting,
    verifier::{read_once, write_once},
};

/// Stopped processes, by tgid: `STOP_*` bits. An entry ends when the process is continued.
#[map]
static STOPS: HashMap<u32, u32> = HashMap::with_max_entries(16384, 0);

/// The same numbers on x86-64 and aarch64.
const SIGSTOP: u32 = 19;
const SIGCONT: u64 = 18;
/// `SIGSTOP`, `SIGTSTP`, `SIGTTIN`, `SIGTTOU`.
const FIRST_STOP: u64 = 19;
const LAST_STOP: u64 = 22;
/// `SIGCHLD` in a mask of signals.
const CHILD: u64 = 1 << 16;
/// `SIG_DFL` and `SIG_IGN`.
const NO_HANDLER: u64 = 1;
/// `SA_NOCLDSTOP`.
const NOT_FOR_STOPS: u64 = 1;
/// Up to this the sender is the kernel itself (`SEND_SIG_NOINFO`, `SEND_SIG_PRIV`).
const NO_SENDER: u64 = 1;

/// Notes that the current process shall stop. Returns [`WAITS_STOPPED`], or why it is not stopped.
#[inline(always)]
pub(super) fn ask(tgid: u32, row: u16) -> u32 {
    let why = why_not();
    if why != 0 {
        count(row, Miss::StopFailed);
        return why;
    }
    // SAFETY: a live map value.
    let theirs = STOPS.get_ptr(&tgid).is_some_and(|stops| unsafe { read_once(stops) } & STOP_THEIRS != 0);
    // A process that others stop needs no stop of ours.
    if theirs || STOPS.insert(&tgid, &STOP_OURS, 0).is_err() {
        count(row, Miss::StopFailed);
        return WITHHELD_STOPPED;
    }
    WAITS_STOPPED
}

/// Why the current process must not be stopped: we could not continue it, or others would notice.
/// 0: it may be.
#[inline(always)]
fn why_not() -> u32 {
    let user = setting!(stop_user);
    // SAFETY: a helper without arguments. The lower half is the user.
    if user != ANY_USER && unsafe { bpf_get_current_uid_gid() } as u32 != user {
        return WITHHELD_USER;
    }
    if setting!(offsets.known) == 0 {
        return 0;
    }
    let task = current::task();
    if field::<u32>(task, setting!(offsets.task_ptrace)) != 0 {
        return WITHHELD_DEBUGGER;
    }
    if is_job(task) {
        return WITHHELD_JOB;
    }
    if takes_child_signals(pointer(task, setting!(offsets.task_parent))) { WITHHELD_PARENT } else { 0 }
}

/// Whether a process is under job control: in another group than the program that we started.
#[inline(always)]
fn is_job(task: *mut c_void) -> bool {
    let home = setting!(home_group);
    let signal = pointer(task, setting!(offsets.task_signal));
    let group = pointer(signal, setting!(offsets.signal_group));
    home != 0 && field::<u32>(group, setting!(offsets.pid_number)) != home
}

/// Whether a process takes `SIGCHLD`, sent when a child stops: by a handler, or blocked for
/// `signalfd` and `sigwait`. Does not recognise one inside `waitid` with `WSTOPPED`.
#[inline(always)]
fn takes_child_signals(process: *mut c_void) -> bool {
    // The tracer does, and knows what it sees.
    if field::<u32>(process, setting!(offsets.task_tgid)) == setting!(tracer) {
        return false;
    }
    let actions = pointer(process, setting!(offsets.task_sighand));
    let handler = field::<u64>(actions, setting!(offsets.child_handler));
    let flags = field::<u64>(actions, setting!(offsets.child_flags));
    let blocked = field::<u64>(process, setting!(offsets.task_blocked))
        | field::<u64>(process, setting!(offsets.task_real_blocked));
    flags & NOT_FOR_STOPS == 0 && (handler > NO_HANDLER || blocked & CHILD != 0)
}

/// Stops the current process, if the record that announces it was `sent`.
#[inline(always)]
pub(super) fn stop(tgid: u32, row: u16, sent: bool) {
    // SAFETY: the helper signals the current process.
    if sent && unsafe { bpf_send_signal(SIGSTOP) } == 0 {
        count(row, Miss::Stopped);
        return;
    }
    if sent {
        count(row, Miss::StopFailed);
    }
    forget(tgid);
}

/// Forgets the stop of a process.
#[inline(always)]
pub(super) fn forget(tgid: u32) {
    let _ = STOPS.remove(&tgid);
}

/// `signal_generate`: notes who stops a traced process, and that one is continued.
#[inline(always)]
pub(crate) fn on_signal(ctx: *mut c_void) {
    let signal = argument(ctx, 0);
    if !(SIGCONT..=LAST_STOP).contains(&(signal & 0xff)) {
        return;
    }
    let tgid = field::<u32>(argument(ctx, 2) as *mut c_void, setting!(offsets.task_tgid));
    if signal == SIGCONT {
        continued(tgid);
    } else {
        stopped(tgid, signal, argument(ctx, 1));
    }
}

/// A process is continued.
#[inline(always)]
fn continued(tgid: u32) {
    let Some(stops) = STOPS.get_ptr_mut(&tgid) else { return };
    let by_tracer = current::tgid() == setting!(tracer);
    // SAFETY: a live map value.
    if by_tracer && unsafe { read_once(stops) } & STOP_THEIRS != 0 {
        // SAFETY: as above.
        unsafe { write_once(stops, STOP_AGAIN) };
    } else {
        forget(tgid);
    }
}

/// A process is stopped.
#[inline(always)]
fn stopped(tgid: u32, signal: u64, sender: u64) {
    let stops = STOPS.get_ptr_mut(&tgid);
    if !filter::is_traced(tgid) {
        return;
    }
    // Ours has no sender. Nor has a terminal's, which is never `SIGSTOP`.
    let ours = signal == FIRST_STOP && sender <= NO_SENDER;
    // Ours is noted again: the record may have been answered before the signal was sent.
    let bit = if ours { STOP_OURS } else { STOP_THEIRS };
    match stops {
        // SAFETY: a live map value.
        Some(stops) => unsafe { write_once(stops, read_once(stops) | bit) },
        // Full: unknown, as on kernels without the tracepoint.
        None => drop(STOPS.insert(&tgid, &bit, 0)),
    }
}
