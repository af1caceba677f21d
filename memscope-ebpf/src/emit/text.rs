//! The text of a record: a C string, in parts if it is long.

use core::ffi::c_void;

use memscope_common::{
    Kind, ProbeRow,
    record::{CALL_TEXT_FAULT, CALL_TEXT_MORE, CALL_TEXT_NULL, MAX_TEXT_PARTS, TEXT_CHUNK, TEXT_TEXT_AT},
    row::ROW_TEXT_POINTED,
};

use crate::{
    thread::Thread,
    transport::{header, send_text},
    user_memory,
};

/// The address of the text that an argument leads to.
#[inline(always)]
pub(crate) fn text_at(row: &ProbeRow, arg: u64) -> u64 {
    if row.flags & ROW_TEXT_POINTED == 0 {
        return arg;
    }
    user_memory::word_or_zero(arg.wrapping_add(row.text_at.into()))
}

/// Fills the text of the thread's call. Returns its bytes.
#[inline(always)]
pub(super) fn fill<const SLEEPS: bool>(thread: &mut Thread, text: u64) -> u64 {
    let (bytes, flags) = read::<SLEEPS>(&mut thread.call.text, text);
    thread.call.flags = flags;
    thread.call.text_len = bytes as u32;
    bytes
}

/// Reads one chunk. Returns its bytes, without the NUL, and flags. If it is unreadable, the address
/// stands for it.
#[inline(always)]
fn read<const SLEEPS: bool>(to: &mut [u8; TEXT_CHUNK], from: u64) -> (u64, u8) {
    if from == 0 {
        return (0, CALL_TEXT_NULL);
    }
    let result = copy_chunk::<SLEEPS>(to, from);
    if result < 0 || result > TEXT_CHUNK as i64 {
        to[..size_of::<u64>()].copy_from_slice(&from.to_ne_bytes());
        return (size_of::<u64>() as u64, CALL_TEXT_FAULT);
    }
    let more = if result == TEXT_CHUNK as i64 { CALL_TEXT_MORE } else { 0 };
    (if result > 0 { result as u64 - 1 } else { 0 }, more)
}

/// Copies one chunk, and waits for its page if the program can.
#[inline(always)]
fn copy_chunk<const SLEEPS: bool>(to: &mut [u8; TEXT_CHUNK], from: u64) -> i64 {
    let to = to.as_mut_ptr().cast();
    // SAFETY: the length is the array's.
    let result = unsafe { user_memory::copy_string(to, TEXT_CHUNK, from) };
    if !SLEEPS || result >= 0 {
        return result;
    }
    user_memory::fault_in(from, TEXT_CHUNK as u64);
    // SAFETY: as above.
    unsafe { user_memory::copy_string(to, TEXT_CHUNK, from) }
}

/// Sends the parts of a text behind the first.
#[inline(always)]
pub(super) fn emit_parts<const SLEEPS: bool>(ctx: *mut c_void, thread: &mut Thread, row: u16, text: u64) {
    for part in 1..=MAX_TEXT_PARTS as u16 {
        let record = &mut thread.text;
        let from = text + u64::from(part) * (TEXT_CHUNK as u64 - 1);
        let (bytes, flags) = read::<SLEEPS>(&mut record.text, from);
        let len = TEXT_TEXT_AT as u64 + bytes;
        record.header = header(Kind::Text, row, len as u16);
        record.part = part;
        record.flags = flags.into();
        record.text_len = bytes as u32;
        if !send_text::<SLEEPS>(ctx, thread, len, row) || flags & CALL_TEXT_MORE == 0 {
            return;
        }
    }
}
