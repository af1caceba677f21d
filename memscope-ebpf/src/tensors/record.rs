//! The record of a place with tensors, and the memory that it is built in: too large for a thread's
//! own state.

use core::ffi::c_void;

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap},
};
use memscope_common::{
    Kind, Miss, Object, ObjectsRecord, ProbeRow,
    record::{MAX_OBJECTS, OBJECTS_AT},
};

use crate::{
    current,
    misses::count,
    regs::REGISTER_SLOTS,
    stacks,
    thread_slots::thread,
    transport::{header, send},
    verifier::{element_mut, masked},
};

/// A thread's tensor record, and the call that it is inside of.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    /// Stack pointer at the entry of the open call; 0 is none.
    pub(super) open: u64,
    pub(super) slots: [u64; REGISTER_SLOTS],
    pub(super) record: ObjectsRecord,
    /// The verifier takes a record to be as long as its masked length could be.
    room: [u8; LEN_MASK as usize + 1 - size_of::<ObjectsRecord>()],
}
const LEN_MASK: u16 = 4095;

/// By `pid_tgid`. Sized by user space: one entry unless a row has tensors.
#[map]
static TENSORS: HashMap<u64, Scratch> = HashMap::with_max_entries(1, 0);

/// An empty [`Scratch`], never written: too large for the BPF stack.
#[map]
static EMPTY_SCRATCH: Array<Scratch> = Array::with_max_entries(1, 0);

/// Forgets a thread.
#[inline(always)]
pub(crate) fn forget(id: u64) {
    let _ = TENSORS.remove(&id);
}

/// The thread's scratch, if it has one.
#[inline(always)]
pub(super) fn known_scratch(id: u64) -> Option<&'static mut Scratch> {
    // SAFETY: a live map value that only this thread's programs use.
    TENSORS.get_ptr_mut(&id).map(|scratch| unsafe { &mut *scratch })
}

/// The thread's scratch, added on first use.
#[inline(always)]
pub(super) fn scratch(id: u64, row: u16) -> Option<&'static mut Scratch> {
    if let Some(scratch) = known_scratch(id) {
        return Some(scratch);
    }
    let empty = EMPTY_SCRATCH.get(0)?;
    if TENSORS.insert(&id, empty, 0).is_err() {
        count(row, Miss::ThreadsFull);
        return None;
    }
    known_scratch(id)
}

/// Begins the record of a place.
#[inline(always)]
pub(super) fn begin(record: &mut ObjectsRecord, cookie: u64) {
    record.header = header(Kind::Objects, cookie as u16, 0);
    record.detail = (cookie >> 32) as u32;
    record.object_count = 0;
    record.left_out = 0;
    record.native_stack = 0;
    record.python_stack = 0;
}

/// Takes the stacks that the row asks for.
#[inline(always)]
pub(super) fn take_stacks(ctx: *mut c_void, record: &mut ObjectsRecord, generation: u64, row: &ProbeRow, number: u16) {
    let wanted = stacks::of_row(row);
    if wanted == 0 {
        return;
    }
    let Some(thread) = thread::<true>(current::thread_id(), number) else { return };
    stacks::take::<true>(ctx, thread, generation, wanted, number);
    record.native_stack = thread.call.native_stack;
    record.python_stack = thread.call.python_stack;
}

/// Room for one more tensor. `place` is the row's value that leads to it, and from bit 8 on its
/// index there.
#[inline(always)]
pub(super) fn next(record: &mut ObjectsRecord, address: u64, place: u32) -> Option<&mut Object> {
    // In memory and not in a register, where the verifier would track each count.
    let taken = record.object_count;
    if usize::from(taken) >= MAX_OBJECTS {
        record.left_out = record.left_out.saturating_add(1);
        return None;
    }
    let tensor = element_mut(&mut record.objects, taken.into());
    tensor.address = address;
    tensor.value = place as u8;
    tensor.flags = 0;
    tensor.index = (place >> 8) as u16;
    tensor.reserved = 0;
    Some(tensor)
}

/// Sends the record.
#[inline(always)]
pub(super) fn finish(ctx: *mut c_void, record: &mut ObjectsRecord, number: u16) {
    let len = OBJECTS_AT as u64 + u64::from(record.object_count) * size_of::<Object>() as u64;
    record.header.len = len as u16;
    send(ctx, (&raw mut *record).cast(), masked::<LEN_MASK>(len), number, false);
}
