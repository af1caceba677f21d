//! Filling records and sending them.

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{
    bindings::{BPF_F_CURRENT_CPU, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated::{
        bpf_copy_from_user, bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_perf_event_output, bpf_probe_read_user,
        bpf_probe_read_user_str, bpf_ringbuf_output, bpf_ringbuf_query,
    },
};
use memscope_common::{
    CallRecord, Header, Kind, Miss, ProbeRow, Source, TextRecord,
    config::TRANSPORT_PERF,
    record::{
        CALL_TEXT_AT, CALL_TEXT_FAULT, CALL_TEXT_MORE, CALL_TEXT_NULL, CALL_VALUES_AT, MAX_TEXT_PARTS, TEXT_CHUNK,
        TEXT_TEXT_AT,
    },
    row::{COMPANION_VALUE, ELEMENT_WORDS, ListShape, MAX_ELEMENTS, MAX_VALUES, ROW_TEXT, ROW_TEXT_POINTED},
};

use crate::{
    calls::bounded,
    maps::{EVENTS, PERF_EVENTS, Thread, setting},
    misses::count,
    stacks::bpf_loop,
    watch,
};

/// Bytes waiting in the ring.
const AVAILABLE: u64 = 0;
/// Records that cross the wake-up mark within this many bytes wake the reader; so one or two do, not all.
const WAKE_WINDOW: u64 = 512;
/// A thread asks so often how many bytes wait while it sends as many as may wait.
const ASKS: u32 = 256;

/// Bytes of an address.
const ADDRESS: usize = 8;

/// What a program knows of the call when it reports it.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// The thread.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) row: u16,
    pub(crate) outer: u16,
    pub(crate) status: i64,
}

/// A header of the current thread.
#[inline(always)]
pub(crate) fn header(kind: Kind, row: u16, len: u16) -> Header {
    // SAFETY: a helper without arguments.
    header_of(unsafe { bpf_get_current_pid_tgid() }, kind, row, len)
}

/// A header of the thread that is the current one: every helper that is called costs the program.
#[inline(always)]
fn header_of(id: u64, kind: Kind, row: u16, len: u16) -> Header {
    // SAFETY: a helper without arguments.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    Header { time_ns, tgid: (id >> 32) as u32, tid: id as u32, kind: kind as u16, row, len, outer: 0 }
}

/// Sends `len` bytes; a full transport is counted against `row`. Returns whether the record left.
#[inline(always)]
pub(crate) fn send(ctx: *mut c_void, data: *mut c_void, len: u64, row: u16, wake: bool) -> bool {
    output::<false>(ctx, data, len, row, wake || crosses_mark(len))
}

/// The same of a thread's calls, which are many. `SLEEPS`: see [`emit_call`].
#[inline(always)]
fn send_call<const SLEEPS: bool>(ctx: *mut c_void, thread: &mut Thread, len: u64, row: u16, wake: bool) -> bool {
    let wake = wake || finds_much(thread, len);
    output::<SLEEPS>(ctx, (&raw mut thread.call).cast(), len, row, wake)
}

#[inline(always)]
fn output<const SLEEPS: bool>(ctx: *mut c_void, data: *mut c_void, len: u64, row: u16, wake: bool) -> bool {
    let sent = if !SLEEPS && setting!(transport) == TRANSPORT_PERF {
        // SAFETY: `data` points to `len` initialised bytes.
        unsafe { bpf_perf_event_output(ctx, (&raw const PERF_EVENTS).cast_mut().cast(), BPF_F_CURRENT_CPU, data, len) }
    } else {
        let flag = if wake { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
        // SAFETY: as above.
        unsafe { bpf_ringbuf_output((&raw const EVENTS).cast_mut().cast(), data, len, flag.into()) }
    };
    if sent < 0 {
        count(row, Miss::RingFull);
    }
    sent >= 0
}

/// Bytes that the reader has not taken yet.
#[inline(always)]
fn waiting() -> u64 {
    // SAFETY: the map is a ring buffer.
    unsafe { bpf_ringbuf_query((&raw const EVENTS).cast_mut().cast(), AVAILABLE) }
}

/// Whether the transport has to be kept for calls: the reader does not keep up. Of perf buffers that is not known.
#[inline(always)]
pub(crate) fn is_crowded() -> bool {
    setting!(transport) != TRANSPORT_PERF && waiting() > 2 * u64::from(setting!(wake_bytes))
}

/// Whether a record makes too many bytes wait, however long it is: then it wakes the reader.
#[inline(always)]
fn crosses_mark(mut len: u64) -> bool {
    // A copy of its own: from what follows, Linux 6.12 would conclude that the length itself has no bound.
    // SAFETY: changes a register.
    unsafe { asm!("{len} &= 4095", len = inout(reg) len) };
    setting!(transport) != TRANSPORT_PERF
        && (waiting() + len).wrapping_sub(u64::from(setting!(wake_bytes))) < WAKE_WINDOW + len
}

/// Whether too many bytes wait, which a thread asks only after it has sent a small part of those itself.
#[inline(always)]
fn finds_much(thread: &mut Thread, len: u64) -> bool {
    thread.unasked += len as u32;
    if setting!(transport) == TRANSPORT_PERF || thread.unasked < setting!(wake_bytes) / ASKS {
        return false;
    }
    thread.unasked = 0;
    waiting() >= u64::from(setting!(wake_bytes))
}

#[inline(always)]
fn arg_at(thread: &Thread, arg: u8) -> u64 {
    // SAFETY: below the number of slots.
    *unsafe { thread.args.get_unchecked(bounded(arg.into())) }
}

/// Reports the call whose arguments the thread holds, with what its row asks for. `SLEEPS`: the program may wait for pages, and must not
/// refer to perf buffers, which the kernel refuses in such programs.
#[inline(always)]
pub(crate) fn emit_call<const SLEEPS: bool>(ctx: *mut c_void, thread: &mut Thread, row: &ProbeRow, call: Call) {
    let values = if row.values > MAX_VALUES as u8 { MAX_VALUES as u8 } else { row.values };
    thread.call.header = header_of(call.id, call.kind, call.row, 0);
    thread.call.header.outer = call.outer;
    thread.call.status = call.status;
    thread.call.value_count = values;
    thread.call.faults = 0;
    thread.call.flags = 0;
    thread.call.text_len = 0;
    fill_values(thread, row, values);
    if thread.call.faults != 0 {
        count(call.row, Miss::Fault);
    }
    let mut len = CALL_VALUES_AT as u64 + 8 * u64::from(values);
    let mut text = 0;
    if row.flags & ROW_TEXT != 0 {
        text = text_behind(row, arg_at(thread, row.text_arg));
        let (bytes, flags) = read_text::<SLEEPS>(&mut thread.call.text, text);
        thread.call.flags = flags;
        thread.call.text_len = bytes as u32;
        len = CALL_TEXT_AT as u64 + bytes;
    }
    thread.call.header.len = len as u16;
    // A text that was not in memory is read by user space, as soon as it can.
    let urgent = thread.call.flags & CALL_TEXT_FAULT != 0 || watch::has_to_know(row, (call.id >> 32) as u32);
    let sent = send_call::<SLEEPS>(ctx, thread, bounded_len(len), call.row, urgent);
    if sent && thread.call.flags & CALL_TEXT_MORE != 0 {
        emit_text_parts::<SLEEPS>(ctx, thread, call.row, text);
    }
}

/// Reports that a call which was reported at entry returned `call.status`.
#[inline(always)]
pub(crate) fn emit_status(ctx: *mut c_void, thread: &mut Thread, call: Call) {
    thread.call.header = header_of(call.id, call.kind, call.row, CALL_VALUES_AT as u16);
    thread.call.status = call.status;
    thread.call.value_count = 0;
    thread.call.faults = 0;
    thread.call.flags = 0;
    thread.call.text_len = 0;
    thread.call.native_stack = 0;
    thread.call.python_stack = 0;
    send_call::<false>(ctx, thread, CALL_VALUES_AT as u64, call.row, false);
}

/// A record's length, which the verifier is to see bounded where it is used (see [`bounded`]).
#[inline(always)]
fn bounded_len(mut len: u64) -> u64 {
    // SAFETY: changes a register.
    unsafe { asm!("{len} &= 255", len = inout(reg) len) };
    len
}
const _: () = assert!(size_of::<CallRecord>() <= 255 && size_of::<TextRecord>() <= 255);

/// Reads the values that can be read at once; gives how many those were. What cannot be read as a whole is read one by one.
#[inline(always)]
fn fill_together(thread: &mut Thread, row: &ProbeRow) -> u8 {
    if row.together == 0 {
        return 0;
    }
    let mut len = u64::from(row.together) * 8;
    // SAFETY: changes a register.
    unsafe { asm!("{len} &= 127", len = inout(reg) len) };
    let from = arg_at(thread, row.fetch[0].arg).wrapping_add(u64::from(row.fetch[0].offset));
    // SAFETY: values and text have room for 127 bytes; the helper checks the address.
    let result =
        unsafe { bpf_probe_read_user((&raw mut thread.call.values).cast(), len as u32, from as *const c_void) };
    if result == 0 { row.together } else { 0 }
}
const _: () = assert!(size_of::<CallRecord>() - CALL_VALUES_AT >= 127);

#[inline(always)]
fn fill_values(thread: &mut Thread, row: &ProbeRow, values: u8) {
    let together = fill_together(thread, row);
    if together >= values {
        return;
    }
    for at in 0..MAX_VALUES {
        if at as u64 >= unlearnt(values) {
            return;
        }
        if (at as u64) < unlearnt(together) {
            continue;
        }
        let fetch = row.fetch[at];
        let returned = fetch.source == Source::Returned as u8;
        // SAFETY: a field of a live map value; read again, for what `unlearnt` is for.
        let status = unsafe { (&raw const thread.call.status).read_volatile() };
        let base = if returned { status as u64 } else { arg_at(thread, fetch.arg) };
        thread.call.values[at] = base;
        let readable = if fetch.source == Source::Out as u8 {
            status == 0
        } else {
            fetch.source == Source::Memory as u8 || returned && base != 0
        };
        if readable {
            let from = base.wrapping_add(u64::from(fetch.offset));
            // SAFETY: the value has eight bytes; the helper checks the address, and zeroes the value on a fault.
            let result =
                unsafe { bpf_probe_read_user((&raw mut thread.call.values[at]).cast(), 8, from as *const c_void) };
            if result != 0 {
                thread.call.faults |= 1 << at;
            }
        } else if fetch.source != Source::Arg as u8 {
            thread.call.values[at] = 0;
        }
    }
}

/// A copy from which the verifier learns nothing of the original: what it has concluded of a value it keeps apart, and would look
/// at the rest of a loop once for each way to have got there.
#[inline(always)]
fn unlearnt(value: u8) -> u64 {
    let mut copy = u64::from(value);
    // SAFETY: changes a register.
    unsafe { asm!("{copy} &= 255", copy = inout(reg) copy) };
    copy
}

/// A list whose elements are being reported.
#[repr(C)]
struct List {
    ctx: *mut c_void,
    thread: *mut Thread,
    /// The first element, and the first companion; 0 if there are none.
    first: u64,
    companions: u64,
    stride: u64,
    len: u64,
    kind: Kind,
    row: u16,
}

/// Reports a call once for each element of the list that its row names. `LOOPS`: see [`stacks::take`](crate::stacks::take).
#[inline(never)]
pub(crate) fn emit_list<const LOOPS: bool>(
    ctx: *mut c_void,
    thread: &mut Thread,
    row: &ProbeRow,
    number: u16,
    status: i64,
) -> u32 {
    let shape = ListShape::from_param(row.param);
    let base = arg_at(thread, shape.arg);
    let kind = if row.waits_for_return() { Kind::Return } else { Kind::Enter };
    let stride = shape.stride.into();
    let mut list = List { ctx, thread, first: 0, companions: 0, stride, len: 1, kind, row: number };
    list.first = read_word(base.wrapping_add(shape.elements_at.into()));
    if shape.count_at != ListShape::NONE {
        list.len = read_word(base.wrapping_add(shape.count_at.into()));
    }
    if shape.companions_at != ListShape::NONE {
        list.companions = read_word(base.wrapping_add(shape.companions_at.into()));
    }
    thread.call.status = status;
    thread.call.value_count = LIST_VALUES as u8;
    thread.call.flags = 0;
    thread.call.text_len = 0;
    thread.call.values[0] = thread.args[0];
    if LOOPS && setting!(loops) != 0 {
        // Looked at once by the verifier, not once for each element.
        // SAFETY: the callback gets what it expects.
        unsafe { bpf_loop(MAX_ELEMENTS, next_element as *mut c_void, (&raw mut list).cast()) };
    } else {
        for index in 0..MAX_ELEMENTS {
            if index >= list.len {
                break;
            }
            emit_element(&list, index);
        }
    }
    if list.len > MAX_ELEMENTS {
        count(number, Miss::TooMany);
    }
    0
}

/// Gives 1 behind the last.
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

#[inline(always)]
fn emit_element(list: &List, index: u64) {
    // SAFETY: the caller's, which does not touch it meanwhile.
    let thread = unsafe { &mut *list.thread };
    thread.call.header = header(list.kind, list.row, LIST_LEN as u16);
    take_element(thread, list.row, list.first.wrapping_add(index * list.stride), list.stride);
    thread.call.values[COMPANION_VALUE] = 0;
    if list.companions != 0 {
        thread.call.values[COMPANION_VALUE] = read_word(list.companions.wrapping_add(index * 8));
    }
    send_call::<false>(list.ctx, thread, LIST_LEN, list.row, false);
}

/// Values of a record about an element.
const LIST_VALUES: usize = COMPANION_VALUE + 1;
const LIST_LEN: u64 = (CALL_VALUES_AT + 8 * LIST_VALUES) as u64;
const _: () = assert!(LIST_VALUES <= MAX_VALUES);

/// Copies the words of an element.
#[inline(always)]
fn take_element(thread: &mut Thread, number: u16, from: u64, mut size: u64) {
    // SAFETY: changes a register.
    unsafe { asm!("{size} &= 31", size = inout(reg) size) };
    // SAFETY: there is room for 31 bytes behind the first value; the helper checks the address, and zeroes on a fault.
    let result =
        unsafe { bpf_probe_read_user((&raw mut thread.call.values[1]).cast(), size as u32, from as *const c_void) };
    thread.call.faults = 0;
    if result != 0 {
        thread.call.faults = ((1 << ELEMENT_WORDS) - 1) << 1;
        count(number, Miss::Fault);
    }
}
const _: () = assert!(8 * (MAX_VALUES - 1) >= 31 && 8 * ELEMENT_WORDS <= 31);

/// Eight bytes; 0 if they cannot be read.
#[inline(always)]
fn read_word(from: u64) -> u64 {
    let mut word = 0_u64;
    // SAFETY: `word` has eight bytes; the helper checks the address, and zeroes the word on a fault.
    unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, from as *const c_void) };
    word
}

/// Where the text is that an argument leads to.
#[inline(always)]
pub(crate) fn text_behind(row: &ProbeRow, arg: u64) -> u64 {
    if row.flags & ROW_TEXT_POINTED == 0 {
        return arg;
    }
    read_word(arg.wrapping_add(row.text_at.into()))
}

/// Reads one chunk of a C string; bytes (without NUL) and flags. A page that is not in memory cannot be waited for
/// here, unless the program `SLEEPS`: then the address stands for the text.
#[inline(always)]
fn read_text<const SLEEPS: bool>(to: &mut [u8; TEXT_CHUNK], from: u64) -> (u64, u8) {
    if from == 0 {
        return (0, CALL_TEXT_NULL);
    }
    // SAFETY: `to` has `TEXT_CHUNK` bytes; the helper checks the address.
    let mut result =
        unsafe { bpf_probe_read_user_str(to.as_mut_ptr().cast(), TEXT_CHUNK as u32, from as *const c_void) };
    if SLEEPS && result < 0 {
        bring_in(from, TEXT_CHUNK as u64);
        // SAFETY: as above.
        result = unsafe { bpf_probe_read_user_str(to.as_mut_ptr().cast(), TEXT_CHUNK as u32, from as *const c_void) };
    }
    if result < 0 || result > TEXT_CHUNK as i64 {
        let address = from.to_ne_bytes();
        to[..ADDRESS].copy_from_slice(&address);
        return (ADDRESS as u64, CALL_TEXT_FAULT);
    }
    let more = if result == TEXT_CHUNK as i64 { CALL_TEXT_MORE } else { 0 };
    // Of an empty text 5.10 says 0, later kernels 1: its end.
    (if result > 0 { result as u64 - 1 } else { 0 }, more)
}

/// Brings the pages of a text of at most so many bytes, which are less than a page has, into memory; an error means that there are none.
#[inline(always)]
pub(crate) fn bring_in(text: u64, bytes: u64) {
    for at in [text, text.wrapping_add(bytes - 1)] {
        let mut byte = 0_u8;
        // SAFETY: `byte` has one byte; the helper checks the address.
        unsafe { bpf_copy_from_user((&raw mut byte).cast(), 1, at as *const c_void) };
    }
}

/// Sends the rest of a text that did not fit into the call's record.
#[inline(always)]
fn emit_text_parts<const SLEEPS: bool>(ctx: *mut c_void, thread: &mut Thread, row: u16, text: u64) {
    for part in 1..=MAX_TEXT_PARTS as u16 {
        let record = &mut thread.text;
        let from = text + u64::from(part) * (TEXT_CHUNK as u64 - 1);
        let (bytes, flags) = read_text::<SLEEPS>(&mut record.text, from);
        let len = TEXT_TEXT_AT as u64 + bytes;
        record.header = header(Kind::Text, row, len as u16);
        record.part = part;
        record.flags = flags.into();
        record.text_len = bytes as u32;
        let wake = crosses_mark(len);
        let sent = output::<SLEEPS>(ctx, (&raw mut *record).cast(), bounded_len(len), row, wake);
        if !sent || flags & CALL_TEXT_MORE == 0 {
            return;
        }
    }
}
