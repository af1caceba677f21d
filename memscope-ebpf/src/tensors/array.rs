//! Places whose arguments lead to an array and a text: copies of the elements, and of the text.
//!
//! What [`crate::tensors`] does for objects that may be found in many ways; with that in one program, it could not be verified.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::pt_regs,
    helpers::generated::{bpf_get_current_pid_tgid, bpf_probe_read_user, bpf_probe_read_user_str},
};
use memscope_common::{
    ArrayShape, Fetch, Miss, ObjectsRecord, When,
    record::{MAX_OBJECTS, OBJECT_ELEMENT, OBJECT_FAULT, OBJECT_HEAD, OBJECT_INNER},
};

use crate::{
    maps::PROCESSES,
    misses::count,
    probes::row_of,
    regs,
    tensors::{begin, finish, next_object, scratch, take_stacks},
};

/// Index of the row's value that leads to the text, and of that which leads to the array.
const TEXT: u32 = 0;
const ARRAY: u32 = 1;

/// A place is passed.
#[inline(always)]
pub(crate) fn pass(ctx: *mut c_void, cookie: u64) {
    // SAFETY: a helper without arguments.
    let id = unsafe { bpf_get_current_pid_tgid() };
    let tgid = (id >> 32) as u32;
    let Some(state) = PROCESSES.get_ptr(&tgid) else { return };
    let number = cookie as u16;
    let Some(row) = row_of(number.into()) else { return };
    if row.when != When::Array as u8 {
        return count(number, Miss::UnknownRow);
    }
    // SAFETY: the context of a uprobe is the thread's registers.
    let regs = unsafe { &*ctx.cast::<pt_regs>() };
    let array = at(regs, row.fetch[ARRAY as usize]);
    let elements = elements(array, ArrayShape::from_param(row.param), number);
    if elements.len == 0 {
        return;
    }
    let text = at(regs, row.fetch[TEXT as usize]);
    let Some(scratch) = scratch(id, number) else { return };
    let record = &mut scratch.record;
    begin(record, cookie);
    // SAFETY: a live map value; that others change it meanwhile does no harm.
    take_stacks(ctx, record, unsafe { (*state).generation }, row, number);
    copy(record, word(text, number), TEXT, number);
    for index in 0..MAX_OBJECTS as u64 {
        if index >= elements.len {
            break;
        }
        let place = ARRAY | (index as u32) << 8;
        copy(record, elements.from.wrapping_add(index * elements.stride), place, number);
    }
    // The element for which the text took the room is counted already.
    let left = elements.len.saturating_sub(MAX_OBJECTS as u64);
    record.left_out = record.left_out.saturating_add(left as u16);
    finish(ctx, record, number);
}

/// Where a value leads.
#[inline(always)]
fn at(regs: &pt_regs, fetch: Fetch) -> u64 {
    regs::arg(regs, fetch.arg).wrapping_add(fetch.offset.into())
}

/// The elements that a row is for.
struct Elements {
    from: u64,
    /// At most 255.
    len: u64,
    stride: u64,
}

#[inline(always)]
fn elements(at: u64, shape: ArrayShape, row: u16) -> Elements {
    let stride = u64::from(shape.stride);
    let inside = at.wrapping_add(shape.elements_at.into());
    let behind = word(inside.wrapping_add(u64::from(shape.room) * stride), row);
    let first = if behind == 0 { inside } else { behind };
    let count = word(at.wrapping_add(shape.count_at.into()), row);
    let len = count.saturating_sub(shape.first.into()).min(shape.most.into());
    Elements { from: first.wrapping_add(u64::from(shape.first) * stride), len, stride }
}

/// Eight bytes; 0 if they cannot be read, which is counted.
#[inline(always)]
fn word(from: u64, row: u16) -> u64 {
    let mut word = 0_u64;
    // SAFETY: `word` has eight bytes; the helper checks the address, and zeroes the word on a fault.
    if unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, from as *const c_void) } != 0 {
        count(row, Miss::Fault);
    }
    word
}

/// Copies the text, or an element.
#[inline(never)]
fn copy(record: &mut ObjectsRecord, from: u64, place: u32, row: u16) {
    let Some(object) = next_object(record, from, place) else { return };
    object.head = [0; OBJECT_HEAD];
    object.inner = [0; OBJECT_INNER];
    let (to, from) = (object.head.as_mut_ptr().cast::<c_void>(), from as *const c_void);
    // SAFETY: `to` has at least as many bytes; the helpers check the address.
    let result = unsafe {
        if place == TEXT {
            bpf_probe_read_user_str(to, OBJECT_HEAD as u32, from)
        } else {
            bpf_probe_read_user(to, OBJECT_ELEMENT as u32, from)
        }
    };
    if result < 0 {
        object.flags |= OBJECT_FAULT;
        count(row, Miss::Fault);
    }
    record.object_count += 1;
}
