//! The programs behind the probes of a call: it is entered, it returns.

use core::ffi::c_void;

use aya_ebpf::bindings::pt_regs;
use memscope_common::{
    Kind, ProbeRow, When,
    record::MAX_TEXT,
    row::{ROW_LIST, ROW_RETURNS_INT},
};

use crate::{
    calls::{self, Entered, Outcome},
    current,
    emit::{Call, emit_call, emit_list, emit_status, text_at},
    filter::{self, Caller},
    regs,
    rows::row_of,
    sites, stacks,
    thread::Thread,
    thread_slots::thread,
    user_memory, waits, watch,
};

/// A probed call is entered. One body for all rows, so that it is verified once per kind of program.
///
/// The lower half of `cookie` is the row's number. `LOOPS`: see [`stacks::take`]; a program without
/// it has no cookies.
#[inline(never)]
pub(crate) fn enter<const LOOPS: bool>(ctx: *mut c_void, caller: Caller, cookie: u64) -> u32 {
    let Some(row) = row_of(cookie as u32) else { return 0 };
    if caller.goes_without(row) {
        return 0;
    }
    let id = caller.id;
    let regs = regs::of(ctx);
    let number = cookie as u16;
    if row.when == When::Library as u8 {
        waits::library(ctx, regs, row, number, current::tgid_of(id));
        return 0;
    }
    if is_own_call(id, regs) {
        return 0;
    }
    let Some(thread) = thread::<LOOPS>(id, number) else { return 0 };
    let stack_pointer = sites::save_args::<LOOPS>(ctx, regs, cookie, &mut thread.args);
    let outer = thread.api as u16;
    let return_address = stacks::return_address(regs, row);
    if let Outcome::Dropped = push(thread, row, number, stack_pointer, return_address) {
        return 0;
    }
    if !row.waits_for_return() {
        report::<LOOPS>(ctx, thread, row, Call { id, kind: Kind::Enter, row: number, outer, status: 0 });
    }
    watch::on_side(id, thread, row, number, regs, false);
    0
}

/// A probed call returns.
#[inline(never)]
pub(crate) fn leave<const LOOPS: bool>(ctx: *mut c_void, caller: Caller, number: u32) -> u32 {
    let Some(row) = row_of(number) else { return 0 };
    if caller.goes_without(row) {
        return 0;
    }
    let id = caller.id;
    let regs = regs::of(ctx);
    let status = status(regs, row);
    // Most calls that were reported at entry: they succeeded.
    if row.when == When::EntryAndNonZero as u8 && status == 0 && !row.is_paired() && !watch::is_side(row) {
        return 0;
    }
    if is_own_call(id, regs) {
        return 0;
    }
    let number = number as u16;
    let Some(thread) = thread::<LOOPS>(id, number) else { return 0 };
    if row.is_paired()
        && let Outcome::Dropped = calls::pop(thread, number)
    {
        return 0;
    }
    let call = Call { id, kind: Kind::Return, row: number, outer: thread.api as u16, status };
    if row.when == When::Return as u8 || (row.when == When::Failure as u8 && status != 0) {
        report::<LOOPS>(ctx, thread, row, call);
    } else if row.when == When::EntryAndNonZero as u8 && status != 0 {
        emit_status(ctx, thread, call);
    }
    watch::on_side(id, thread, row, number, regs, true);
    0
}

/// A probed call is about to execute its own return instruction.
#[inline(never)]
pub(crate) fn leave_own<const LOOPS: bool>(ctx: *mut c_void, caller: Caller, number: u32) -> u32 {
    let Some(row) = row_of(number) else { return 0 };
    if caller.goes_without(row) {
        return 0;
    }
    let id = caller.id;
    let regs = regs::of(ctx);
    if is_own_call(id, regs) {
        return 0;
    }
    let number = number as u16;
    let Some(thread) = thread::<LOOPS>(id, number) else { return 0 };
    if let Outcome::Reported = calls::pop_own(thread, number, regs::stack_pointer(regs)) {
        let call = Call { id, kind: Kind::Return, row: number, outer: thread.api as u16, status: status(regs, row) };
        report::<LOOPS>(ctx, thread, row, call);
        watch::on_side(id, thread, row, number, regs, true);
    }
    0
}

/// Pushes a call that is followed to its return.
#[inline(always)]
fn push(thread: &mut Thread, row: &ProbeRow, number: u16, stack_pointer: u64, return_address: u64) -> Outcome {
    if !row.is_paired() {
        return Outcome::Reported;
    }
    let call = Entered { row: number, group: row.group, own: row.has_own_return(), stack_pointer, return_address };
    calls::push(thread, &call)
}

/// Whether the handler of a watch makes this call.
#[inline(always)]
fn is_own_call(id: u64, regs: &pt_regs) -> bool {
    watch::is_own_call(current::tgid_of(id), regs::stack_pointer(regs))
}

/// What a call of this row returns.
#[inline(always)]
fn status(regs: &pt_regs, row: &ProbeRow) -> i64 {
    let returned = regs::returned(regs);
    if row.flags & ROW_RETURNS_INT != 0 { i64::from(returned as i32) } else { returned as i64 }
}

/// Reports a call with its stacks.
#[inline(always)]
fn report<const LOOPS: bool>(ctx: *mut c_void, thread: &mut Thread, row: &ProbeRow, call: Call) {
    let mut generation = 0;
    let wanted = stacks::of_call(thread, row, call.row);
    if wanted != 0 {
        // None: the process has just been taken out of the trace.
        let Some(state) = filter::state_of(current::tgid_of(call.id)) else { return };
        // SAFETY: a live map value; a change meanwhile does no harm.
        generation = unsafe { (*state).generation };
    }
    stacks::take::<LOOPS>(ctx, thread, generation, wanted, call.row);
    if row.flags & ROW_LIST != 0 {
        emit_list::<LOOPS>(ctx, thread, row, call.row, call.status);
    } else {
        emit_call::<false>(ctx, thread, row, call);
    }
}

/// A call with a text is about to be reported: faults in its page, for which [`enter`] cannot wait.
/// A literal is in memory only once the program has read it.
#[inline(always)]
pub(crate) fn touch(ctx: *mut c_void, cookie: impl FnOnce() -> u64) {
    if filter::traced_thread().is_none() {
        return;
    }
    let cookie = cookie();
    let Some(row) = row_of(cookie as u32) else { return };
    let text = text_at(row, sites::arg(ctx, regs::of(ctx), cookie, row.text_arg));
    if text != 0 {
        user_memory::fault_in(text, MAX_TEXT as u64);
    }
}

/// A call with a text is entered, and reported at once: [`touch`] and [`enter`] in one program.
/// Only for calls without stacks, and without a watch.
#[inline(always)]
pub(crate) fn enter_text(ctx: *mut c_void, id: u64, cookie: u64) -> u32 {
    let Some(row) = row_of(cookie as u32) else { return 0 };
    let number = cookie as u16;
    let Some(thread) = thread::<true>(id, number) else { return 0 };
    let stack_pointer = sites::save_args::<true>(ctx, regs::of(ctx), cookie, &mut thread.args);
    let outer = thread.api as u16;
    // Only stacks need the return address.
    if let Outcome::Dropped = push(thread, row, number, stack_pointer, 0) {
        return 0;
    }
    thread.call.native_stack = 0;
    thread.call.python_stack = 0;
    emit_call::<true>(ctx, thread, row, Call { id, kind: Kind::Enter, row: number, outer, status: 0 });
    0
}
