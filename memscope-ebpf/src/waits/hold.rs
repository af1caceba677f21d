//! Holds a thread: it waits inside a sleepable program (Linux 6.0) until user space has answered.

use core::ffi::c_void;

use aya_ebpf::{bindings::pt_regs, macros::map, maps::HashMap};
use memscope_common::{
    Miss,
    config::{HOLD_ASKED, HOLD_GIVEN_UP, PROCESS_HOLD_ALWAYS},
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

/// Held threads, by `pid_tgid`; user space removes them. Full: a thread is counted, and not held.
#[map]
pub(super) static HOLDS: HashMap<u64, u64> = HashMap::with_max_entries(4096, 0);

/// Longest wait until user space has noticed the thread: beyond, the tracer hangs or is overloaded.
const UNTAKEN_NS: u64 = 1_000_000_000;
/// Longest wait since user space's last sign of life: beyond, the tracer was stopped or hangs.
const SILENT_NS: u64 = 3_000_000_000;
/// Longest wait in all: a large library takes its time.
const MOST_NS: u64 = 30_000_000_000;
/// The kernel's limit for one call of `bpf_loop`; each turn takes at least a third of a microsecond.
const TURNS: u64 = 1 << 23;
/// That number of calls takes more than [`MOST_NS`].
const LOOPS: u32 = 32;

/// A waiting thread.
#[repr(C)]
struct Waiting {
    id: u64,
    since_ns: u64,
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
    // SAFETY: a live map value. A thread that was given up was added earlier.
    if HOLDS.get_ptr(&id).is_none_or(|state| unsafe { read_once(state) } == HOLD_GIVEN_UP) {
        return;
    }
    let regs = regs::of(ctx);
    let number = number();
    let libraries = first_library(regs, number, current::tgid_of(id));
    if all_known::<false>(libraries) {
        return forget(id);
    }
    hold_until_answered(id, number as u16, libraries, regs);
}

/// Waits, and notes why the wait is over.
#[inline(always)]
fn hold_until_answered(id: u64, row: u16, libraries: u64, regs: &pt_regs) {
    count(row, Miss::Held);
    match wait(id, regs::stack_pointer(regs)) {
        // User space has examined all of them.
        ANSWERED => drop(all_known::<true>(libraries)),
        KILLED => forget(id),
        _ => give_up(id, row),
    }
}

/// Forgets a thread.
#[inline(always)]
pub(super) fn forget(id: u64) {
    let _ = HOLDS.remove(&id);
}

/// Gives the thread up: it waited too long. User space reports and removes it.
#[inline(always)]
fn give_up(id: u64, row: u16) {
    const EXISTS: u64 = 2;
    let _ = HOLDS.insert(&id, &HOLD_GIVEN_UP, EXISTS);
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
fn wait(id: u64, stack_pointer: u64) -> u64 {
    let mut waiting = Waiting { id, since_ns: current::now_ns(), stack_pointer, over: 0 };
    for _ in 0..LOOPS {
        // SAFETY: the callback takes a number and a waiting thread.
        unsafe { bpf_loop(TURNS, still_waits as *mut c_void, (&raw mut waiting).cast()) };
        // SAFETY: a local variable, which the loop changes.
        if unsafe { read_once(&raw const waiting.over) } != 0 {
            break;
        }
    }
    // SAFETY: as above.
    unsafe { read_once(&raw const waiting.over) }
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
    let Some(state) = HOLDS.get_ptr(&waiting.id) else { return ANSWERED };
    // SAFETY: a live map value.
    let sign_ns = unsafe { read_once(state) };
    let (since_ns, most_ns) = if sign_ns == HOLD_ASKED { (waiting.since_ns, UNTAKEN_NS) } else { (sign_ns, SILENT_NS) };
    let now_ns = current::now_ns();
    if now_ns.saturating_sub(since_ns) > most_ns || now_ns.saturating_sub(waiting.since_ns) > MOST_NS {
        return TOO_LONG;
    }
    // Yields the processor, which a program cannot do by itself, and fails once the thread is killed.
    let mut word = 0_u64;
    if copy_waiting(&mut word, waiting.stack_pointer) { 0 } else { KILLED }
}
