//! The copy of one tensor: its head, its long list of sizes, and the memory behind its first word.

use core::mem::offset_of;

use memscope_common::{
    Miss, Object, ObjectShape,
    record::{
        OBJECT_FAULT, OBJECT_HEAD, OBJECT_INNER, OBJECT_INNER_FAULT, OBJECT_LIST_FAULT, OBJECT_LIST_INLINE,
        OBJECT_LIST_WORDS,
    },
};

use super::record::{Scratch, next};
use crate::{
    misses::count,
    user_memory,
    verifier::{masked, write_once},
};

/// Copies one tensor. `place` is as for [`next`].
#[inline(never)]
pub(super) fn take(scratch: &mut Scratch, shape: ObjectShape, address: u64, place: u32, row: u16) {
    let Some(tensor) = next(&mut scratch.record, address, place) else { return };
    if !user_memory::copy(&mut tensor.head, address.wrapping_add(shape.head_from.into())) {
        tensor.flags |= OBJECT_FAULT;
    }
    if is_skipped(&tensor.head, shape) {
        return;
    }
    copy_list(tensor, shape);
    copy_inner(tensor, shape);
    if tensor.flags != 0 {
        count(row, Miss::Fault);
    }
    scratch.record.object_count += 1;
}

/// Whether the tensor is on a kind of device that the row skips.
#[inline(always)]
fn is_skipped(head: &[u8; OBJECT_HEAD], shape: ObjectShape) -> bool {
    let device_at = shape.device_at.into();
    shape.skip_device != ObjectShape::SKIP_NONE
        && byte(head, device_at) == shape.skip_device
        && byte(head, device_at + 2) != 0
}

/// Copies the memory behind the head's first word.
#[inline(always)]
fn copy_inner(tensor: &mut Object, shape: ObjectShape) {
    let inner = word(&tensor.head, 0);
    if inner == 0 {
        clear(&mut tensor.inner);
    } else if !user_memory::copy(&mut tensor.inner, inner.wrapping_add(shape.inner_from.into())) {
        tensor.flags |= OBJECT_INNER_FAULT;
    }
}

/// Zeroes word by word: the compiler would call a loop over bytes.
#[inline(always)]
#[expect(clippy::cast_ptr_alignment, reason = "the field is at a multiple of eight bytes, in a map value")]
fn clear(inner: &mut [u8; OBJECT_INNER]) {
    const _: () = assert!(OBJECT_INNER.is_multiple_of(8) && offset_of!(Object, inner).is_multiple_of(8));
    for at in 0..OBJECT_INNER / 8 {
        // SAFETY: within the field, and aligned.
        unsafe { write_once(inner.as_mut_ptr().cast::<u64>().add(at), 0) };
    }
}

/// Copies the words of a list that is too long to be stored in place, over the place of a short one.
#[inline(always)]
fn copy_list(tensor: &mut Object, shape: ObjectShape) {
    const BYTES: usize = 8 * OBJECT_LIST_WORDS;
    let at = shape.list_at.into();
    if word(&tensor.head, at) <= OBJECT_LIST_INLINE {
        return;
    }
    let from = word(&tensor.head, at + 8);
    let to = masked::<127>(at + 8);
    if to > (OBJECT_HEAD - BYTES) as u64 {
        return;
    }
    // SAFETY: the head has as many bytes from there on.
    let read = unsafe { user_memory::copy_bytes(tensor.head.as_mut_ptr().add(to as usize).cast(), BYTES as u64, from) };
    if !read {
        tensor.flags |= OBJECT_LIST_FAULT;
    }
}

/// A byte of a head; 0 behind it.
#[inline(always)]
fn byte(head: &[u8; OBJECT_HEAD], at: u64) -> u8 {
    let at = masked::<255>(at);
    if at >= OBJECT_HEAD as u64 {
        return 0;
    }
    // SAFETY: checked above.
    *unsafe { head.get_unchecked(at as usize) }
}

/// Eight bytes of a head; 0 behind it.
#[inline(always)]
fn word(head: &[u8; OBJECT_HEAD], at: u64) -> u64 {
    let at = masked::<255>(at);
    if at > (OBJECT_HEAD - 8) as u64 {
        return 0;
    }
    // SAFETY: checked above; heads are aligned to eight bytes, and so are the words in them.
    unsafe { head.as_ptr().add(at as usize).cast::<u64>().read_unaligned() }
}
