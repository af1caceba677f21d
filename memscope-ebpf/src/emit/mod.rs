//! Reports of calls: fills the record that a row asks for, and sends it.

mod list;
mod text;
mod values;

use core::ffi::c_void;

use memscope_common::{
    Kind, Miss, ProbeRow,
    record::{CALL_TEXT_AT, CALL_TEXT_FAULT, CALL_TEXT_MORE, CALL_VALUES_AT},
    row::{MAX_VALUES, ROW_TEXT},
};

pub(crate) use self::{list::emit_list, text::text_at};
use crate::{
    current,
    misses::count,
    thread::Thread,
    transport::{bounded, header_of, send_call},
    watch,
};

/// A call to be reported.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// Its thread.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) row: u16,
    pub(crate) outer: u16,
    pub(crate) status: i64,
}

/// Reports the call with the arguments in the thread's state. `SLEEPS`: the program is sleepable, and waits for pages
/// of a text.
#[inline(always)]
pub(crate) fn emit_call<const SLEEPS: bool>(ctx: *mut c_void, thread: &mut Thread, row: &ProbeRow, call: Call) {
    let values = if row.values > MAX_VALUES as u8 { MAX_VALUES as u8 } else { row.values };
    begin(thread, call, 0, values);
    values::fill(thread, row, values);
    if thread.call.faults != 0 {
        count(call.row, Miss::Fault);
    }
    let mut len = CALL_VALUES_AT as u64 + 8 * u64::from(values);
    let mut text = 0;
    if row.flags & ROW_TEXT != 0 {
        text = text_at(row, thread.arg(row.text_arg));
        len = CALL_TEXT_AT as u64 + text::fill::<SLEEPS>(thread, text);
    }
    thread.call.header.len = len as u16;
    // User space reads a text that was not in memory: as soon as it can.
    let urgent = thread.call.flags & CALL_TEXT_FAULT != 0 || watch::has_to_know(row, current::tgid_of(call.id));
    let sent = send_call::<SLEEPS>(ctx, thread, bounded(len), call.row, urgent);
    if sent && thread.call.flags & CALL_TEXT_MORE != 0 {
        text::emit_parts::<SLEEPS>(ctx, thread, call.row, text);
    }
}

/// Reports the status of a call that was reported at entry.
#[inline(always)]
pub(crate) fn emit_status(ctx: *mut c_void, thread: &mut Thread, call: Call) {
    begin(thread, call, CALL_VALUES_AT as u16, 0);
    thread.call.native_stack = 0;
    thread.call.python_stack = 0;
    send_call::<false>(ctx, thread, CALL_VALUES_AT as u64, call.row, false);
}

/// Begins the record of a call.
#[inline(always)]
fn begin(thread: &mut Thread, call: Call, len: u16, values: u8) {
    thread.call.header = header_of(call.id, call.kind, call.row, len);
    thread.call.header.outer = call.outer;
    thread.call.status = call.status;
    thread.call.value_count = values;
    thread.call.faults = 0;
    thread.call.flags = 0;
    thread.call.text_len = 0;
}
