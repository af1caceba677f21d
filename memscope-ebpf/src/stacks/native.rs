//! Native stacks: walked by rules that user space has learnt, over a copy of the stack.
//!
//! Reading the program's memory is what costs time, so the stack is copied by the page, as far as the walk gets. Where a
//! rule is missing the copy is sent instead, and user space finishes the stack and learns the rules.

use core::{
    arch::asm,
    ffi::{c_long, c_void},
    mem::offset_of,
};

use aya_ebpf::{
    bindings::{BPF_NOEXIST, pt_regs},
    helpers::generated::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_user},
    macros::map,
    maps::{Array, HashMap, LruHashMap},
};
use memscope_common::{
    Kind, Miss, Replaced, SnapshotRecord, StackEnd, StackRecord,
    miss::MAX_DEPTH,
    stack::{MAX_FRAMES, MAX_RETURNS, STACK_NATIVE},
    unwind::{
        LINK_BEFORE_RA, RULE_CFA_STORED, RULE_END, RULE_FP, RULE_FP_AT_REGISTER, RULE_FP_LOST, RULE_FP_SAVED,
        RULE_LINK_SAVED, RULE_NONE, RULE_PROBES, RULE_RA_AT_REGISTER, RULE_RA_SAVED, RULE_SIGNAL, RULE_SP, RULES, Rule,
        RuleEntry, STACK_BYTES, WALKLESS_BYTES, first_place, may_be_trampoline, mix, without_signature,
    },
};

use super::{Site, bpf_loop};
use crate::{
    calls::bounded,
    emit::{header, is_crowded, send},
    maps::{Frame, Thread, setting},
    misses::count,
    regs,
};

/// Rules, written by user space through memory. As this and the following maps, it has no room unless stacks are taken.
#[map]
static UNWIND_RULES: Array<RuleEntry> = Array::with_max_entries(1, BPF_F_MMAPABLE);
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// Room for the stacks that are being walked.
#[map]
static STACK_SLOTS: Array<Slot> = Array::with_max_entries(1, 0);

/// Slots in use, by number. A program can be interrupted by another one on the same processor, and the processors
/// before 5.12 know no compare-and-swap.
#[map]
static STACK_CLAIMS: HashMap<u32, u32> = HashMap::with_max_entries(1, 0);

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
const CLAIMS: u32 = 4;

const PIECE: u32 = 4096;
/// A power of two, more than [`STACK_BYTES`] and a piece, so that a mask bounds every index.
const ROOM: usize = 1 << 16;
const _: () = assert!(STACK_BYTES as usize + PIECE as usize <= ROOM);
/// As above for frames.
const FRAMES: usize = 1024;
const _: () = assert!(MAX_FRAMES < FRAMES);

/// What a stack is walked in.
#[repr(C)]
#[derive(Clone, Copy)]
struct Slot {
    walk: Walk,
    /// What is sent, and what follows it there.
    record: StackRecord,
    frames: [u64; FRAMES],
    /// As above.
    snapshot: SnapshotRecord,
    /// The stack, from the stack pointer on; a piece more than what a masked index reaches.
    stack: [u64; (ROOM + PIECE as usize) / 8],
}
const _: () = assert!(MAX_RETURNS == MAX_DEPTH);
const _: () = assert!(offset_of!(Slot, frames) == offset_of!(Slot, record) + size_of::<StackRecord>());
const _: () = assert!(offset_of!(Slot, stack) == offset_of!(Slot, snapshot) + size_of::<SnapshotRecord>());

/// Where a walk has its things.
#[repr(C)]
#[derive(Clone, Copy)]
struct Place {
    slot: *mut Slot,
    thread: *const Thread,
}

/// What the walk knows. In map memory, which the verifier does not follow.
#[repr(C)]
#[derive(Clone, Copy)]
struct Walk {
    generation: u64,
    /// Mixed.
    salt: u64,
    /// First address that is copied.
    base: u64,
    /// Bytes that have been copied.
    have: u64,
    /// Address that is looked up next.
    at: u64,
    stack_pointer: u64,
    frame_pointer: u64,
    /// 0: not known.
    link_register: u64,
    /// Return address that stands for the one in memory; 0: none.
    instead: u64,
    hash: u64,
    frames: u32,
    /// In-flight calls that have not been passed yet.
    calls: u32,
    end: u32,
    flags: u32,
}

/// In [`Walk::flags`]: no more can be copied.
const COPIED: u32 = 1;
/// The frame pointer is not known.
const FP_LOST: u32 = 1 << 1;
/// A rule is missing.
const ASK: u32 = 1 << 2;

/// Puts the id of the thread's native stack into its record.
#[inline(always)]
pub(crate) fn take<const LOOPS: bool>(site: &Site<'_>, thread: &mut Thread) {
    native::<LOOPS>(site.ctx, thread, site.state.generation, site.row);
}

#[inline(never)]
fn native<const LOOPS: bool>(ctx: *mut c_void, thread: &mut Thread, generation: u64, row: u16) -> u32 {
    let Some(number) = claim() else {
        busy(ctx, thread, generation, row);
        return 0;
    };
    if let Some(slot) = STACK_SLOTS.get_ptr_mut(number) {
        in_slot::<LOOPS>(ctx, thread, slot, generation, row);
    }
    let _ = STACK_CLAIMS.remove(&number);
    0
}

#[inline(always)]
fn claim() -> Option<u32> {
    // SAFETY: a helper without arguments.
    let processor = unsafe { bpf_get_smp_processor_id() };
    let slots = setting!(native_slots);
    if slots == 0 {
        return None;
    }
    for attempt in 0..CLAIMS {
        let number = (processor * 2 + attempt) % slots;
        if STACK_CLAIMS.insert(&number, &1, BPF_NOEXIST.into()).is_ok() {
            return Some(number);
        }
    }
    None
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
    let mut record = Record { stack: record(id, generation, 1, StackEnd::Busy as u32, row), frame };
    tell(ctx, (&raw mut record).cast(), size_of::<Record>() as u64, id, row);
    thread.call.native_stack = id;
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
        first_piece(place, walk);
        if LOOPS && setting!(loops) != 0 {
            // Besides the frames, every piece that is copied and every in-flight call takes a step.
            let steps = setting!(native_depth) + STACK_BYTES / PIECE + MAX_DEPTH as u32 + 2;
            // SAFETY: the callback gets what it expects.
            unsafe { bpf_loop(steps.into(), step as *mut c_void, (&raw const place).cast_mut().cast()) };
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
    // SAFETY: a live map value.
    unsafe { (*slot).record = record(id, walk.generation, frames as u16, walk.end, row) };
    let mut bytes = frames * 8;
    // SAFETY: changes a register.
    unsafe { asm!("{bytes} &= 8191", bytes = inout(reg) bytes) };
    // SAFETY: as above.
    let from = unsafe { (&raw mut (*slot).record).cast() };
    tell(ctx, from, size_of::<StackRecord>() as u64 + bytes, id, row);
    thread.call.native_stack = id;
}

/// Sends a record unless one with this id has been sent.
#[inline(always)]
fn tell(ctx: *mut c_void, from: *mut c_void, len: u64, id: u64, row: u16) {
    if STACKS_TOLD.get_ptr(&id).is_none() && send(ctx, from, len, row, false) {
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

/// One step of the walk: to the caller's frame, or to what is needed to get there. Returns 1 at the end.
unsafe extern "C" fn step(_number: u64, place: *const Place) -> c_long {
    // SAFETY: what `in_slot` has handed over.
    let place = unsafe { *place };
    // SAFETY: as there.
    let walk = unsafe { &mut (*place.slot).walk };
    let Some(rule) = find(walk) else {
        walk.flags |= ASK;
        return end(walk, StackEnd::NoRule);
    };
    if rule.kind == RULE_END {
        return end(walk, StackEnd::Root);
    }
    if walk.frames >= setting!(native_depth) {
        return end(walk, StackEnd::Depth);
    }
    if rule.kind == RULE_NONE {
        return end(walk, StackEnd::NoUnwindInfo);
    }
    let register = if rule.kind == RULE_SP {
        walk.stack_pointer
    } else if rule.kind == RULE_FP && walk.flags & FP_LOST == 0 {
        walk.frame_pointer
    } else {
        walk.flags |= ASK;
        return end(walk, StackEnd::NoRule);
    };
    let mut cfa = register.wrapping_add(rule.cfa as u64);
    if rule.flags & RULE_CFA_STORED != 0 {
        cfa = match read(place, walk, cfa) {
            Read::Word(word) => word,
            Read::Again => return 0,
            Read::Fault => return end(walk, StackEnd::Fault),
        };
    }
    // Only a frame that calls nobody may take no room.
    let least = walk.stack_pointer.wrapping_add((rule.flags & RULE_RA_SAVED).into());
    if cfa < least || !cfa.is_multiple_of(8) {
        return end(walk, StackEnd::NoProgress);
    }
    let from = if rule.flags & RULE_RA_AT_REGISTER != 0 { register } else { cfa };
    let ra_at = from.wrapping_add(rule.ra as u64);
    let address = if walk.instead != 0 {
        walk.instead
    } else if rule.flags & RULE_RA_SAVED == 0 {
        if walk.link_register == 0 {
            return end(walk, StackEnd::NoUnwindInfo);
        }
        walk.link_register
    } else {
        match read(place, walk, ra_at) {
            Read::Word(word) => without_signature(word),
            Read::Again => return 0,
            Read::Fault => return end(walk, StackEnd::Fault),
        }
    };
    if may_be_trampoline(address) && walk.calls != 0 {
        pass_call(place, walk, ra_at, cfa);
        return 0;
    }
    // What was interrupted may have called nobody.
    let mut link_register = 0;
    if cfg!(bpf_target_arch = "aarch64") && rule.flags & RULE_LINK_SAVED != 0 {
        link_register = match read(place, walk, ra_at.wrapping_sub(LINK_BEFORE_RA)) {
            Read::Word(word) => without_signature(word),
            Read::Again => return 0,
            Read::Fault => return end(walk, StackEnd::Fault),
        };
    }
    if rule.flags & RULE_FP_SAVED != 0 {
        let from = if rule.flags & RULE_FP_AT_REGISTER != 0 { register } else { cfa };
        walk.frame_pointer = match read(place, walk, from.wrapping_add(rule.fp as u64)) {
            Read::Word(word) => word,
            Read::Again => return 0,
            Read::Fault => return end(walk, StackEnd::Fault),
        };
    }
    if rule.flags & RULE_FP_LOST != 0 {
        walk.flags |= FP_LOST;
    } else if rule.flags & RULE_FP_SAVED != 0 {
        walk.flags &= !FP_LOST;
    }
    if address == 0 {
        return end(walk, StackEnd::Root);
    }
    walk.stack_pointer = cfa;
    walk.link_register = link_register;
    walk.instead = 0;
    walk.at = if rule.flags & RULE_SIGNAL != 0 { address } else { address - 1 };
    push(place, walk, address);
    0
}

#[inline(always)]
fn end(walk: &mut Walk, end: StackEnd) -> c_long {
    walk.end = end as u32;
    1
}

#[inline(always)]
fn push(place: Place, walk: &mut Walk, address: u64) {
    // SAFETY: within a live map value.
    unsafe { frame_at(place.slot, walk.frames.into()).write(address) };
    walk.frames += 1;
    walk.hash = hashed(walk.hash, address);
}

/// Place of a frame; its number is taken modulo what fits.
#[inline(always)]
unsafe fn frame_at(slot: *mut Slot, mut number: u64) -> *mut u64 {
    // SAFETY: changes a register.
    unsafe { asm!("{number} &= 1023", number = inout(reg) number) };
    // SAFETY: below the number of frames.
    unsafe { (&raw mut (*slot).frames).cast::<u64>().add(number as usize) }
}
const _: () = assert!(FRAMES == 1024);

/// Passes the innermost in-flight call that has not been passed. If it is the frame's, its return address stands for the
/// one that the frame has.
#[inline(always)]
fn pass_call(place: Place, walk: &mut Walk, ra_at: u64, cfa: u64) {
    walk.calls -= 1;
    // SAFETY: a live map value, below the number of frames.
    let Frame { stack_pointer, return_address, .. } =
        unsafe { *(*place.thread).frames.get_unchecked(bounded(walk.calls)) };
    let same = if cfg!(bpf_target_arch = "aarch64") {
        // It was saved anywhere in the frame, after the probe.
        walk.stack_pointer <= stack_pointer && stack_pointer <= cfa
    } else {
        stack_pointer == ra_at
    };
    if same && return_address != 0 {
        walk.instead = without_signature(return_address);
    }
}

enum Read {
    Word(u64),
    /// A piece was copied; the step is to be taken anew.
    Again,
    Fault,
}

/// Eight bytes of the stack.
#[inline(always)]
fn read(place: Place, walk: &mut Walk, at: u64) -> Read {
    let mut offset = at.wrapping_sub(walk.base);
    if !offset.is_multiple_of(8) {
        return Read::Fault;
    }
    if offset < walk.have {
        // SAFETY: changes a register. The verifier does not know `have`.
        unsafe { asm!("{offset} &= 65528", offset = inout(reg) offset) };
        // SAFETY: within a live map value, copied.
        return Read::Word(unsafe { (&raw const (*place.slot).stack).cast::<u64>().byte_add(offset as usize).read() });
    }
    if offset < STACK_BYTES.into() && walk.flags & COPIED == 0 {
        next_piece(place, walk);
        return Read::Again;
    }
    let mut word = 0_u64;
    // SAFETY: `word` has eight bytes; the helper checks the address.
    let result = unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, at as *const c_void) };
    if result == 0 { Read::Word(word) } else { Read::Fault }
}

/// Copies up to the end of the page.
#[inline(always)]
fn first_piece(place: Place, walk: &mut Walk) {
    let mut len = u64::from(PIECE) - (walk.base & u64::from(PIECE - 1));
    // SAFETY: changes a register.
    unsafe { asm!("{len} &= 8191", len = inout(reg) len) };
    // SAFETY: a live map value with more room; the helper checks the address.
    let result =
        unsafe { bpf_probe_read_user((&raw mut (*place.slot).stack).cast(), len as u32, walk.base as *const c_void) };
    if result == 0 {
        walk.have = len;
    } else {
        walk.flags |= COPIED;
    }
}

/// Copies one more piece. Returns whether there was one.
#[inline(always)]
fn next_piece(place: Place, walk: &mut Walk) -> bool {
    let mut have = walk.have;
    // SAFETY: changes a register.
    unsafe { asm!("{have} &= 65535", have = inout(reg) have) };
    // SAFETY: a live map value with room for a piece behind what the mask allows; the helper checks the address.
    let result = unsafe {
        let to = (&raw mut (*place.slot).stack).cast::<u8>().add(have as usize);
        bpf_probe_read_user(to.cast(), PIECE, walk.base.wrapping_add(walk.have) as *const c_void)
    };
    if result == 0 {
        walk.have += u64::from(PIECE);
    } else {
        walk.flags |= COPIED;
    }
    result == 0
}

/// The rule for the address that is next.
#[inline(always)]
fn find(walk: &Walk) -> Option<Rule> {
    let first = first_place(walk.at, walk.salt);
    for probe in 0..RULE_PROBES {
        let entry = UNWIND_RULES.get(first.wrapping_add(probe) & (RULES - 1))?;
        // Volatile: user space writes it.
        // SAFETY: a live map value.
        let (address, generation) = unsafe { (read_once(&entry.address), read_once(&entry.generation)) };
        if address == walk.at && generation == walk.generation {
            return Some(entry.rule);
        }
        if address == 0 {
            return None;
        }
    }
    None
}

#[inline(always)]
unsafe fn read_once(word: &u64) -> u64 {
    // SAFETY: a valid reference.
    unsafe { core::ptr::read_volatile(word) }
}

#[inline(always)]
fn hashed(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

#[inline(always)]
fn id_of(hash: u64, frames: u32, end: u32) -> u64 {
    not_zero(mix(hash ^ (u64::from(frames) << 8 | u64::from(end))))
}

#[inline(always)]
fn not_zero(id: u64) -> u64 {
    if id == 0 { 1 } else { id }
}
