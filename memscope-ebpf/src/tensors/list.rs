//! Where a value's tensors are: one, or a list in one of libtorch's forms.

use core::ffi::c_void;

use memscope_common::{
    ObjectShape, ProbeRow, Source,
    record::MAX_OBJECTS,
    row::{MAX_VALUES, STACK_SLOTS},
};

use super::{copy::take, record::Scratch};
use crate::{
    regs,
    settings::setting,
    user_memory::word_or_zero,
    verifier::{bpf_loop, element},
};

/// Pointers to tensors that follow each other in memory.
#[derive(Clone, Copy)]
struct List {
    from: u64,
    len: u64,
    /// Bytes from one pointer to the next.
    stride: u64,
    /// They point to pointers.
    references: bool,
    /// The word behind each is its tag.
    tagged: bool,
}

/// Tag of a value that is a tensor (`c10::IValue`).
const TAG_TENSOR: u32 = 1;
/// Where `c10::List`'s storage has its vector.
const LIST_VECTOR: u64 = 16;
const TAGGED_BYTES: u64 = 16;
/// Forms in which `c10::IListRef` stores.
const BOXED: u32 = 1;
const MATERIALIZED: u32 = 3;

/// Copies the tensors that the row's values lead to.
#[inline(always)]
pub(super) fn take_values(scratch: &mut Scratch, row: &ProbeRow, number: u16, stack_pointer: u64) {
    let shape = ObjectShape::from_param(row.param);
    for value in 0..MAX_VALUES {
        let fetch = row.fetch[value];
        if fetch.source == Source::None as u8 {
            break;
        }
        let first = slot(scratch, fetch.arg, stack_pointer);
        let second = slot(scratch, fetch.arg.wrapping_add(1), stack_pointer);
        let list = list_of(fetch.source, first.wrapping_add(fetch.offset.into()), second);
        take_list(scratch, shape, list, value as u8, number);
    }
}

/// An argument, of a register or of the stack.
#[inline(always)]
fn slot(scratch: &Scratch, number: u8, stack_pointer: u64) -> u64 {
    if number < STACK_SLOTS {
        return *element(&scratch.slots, number.into());
    }
    word_or_zero(regs::stack_args(stack_pointer).wrapping_add(8 * u64::from(number - STACK_SLOTS)))
}

/// Where the pointers to the tensors are.
#[inline(always)]
fn list_of(source: u8, at: u64, second: u64) -> List {
    let mut list = List { from: at, len: 1, stride: 8, references: false, tagged: false };
    if source == Source::ObjectReference as u8 {
        list.references = true;
    } else if source == Source::OptionalObject as u8 {
        list.len = u64::from(word_or_zero(at.wrapping_add(8)) & 0xff != 0);
    } else if source == Source::FlaggedObject as u8 {
        list.len = u64::from(word_or_zero(at.wrapping_sub(8)) & 0xff != 0);
    } else if source == Source::ObjectPair as u8 {
        list.len = second;
    } else if source == Source::ObjectVector as u8 {
        list.from = word_or_zero(at);
        list.len = word_or_zero(at.wrapping_add(8)).wrapping_sub(list.from) / 8;
    } else if source == Source::ObjectList as u8 {
        list = list_ref(list, at);
    } else if source == Source::TaggedObjects as u8 {
        list = tagged(at);
    }
    list
}

/// The tensors of a `c10::IListRef`.
#[inline(always)]
fn list_ref(mut list: List, at: u64) -> List {
    let form = word_or_zero(at.wrapping_add(16)) as u32;
    if form == BOXED {
        return tagged(word_or_zero(at));
    }
    list.references = form == MATERIALIZED;
    list.from = word_or_zero(at);
    list.len = word_or_zero(at.wrapping_add(8));
    list
}

/// The values of a `c10::List`.
#[inline(always)]
fn tagged(at: u64) -> List {
    let vector = word_or_zero(at).wrapping_add(LIST_VECTOR);
    let from = word_or_zero(vector);
    let len = word_or_zero(vector.wrapping_add(8)).wrapping_sub(from) / TAGGED_BYTES;
    List { from, len, stride: TAGGED_BYTES, references: false, tagged: true }
}

/// Tensors of a value that are being copied.
#[repr(C)]
struct Taking {
    scratch: *mut Scratch,
    list: List,
    shape: ObjectShape,
    value: u8,
    row: u16,
}

/// Copies the tensors of a list, and counts those that do not fit. With [`bpf_loop`] the verifier looks at one, else at each.
#[inline(always)]
fn take_list(scratch: &mut Scratch, shape: ObjectShape, list: List, value: u8, row: u16) {
    let mut taking = Taking { scratch, list, shape, value, row };
    if setting!(loops) == 0 {
        for index in 0..MAX_OBJECTS as u64 {
            if index >= list.len {
                return;
            }
            take_one(&taking, index);
        }
    } else {
        // SAFETY: the callback takes a number and tensors being copied.
        unsafe { bpf_loop(MAX_OBJECTS as u64, take_next as *mut c_void, (&raw mut taking).cast()) };
        if list.len <= MAX_OBJECTS as u64 {
            return;
        }
    }
    let left = list.len.wrapping_sub(MAX_OBJECTS as u64);
    let left = if left > 0xffff { 0xffff } else { left as u16 };
    scratch.record.left_out = scratch.record.left_out.saturating_add(left);
}

/// Copies the next tensor. Returns 1 behind the last.
#[inline(never)]
unsafe extern "C" fn take_next(index: u32, taking: *const Taking) -> u64 {
    // SAFETY: the loop's own.
    let taking = unsafe { &*taking };
    if u64::from(index) >= taking.list.len {
        return 1;
    }
    take_one(taking, index.into());
    0
}

/// Copies one tensor, if it is one.
#[inline(always)]
fn take_one(taking: &Taking, index: u64) {
    let address = address_of(taking.list, index);
    if address != 0 {
        // SAFETY: the caller's, which does not use it meanwhile.
        let scratch = unsafe { &mut *taking.scratch };
        take(scratch, taking.shape, address, u32::from(taking.value) | (index as u32) << 8, taking.row);
    }
}

/// The address of one tensor; 0 if it is none.
#[inline(always)]
fn address_of(list: List, index: u64) -> u64 {
    let at = list.from.wrapping_add(index * list.stride);
    let mut address = word_or_zero(at);
    if list.references {
        address = word_or_zero(address);
    }
    let is_tensor = !list.tagged || word_or_zero(at.wrapping_add(8)) as u32 == TAG_TENSOR;
    if is_tensor { address } else { 0 }
}
