//! Native stacks: walked by rules that user space has learnt, over a copy of the stack.
//!
//! Reading the program's memory is what costs time, so the stack is copied by the page, as far as the walk gets. Where a
//! rule is missing the copy is sent instead, and user space finishes the stack and learns the rules.

mod copy;
mod walk;

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{
    bindings::pt_regs,
    helpers::generated::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::map,
    maps::{Array, HashMap, LruHashMap},
};
use memscope_common::{
    Kind, Miss, Replaced, SnapshotRecord, StackEnd, StackRecord,
    miss::MAX_DEPTH,
    stack::{MAX_RETURNS, STACK_NATIVE},
    unwind::{STACK_BYTES, WALKLESS_BYTES, may_be_trampoline, mix, without_signature},
};

use self::{
    copy::{PIECE, first_piece, next_piece},
    walk::{ASK, Place, Slot, Walk, frame_at, hashed, step},
};
use super::{
    Site, bpf_loop,
    slot_lock::{Claims, Owner},
};
use crate::{
    emit::{header, is_crowded, send},
    maps::{Frame, Thread, setting},
    misses::count,
    regs,
};

/// Room for the stacks that are being walked. As the following maps, it has none unless stacks are taken.
#[map]
static STACK_SLOTS: Array<Slot> = Array::with_max_entries(1, 0);

/// Who has which slot.
#[map]
static STACK_OWNERS: Array<Owner> = Array::with_max_entries(1, 0);

/// Slots in use where the kernel cannot exchange.
#[map]
static STACK_CLAIMS: HashMap<u32, u32> = HashMap::with_max_entries(1, 0);

static CLAIMS: Claims = Claims { owners: &STACK_OWNERS, taken: &STACK_CLAIMS };

/// Ids that user space has been told.
#[map]
static STACKS_TOLD: LruHashMap<u64, u32> = LruHashMap::with_max_entries(1, 0);

/// When and how often user space was asked for a rule, by generation and address.
#[map]
static RULES_ASKED: LruHashMap<[u64; 2], Asked> = LruHashMap::with_max_entries(1, 0);

#[repr(C)]
#[derive(Clone, Copy)]
struct Asked {
    time_ns: u64,
    /// Within [`PATIENCE_NS`].
    times: u64,
}

/// Within this time user space is asked for the same rule so often only: it may be about to answer, or unable to.
const PATIENCE_NS: u64 = 100_000_000;
const TIMES: u64 = 32;

/// Tries to find a free slot.
const TRIES: u32 = 4;

const _: () = assert!(MAX_RETURNS == MAX_DEPTH);

/// Puts the id of the thread's native stack into its record.
#[inline(always)]
pub(crate) fn take<const LOOPS: bool>(site: &Site, thread: &mut Thread) {
    native::<LOOPS>(site.ctx, thread, site.generation, site.row);
}

#[inline(never)]
fn native<const LOOPS: bool>(ctx: *mut c_void, thread: &mut Thread, generation: u64, row: u16) -> u32 {
    let Some(number) = claim::<LOOPS>() else {
        busy(ctx, thread, generation, row);
        return 0;
    };
    if let Some(slot) = STACK_SLOTS.get_ptr_mut(number) {
        in_slot::<LOOPS>(ctx, thread, slot, generation, row);
    }
    CLAIMS.give_back::<LOOPS>(number);
    0
}

/// Where a program may have loops it may have exchanges, too.
#[inline(always)]
fn claim<const LOOPS: bool>() -> Option<u32> {
    // SAFETY: a helper without arguments.
    let processor = unsafe { bpf_get_smp_processor_id() };
    let slots = setting!(native_slots);
    if slots == 0 {
        return None;
    }
    (0..TRIES).map(|attempt| (processor * 2 + attempt) % slots).find(|number| CLAIMS.take::<LOOPS>(*number))
}

/// No room to walk: the first frame is known all the same.
#[inline(always)]
fn busy(ctx: *mut c_void, thread: &mut Thread, generation: u64, row: u16) {
    #[repr(C)]
    struct Record {
        stack: StackRecord,
        frame: u64,
    }
    count(row, Miss::StackBusy);
    // SAFETY: the context of a uprobe is the thread's registers.
    let frame = regs::instruction_pointer(unsafe { &*ctx.cast::<pt_regs>() });
    let id = id_of(hashed(generation, frame), 1, StackEnd::Busy as u32);
    thread.call.native_stack = id;
    if STACKS_TOLD.get_ptr(&id).is_none() {
        let mut record = Record { stack: record(id, generation, 1, StackEnd::Busy as u32, row), frame };
        tell(ctx, (&raw mut record).cast(), size_of::<Record>() as u64, id, row);
    }
}

#[inline(always)]
fn in_slot<const LOOPS: bool>(ctx: *mut c_void, thread: &mut Thread, slot: *mut Slot, generation: u64, row: u16) {
    // SAFETY: the context of a uprobe is the thread's registers.
    let regs = unsafe { &*ctx.cast::<pt_regs>() };
    let at = regs::instruction_pointer(regs);
    let base = regs::stack_pointer(regs);
    let salt = mix(generation);
    let place = Place { slot, thread };
    // SAFETY: a live map value, claimed; nothing else refers to this part of it.
    let walk = unsafe { &mut (*slot).walk };
    *walk = Walk {
        generation,
        salt,
        base,
        have: 0,
        at,
        stack_pointer: base,
        frame_pointer: regs::frame_pointer(regs),
        link_register: without_signature(regs::link_register(regs)),
        instead: 0,
        hash: hashed(generation, at),
        frames: 1,
        calls: thread.depth,
        end: StackEnd::Depth as u32,
        flags: 0,
    };
    // SAFETY: a live map value.
    unsafe { (*slot).frames[0] = at };
    if base.is_multiple_of(8) {
        first_piece(place, walk, thread.copied_to);
        if LOOPS && setting!(loops) != 0 {
            // Besides the frames, every piece that is copied and every in-flight call takes a step.
            let steps = setting!(native_depth) + STACK_BYTES / PIECE + MAX_DEPTH as u32 + 2;
            // SAFETY: the callback gets what it expects.
            unsafe { bpf_loop(steps.into(), step as *mut c_void, (&raw const place).cast_mut().cast()) };
            thread.copied_to = base.wrapping_add(walk.have);
        } else {
            walk.flags |= ASK;
            walk.end = StackEnd::NoRule as u32;
        }
    } else {
        walk.end = StackEnd::Fault as u32;
    }
    if walk.flags & ASK != 0 && ask::<LOOPS>(ctx, thread, slot, regs, row) {
        return;
    }
    finish(ctx, thread, slot, row);
}

/// Sends what was walked, unless that is known.
#[inline(always)]
fn finish(ctx: *mut c_void, thread: &mut Thread, slot: *mut Slot, row: u16) {
    // SAFETY: as in `in_slot`.
    let walk = unsafe { &(*slot).walk };
    let mut frames = u64::from(walk.frames);
    let mut hash = walk.hash;
    let no_rule = walk.end == StackEnd::NoRule as u32 || walk.end == StackEnd::NoUnwindInfo as u32;
    if no_rule && frames > 1 {
        // SAFETY: as in `push`.
        let last = unsafe { frame_at(slot, frames - 1).read() };
        // Then it is no frame of the program.
        if may_be_trampoline(last) {
            frames -= 1;
            hash = hash.wrapping_add(1);
        }
    }
    let id = id_of(hash, frames as u32, walk.end);
    thread.call.native_stack = id;
    if STACKS_TOLD.get_ptr(&id).is_some() {
        return;
    }
    // SAFETY: a live map value.
    unsafe { (*slot).record = record(id, walk.generation, frames as u16, walk.end, row) };
    let mut bytes = frames * 8;
    // SAFETY: changes a register.
    unsafe { asm!("{bytes} &= 8191", bytes = inout(reg) bytes) };
    // SAFETY: as above.
    let from = unsafe { (&raw mut (*slot).record).cast() };
    tell(ctx, from, size_of::<StackRecord>() as u64 + bytes, id, row);
}

/// Sends the record of a stack that has not been told.
#[inline(always)]
fn tell(ctx: *mut c_void, from: *mut c_void, len: u64, id: u64, row: u16) {
    if send(ctx, from, len, row, false) {
        let _ = STACKS_TOLD.insert(&id, &1, 0);
    }
}

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

/// Sends the copy of the stack, unless that was done for the same rule a moment ago. Returns whether it left.
#[inline(always)]
fn ask<const LOOPS: bool>(ctx: *mut c_void, thread: &mut Thread, slot: *mut Slot, regs: &pt_regs, row: u16) -> bool {
    // SAFETY: as in `in_slot`.
    let walk = unsafe { &mut (*slot).walk };
    // What is missing has to be in the copy.
    let walks = LOOPS && setting!(loops) != 0;
    if is_crowded() || walk.stack_pointer.wrapping_sub(walk.base) >= STACK_BYTES.into() {
        return false;
    }
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    let key = [walk.generation, walk.at];
    let mut asked = Asked { time_ns: now, times: 0 };
    if walks && let Some(before) = RULES_ASKED.get_ptr(&key) {
        // SAFETY: a live map value. That others change it meanwhile does no harm.
        let before = unsafe { *before };
        if now.wrapping_sub(before.time_ns) < PATIENCE_NS {
            if before.times >= TIMES {
                return false;
            }
            asked = before;
        }
    }
    asked.times += 1;
    let wanted = if walks { wanted(walk) } else { WALKLESS_BYTES.into() };
    for _ in 0..STACK_BYTES / PIECE {
        if walk.have >= wanted || !next_piece(Place { slot, thread }, walk) {
            break;
        }
    }
    let mut len = if walk.have < wanted { walk.have } else { wanted };
    // A page that nobody has written is in the way, and what is missing lies behind it: one rule more is learnt each time.
    if walks && walk.stack_pointer.wrapping_sub(walk.base) >= len {
        return false;
    }
    // SAFETY: a helper without arguments.
    let thread_id = unsafe { bpf_get_current_pid_tgid() };
    let id = not_zero(mix(now ^ thread_id.rotate_left(40)));
    // SAFETY: a live map value.
    let snapshot = unsafe { &mut (*slot).snapshot };
    snapshot.header = header(Kind::Snapshot, row, size_of::<SnapshotRecord>() as u16 + len as u16);
    snapshot.id = id;
    snapshot.generation = walk.generation;
    snapshot.instruction_pointer = regs::instruction_pointer(regs);
    snapshot.stack_pointer = walk.base;
    snapshot.frame_pointer = regs::frame_pointer(regs);
    snapshot.link_register = without_signature(regs::link_register(regs));
    snapshot.replaced_count = thread.depth as u16;
    snapshot.reserved = 0;
    snapshot.len = len as u32;
    for call in 0..MAX_RETURNS {
        let Frame { stack_pointer, return_address, .. } = thread.frames[call];
        snapshot.replaced[call] = Replaced { stack_pointer, address: return_address };
    }
    // SAFETY: changes a register.
    unsafe { asm!("{len} &= 65535", len = inout(reg) len) };
    // Until it is answered the same stack is not walked.
    if !send(ctx, (&raw mut *snapshot).cast(), size_of::<SnapshotRecord>() as u64 + len, row, walks) {
        return false;
    }
    if walks {
        let _ = RULES_ASKED.insert(&key, &asked, 0);
    }
    thread.call.native_stack = id;
    true
}

/// Bytes that user space will probably need: what the missing frames may take.
#[inline(always)]
fn wanted(walk: &Walk) -> u64 {
    const MORE: u64 = 16 << 10;
    const PER_FRAME: u64 = 512;
    let passed = walk.stack_pointer.wrapping_sub(walk.base).wrapping_add(MORE);
    let wanted = u64::from(setting!(native_depth)) * PER_FRAME;
    let wanted = if wanted < passed { passed } else { wanted };
    // `passed` may be anything, if a rule was.
    if wanted > STACK_BYTES.into() { STACK_BYTES.into() } else { wanted }
}

#[inline(always)]
fn id_of(hash: u64, frames: u32, end: u32) -> u64 {
    not_zero(mix(hash ^ (u64::from(frames) << 8 | u64::from(end))))
}

#[inline(always)]
fn not_zero(id: u64) -> u64 {
    if id == 0 { 1 } else { id }
}
