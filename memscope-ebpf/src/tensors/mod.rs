//! Places whose arguments lead to objects: copies of parts of those objects.
//!
//! Two maps of their own, which have no room unless such rows are used: a record of this kind is large.

pub(crate) mod array;

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{
    bindings::pt_regs,
    helpers::generated::{bpf_get_current_pid_tgid, bpf_probe_read_user},
    macros::map,
    maps::{Array, HashMap},
};
use memscope_common::{
    Kind, Miss, Object, ObjectShape, ObjectsRecord, ProbeRow, Source, When,
    record::{
        MAX_OBJECTS, OBJECT_FAULT, OBJECT_HEAD, OBJECT_INNER, OBJECT_INNER_FAULT, OBJECT_LIST_FAULT,
        OBJECT_LIST_INLINE, OBJECT_LIST_WORDS, OBJECTS_AT,
    },
    row::{MAX_VALUES, STACK_SLOTS},
};

use crate::{
    calls::thread,
    emit::{header, send},
    maps::PROCESSES,
    misses::count,
    probes::row_of,
    regs, stacks, watch,
};

/// Registers that arguments and results come in, by number.
pub(crate) const SLOTS: usize = 16;
const _: () = assert!(SLOTS == STACK_SLOTS as usize && SLOTS == MAX_OBJECTS, "the masks below");

/// What a program needs to build a record with objects.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    /// Stack pointer at the entry of the call that is open; 0 is none.
    open: u64,
    slots: [u64; SLOTS],
    pub(crate) record: ObjectsRecord,
    /// The verifier takes a record to be as long as its length could say.
    room: [u8; LEN_MASK + 1 - size_of::<ObjectsRecord>()],
}
const LEN_MASK: usize = 4095;

/// By thread. Sized by user space: one entry as long as no row has objects.
#[map]
static OBJECTS: HashMap<u64, Scratch> = HashMap::with_max_entries(1, 0);

/// Never written: it would not fit on the stack.
#[map]
static EMPTY_SCRATCH: Array<Scratch> = Array::with_max_entries(1, 0);

/// Where the caller of an open call wants its result, by thread and stack pointer; the oldest make room. Only used where
/// the register that tells it does not survive the call. Sized by user space.
#[cfg(bpf_target_arch = "aarch64")]
#[map]
static RESULTS: aya_ebpf::maps::LruHashMap<[u64; 2], u64> = aya_ebpf::maps::LruHashMap::with_max_entries(1, 0);

/// Pointers to objects that follow each other in memory.
#[derive(Clone, Copy)]
struct List {
    from: u64,
    len: u64,
    /// Bytes from one to the next.
    stride: u64,
    /// They are pointers to pointers.
    references: bool,
    /// The word behind each tells whether it is one.
    tagged: bool,
}

/// Tag of a value that is an object (`c10::IValue`).
const TAG_OBJECT: u32 = 1;
/// Where `c10::List`'s storage has its vector.
const LIST_VECTOR: u64 = 16;
const TAGGED_BYTES: u64 = 16;
/// Ways in which `c10::IListRef` stores.
const BOXED: u32 = 1;
const MATERIALIZED: u32 = 3;

/// Forgets a thread.
#[inline(always)]
pub(crate) fn forget(id: u64) {
    let _ = OBJECTS.remove(&id);
}

/// A place is passed.
#[inline(always)]
pub(crate) fn pass(ctx: *mut c_void, cookie: u64) {
    // SAFETY: a helper without arguments.
    let id = unsafe { bpf_get_current_pid_tgid() };
    let tgid = (id >> 32) as u32;
    let Some(state) = PROCESSES.get_ptr(&tgid) else { return };
    let number = cookie as u16;
    let Some(row) = row_of(number.into()) else { return };
    // SAFETY: the context of a uprobe is the thread's registers.
    let regs = unsafe { &*ctx.cast::<pt_regs>() };
    let stack_pointer = regs::stack_pointer(regs);
    if watch::is_own_call(tgid, stack_pointer) {
        return;
    }
    if row.when == When::ObjectsCatch as u8 {
        return catch(id, number, stack_pointer);
    }
    let Some(scratch) = scratch(id, number) else { return };
    if !opens_or_ends(scratch, row, number, stack_pointer) {
        return;
    }
    regs::save_slots(regs, &mut scratch.slots);
    keep_result(scratch, row, id, stack_pointer);
    begin(&mut scratch.record, cookie);
    // SAFETY: a live map value; that others change it meanwhile does no harm.
    take_stacks(ctx, &mut scratch.record, unsafe { (*state).generation }, row, number);
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
    finish(ctx, &mut scratch.record, number);
}

/// An empty record of a place.
#[inline(always)]
pub(crate) fn begin(record: &mut ObjectsRecord, cookie: u64) {
    record.header = header(Kind::Objects, cookie as u16, 0);
    record.detail = (cookie >> 32) as u32;
    record.object_count = 0;
    record.left_out = 0;
    record.native_stack = 0;
    record.python_stack = 0;
}

/// Puts the ids of the thread's stacks into the record of a place, if its row has any.
#[inline(always)]
pub(crate) fn take_stacks(ctx: *mut c_void, record: &mut ObjectsRecord, generation: u64, row: &ProbeRow, number: u16) {
    if !stacks::are_wanted(row) {
        return;
    }
    // SAFETY: a helper without arguments.
    let Some(thread) = thread::<true>(unsafe { bpf_get_current_pid_tgid() }, number) else { return };
    stacks::take::<true>(ctx, thread, generation, row, number);
    record.native_stack = thread.call.native_stack;
    record.python_stack = thread.call.python_stack;
}

/// Sends a record.
#[inline(always)]
pub(crate) fn finish(ctx: *mut c_void, record: &mut ObjectsRecord, number: u16) {
    let len = OBJECTS_AT as u64 + u64::from(record.object_count) * size_of::<Object>() as u64;
    record.header.len = len as u16;
    send(ctx, (&raw mut *record).cast(), bounded_len(len), number, false);
}

/// A handler has begun: a call that is open and was made by its frame, or deeper on the stack, has been left. Whatever the
/// frame calls has the same stack pointer at its entry, the handler's begin too.
#[inline(always)]
fn catch(id: u64, number: u16, stack_pointer: u64) {
    let Some(scratch) = OBJECTS.get_ptr_mut(&id) else { return };
    // SAFETY: a live map value that only this thread's programs touch.
    let scratch = unsafe { &mut *scratch };
    if scratch.open != 0 && scratch.open <= stack_pointer {
        scratch.open = 0;
        count(number, Miss::Thrown);
    }
}

/// Whether the place begins or ends an outermost call, which is then open or closed.
#[inline(always)]
fn opens_or_ends(scratch: &mut Scratch, row: &ProbeRow, number: u16, stack_pointer: u64) -> bool {
    let open = scratch.open;
    // Deeper on the stack than the open call: inside of it.
    if open != 0 && stack_pointer < open {
        count(number, Miss::Nested);
        return false;
    }
    if row.when != When::ObjectsEnd as u8 {
        if open != 0 {
            // It was left in a way that nobody saw.
            count(number, Miss::NoReturn);
        }
        scratch.open = if row.when == When::Objects as u8 { stack_pointer } else { 0 };
        return true;
    }
    scratch.open = 0;
    if open != stack_pointer {
        count(number, if open == 0 { Miss::UnknownReturn } else { Miss::NoReturn });
        return false;
    }
    true
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn keep_result(scratch: &mut Scratch, row: &ProbeRow, id: u64, stack_pointer: u64) {
    use memscope_common::row::RESULT_SLOT;
    let key = [id, stack_pointer];
    if row.when == When::Objects as u8 {
        let _ = RESULTS.insert(&key, &scratch.slots[RESULT_SLOT as usize], 0);
        return;
    }
    scratch.slots[RESULT_SLOT as usize] = 0;
    if let Some(result) = RESULTS.get_ptr(&key) {
        // SAFETY: a live map value.
        scratch.slots[RESULT_SLOT as usize] = unsafe { *result };
    }
}

#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
fn keep_result(_: &mut Scratch, _: &ProbeRow, _: u64, _: u64) {}

/// What the thread's records are built in.
#[inline(always)]
pub(crate) fn scratch(id: u64, row: u16) -> Option<&'static mut Scratch> {
    if let Some(scratch) = OBJECTS.get_ptr_mut(&id) {
        // SAFETY: a live map value that only this thread's programs touch.
        return Some(unsafe { &mut *scratch });
    }
    // SAFETY: never written, so shared reading is fine.
    let empty = unsafe { &*EMPTY_SCRATCH.get_ptr(0)? };
    if OBJECTS.insert(&id, empty, 0).is_err() {
        count(row, Miss::ThreadsFull);
        return None;
    }
    // SAFETY: as above.
    OBJECTS.get_ptr_mut(&id).map(|scratch| unsafe { &mut *scratch })
}

/// An argument: of a register, or of the stack.
#[inline(always)]
fn slot(scratch: &Scratch, number: u8, stack_pointer: u64) -> u64 {
    if number < STACK_SLOTS {
        // SAFETY: below the number of slots.
        return *unsafe { scratch.slots.get_unchecked(bounded(number.into())) };
    }
    read(regs::stack_args(stack_pointer).wrapping_add(8 * u64::from(number - STACK_SLOTS)))
}

/// Eight bytes; 0 if they cannot be read.
#[inline(always)]
fn read(from: u64) -> u64 {
    let mut word = 0_u64;
    // SAFETY: `word` has eight bytes; the helper checks the address, and zeroes the word on a fault.
    unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, from as *const c_void) };
    word
}

/// Where the pointers to the objects are.
#[inline(always)]
fn list_of(source: u8, at: u64, second: u64) -> List {
    let mut list = List { from: at, len: 1, stride: 8, references: false, tagged: false };
    if source == Source::ObjectReference as u8 {
        list.references = true;
    } else if source == Source::OptionalObject as u8 {
        list.len = u64::from(read(at.wrapping_add(8)) & 0xff != 0);
    } else if source == Source::FlaggedObject as u8 {
        list.len = u64::from(read(at.wrapping_sub(8)) & 0xff != 0);
    } else if source == Source::ObjectPair as u8 {
        list.len = second;
    } else if source == Source::ObjectVector as u8 {
        list.from = read(at);
        list.len = read(at.wrapping_add(8)).wrapping_sub(list.from) / 8;
    } else if source == Source::ObjectList as u8 {
        let how = read(at.wrapping_add(16)) as u32;
        if how == BOXED {
            list = tagged(read(at));
        } else {
            list.references = how == MATERIALIZED;
            list.from = read(at);
            list.len = read(at.wrapping_add(8));
        }
    } else if source == Source::TaggedObjects as u8 {
        list = tagged(at);
    }
    list
}

/// The values of a `c10::List`.
#[inline(always)]
fn tagged(at: u64) -> List {
    let vector = read(at).wrapping_add(LIST_VECTOR);
    let from = read(vector);
    let len = read(vector.wrapping_add(8)).wrapping_sub(from) / TAGGED_BYTES;
    List { from, len, stride: TAGGED_BYTES, references: false, tagged: true }
}

/// Copies the objects of a list, as long as there is room.
#[inline(always)]
fn take_list(scratch: &mut Scratch, shape: ObjectShape, list: List, value: u8, row: u16) {
    for index in 0..MAX_OBJECTS as u64 {
        if index >= list.len {
            return;
        }
        let at = list.from.wrapping_add(index * list.stride);
        let mut address = read(at);
        if list.references {
            address = read(address);
        }
        let is_object = !list.tagged || read(at.wrapping_add(8)) as u32 == TAG_OBJECT;
        if address != 0 && is_object {
            take_object(scratch, shape, address, u32::from(value) | (index as u32) << 8, row);
        }
    }
    let left = list.len.wrapping_sub(MAX_OBJECTS as u64);
    let left = if left > 0xffff { 0xffff } else { left as u16 };
    scratch.record.left_out = scratch.record.left_out.saturating_add(left);
}

/// The room for a further object; `place` is as for [`take_object`].
#[inline(always)]
pub(crate) fn next_object(record: &mut ObjectsRecord, address: u64, place: u32) -> Option<&mut Object> {
    // In memory, not in a register: the verifier would follow each of its values.
    let taken = record.object_count;
    if usize::from(taken) >= MAX_OBJECTS {
        record.left_out = record.left_out.saturating_add(1);
        return None;
    }
    // SAFETY: below the number of objects.
    let object = unsafe { record.objects.get_unchecked_mut(bounded(taken.into())) };
    object.address = address;
    object.value = place as u8;
    object.flags = 0;
    object.index = (place >> 8) as u16;
    object.reserved = 0;
    Some(object)
}

/// Copies one object; `place` is the value, and from bit 8 on its index there.
#[inline(never)]
fn take_object(scratch: &mut Scratch, shape: ObjectShape, address: u64, place: u32, row: u16) {
    let Some(object) = next_object(&mut scratch.record, address, place) else { return };
    if !copy::<OBJECT_HEAD>(&mut object.head, address.wrapping_add(shape.head_from.into())) {
        object.flags |= OBJECT_FAULT;
    }
    let device_at = usize::from(shape.device_at);
    if shape.skip_device != ObjectShape::SKIP_NONE
        && byte(&object.head, device_at) == shape.skip_device
        && byte(&object.head, device_at + 2) != 0
    {
        return;
    }
    copy_list(object, shape);
    let inner = word(&object.head, 0);
    if inner == 0 {
        object.inner = [0; OBJECT_INNER];
    } else if !copy::<OBJECT_INNER>(&mut object.inner, inner.wrapping_add(shape.inner_from.into())) {
        object.flags |= OBJECT_INNER_FAULT;
    }
    if object.flags != 0 {
        count(row, Miss::Fault);
    }
    scratch.record.object_count += 1;
}

/// A list that is too long to be stored in place lies behind a pointer: copies its words over the place of short ones.
#[inline(always)]
fn copy_list(object: &mut Object, shape: ObjectShape) {
    const BYTES: usize = 8 * OBJECT_LIST_WORDS;
    let at = usize::from(shape.list_at);
    if word(&object.head, at) <= OBJECT_LIST_INLINE {
        return;
    }
    let from = word(&object.head, at + 8);
    let mut to = (at + 8) as u64;
    // SAFETY: changes a register; 63 + 8 words are less than the head has.
    unsafe { asm!("{to} &= 127", to = inout(reg) to) };
    if to > (OBJECT_HEAD - BYTES) as u64 {
        return;
    }
    // SAFETY: checked above.
    let to = unsafe { object.head.as_mut_ptr().add(to as usize) };
    // SAFETY: `to` has as many bytes; the helper checks the address.
    let result = unsafe { bpf_probe_read_user(to.cast(), BYTES as u32, from as *const c_void) };
    if result != 0 {
        object.flags |= OBJECT_LIST_FAULT;
    }
}

/// Copies `N` bytes; zeroes on a fault.
#[inline(always)]
fn copy<const N: usize>(to: &mut [u8; N], from: u64) -> bool {
    // SAFETY: `to` has `N` bytes; the helper checks the address.
    unsafe { bpf_probe_read_user(to.as_mut_ptr().cast(), N as u32, from as *const c_void) == 0 }
}

/// A byte of a head.
#[inline(always)]
fn byte(head: &[u8; OBJECT_HEAD], at: usize) -> u8 {
    let mut at = at as u64;
    // SAFETY: changes a register.
    unsafe { asm!("{at} &= 255", at = inout(reg) at) };
    if at >= OBJECT_HEAD as u64 {
        return 0;
    }
    // SAFETY: checked above.
    *unsafe { head.get_unchecked(at as usize) }
}

/// Eight bytes of a head.
#[inline(always)]
fn word(head: &[u8; OBJECT_HEAD], at: usize) -> u64 {
    let mut at = at as u64;
    // SAFETY: changes a register.
    unsafe { asm!("{at} &= 255", at = inout(reg) at) };
    if at > (OBJECT_HEAD - 8) as u64 {
        return 0;
    }
    // SAFETY: checked above; heads are aligned to eight bytes, and so are the words in them.
    unsafe { head.as_ptr().add(at as usize).cast::<u64>().read_unaligned() }
}

/// `index` below 16 (see `calls::bounded`).
#[inline(always)]
fn bounded(index: u32) -> usize {
    let mut index = u64::from(index);
    // SAFETY: changes a register.
    unsafe { asm!("{index} &= 15", index = inout(reg) index) };
    index as usize
}

/// A record's length (see `emit::bounded_len`).
#[inline(always)]
fn bounded_len(mut len: u64) -> u64 {
    // SAFETY: changes a register.
    unsafe { asm!("{len} &= 4095", len = inout(reg) len) };
    len
}
