//! The record of a walked stack: sent once, under an id that is a hash of its frames.

use core::ffi::c_void;

use aya_ebpf::{macros::map, maps::LruHashMap};
use memscope_common::{
    Kind, StackEnd, StackRecord,
    stack::STACK_NATIVE,
    unwind::{may_be_trampoline, mix},
};

use super::slot::{Place, Slot, hashed};
use crate::{
    thread::Thread,
    transport::{header, send},
    verifier::masked,
};

/// Ids that were sent.
#[map]
static STACKS_SENT: LruHashMap<u64, u32> = LruHashMap::with_max_entries(1, 0);

/// Sends the walked stack, unless it was sent before.
#[inline(always)]
pub(super) fn finish(ctx: *mut c_void, thread: &mut Thread, slot: *mut Slot, row: u16) {
    // SAFETY: a live map value, locked; nothing else refers to this part of it.
    let walk = unsafe { &(*slot).walk };
    let (frames, hash) = without_trampoline(slot, thread, walk.end, walk.frames.into(), walk.hash);
    let id = id_of(hash, frames as u32, walk.end);
    thread.call.native_stack = id;
    if STACKS_SENT.get_ptr(&id).is_some() {
        return;
    }
    // SAFETY: as above.
    unsafe { (*slot).record = record(id, walk.generation, frames as u16, walk.end, row) };
    let len = size_of::<StackRecord>() as u64 + masked::<8191>(frames * 8);
    // SAFETY: as above.
    send_new(ctx, unsafe { (&raw mut (*slot).record).cast() }, len, id, row);
}

/// Frames and hash without a last frame that is no frame of the program, but where a return probe
/// leads.
#[inline(always)]
fn without_trampoline(slot: *mut Slot, thread: &Thread, end: u32, frames: u64, hash: u64) -> (u64, u64) {
    let no_rule = end == StackEnd::NoRule as u32 || end == StackEnd::NoUnwindInfo as u32;
    if no_rule && frames > 1 {
        // SAFETY: a live map value.
        let last = unsafe { *Place { slot, thread }.frame(frames - 1) };
        if may_be_trampoline(last) {
            return (frames - 1, hash.wrapping_add(1));
        }
    }
    (frames, hash)
}

/// Sends a stack of the frame where the thread is: there was no room to walk.
#[inline(always)]
pub(super) fn busy(ctx: *mut c_void, thread: &mut Thread, generation: u64, frame: u64, row: u16) {
    #[repr(C)]
    struct Record {
        stack: StackRecord,
        frame: u64,
    }
    let id = id_of(hashed(generation, frame), 1, StackEnd::Busy as u32);
    thread.call.native_stack = id;
    if STACKS_SENT.get_ptr(&id).is_none() {
        let mut record = Record { stack: record(id, generation, 1, StackEnd::Busy as u32, row), frame };
        send_new(ctx, (&raw mut record).cast(), size_of::<Record>() as u64, id, row);
    }
}

/// Sends a stack, and notes that it was sent.
#[inline(always)]
fn send_new(ctx: *mut c_void, from: *mut c_void, len: u64, id: u64, row: u16) {
    if send(ctx, from, len, row, false) {
        let _ = STACKS_SENT.insert(&id, &1, 0);
    }
}

/// The head of a stack's record.
#[inline(always)]
fn record(id: u64, generation: u64, frames: u16, end: u32, row: u16) -> StackRecord {
    let len = size_of::<StackRecord>() as u16 + 8 * frames;
    StackRecord {
        header: header(Kind::Stack, row, len),
        id,
        generation,
        frame_count: frames,
        end: end as u8,
        which: STACK_NATIVE,
        reserved: 0,
    }
}

/// The id of a stack.
#[inline(always)]
fn id_of(hash: u64, frames: u32, end: u32) -> u64 {
    not_zero(mix(hash ^ (u64::from(frames) << 8 | u64::from(end))))
}

/// An id; 0 is none.
#[inline(always)]
pub(super) fn not_zero(id: u64) -> u64 {
    if id == 0 { 1 } else { id }
}
