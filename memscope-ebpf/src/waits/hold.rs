//! Holds a thread: it waits inside a sleepable program (Linux 6.0) until user space has answered.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::pt_regs,
    macros::map,
    maps::{HashMap, LruHashMap},
};
use memscope_common::{
    Miss,
    config::{HOLD_ASKED, HOLD_GIVEN_UP, PROCESS_HOLD_ALWAYS, Wait},
};

use super::images::all_known;
use crate::{
    current, filter,
    misses::count,
    regs,
    rows::row_of,
    settings::setting,
    user_memory::copy_waiting,
    verifier::{bpf_loop, read_once},
};

/// Waits; user space removes them. Full: a thread is counted, and not held.
#[map]
static HOLDS: HashMap<Wait, u64> = HashMap::with_max_entries(4096, 0);
/// Since when a thread waits, by `pid_tgid`; one that has given up stays until its next wait, or until there is no room.
#[map]
static HELD_SINCE: LruHashMap<u64, u64> = LruHashMap::with_max_entries(8192, 0);

/// Longest wait until user space has noticed the thread: beyond, the tracer hangs or is overloaded.
const UNTAKEN_NS: u64 = 1_000_000_000;
/// Longest wait since user space's last sign of life: beyond, the tracer was stopped or hangs.
const SILENT_NS: u64 = 3_000_000_000;
/// Longest wait in all: a large library takes its time.
const MOST_NS: u64 = 30_000_000_000;
/// The kernel's limit for one call of `bpf_loop`; each turn takes at least a third of a microsecond.
const TURNS: u64 = 1 << 23;
/// That number of calls takes more than [`MOST_NS`]. They are a loop of the same kind: one written out is verified turn by turn.
const LOOPS: u64 = 32;

/// A waiting thread.
#[repr(C)]
struct Waiting {
    held: Wait,
    stack_pointer: u64,
    /// Why it waits no longer; 0: it waits.
    over: u64,
}

const ANSWERED: u64 = 1;
const TOO_LONG: u64 = 2;
const KILLED: u64 = 3;

/// Waits until user space has removed the thread from [`HOLDS`]. Runs behind the program that has
/// added it.
#[inline(always)]
pub(crate) fn hold(ctx: *mut c_void, number: impl FnOnce() -> u32) {
    let id = current::thread_id();
    let Some(held) = wait_of(id) else { return };
    // SAFETY: a live map value. Answered already, or given up at an earlier call.
    if HOLDS.get_ptr(&held).is_none_or(|state| unsafe { read_once(state) } == HOLD_GIVEN_UP) {
        return;
    }
    let regs = regs::of(ctx);
    let number = number();
    let libraries = first_library(regs, number, current::tgid_of(id));
    if all_known::<false>(libraries) {
        return forget(&held);
    }
    hold_until_answered(held, number as u16, libraries, regs);
}

/// Waits, and notes why the wait is over.
#[inline(always)]
fn hold_until_answered(held: Wait, row: u16, libraries: u64, regs: &pt_regs) {
    count(row, Miss::Held);
    match wait(held, regs::stack_pointer(regs)) {
        ANSWERED => {
            forget(&held);
            // User space has examined all of them.
            all_known::<true>(libraries);
        }
        KILLED => forget(&held),
        _ => give_up(&held, row),
    }
}

/// The wait of a thread; `None`: it has none, or there are more than can be noted.
#[inline(always)]
fn wait_of(id: u64) -> Option<Wait> {
    // SAFETY: a live map value, which only this thread writes.
    let since_ns = unsafe { *HELD_SINCE.get(&id)? };
    Some(Wait { thread: id, since_ns })
}

/// Whether user space has not answered the last wait of the thread, which has gone on.
#[inline(always)]
pub(super) fn is_silent(id: u64) -> bool {
    let state = wait_of(id).and_then(|held| HOLDS.get_ptr(&held));
    // SAFETY: a live map value.
    state.is_some_and(|state| unsafe { read_once(state) } == HOLD_GIVEN_UP)
}

/// Notes that the thread is about to wait. Returns whether there was room.
#[inline(always)]
pub(super) fn ask(held: &Wait) -> bool {
    if HOLDS.insert(held, &HOLD_ASKED, 0).is_err() {
        return false;
    }
    let noted = HELD_SINCE.insert(&held.thread, &held.since_ns, 0).is_ok();
    if !noted {
        forget(held);
    }
    noted
}

/// Forgets a wait.
#[inline(always)]
pub(super) fn forget(held: &Wait) {
    let _ = HOLDS.remove(held);
    let _ = HELD_SINCE.remove(&held.thread);
}

/// Gives the thread up: it waited too long. User space reports and removes it.
#[inline(always)]
fn give_up(held: &Wait, row: u16) {
    const EXISTS: u64 = 2;
    let _ = HOLDS.insert(held, &HOLD_GIVEN_UP, EXISTS);
    count(row, Miss::NotHeld);
}

/// Address of the loader's list of loaded libraries (`r_debug.r_map`); 0 if unknown, or useless.
#[inline(always)]
fn first_library(regs: &pt_regs, number: u32, tgid: u32) -> u64 {
    /// Before `r_state`.
    const VERSION: u64 = 24;
    const MAP: u64 = 16;
    /// Later versions have further lists (`dlmopen`).
    const ONE_LIST: u32 = 1;
    // SAFETY: a live map value; this flag never changes.
    let always = filter::state_of(tgid).is_none_or(|process| unsafe { (*process).flags } & PROCESS_HOLD_ALWAYS != 0);
    if setting!(offsets.known) == 0 || always {
        return 0;
    }
    let Some(row) = row_of(number) else { return 0 };
    if row.param == 0 {
        return 0;
    }
    let state = regs::instruction_pointer(regs).wrapping_add(row.param as u64);
    let (mut version, mut first) = (0_u32, 0_u64);
    if copy_waiting(&mut version, state.wrapping_sub(VERSION)) && version == ONE_LIST {
        copy_waiting(&mut first, state.wrapping_sub(MAP));
    }
    first
}

/// Waits. Returns why the wait is over; 0 if it is not.
#[inline(always)]
fn wait(held: Wait, stack_pointer: u64) -> u64 {
    let mut waiting = Waiting { held, stack_pointer, over: 0 };
    // SAFETY: the callback takes a number and a waiting thread.
    unsafe { bpf_loop(LOOPS, waits_on as *mut c_void, (&raw mut waiting).cast()) };
    // SAFETY: a local variable, which the loop changes.
    unsafe { read_once(&raw const waiting.over) }
}

/// Waits for [`TURNS`]. Returns 1 if the wait is over.
#[inline(never)]
unsafe extern "C" fn waits_on(_index: u32, waiting: *mut Waiting) -> u64 {
    // SAFETY: the callback takes a number and a waiting thread.
    unsafe { bpf_loop(TURNS, still_waits as *mut c_void, waiting.cast()) };
    // SAFETY: the caller's, which the loop changes.
    u64::from(unsafe { read_once(&raw const (*waiting).over) } != 0)
}

/// Looks once whether the thread still waits. Returns 1 if not.
#[inline(never)]
unsafe extern "C" fn still_waits(_index: u32, waiting: *mut Waiting) -> u64 {
    // SAFETY: the caller's.
    let waiting = unsafe { &mut *waiting };
    waiting.over = over(waiting);
    u64::from(waiting.over != 0)
}

/// Why the wait is over; 0 if it is not.
#[inline(always)]
fn over(waiting: &Waiting) -> u64 {
    let Some(state) = HOLDS.get_ptr(&waiting.held) else { return ANSWERED };
    let since_ns = waiting.held.since_ns;
    // SAFETY: a live map value.
    let sign_ns = unsafe { read_once(state) };
    let (from_ns, most_ns) = if sign_ns == HOLD_ASKED { (since_ns, UNTAKEN_NS) } else { (sign_ns, SILENT_NS) };
    let now_ns = current::now_ns();
    if now_ns.saturating_sub(from_ns) > most_ns || now_ns.saturating_sub(since_ns) > MOST_NS {
        return TOO_LONG;
    }
    // Yields the processor, which a program cannot do by itself, and fails once the thread is killed.
    let mut word = 0_u64;
    if copy_waiting(&mut word, waiting.stack_pointer) { 0 } else { KILLED }
}
