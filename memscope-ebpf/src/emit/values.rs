//! The values of a record: arguments, and words that they point to.

use memscope_common::{CallRecord, Fetch, ProbeRow, Source, record::CALL_VALUES_AT, row::MAX_VALUES};

use crate::{
    thread::Thread,
    user_memory,
    verifier::{masked, opaque, read_once},
};

/// Fetches the values of a row.
#[inline(always)]
pub(super) fn fill(thread: &mut Thread, row: &ProbeRow, values: u8) {
    let together = fill_together(thread, row);
    if together >= values {
        return;
    }
    for at in 0..MAX_VALUES {
        if at as u64 >= opaque(values) {
            return;
        }
        if (at as u64) >= opaque(together) {
            fill_one(thread, row.fetch[at], at);
        }
    }
}

/// Reads the first values if they are consecutive words. Returns how many were read: if one faults,
/// none.
#[inline(always)]
fn fill_together(thread: &mut Thread, row: &ProbeRow) -> u8 {
    if row.together == 0 {
        return 0;
    }
    let len = masked::<127>(u64::from(row.together) * 8);
    let from = thread.arg(row.fetch[0].arg).wrapping_add(u64::from(row.fetch[0].offset));
    // SAFETY: values and text have room for 127 bytes.
    let read = unsafe { user_memory::copy_bytes((&raw mut thread.call.values).cast(), len, from) };
    if read { row.together } else { 0 }
}
const _: () = assert!(size_of::<CallRecord>() - CALL_VALUES_AT >= 127);

/// Whether the value is behind the pointer `base`.
#[inline(always)]
fn leads_to_memory(fetch: Fetch, status: i64, base: u64) -> bool {
    if fetch.source == Source::Out as u8 {
        return status == 0;
    }
    fetch.source == Source::Memory as u8 || fetch.source == Source::Returned as u8 && base != 0
}

/// Fetches one value.
#[inline(always)]
fn fill_one(thread: &mut Thread, fetch: Fetch, at: usize) {
    let returned = fetch.source == Source::Returned as u8;
    // Read from memory on each turn, else the verifier tracks it as `opaque` says.
    // SAFETY: a field of a live map value.
    let status = unsafe { read_once(&raw const thread.call.status) };
    let base = if returned { status as u64 } else { thread.arg(fetch.arg) };
    thread.call.values[at] = base;
    if fetch.source == Source::Behind as u8 {
        let (offset, then) = (u64::from(fetch.offset & 0xff), u64::from(fetch.offset >> 8));
        copy_word(thread, at, base.wrapping_add(offset));
        let pointer = thread.call.values[at];
        copy_word(thread, at, pointer.wrapping_add(then));
    } else if leads_to_memory(fetch, status, base) {
        copy_word(thread, at, base.wrapping_add(fetch.offset.into()));
    } else if fetch.source != Source::Arg as u8 {
        thread.call.values[at] = 0;
    }
}

/// Reads the word at `from` into a value. A pointer that could not be read leaves the fault of the first read.
#[inline(always)]
fn copy_word(thread: &mut Thread, at: usize, from: u64) {
    if !user_memory::copy(&mut thread.call.values[at], from) {
        thread.call.faults |= 1 << at;
    }
}
