//! Python stacks: the interpreter's frames, walked from the thread's own state. Only where the
//! kernel has `bpf_loop` (5.17).
//!
//! The thread is inside of the call, so its frames and their code stay.

mod announce;
mod code;
mod frames;
mod scratch;
mod state;

use core::ffi::c_void;

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap},
};
use memscope_common::{
    Kind, PythonFrame, PythonLayout, StackEnd, StackRecord, TextRecord,
    python::mix,
    stack::{SCRATCH_PER_CPU, STACK_PYTHON},
};

use self::{
    announce::send_next,
    frames::step,
    scratch::{Scratch, Walk, repeat},
};
use super::slot_lock::{Lock, SlotLocks};
use crate::{
    current,
    settings::setting,
    thread::Thread,
    transport::{header, send},
    user_memory,
    verifier::{masked, write_once},
};

/// Interpreters, by tgid: user space writes them, and forks copy them. Sized by user space, as the
/// maps that follow: one entry unless stacks are taken.
#[map]
static PYTHON: HashMap<u32, PythonLayout> = HashMap::with_max_entries(1, 0);

/// Ids of stacks that were sent.
#[map]
static PYTHON_SENT: LruHashMap<u64, u8> = LruHashMap::with_max_entries(1, 0);

/// Slots for walks.
#[map]
static PYTHON_SCRATCH: Array<Scratch> = Array::with_max_entries(1, 0);

/// The slots' locks.
#[map]
static PYTHON_LOCKS: Array<Lock> = Array::with_max_entries(1, 0);

/// Locked slots, on kernels without compare-and-exchange.
#[map]
static PYTHON_LOCKED: HashMap<u32, u32> = HashMap::with_max_entries(1, 0);

static LOCKS: SlotLocks = SlotLocks { locks: &PYTHON_LOCKS, locked: &PYTHON_LOCKED };

/// A child has the interpreter of its parent.
#[inline(always)]
pub(super) fn forked(parent: u32, child: u32) {
    if let Some(layout) = PYTHON.get_ptr(&parent) {
        // SAFETY: a live map value, which the map copies.
        let _ = PYTHON.insert(&child, unsafe { &*layout }, 0);
        outdate(child);
    }
}

/// Forgets a process that is gone, or runs another program.
#[inline(always)]
pub(super) fn forget(tgid: u32) {
    let _ = PYTHON.remove(&tgid);
}

/// The interpreter of the current process is about to free a code object: other code may lie there
/// next.
#[inline(always)]
pub(crate) fn code_freed() {
    outdate(current::tgid());
}

/// Outdates the cached fingerprints of a process. Two threads without a common lock write different
/// times, each a change.
#[inline(always)]
fn outdate(tgid: u32) {
    let now_ns = current::now_ns();
    if let Some(layout) = PYTHON.get_ptr_mut(&tgid) {
        // SAFETY: a live map value.
        unsafe { write_once(&raw mut (*layout).freed_ns, now_ns) };
    }
}

/// Puts the id of the thread's Python stack into its record: 0 if the process runs no Python. Gives its frames.
#[inline(always)]
pub(super) fn take(ctx: *mut c_void, thread: &mut Thread, generation: u64, row: u16) -> u32 {
    let tgid = current::tgid();
    thread.call.python_stack = 0;
    let Some(layout) = PYTHON.get_ptr(&tgid) else { return 0 };
    let Some(slot) = acquire() else {
        busy(ctx, thread, tgid, generation, row);
        return 0;
    };
    let mut frames = 0;
    if let Some(scratch) = PYTHON_SCRATCH.get_ptr_mut(slot) {
        // SAFETY: a live map value, locked.
        unsafe { (*scratch).stack.generation = generation };
        frames = take_into(ctx, thread, scratch, layout, row.into());
    }
    LOCKS.release::<true>(slot);
    frames
}

/// Locks a free slot of this processor.
#[inline(always)]
fn acquire() -> Option<u32> {
    let processor = current::processor();
    // Counted from 0: older verifiers see no end of a count that begins with an unknown number.
    (0..SCRATCH_PER_CPU).map(|at| processor * SCRATCH_PER_CPU + at).find(|slot| LOCKS.acquire::<true>(*slot))
}

/// Sends a stack without frames: there was no room to walk.
#[inline(always)]
fn busy(ctx: *mut c_void, thread: &mut Thread, tgid: u32, generation: u64, row: u16) {
    const LEN: u16 = size_of::<StackRecord>() as u16;
    let end = StackEnd::Busy as u8;
    let id = id_of(mix(tgid.into(), generation), 0, end);
    // Stacks are sent before texts.
    let record = (&raw mut thread.text).cast::<StackRecord>();
    // SAFETY: in the bounds of the text's record; both are plain integers.
    let record = unsafe { &mut *record };
    (record.generation, record.end) = (generation, end);
    complete(record, id, 0, row, LEN);
    thread.call.python_stack = id;
    if PYTHON_SENT.get_ptr(&id).is_none() && send(ctx, (&raw mut *record).cast(), LEN.into(), row, false) {
        let _ = PYTHON_SENT.insert(&id, &1, 0);
    }
}

const _: () = assert!(size_of::<StackRecord>() <= size_of::<TextRecord>());

/// Completes a stack's record.
#[inline(always)]
fn complete(record: &mut StackRecord, id: u64, frames: u16, row: u16, len: u16) {
    record.header = header(Kind::Stack, row, len);
    record.id = id;
    record.frame_count = frames;
    record.which = STACK_PYTHON;
    record.reserved = 0;
}

/// The id of a stack.
#[inline(always)]
fn id_of(hash: u64, count: u32, end: u8) -> u64 {
    let id = mix(hash, u64::from(count) << 8 | u64::from(end));
    if id == 0 { 1 } else { id }
}

/// Walks in a locked slot, and sends what was not sent before. Gives the frames.
#[inline(never)]
fn take_into(
    ctx: *mut c_void,
    thread: &mut Thread,
    scratch: *mut Scratch,
    layout: *const PythonLayout,
    row: u32,
) -> u32 {
    let row = row as u16;
    let mut walk = Walk { ctx, scratch, layout, row };
    // SAFETY: a locked slot, and a live map value.
    let (scratch, layout) = unsafe { (&mut *scratch, &*layout) };
    begin(scratch, layout);
    run(scratch, layout, &mut walk);
    let count = scratch.count;
    let id = id_of(scratch.hash, count, scratch.stack.end);
    thread.call.python_stack = id;
    if PYTHON_SENT.get_ptr(&id).is_some() {
        return count;
    }
    scratch.count = 0;
    repeat(count, send_next, &mut walk);
    let bytes = u64::from(count) * size_of::<PythonFrame>() as u64;
    let len = masked::<16383>(size_of::<StackRecord>() as u64 + bytes);
    complete(&mut scratch.stack, id, count as u16, row, len as u16);
    let sent = send(ctx, (&raw mut scratch.stack).cast(), masked::<16383>(len), row, false);
    if sent && scratch.unsent == 0 {
        let _ = PYTHON_SENT.insert(&id, &1, 0);
    }
    count
}

/// Begins a walk.
#[inline(always)]
fn begin(scratch: &mut Scratch, layout: &PythonLayout) {
    let tgid = current::tgid().into();
    scratch.count = 0;
    scratch.unsent = 0;
    scratch.walks += 1;
    scratch.epoch = code::epoch(scratch.walks, tgid, layout);
    scratch.file = u64::MAX;
    scratch.window_len = 0;
    scratch.hash = mix(tgid, layout.space);
}

/// Walks.
#[inline(always)]
fn run(scratch: &mut Scratch, layout: &PythonLayout, walk: &mut Walk) {
    if let Err(end) = state::find_frame(scratch, layout) {
        scratch.stack.end = end as u8;
        return;
    }
    // Unless the walk ends otherwise.
    scratch.stack.end = StackEnd::Depth as u8;
    scratch.depth = setting!(python_depth);
    // Between two Python frames there can be one of the interpreter's own.
    repeat(2 * scratch.depth + 16, step, walk);
    let is_root = scratch.stack.end == StackEnd::Root as u8;
    if is_root && user_memory::word(layout.interpreters) != Some(layout.first_interpreter) {
        scratch.stack.end = StackEnd::OneOfSeveral as u8;
    }
}
