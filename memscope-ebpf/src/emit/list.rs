//! Calls with a list: one record for each element.

use core::ffi::c_void;

use memscope_common::{
    Kind, Miss, ProbeRow,
    record::CALL_VALUES_AT,
    row::{COMPANION_VALUE, ELEMENT_WORDS, ListShape, MAX_ELEMENTS, MAX_VALUES},
};

use crate::{
    misses::count,
    settings::setting,
    thread::Thread,
    transport::{header, send_call},
    user_memory::{copy_bytes, word_or_zero},
    verifier::{bpf_loop, masked},
};

/// A list being reported.
#[repr(C)]
struct List {
    ctx: *mut c_void,
    thread: *mut Thread,
    /// Address of the first element.
    first: u64,
    /// Address of the first companion; 0 is none.
    companions: u64,
    stride: u64,
    len: u64,
    kind: Kind,
    row: u16,
}

/// Values of an element's record.
const LIST_VALUES: usize = COMPANION_VALUE + 1;
const LIST_LEN: u64 = (CALL_VALUES_AT + 8 * LIST_VALUES) as u64;
const _: () = assert!(LIST_VALUES <= MAX_VALUES);

/// Reports a call once for each element of the list that its row names.
///
/// `LOOPS`: the program may contain [`bpf_loop`].
#[inline(never)]
pub(crate) fn emit_list<const LOOPS: bool>(
    ctx: *mut c_void,
    thread: &mut Thread,
    row: &ProbeRow,
    number: u16,
    status: i64,
) -> u32 {
    let mut list = find(ctx, thread, row, number);
    begin(thread, status);
    emit_elements::<LOOPS>(&mut list);
    if list.len > MAX_ELEMENTS {
        count(number, Miss::TooMany);
    }
    0
}

/// Fills what the records of all elements share.
#[inline(always)]
fn begin(thread: &mut Thread, status: i64) {
    thread.call.status = status;
    thread.call.value_count = LIST_VALUES as u8;
    thread.call.flags = 0;
    thread.call.text_len = 0;
    thread.call.values[0] = thread.args[0];
}

/// Finds the list.
#[inline(always)]
fn find(ctx: *mut c_void, thread: &mut Thread, row: &ProbeRow, number: u16) -> List {
    let shape = ListShape::from_param(row.param);
    let base = thread.arg(shape.arg);
    let kind = if row.waits_for_return() { Kind::Return } else { Kind::Enter };
    let stride = shape.stride.into();
    let mut list = List { ctx, thread, first: 0, companions: 0, stride, len: 1, kind, row: number };
    list.first = word_or_zero(base.wrapping_add(shape.elements_at.into()));
    if shape.count_at != ListShape::NONE {
        list.len = word_or_zero(base.wrapping_add(shape.count_at.into()));
    }
    if shape.companions_at != ListShape::NONE {
        list.companions = word_or_zero(base.wrapping_add(shape.companions_at.into()));
    }
    list
}

/// Reports the elements. With [`bpf_loop`] the verifier looks at one, else at each.
#[inline(always)]
fn emit_elements<const LOOPS: bool>(list: &mut List) {
    if LOOPS && setting!(loops) != 0 {
        // SAFETY: the callback takes a number and a list.
        unsafe { bpf_loop(MAX_ELEMENTS, next_element as *mut c_void, (&raw mut *list).cast()) };
        return;
    }
    for index in 0..MAX_ELEMENTS {
        if index >= list.len {
            break;
        }
        emit_element(list, index);
    }
}

/// Reports the next element. Returns 1 behind the last.
#[inline(never)]
unsafe extern "C" fn next_element(index: u32, list: *const List) -> u64 {
    // SAFETY: the loop's own.
    let list = unsafe { &*list };
    if u64::from(index) >= list.len {
        return 1;
    }
    emit_element(list, index.into());
    0
}

/// Reports one element.
#[inline(always)]
fn emit_element(list: &List, index: u64) {
    // SAFETY: the caller's, which does not use it meanwhile.
    let thread = unsafe { &mut *list.thread };
    thread.call.header = header(list.kind, list.row, LIST_LEN as u16);
    copy_element(thread, list.row, list.first.wrapping_add(index * list.stride), list.stride);
    thread.call.values[COMPANION_VALUE] = 0;
    if list.companions != 0 {
        thread.call.values[COMPANION_VALUE] = word_or_zero(list.companions.wrapping_add(index * 8));
    }
    send_call::<false>(list.ctx, thread, LIST_LEN, list.row, false);
}

/// Copies the words of an element.
#[inline(always)]
fn copy_element(thread: &mut Thread, number: u16, from: u64, size: u64) {
    // SAFETY: there is room for 31 bytes behind the first value.
    let read = unsafe { copy_bytes((&raw mut thread.call.values[1]).cast(), masked::<31>(size), from) };
    thread.call.faults = 0;
    if !read {
        thread.call.faults = ((1 << ELEMENT_WORDS) - 1) << 1;
        count(number, Miss::Fault);
    }
}
const _: () = assert!(8 * (MAX_VALUES - 1) >= 31 && 8 * ELEMENT_WORDS <= 31);
