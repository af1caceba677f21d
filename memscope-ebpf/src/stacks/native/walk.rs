//! The walk over a copy of the stack, by rules for single addresses.
//!
//! Nearly all frames are plain: the rule is where it is looked for first, and what it needs has been copied. Those are passed
//! several in a step, with all that is known of them in registers; whatever else there may be takes a careful step.

use core::{arch::asm, ffi::c_long, mem::offset_of};

use aya_ebpf::{macros::map, maps::Array};
use memscope_common::{
    SnapshotRecord, StackEnd, StackRecord,
    stack::MAX_FRAMES,
    unwind::{
        LINK_BEFORE_RA, RULE_CFA_STORED, RULE_END, RULE_FP, RULE_FP_AT_REGISTER, RULE_FP_LOST, RULE_FP_SAVED,
        RULE_LINK_SAVED, RULE_NONE, RULE_PROBES, RULE_RA_AT_REGISTER, RULE_RA_SAVED, RULE_SIGNAL, RULE_SP, RULES, Rule,
        RuleEntry, first_place, may_be_trampoline, without_signature,
    },
};

use super::copy::{Read, WORDS, copied, read};
use crate::{
    calls::bounded,
    maps::{Frame, Thread, setting},
};

/// Rules, written by user space through memory. It has no room unless stacks are taken.
#[map]
static UNWIND_RULES: Array<RuleEntry> = Array::with_max_entries(1, BPF_F_MMAPABLE);
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// A power of two, so that a mask bounds every index.
const FRAMES: usize = 1024;
const _: () = assert!(MAX_FRAMES < FRAMES);

/// Plain frames that are passed in one step.
const PLAIN: u32 = 8;

/// What a stack is walked in.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) walk: Walk,
    /// What is sent, and what follows it there.
    pub(super) record: StackRecord,
    pub(super) frames: [u64; FRAMES],
    /// As above.
    pub(super) snapshot: SnapshotRecord,
    /// The stack, from the stack pointer on.
    pub(super) stack: [u64; WORDS],
}
const _: () = assert!(offset_of!(Slot, frames) == offset_of!(Slot, record) + size_of::<StackRecord>());
const _: () = assert!(offset_of!(Slot, stack) == offset_of!(Slot, snapshot) + size_of::<SnapshotRecord>());

/// Where a walk has its things.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) slot: *mut Slot,
    pub(super) thread: *const Thread,
}

/// What the walk knows. In map memory, which the verifier does not follow.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Walk {
    pub(super) generation: u64,
    /// Mixed.
    pub(super) salt: u64,
    /// First address that is copied.
    pub(super) base: u64,
    /// Bytes that have been copied.
    pub(super) have: u64,
    /// Address that is looked up next.
    pub(super) at: u64,
    pub(super) stack_pointer: u64,
    pub(super) frame_pointer: u64,
    /// 0: not known.
    pub(super) link_register: u64,
    pub(super) hash: u64,
    /// Return address that stands for the one in memory; 0: none. Not beside another field that begins as 0: the compiler would
    /// call `memset` for both, which is a loop over bytes.
    pub(super) instead: u64,
    pub(super) frames: u32,
    /// In-flight calls that have not been passed yet.
    pub(super) calls: u32,
    pub(super) end: u32,
    pub(super) flags: u32,
}

/// In [`Walk::flags`]: no more can be copied.
pub(super) const COPIED: u32 = 1;
/// The frame pointer is not known.
const FP_LOST: u32 = 1 << 1;
/// A rule is missing.
pub(super) const ASK: u32 = 1 << 2;

/// One step of the walk: to a caller's frame, or to what is needed to get there. Returns 1 at the end.
pub(super) unsafe extern "C" fn step(_number: u64, place: *const Place) -> c_long {
    // SAFETY: what `in_slot` has handed over.
    let place = unsafe { *place };
    // SAFETY: as there.
    let walk = unsafe { &mut (*place.slot).walk };
    if setting!(exchanges) != 0 && pass_plain(place, walk) { 0 } else { careful_step(place, walk) }
}

/// Passes frames for which all is at hand, [`PLAIN`] at most. Returns whether there was one.
#[inline(always)]
fn pass_plain(place: Place, walk: &mut Walk) -> bool {
    /// Flags that a plain rule has, and that it may have.
    const NEEDED: u64 = RULE_RA_SAVED as u64;
    const ALLOWED: u64 = RULE_FP_SAVED as u64;
    if walk.flags & FP_LOST != 0 || walk.instead != 0 {
        return false;
    }
    let (base, have) = (walk.base, walk.have);
    let (mut at, mut sp, mut fp, mut hash) = (walk.at, walk.stack_pointer, walk.frame_pointer, walk.hash);
    let before = walk.frames;
    let depth = setting!(native_depth);
    let mut frames = before;
    for _ in 0..PLAIN {
        if frames >= depth {
            break;
        }
        let Some(entry) = UNWIND_RULES.get(first_place(at, walk.salt)) else { break };
        // SAFETY: a live map value.
        if unsafe { read_once(&entry.address) } != at || unsafe { read_once(&entry.generation) } != walk.generation {
            break;
        }
        // SAFETY: as above.
        let [how, from_there] = unsafe { words(entry) };
        let (kind, flags) = (how & 255, how >> 8 & 255);
        let mut cfa = sp;
        if kind != RULE_SP.into() {
            if kind != RULE_FP.into() {
                break;
            }
            cfa = fp;
        }
        if flags & !ALLOWED != NEEDED {
            break;
        }
        cfa = cfa.wrapping_add((how as i64 >> 32) as u64);
        let ra_at = cfa.wrapping_add(((from_there << 32) as i64 >> 32) as u64).wrapping_sub(base);
        // As in the careful step: only a frame that calls nobody may take no room.
        if cfa <= sp || (cfa | ra_at) & 7 != 0 || ra_at >= have {
            break;
        }
        // SAFETY: copied.
        let caller = without_signature(unsafe { copied(place, ra_at) });
        if caller == 0 || may_be_trampoline(caller) {
            break;
        }
        if flags & ALLOWED != 0 {
            let fp_at = cfa.wrapping_add((from_there as i64 >> 32) as u64).wrapping_sub(base);
            if fp_at & 7 != 0 || fp_at >= have {
                break;
            }
            // SAFETY: copied.
            fp = unsafe { copied(place, fp_at) };
        }
        sp = cfa;
        at = caller - 1;
        hash = hashed(hash, caller);
        // SAFETY: within a live map value.
        unsafe { frame_at(place.slot, frames.into()).write(caller) };
        frames += 1;
    }
    if frames == before {
        return false;
    }
    (walk.at, walk.stack_pointer, walk.frame_pointer, walk.hash) = (at, sp, fp, hash);
    walk.frames = frames;
    walk.link_register = 0;
    true
}

/// A rule as two words, so that it takes two loads. Volatile: user space writes the address last, so it has to be read first.
#[inline(always)]
unsafe fn words(entry: &RuleEntry) -> [u64; 2] {
    // SAFETY: sixteen bytes behind two words, so aligned to eight; every bit pattern is a number.
    unsafe { (&raw const *entry).cast::<[u64; 2]>().add(1).read_volatile() }
}
const _: () = assert!(offset_of!(RuleEntry, rule) == 16 && size_of::<Rule>() == 16);
const _: () = assert!(offset_of!(Rule, kind) == 0 && offset_of!(Rule, flags) == 1 && offset_of!(Rule, cfa) == 4);
const _: () = assert!(offset_of!(Rule, ra) == 8 && offset_of!(Rule, fp) == 12);

/// One step that takes everything into account. Returns 1 at the end.
#[inline(always)]
fn careful_step(place: Place, walk: &mut Walk) -> c_long {
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
pub(super) unsafe fn frame_at(slot: *mut Slot, mut number: u64) -> *mut u64 {
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

/// The hash over one word more.
#[inline(always)]
pub(super) fn hashed(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}
