//! The walk over a copy of the stack, from a frame to its caller by the rule for its address.

use core::ffi::c_long;

use memscope_common::{
    StackEnd,
    unwind::{
        LINK_BEFORE_RA, RULE_CFA_STORED, RULE_END, RULE_FP, RULE_FP_AT_REGISTER, RULE_FP_LOST, RULE_FP_SAVED,
        RULE_LINK_SAVED, RULE_NONE, RULE_RA_AT_REGISTER, RULE_RA_SAVED, RULE_SIGNAL, RULE_SP, Rule, may_be_trampoline,
        without_signature,
    },
};

use super::{
    copy::{Stop, read},
    plain, rules,
    slot::{ASK, FP_LOST, Place, Walk, hashed},
};
use crate::{settings::setting, thread::Frame, verifier::element};

/// One step: to a caller's frame, or a preparation for it. Returns 1 at the end.
pub(super) unsafe extern "C" fn step(_number: u64, place: *const Place) -> c_long {
    // SAFETY: the loop's own.
    let place = unsafe { *place };
    // SAFETY: a live map value, locked; nothing else refers to this part of it.
    let walk = unsafe { &mut (*place.slot).walk };
    if setting!(exchanges) != 0 && plain::pass(place, walk) {
        return 0;
    }
    let Err(Stop::End(end)) = careful_step(place, walk) else { return 0 };
    walk.end = end as u32;
    1
}

/// A step that takes every kind of rule into account.
#[inline(always)]
fn careful_step(place: Place, walk: &mut Walk) -> Result<(), Stop> {
    let rule = rule(walk)?;
    let register = register(walk, rule)?;
    let cfa = frame_address(place, walk, rule, register)?;
    let from = if rule.flags & RULE_RA_AT_REGISTER != 0 { register } else { cfa };
    let ra_at = from.wrapping_add(rule.ra as u64);
    let address = return_address(place, walk, rule, ra_at)?;
    if may_be_trampoline(address) && walk.calls != 0 {
        pass_call(place, walk, ra_at, cfa);
        return Err(Stop::Again);
    }
    let link_register = link_register(place, walk, rule, ra_at)?;
    restore_frame_pointer(place, walk, rule, register, cfa)?;
    if address == 0 {
        return Err(Stop::End(StackEnd::Root));
    }
    walk.stack_pointer = cfa;
    walk.link_register = link_register;
    walk.instead = 0;
    walk.at = if rule.flags & RULE_SIGNAL != 0 { address } else { address - 1 };
    push(place, walk, address);
    Ok(())
}

/// The rule for the address that is next, if it leads to a caller.
#[inline(always)]
fn rule(walk: &mut Walk) -> Result<Rule, Stop> {
    let Some(rule) = rules::find(walk) else { return Err(missing(walk)) };
    if rule.kind == RULE_END {
        return Err(Stop::End(StackEnd::Root));
    }
    if walk.frames >= setting!(native_depth) {
        return Err(Stop::End(StackEnd::Depth));
    }
    if rule.kind == RULE_NONE {
        return Err(Stop::End(StackEnd::NoUnwindInfo));
    }
    Ok(rule)
}

/// The walk ends at a missing rule.
#[inline(always)]
fn missing(walk: &mut Walk) -> Stop {
    walk.flags |= ASK;
    Stop::End(StackEnd::NoRule)
}

/// The register that the rule starts from.
#[inline(always)]
fn register(walk: &mut Walk, rule: Rule) -> Result<u64, Stop> {
    if rule.kind == RULE_SP {
        Ok(walk.stack_pointer)
    } else if rule.kind == RULE_FP && walk.flags & FP_LOST == 0 {
        Ok(walk.frame_pointer)
    } else {
        Err(missing(walk))
    }
}

/// The canonical frame address.
#[inline(always)]
fn frame_address(place: Place, walk: &mut Walk, rule: Rule, register: u64) -> Result<u64, Stop> {
    let mut cfa = register.wrapping_add(rule.cfa as u64);
    if rule.flags & RULE_CFA_STORED != 0 {
        cfa = read(place, walk, cfa)?;
    }
    // Only a frame that calls nothing may take no room.
    let least = walk.stack_pointer.wrapping_add((rule.flags & RULE_RA_SAVED).into());
    if cfa < least || !cfa.is_multiple_of(8) {
        return Err(Stop::End(StackEnd::NoProgress));
    }
    Ok(cfa)
}

/// The return address.
#[inline(always)]
fn return_address(place: Place, walk: &mut Walk, rule: Rule, ra_at: u64) -> Result<u64, Stop> {
    if walk.instead != 0 {
        return Ok(walk.instead);
    }
    if rule.flags & RULE_RA_SAVED != 0 {
        return read(place, walk, ra_at).map(without_signature);
    }
    if walk.link_register == 0 {
        return Err(Stop::End(StackEnd::NoUnwindInfo));
    }
    Ok(walk.link_register)
}

/// The caller's link register; 0 if unknown. Saved only by a signal: the interrupted function may
/// have called nothing.
#[inline(always)]
fn link_register(place: Place, walk: &mut Walk, rule: Rule, ra_at: u64) -> Result<u64, Stop> {
    if cfg!(bpf_target_arch = "aarch64") && rule.flags & RULE_LINK_SAVED != 0 {
        return read(place, walk, ra_at.wrapping_sub(LINK_BEFORE_RA)).map(without_signature);
    }
    Ok(0)
}

/// Restores the caller's frame pointer.
#[inline(always)]
fn restore_frame_pointer(place: Place, walk: &mut Walk, rule: Rule, register: u64, cfa: u64) -> Result<(), Stop> {
    if rule.flags & RULE_FP_SAVED != 0 {
        let from = if rule.flags & RULE_FP_AT_REGISTER != 0 { register } else { cfa };
        walk.frame_pointer = read(place, walk, from.wrapping_add(rule.fp as u64))?;
    }
    if rule.flags & RULE_FP_LOST != 0 {
        walk.flags |= FP_LOST;
    } else if rule.flags & RULE_FP_SAVED != 0 {
        walk.flags &= !FP_LOST;
    }
    Ok(())
}

/// Adds a frame.
#[inline(always)]
fn push(place: Place, walk: &mut Walk, address: u64) {
    // SAFETY: a live map value.
    unsafe { *place.frame(walk.frames.into()) = address };
    walk.frames += 1;
    walk.hash = hashed(walk.hash, address);
}

/// Passes the innermost open call that has not been passed. If it is the frame's, its return
/// address replaces the frame's.
#[inline(always)]
fn pass_call(place: Place, walk: &mut Walk, ra_at: u64, cfa: u64) {
    walk.calls -= 1;
    // SAFETY: a live map value.
    let Frame { stack_pointer, return_address, .. } = *element(unsafe { &(*place.thread).frames }, walk.calls.into());
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
