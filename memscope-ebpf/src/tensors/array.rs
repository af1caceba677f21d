//! Places with arguments that lead to an array of tensors and a text: copies the elements, and the text.
//!
//! Separate from the other tensors: in one program they exceed the verifier's limit.

use core::ffi::c_void;

use aya_ebpf::bindings::pt_regs;
use memscope_common::{
    ArrayShape, Fetch, Miss, ObjectsRecord, When,
    record::{MAX_OBJECTS, OBJECT_ELEMENT, OBJECT_FAULT, OBJECT_HEAD, OBJECT_INNER},
};

use super::record::{begin, finish, next, scratch, take_stacks};
use crate::{current, filter, misses::count, regs, rows::row_of, user_memory};

/// Index of the row's value that leads to the text, and of the one that leads to the array.
const TEXT: u32 = 0;
const ARRAY: u32 = 1;

/// The probed place is hit.
#[inline(always)]
pub(crate) fn on_hit(ctx: *mut c_void, cookie: u64) {
    let id = current::thread_id();
    let Some(state) = filter::state_of(current::tgid_of(id)) else { return };
    let number = cookie as u16;
    let Some(row) = row_of(number.into()) else { return };
    if row.when != When::Array as u8 {
        return count(number, Miss::UnknownRow);
    }
    let regs = regs::of(ctx);
    let elements = elements(at(regs, row.fetch[ARRAY as usize]), ArrayShape::from_param(row.param), number);
    if elements.len == 0 {
        return;
    }
    let text = at(regs, row.fetch[TEXT as usize]);
    let Some(scratch) = scratch(id, number) else { return };
    let record = &mut scratch.record;
    begin(record, cookie);
    // SAFETY: a live map value; a change meanwhile does no harm.
    take_stacks(ctx, record, unsafe { (*state).generation }, row, number);
    take(record, word(text, number), TEXT, number);
    take_elements(record, &elements, number);
    finish(ctx, record, number);
}

/// The address that a value leads to.
#[inline(always)]
fn at(regs: &pt_regs, fetch: Fetch) -> u64 {
    regs::arg(regs, fetch.arg).wrapping_add(fetch.offset.into())
}

/// The elements that a row reports.
struct Elements {
    from: u64,
    /// At most 255.
    len: u64,
    stride: u64,
}

/// Finds the elements: in place, or behind a pointer if they are many.
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

/// Copies the elements, and counts those that do not fit.
#[inline(always)]
fn take_elements(record: &mut ObjectsRecord, elements: &Elements, row: u16) {
    for index in 0..MAX_OBJECTS as u64 {
        if index >= elements.len {
            break;
        }
        let place = ARRAY | (index as u32) << 8;
        take(record, elements.from.wrapping_add(index * elements.stride), place, row);
    }
    // The element whose slot the text took is counted already.
    let left = elements.len.saturating_sub(MAX_OBJECTS as u64);
    record.left_out = record.left_out.saturating_add(left as u16);
}

/// Eight bytes; 0 if unreadable, which is counted.
#[inline(always)]
fn word(from: u64, row: u16) -> u64 {
    let mut word = 0;
    if !user_memory::copy(&mut word, from) {
        count(row, Miss::Fault);
    }
    word
}

/// Copies the text, or an element.
#[inline(never)]
fn take(record: &mut ObjectsRecord, from: u64, place: u32, row: u16) {
    let Some(tensor) = next(record, from, place) else { return };
    tensor.head = [0; OBJECT_HEAD];
    tensor.inner = [0; OBJECT_INNER];
    let to = tensor.head.as_mut_ptr().cast();
    // SAFETY: the head has at least as many bytes.
    let read = unsafe {
        if place == TEXT {
            user_memory::copy_string(to, OBJECT_HEAD, from) >= 0
        } else {
            user_memory::copy_bytes(to, OBJECT_ELEMENT as u64, from)
        }
    };
    if !read {
        tensor.flags |= OBJECT_FAULT;
        count(row, Miss::Fault);
    }
    record.object_count += 1;
}
