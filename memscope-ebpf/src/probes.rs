//! The two programs behind every probe: a call is entered, a call returns.

use core::ffi::c_void;

use aya_ebpf::{bindings::pt_regs, helpers::generated::bpf_probe_read_user};
use memscope_common::{
    Kind, Miss, ProbeRow, When,
    record::MAX_TEXT,
    row::{MAX_ROWS, ROW_LIST, ROW_RETURNS_INT},
};

use crate::{
    calls::{self, Pushed},
    emit::{Call, bring_in, emit_call, emit_list, emit_status, text_behind},
    maps::{PROCESSES, ROWS, Thread},
    misses::count,
    process, regs, sites, stacks, waits, watch,
};

pub(crate) fn row_of(number: u32) -> Option<&'static ProbeRow> {
    let row = if number < MAX_ROWS { ROWS.get(number) } else { None };
    match row {
        Some(row) if row.when != 0 => Some(row),
        _ => {
            count(0, Miss::UnknownRow);
            None
        }
    }
}

/// A probed call is entered. One body for all rows, so that it is verified once per program kind. `cookie` gives the row's number, which
/// nobody needs of a process that is not traced. `LOOPS`: see [`stacks::take`]; without it there are no cookies.
#[inline(never)]
pub(crate) fn enter<const LOOPS: bool>(ctx: *mut c_void, id: u64, cookie: u64) -> u32 {
    let number = cookie as u32;
    let Some(row) = row_of(number) else { return 0 };
    // SAFETY: the context of a uprobe is the thread's registers.
    let regs = unsafe { &*ctx.cast::<pt_regs>() };
    let number = number as u16;
    if row.when == When::Library as u8 {
        library(ctx, regs, row, number, tgid_of(id));
        return 0;
    }
    let mut stack_pointer = regs::stack_pointer(regs);
    if watch::is_own_call(tgid_of(id), stack_pointer) {
        return 0;
    }
    let Some(thread) = calls::thread::<LOOPS>(id, number) else { return 0 };
    if LOOPS && sites::is_later(cookie) {
        stack_pointer = sites::save_args(ctx, regs, cookie, &mut thread.args);
    } else {
        regs::save_args(regs, &mut thread.args);
    }
    let outer = thread.api as u16;
    if row.is_paired() {
        let call = calls::Entered {
            row: number,
            group: row.group,
            own: row.has_own_return(),
            stack_pointer,
            return_address: stacks::return_address(regs, row),
        };
        if let Pushed::Dropped = calls::push(thread, &call) {
            return 0;
        }
    }
    if row.waits_for_return() {
        watch::pass(id, thread, row, number, regs, false);
        return 0;
    }
    let call = Call { id, kind: Kind::Enter, row: number, outer, status: 0 };
    report::<LOOPS>(ctx, thread, row, call);
    watch::pass(id, thread, row, number, regs, false);
    0
}

/// A probed call returns.
#[inline(never)]
pub(crate) fn leave<const LOOPS: bool>(ctx: *mut c_void, id: u64, number: u32) -> u32 {
    let Some(row) = row_of(number) else { return 0 };
    // SAFETY: the context of a uprobe is the thread's registers.
    let regs = unsafe { &*ctx.cast::<pt_regs>() };
    let status = status(regs, row);
    // Most calls that were reported at entry: there is nothing to take back.
    if row.when == When::EntryAndNonZero as u8 && status == 0 && !row.is_paired() && !watch::is_side(row) {
        return 0;
    }
    if watch::is_own_call(tgid_of(id), regs::stack_pointer(regs)) {
        return 0;
    }
    let number = number as u16;
    let Some(thread) = calls::thread::<LOOPS>(id, number) else { return 0 };
    if row.is_paired()
        && let Pushed::Dropped = calls::pop(thread, number)
    {
        return 0;
    }
    let call = Call { id, kind: Kind::Return, row: number, outer: thread.api as u16, status };
    if row.when == When::Return as u8 || (row.when == When::Failure as u8 && status != 0) {
        report::<LOOPS>(ctx, thread, row, call);
    } else if row.when == When::EntryAndNonZero as u8 && status != 0 {
        emit_status(ctx, thread, call);
    }
    watch::pass(id, thread, row, number, regs, true);
    0
}

/// A probed call is about to execute its own return instruction.
#[inline(never)]
pub(crate) fn leave_own<const LOOPS: bool>(ctx: *mut c_void, id: u64, number: u32) -> u32 {
    let Some(row) = row_of(number) else { return 0 };
    // SAFETY: the context of a uprobe is the thread's registers.
    let regs = unsafe { &*ctx.cast::<pt_regs>() };
    let stack_pointer = regs::stack_pointer(regs);
    if watch::is_own_call(tgid_of(id), stack_pointer) {
        return 0;
    }
    let number = number as u16;
    let Some(thread) = calls::thread::<LOOPS>(id, number) else { return 0 };
    if let Pushed::Reported = calls::pop_own(thread, number, stack_pointer) {
        let call = Call { id, kind: Kind::Return, row: number, outer: thread.api as u16, status: status(regs, row) };
        report::<LOOPS>(ctx, thread, row, call);
        watch::pass(id, thread, row, number, regs, true);
    }
    0
}

/// Reports a call with its stacks.
#[inline(always)]
fn report<const LOOPS: bool>(ctx: *mut c_void, thread: &mut Thread, row: &ProbeRow, call: Call) {
    let mut generation = 0;
    if stacks::are_wanted(row) {
        // None: it has just been taken out of the trace.
        let Some(state) = PROCESSES.get_ptr(&tgid_of(call.id)) else { return };
        // SAFETY: a live map value; that others change it meanwhile does no harm.
        generation = unsafe { (*state).generation };
    }
    stacks::take::<LOOPS>(ctx, thread, generation, row, call.row);
    if row.flags & ROW_LIST != 0 {
        emit_list::<LOOPS>(ctx, thread, row, call.row, call.status);
    } else {
        emit_call::<false>(ctx, thread, row, call);
    }
}

/// What a call of this row returns.
#[inline(always)]
fn status(regs: &pt_regs, row: &ProbeRow) -> i64 {
    let returned = regs::returned(regs);
    if row.flags & ROW_RETURNS_INT != 0 { i64::from(returned as i32) } else { returned as i64 }
}

#[inline(always)]
const fn tgid_of(id: u64) -> u32 {
    (id >> 32) as u32
}

/// A call with a text is about to be reported. A literal that nobody has touched is not in memory, and [`enter`]
/// cannot wait for its page; this program can.
#[inline(always)]
pub(crate) fn touch(ctx: *mut c_void, cookie: impl FnOnce() -> u64) {
    if process::traced_thread().is_none() {
        return;
    }
    let cookie = cookie();
    let Some(row) = row_of(cookie as u32) else { return };
    // SAFETY: the context of a uprobe is the thread's registers.
    let regs = unsafe { &*ctx.cast::<pt_regs>() };
    let arg = if sites::is_later(cookie) {
        sites::arg(ctx, regs, cookie, row.text_arg)
    } else {
        regs::arg(regs, row.text_arg)
    };
    let text = text_behind(row, arg);
    if text == 0 {
        return;
    }
    bring_in(text, MAX_TEXT as u64);
}

/// A call with a text is entered, and reported at once: [`enter`] of a program that can wait for the text itself, so there is one program
/// where there were two. Not for calls with stacks, and not while blocks are watched.
#[inline(always)]
pub(crate) fn enter_text(ctx: *mut c_void, id: u64, cookie: u64) {
    let number = cookie as u32;
    let Some(row) = row_of(number) else { return };
    // SAFETY: the context of a uprobe is the thread's registers.
    let regs = unsafe { &*ctx.cast::<pt_regs>() };
    let number = number as u16;
    let Some(thread) = calls::thread::<true>(id, number) else { return };
    let mut stack_pointer = regs::stack_pointer(regs);
    if sites::is_later(cookie) {
        stack_pointer = sites::save_args(ctx, regs, cookie, &mut thread.args);
    } else {
        regs::save_args(regs, &mut thread.args);
    }
    let outer = thread.api as u16;
    if row.is_paired() {
        // Only stacks need the address.
        let call = calls::Entered { row: number, group: row.group, own: false, stack_pointer, return_address: 0 };
        if let Pushed::Dropped = calls::push(thread, &call) {
            return;
        }
    }
    thread.call.native_stack = 0;
    thread.call.python_stack = 0;
    emit_call::<true>(ctx, thread, row, Call { id, kind: Kind::Enter, row: number, outer, status: 0 });
}

/// The dynamic loader has mapped something: the process waits until user space has looked.
#[inline(always)]
fn library(ctx: *mut c_void, regs: &pt_regs, row: &ProbeRow, number: u16, tgid: u32) {
    /// `r_debug.r_state`: about to map.
    const ADDING: u32 = 1;
    /// About to unmap; it then says once more that all is consistent.
    const DELETING: u32 = 2;
    const UNKNOWN: u32 = 255;
    let mut state = UNKNOWN;
    if row.param != 0 {
        let addr = regs::instruction_pointer(regs).wrapping_add(row.param as u64);
        // SAFETY: `state` has four bytes; the helper checks the address.
        let result = unsafe { bpf_probe_read_user((&raw mut state).cast(), 4, addr as *const c_void) };
        if result != 0 {
            count(number, Miss::Fault);
            state = UNKNOWN;
        }
    }
    if state != ADDING
        && let Some(process) = PROCESSES.get_ptr_mut(&tgid)
    {
        // SAFETY: a live map value; the loader reports from one thread at a time, and nobody else changes it.
        let process = unsafe { &mut *process };
        let added = state != DELETING && process.unmapping == 0;
        process::mappings_change(process, state);
        waits::report_library(ctx, number, state, if added { process.flags } else { 0 });
    }
}
