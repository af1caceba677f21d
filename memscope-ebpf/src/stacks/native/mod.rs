//! Native stacks: walked by rules that user space has learnt, over a copy of the stack.

mod copy;
mod plain;
mod record;
mod rules;
mod slot;
mod snapshot;
mod walk;

use core::ffi::c_void;

use aya_ebpf::{
    bindings::pt_regs,
    macros::map,
    maps::{Array, HashMap},
};
use memscope_common::{
    Miss, StackEnd,
    miss::MAX_DEPTH,
    unwind::{STACK_BYTES, mix, without_signature},
};

use self::{
    copy::first_pages,
    slot::{ASK, PAGE, Place, Slot, Walk, hashed},
    walk::step,
};
use super::slot_lock::{Lock, SlotLocks};
use crate::{current, misses::count, regs, settings::setting, thread::Thread, verifier::bpf_loop};

/// Slots for walks. Sized by user space, as the maps that follow: one entry unless stacks are taken.
#[map]
static STACK_SLOTS: Array<Slot> = Array::with_max_entries(1, 0);

/// The slots' locks.
#[map]
static STACK_LOCKS: Array<Lock> = Array::with_max_entries(1, 0);

/// Locked slots, on kernels without compare-and-exchange.
#[map]
static STACK_LOCKED: HashMap<u32, u32> = HashMap::with_max_entries(1, 0);

static LOCKS: SlotLocks = SlotLocks { locks: &STACK_LOCKS, locked: &STACK_LOCKED };

/// Slots that are tried.
const TRIES: u32 = 4;

/// Puts the id of the thread's native stack into its record.
#[inline(always)]
pub(super) fn take<const LOOPS: bool>(ctx: *mut c_void, thread: &mut Thread, generation: u64, row: u16) {
    native::<LOOPS>(ctx, thread, generation, row);
}

#[inline(never)]
fn native<const LOOPS: bool>(ctx: *mut c_void, thread: &mut Thread, generation: u64, row: u16) -> u32 {
    let Some(number) = acquire::<LOOPS>() else {
        count(row, Miss::StackBusy);
        record::busy(ctx, thread, generation, regs::instruction_pointer(regs::of(ctx)), row);
        return 0;
    };
    if let Some(slot) = STACK_SLOTS.get_ptr_mut(number) {
        in_slot::<LOOPS>(ctx, thread, slot, generation, row);
    }
    LOCKS.release::<LOOPS>(number);
    0
}

/// Locks a free slot. A program that may contain loops may contain exchanges, too.
#[inline(always)]
fn acquire<const LOOPS: bool>() -> Option<u32> {
    let processor = current::processor();
    let slots = setting!(native_slots);
    if slots == 0 {
        return None;
    }
    (0..TRIES).map(|attempt| (processor * 2 + attempt) % slots).find(|number| LOCKS.acquire::<LOOPS>(*number))
}

/// Walks in a locked slot, and sends what user space does not know.
#[inline(always)]
fn in_slot<const LOOPS: bool>(ctx: *mut c_void, thread: &mut Thread, slot: *mut Slot, generation: u64, row: u16) {
    let regs = regs::of(ctx);
    let place = Place { slot, thread };
    // SAFETY: a live map value, locked; nothing else refers to this part of it.
    let walk = unsafe { &mut (*slot).walk };
    begin(walk, regs, generation, thread.depth);
    // SAFETY: a live map value.
    unsafe { (*slot).frames[0] = walk.at };
    let walks = LOOPS && setting!(loops) != 0;
    if walk.base.is_multiple_of(8) {
        first_pages(place, walk, thread.copied_to);
        if walks {
            run(&place);
            thread.copied_to = walk.base.wrapping_add(walk.have);
        } else {
            walk.flags |= ASK;
            walk.end = StackEnd::NoRule as u32;
        }
    } else {
        walk.end = StackEnd::Fault as u32;
    }
    if walk.flags & ASK != 0 && snapshot::ask(ctx, thread, slot, row, walks) {
        return;
    }
    record::finish(ctx, thread, slot, row);
}

/// Begins a walk at the probe.
#[inline(always)]
fn begin(walk: &mut Walk, regs: &pt_regs, generation: u64, calls: u32) {
    let at = regs::instruction_pointer(regs);
    let base = regs::stack_pointer(regs);
    *walk = Walk {
        generation,
        salt: mix(generation),
        base,
        have: 0,
        at,
        stack_pointer: base,
        frame_pointer: regs::frame_pointer(regs),
        link_register: without_signature(regs::link_register(regs)),
        instead: 0,
        hash: hashed(generation, at),
        frames: 1,
        calls,
        end: StackEnd::Depth as u32,
        flags: 0,
    };
}

/// Walks. Besides the frames, every copied page and every open call takes a step.
#[inline(always)]
fn run(place: &Place) {
    let steps = setting!(native_depth) + STACK_BYTES / PAGE + MAX_DEPTH as u32 + 2;
    // SAFETY: the callback takes a number and a place.
    unsafe { bpf_loop(steps.into(), step as *mut c_void, (&raw const *place).cast_mut().cast()) };
}
