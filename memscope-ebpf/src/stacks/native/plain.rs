//! The quick step of the walk: passes several plain frames, with the state in registers.
//!
//! Nearly all frames are plain: their rule is in its first place, and what it reads is copied.

use memscope_common::unwind::{RULE_FP, RULE_FP_SAVED, RULE_RA_SAVED, RULE_SP, may_be_trampoline, without_signature};

use super::{
    rules,
    slot::{FP_LOST, Place, Walk, hashed},
};
use crate::settings::setting;

/// Frames that one step passes.
const PLAIN: u32 = 8;
/// The flag that a plain rule has, ...
const NEEDED: u64 = RULE_RA_SAVED as u64;
/// ... and the one that it may have.
const ALLOWED: u64 = RULE_FP_SAVED as u64;

/// The state of a walk that plain frames change.
#[derive(Clone, Copy)]
struct State {
    at: u64,
    stack_pointer: u64,
    frame_pointer: u64,
    hash: u64,
    frames: u32,
}

/// The copied part of the stack.
#[derive(Clone, Copy)]
struct Copied {
    base: u64,
    have: u64,
}

/// Passes up to [`PLAIN`] plain frames. Returns whether there was one.
#[inline(always)]
pub(super) fn pass(place: Place, walk: &mut Walk) -> bool {
    if walk.flags & FP_LOST != 0 || walk.instead != 0 {
        return false;
    }
    let copied = Copied { base: walk.base, have: walk.have };
    let before = walk.frames;
    let depth = setting!(native_depth);
    let mut state = State {
        at: walk.at,
        stack_pointer: walk.stack_pointer,
        frame_pointer: walk.frame_pointer,
        hash: walk.hash,
        frames: before,
    };
    for _ in 0..PLAIN {
        if state.frames >= depth {
            break;
        }
        let Some(rule) = rules::find_first(walk, state.at) else { break };
        let Some(next) = caller(place, copied, state, rule) else { break };
        state = next;
    }
    if state.frames == before {
        return false;
    }
    keep(walk, state);
    true
}

/// Writes the state back.
#[inline(always)]
fn keep(walk: &mut Walk, state: State) {
    walk.at = state.at;
    walk.stack_pointer = state.stack_pointer;
    walk.frame_pointer = state.frame_pointer;
    walk.hash = state.hash;
    walk.frames = state.frames;
    walk.link_register = 0;
}

/// The state in the caller's frame, if the frame is plain.
#[inline(always)]
fn caller(place: Place, copied: Copied, state: State, [how, offsets]: [u64; 2]) -> Option<State> {
    let flags = how >> 8 & 255;
    let cfa = frame_address(state, how)?;
    let ra_at = cfa.wrapping_add(((offsets << 32) as i64 >> 32) as u64).wrapping_sub(copied.base);
    // As in the careful step: only a frame that calls nothing may take no room.
    if cfa <= state.stack_pointer || (cfa | ra_at) & 7 != 0 || ra_at >= copied.have {
        return None;
    }
    // SAFETY: a live map value.
    let caller = without_signature(unsafe { place.copied(ra_at) });
    if caller == 0 || may_be_trampoline(caller) {
        return None;
    }
    let mut frame_pointer = state.frame_pointer;
    if flags & ALLOWED != 0 {
        let fp_at = cfa.wrapping_add((offsets as i64 >> 32) as u64).wrapping_sub(copied.base);
        if fp_at & 7 != 0 || fp_at >= copied.have {
            return None;
        }
        // SAFETY: as above.
        frame_pointer = unsafe { place.copied(fp_at) };
    }
    // SAFETY: as above.
    unsafe { *place.frame(state.frames.into()) = caller };
    Some(State {
        at: caller - 1,
        stack_pointer: cfa,
        frame_pointer,
        hash: hashed(state.hash, caller),
        frames: state.frames + 1,
    })
}

/// The canonical frame address, if the rule is plain.
#[inline(always)]
fn frame_address(state: State, how: u64) -> Option<u64> {
    let (kind, flags) = (how & 255, how >> 8 & 255);
    let mut cfa = state.stack_pointer;
    if kind != RULE_SP.into() {
        if kind != RULE_FP.into() {
            return None;
        }
        cfa = state.frame_pointer;
    }
    if flags & !ALLOWED != NEEDED {
        return None;
    }
    Some(cfa.wrapping_add((how as i64 >> 32) as u64))
}
