//! Block watch: sends a thread to the watch's handler, by a signal, at both sides of an operator.
//!
//! The signal is `SIGURG`, which is ignored by default. The kernel delivers it when the thread
//! returns to its program, right behind the probed instruction and never in a system call.

use aya_ebpf::{
    bindings::pt_regs,
    helpers::generated::bpf_send_signal_thread,
    macros::map,
    maps::{Array, HashMap},
};
use memscope_common::{
    Miss, ProbeRow, WatchSite, WatchStart, WatchedProcess,
    miss::MAX_DEPTH,
    row::{REGISTER_ARGS, ROW_BOUNDARY, ROW_CAPTURE_BEGIN, ROW_CAPTURE_END, ROW_CLOSED, ROW_TEXT, ROW_TEXT_POINTED},
    watch::{ANY_HANDLER, START_BYTES},
};

use crate::{
    current, kernel_memory,
    misses::count,
    regs, rows,
    settings::setting,
    thread::Thread,
    user_memory,
    verifier::{add, read_once, write_once},
};

/// The same number on x86-64 and aarch64.
const SIGURG: u32 = 23;

/// Watched processes. User space adds them, and sizes the map.
#[map]
static WATCHED: HashMap<u32, WatchedProcess> = HashMap::with_max_entries(1, 0);

/// Where threads were sent to the handler, by `pid_tgid`. Sized by user space.
#[map]
static WATCH_SITES: HashMap<u64, WatchSite> = HashMap::with_max_entries(1, 0);

/// Watched processes without a watched block yet, and those that cannot be watched. Sized by user
/// space.
#[map]
static WATCH_IDLE: HashMap<u32, u32> = HashMap::with_max_entries(1, 0);

/// The operator that watching begins with.
#[map]
static WATCH_START: Array<WatchStart> = Array::with_max_entries(1, 0);

/// Whether calls of this row are operators, or capture a graph.
#[inline(always)]
pub(crate) fn is_side(row: &ProbeRow) -> bool {
    setting!(watch) != 0 && row.flags & (ROW_BOUNDARY | ROW_CAPTURE_BEGIN | ROW_CAPTURE_END) != 0
}

/// Whether the thread runs a call that the handler makes, not the program.
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

/// Whether a call of this row wakes user space: its process waits for the setup of a watch. After the setup, waking at
/// each operator would dominate the cost.
#[inline(always)]
pub(crate) fn has_to_know(row: &ProbeRow, tgid: u32) -> bool {
    if setting!(watch) == 0 || row.flags & ROW_BOUNDARY == 0 {
        return false;
    }
    // Without a first operator only blocks that a script names are watched.
    let has_start = WATCH_START.get(0).is_some_and(|start| start.name[0] != 0);
    (has_start || !row.is_paired()) && WATCHED.get_ptr(&tgid).is_none() && WATCH_IDLE.get_ptr(&tgid).is_none()
}

/// Forgets a process that runs another program. User space forgets one that ends, after it has read
/// the counts.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    if setting!(watch) != 0 {
        let _ = WATCHED.remove(&tgid);
        let _ = WATCH_IDLE.remove(&tgid);
    }
}

/// Forgets a thread that ends.
#[inline(always)]
pub(crate) fn forget_thread(id: u64) {
    if setting!(watch) != 0 {
        let _ = WATCH_SITES.remove(&id);
    }
}

/// One of the two sides of the call with the arguments in the thread's state.
#[inline(always)]
pub(crate) fn on_side(id: u64, thread: &mut Thread, row: &ProbeRow, number: u16, regs: &pt_regs, returned: bool) {
    if is_side(row) {
        boundary(id, thread, number, regs, returned.into());
    }
}

#[inline(never)]
fn boundary(id: u64, thread: &mut Thread, number: u16, regs: &pt_regs, returned: u32) -> u32 {
    let tgid = current::tgid_of(id);
    let Some(process) = WATCHED.get_ptr_mut(&tgid) else { return 0 };
    let Some(row) = rows::known_row(number) else { return 0 };
    count_captures(process, row);
    if row.flags & ROW_BOUNDARY == 0 || is_idle(tgid, thread, row, returned) {
        return 0;
    }
    let own = u32::from(returned == 0 && row.is_paired());
    if may_interrupt(process, thread, number, own) {
        send_to_handler(id, thread, number, regs, returned);
    }
    0
}

/// Whether the handler may run here; counts why not.
#[inline(always)]
fn may_interrupt(process: *mut WatchedProcess, thread: &Thread, number: u16, own: u32) -> bool {
    // SAFETY: a live map value.
    if has_other_handler(unsafe { (*process).from }) {
        note_unsent(process);
        count(number, Miss::HandlerTaken);
        return false;
    }
    // SAFETY: as above.
    if unsafe { read_once(&raw const (*process).capturing) } != 0 || is_closed(thread, own) {
        count(number, Miss::NotWatched);
        return false;
    }
    true
}

/// Counts the graphs that the process captures.
#[inline(always)]
fn count_captures(process: *mut WatchedProcess, row: &ProbeRow) {
    // SAFETY: a live map value.
    let capturing = unsafe { &raw mut (*process).capturing };
    if row.flags & ROW_CAPTURE_BEGIN != 0 {
        add(capturing, 1);
    } else if row.flags & ROW_CAPTURE_END != 0 {
        add(capturing, u64::MAX);
    }
}

/// Whether this side can be skipped: no block is watched, and watching does not begin here. Calls by which a script
/// names blocks are no operators: they have one side.
#[inline(always)]
fn is_idle(tgid: u32, thread: &Thread, row: &ProbeRow, returned: u32) -> bool {
    row.is_paired() && WATCH_IDLE.get_ptr(&tgid).is_some() && (returned == 0 || !may_start(thread, row))
}

/// Whether watching may begin here: the call's text is the name of the first operator, or is
/// unreadable.
#[inline(always)]
fn may_start(thread: &Thread, row: &ProbeRow) -> bool {
    let Some(start) = WATCH_START.get(0) else { return false };
    if start.name[0] == 0 || row.flags & ROW_TEXT == 0 {
        return false;
    }
    let Some(name) = operator_name(thread, row) else { return true };
    name.iter().zip(&start.name).fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs)) == 0
}

/// The text of the call, cut and padded with zeroes, if readable.
#[inline(always)]
fn operator_name(thread: &Thread, row: &ProbeRow) -> Option<[u64; START_BYTES / 8]> {
    let mut at = thread.arg(row.text_arg);
    if row.flags & ROW_TEXT_POINTED != 0 {
        at = user_memory::word(at.wrapping_add(row.text_at.into()))?;
    }
    let mut name = [0_u64; START_BYTES / 8];
    // SAFETY: the length is the array's.
    let result = unsafe { user_memory::copy_string(name.as_mut_ptr().cast(), START_BYTES, at) };
    (result >= 0).then_some(name)
}

/// Whether the process has a handler for the signal other than `ours`; no if unknown. Before ours is set up, a process
/// that ignores the signal counts as without: the signal does nothing to it.
#[inline(always)]
fn has_other_handler(ours: u64) -> bool {
    /// `SIG_IGN`; what is below is `SIG_DFL`.
    const IGNORED: u64 = 1;
    let at = setting!(task_sighand);
    if at == 0 || ours == ANY_HANDLER {
        return false;
    }
    let signals = kernel_memory::word((current::task() as u64).wrapping_add(at.into()));
    let handler =
        signals.and_then(|signals| kernel_memory::word(signals.wrapping_add(setting!(urgent_handler).into())));
    handler.is_some_and(|handler| if ours == 0 { handler > IGNORED } else { handler != ours })
}

/// Notes that no signal was sent: the program's own handler would have got it. Of several threads'
/// times any is right.
#[inline(always)]
fn note_unsent(process: *mut WatchedProcess) {
    let now_ns = current::now_ns();
    // SAFETY: a live map value.
    unsafe {
        add(&raw mut (*process).unsent, 1);
        if read_once(&raw const (*process).unsent_since_ns) == 0 {
            write_once(&raw mut (*process).unsent_since_ns, now_ns);
        }
        write_once(&raw mut (*process).unsent_until_ns, now_ns);
    }
}

/// Whether the runtime may hold its locks: the thread is inside of such a call, the operator itself
/// left out. A call by the handler could then wait for a lock forever.
#[inline(always)]
fn is_closed(thread: &Thread, own: u32) -> bool {
    for depth in 0..MAX_DEPTH {
        if depth as u32 + own >= thread.depth {
            return false;
        }
        if let Some(row) = rows::known_row(thread.frames[depth].row)
            && row.flags & ROW_CLOSED != 0
        {
            return true;
        }
    }
    false
}

/// Notes where the thread is, and sends it to the handler.
#[inline(always)]
fn send_to_handler(id: u64, thread: &Thread, number: u16, regs: &pt_regs, returned: u32) {
    let mut args = [0; REGISTER_ARGS];
    for (to, from) in args.iter_mut().zip(thread.args) {
        *to = from;
    }
    let time_ns = current::now_ns();
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
        caller: regs::return_address(regs),
    };
    // SAFETY: the helper signals the current thread.
    if WATCH_SITES.insert(&id, &site, 0).is_err() || unsafe { bpf_send_signal_thread(SIGURG) } != 0 {
        count(number, Miss::NotWatched);
    }
}
