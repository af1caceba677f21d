//! Sends records to user space: by the ring buffer, or by perf buffers on kernels before 5.8.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{BPF_F_CURRENT_CPU, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated::{bpf_perf_event_output, bpf_ringbuf_output, bpf_ringbuf_query},
    macros::map,
    maps::{PerfEventByteArray, RingBuf},
};
use memscope_common::{
    CallRecord, Header, Kind, Miss, TextRecord,
    config::TRANSPORT_PERF,
    stack::{STACK_NATIVE, STACK_PYTHON, STACKS_AT_ENDS},
};

use crate::{current, misses::count, settings::setting, thread::Thread, verifier::masked};

/// The ring, unless the transport is perf. Sized by user space.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 16, 0);

/// The perf buffers, if the transport is perf.
#[map]
static PERF_EVENTS: PerfEventByteArray = PerfEventByteArray::new(0);

/// Query for the bytes that wait in the ring.
const AVAILABLE: u64 = 0;
/// Records wake the reader if they cross the mark within this many bytes: so one or two do, not every later one.
const WAKE_WINDOW: u64 = 512;
/// Full marks, of the eight in the ring, from which on no stack is copied for user space to finish it.
const CROWDED_FOR_COPIES: u64 = 2;
/// The same, from which on calls that end blocks carry no stacks. A stack takes most of a
/// call's time, which the reader then gets: better no stack than no record.
const CROWDED_AT_ENDS: u64 = 4;
/// The same for all calls.
const CROWDED: u64 = 6;
/// Queries of the ring by one thread, per mark's worth of its own bytes.
const QUERIES_PER_MARK: u32 = 256;

/// A header for the current thread.
#[inline(always)]
pub(crate) fn header(kind: Kind, row: u16, len: u16) -> Header {
    header_of(current::thread_id(), kind, row, len)
}

/// A header for the current thread if its `id` is known: saves the call of a helper.
#[inline(always)]
pub(crate) fn header_of(id: u64, kind: Kind, row: u16, len: u16) -> Header {
    let time_ns = current::now_ns();
    Header { time_ns, tgid: current::tgid_of(id), tid: id as u32, kind: kind as u16, row, len, outer: 0 }
}

/// Sends `len` bytes. Returns whether there was room; if not, counts it against `row`.
#[inline(always)]
pub(crate) fn send(ctx: *mut c_void, data: *mut c_void, len: u64, row: u16, wake: bool) -> bool {
    output::<false>(ctx, data, len, row, wake || crosses_mark(len))
}

/// Sends `len` bytes of the thread's call. As [`send`], with fewer queries of the ring.
///
/// `SLEEPS`: the program is sleepable. The kernel refuses perf buffers in such a program.
#[inline(always)]
pub(crate) fn send_call<const SLEEPS: bool>(
    ctx: *mut c_void,
    thread: &mut Thread,
    len: u64,
    row: u16,
    wake: bool,
) -> bool {
    let wake = wake || finds_mark_crossed(thread, len);
    output::<SLEEPS>(ctx, (&raw mut thread.call).cast(), len, row, wake)
}

/// Sends `len` bytes of a part of the thread's text.
#[inline(always)]
pub(crate) fn send_text<const SLEEPS: bool>(ctx: *mut c_void, thread: &mut Thread, len: u64, row: u16) -> bool {
    let wake = crosses_mark(len);
    output::<SLEEPS>(ctx, (&raw mut thread.text).cast(), bounded(len), row, wake)
}

/// The length of a call or a part of its text, bounded for the verifier.
#[inline(always)]
pub(crate) fn bounded(len: u64) -> u64 {
    masked::<0xff>(len)
}
const _: () = assert!(size_of::<CallRecord>() <= 0xff && size_of::<TextRecord>() <= 0xff);

/// Sends the bytes, and wakes the reader if asked to.
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

/// Bytes that wait for the reader.
#[inline(always)]
fn waiting() -> u64 {
    // SAFETY: the map is a ring buffer.
    unsafe { bpf_ringbuf_query((&raw const EVENTS).cast_mut().cast(), AVAILABLE) }
}

/// Whether the transport knows the bytes that wait: the ring does, perf buffers do not.
#[inline(always)]
pub(crate) fn knows_crowding() -> bool {
    setting!(transport) != TRANSPORT_PERF
}

/// Whether the reader falls behind, so that the transport is kept for calls. Unknown for perf buffers.
#[inline(always)]
pub(crate) fn is_crowded() -> bool {
    knows_crowding() && is_fuller(waiting(), CROWDED_FOR_COPIES)
}

/// Whether more than this many marks wait.
#[inline(always)]
fn is_fuller(waiting: u64, marks: u64) -> bool {
    waiting > marks * u64::from(setting!(wake_bytes))
}

/// Whether a record of this length crosses the mark at which the reader is woken.
#[inline(always)]
fn crosses_mark(len: u64) -> bool {
    // A copy: from the sum below Linux 6.12 would conclude that the length itself is unbounded.
    let len = masked::<4095>(len);
    knows_crowding() && (waiting() + len).wrapping_sub(u64::from(setting!(wake_bytes))) < WAKE_WINDOW + len
}

/// Whether the mark is crossed. Queries the ring only after a small part of the mark's bytes.
#[inline(always)]
fn finds_mark_crossed(thread: &mut Thread, len: u64) -> bool {
    thread.unasked += len as u32;
    if !knows_crowding() || thread.unasked < setting!(wake_bytes) / QUERIES_PER_MARK {
        return false;
    }
    thread.unasked = 0;
    let waiting = waiting();
    thread.crowded = is_fuller(waiting, CROWDED_AT_ENDS).into();
    waiting >= u64::from(setting!(wake_bytes))
}

/// The stacks to leave out because the reader is behind: `STACK_*` bits and [`STACKS_AT_ENDS`].
/// Queries the ring only where it was crowded; each call does then, so that stacks are back at once.
#[inline(always)]
pub(crate) fn crowds_out(thread: &mut Thread) -> u8 {
    if !knows_crowding() || thread.crowded == 0 {
        return 0;
    }
    let waiting = waiting();
    thread.crowded = is_fuller(waiting, CROWDED_AT_ENDS).into();
    if is_fuller(waiting, CROWDED) {
        STACK_NATIVE | STACK_PYTHON
    } else if thread.crowded != 0 {
        STACKS_AT_ENDS
    } else {
        0
    }
}
