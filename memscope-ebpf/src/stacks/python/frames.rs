//! The walk along the interpreter's frames, innermost first.

use memscope_common::{
    PythonLayout, StackEnd,
    python::{LAYOUT_ENTRIES, NONE, OWNER_INTERPRETER, mix},
    stack::{FRAME_ENTRY, POINTER_TAGS},
};

use super::{
    code::identify,
    scratch::{PAGE, Scratch, Walk},
};
use crate::{
    user_memory::copy_bytes,
    verifier::{element_mut, masked},
};

/// Visits one frame. Returns 1 if it was the last.
#[inline(never)]
pub(super) unsafe extern "C" fn step(_: u32, walk: *mut Walk) -> u64 {
    // SAFETY: the loop's own; a locked slot, and a live map value.
    let (scratch, layout) = unsafe { (&mut *(*walk).scratch, &*(*walk).layout) };
    let Err(end) = visit(scratch, layout) else { return 0 };
    scratch.stack.end = end as u8;
    1
}

/// Visits one frame.
#[inline(always)]
fn visit(scratch: &mut Scratch, layout: &PythonLayout) -> Result<(), StackEnd> {
    let frame = scratch.next;
    if frame == 0 {
        return Err(StackEnd::Root);
    }
    if !bring_frame(scratch, layout, frame.wrapping_add(layout.frame_from.into())) {
        return Err(StackEnd::Fault);
    }
    scratch.next = scratch.frame_word(layout.back);
    if scratch.next == frame {
        return Err(StackEnd::NoProgress);
    }
    if layout.owner != NONE && scratch.frame_byte(layout.owner) >= OWNER_INTERPRETER {
        called_from_c(scratch);
        return Ok(());
    }
    if scratch.count >= scratch.depth {
        return Err(StackEnd::Depth);
    }
    let code = scratch.frame_word(layout.code) & !POINTER_TAGS;
    let last = last_instruction(scratch, layout, code);
    identify(scratch, layout, code)?;
    push(scratch, code, last);
    if is_entry(scratch, layout) {
        called_from_c(scratch);
    }
    Ok(())
}

/// The instruction that the frame at hand executes.
#[inline(always)]
fn last_instruction(scratch: &Scratch, layout: &PythonLayout, code: u64) -> u32 {
    let last = scratch.frame_word(layout.last);
    if layout.instructions == NONE {
        return last as u32;
    }
    last.wrapping_sub(code).wrapping_sub(layout.instructions.into()) as u32
}

/// Adds the frame at hand.
#[inline(always)]
fn push(scratch: &mut Scratch, code: u64, last_instruction: u32) {
    let fingerprint = scratch.fingerprint;
    scratch.hash = mix(mix(scratch.hash, code), u64::from(last_instruction) << 32 | u64::from(fingerprint));
    let slot = element_mut(&mut scratch.frames, scratch.count.into());
    slot.code = code;
    slot.last_instruction = last_instruction;
    slot.fingerprint = fingerprint;
    scratch.count += 1;
}

/// Whether the frame at hand was called from C.
#[inline(always)]
fn is_entry(scratch: &Scratch, layout: &PythonLayout) -> bool {
    if layout.entry == NONE {
        return layout.flags & LAYOUT_ENTRIES != 0;
    }
    scratch.frame_byte(layout.entry) != 0
}

/// Marks the last frame as called from C. Without a frame this is the last slot, which no frame
/// gets to.
#[inline(always)]
fn called_from_c(scratch: &mut Scratch) {
    element_mut(&mut scratch.frames, scratch.count.wrapping_sub(1).into()).code |= FRAME_ENTRY;
    scratch.hash = mix(scratch.hash, FRAME_ENTRY);
}

/// Brings a frame into the window. Returns whether it was readable.
///
/// Since 3.11 frames of nested calls are adjacent in memory, the callers first: reads the frame and
/// all of its page before it, where the next frames are.
#[inline(always)]
fn bring_frame(scratch: &mut Scratch, layout: &PythonLayout, from: u64) -> bool {
    let len = masked::<127>(layout.frame_len.into());
    let inside = from.wrapping_sub(scratch.window_from);
    if inside.is_multiple_of(8) && inside < scratch.window_len && inside + len <= scratch.window_len {
        scratch.frame_at = inside / 8;
        return true;
    }
    let before = before(layout, from);
    if bring(scratch, from - before, before + len) {
        scratch.frame_at = before / 8;
        return true;
    }
    scratch.frame_at = 0;
    before != 0 && bring(scratch, from, len)
}

/// Bytes to read before a frame. Before 3.11 each frame is an object of its own.
#[inline(always)]
fn before(layout: &PythonLayout, from: u64) -> u64 {
    if layout.instructions == NONE || !from.is_multiple_of(8) { 0 } else { from & (PAGE - 1) }
}

/// Reads memory into the window. Returns whether it was readable.
#[inline(always)]
fn bring(scratch: &mut Scratch, from: u64, len: u64) -> bool {
    scratch.window_from = from;
    scratch.window_len = len;
    // SAFETY: the window has room for what the mask allows.
    let read = unsafe { copy_bytes((&raw mut scratch.window).cast(), masked::<8191>(len), from) };
    if !read {
        scratch.window_len = 0;
    }
    read
}
