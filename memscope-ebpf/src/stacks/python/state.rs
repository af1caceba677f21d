//! The interpreter's state of the current thread, and its innermost frame.

use memscope_common::{
    PythonLayout, StackEnd,
    python::{NONE, STATE_BYTES},
};

use super::scratch::Scratch;
use crate::{
    current, kernel_memory,
    settings::setting,
    user_memory::{self, copy_bytes},
};

/// Finds the thread's innermost frame.
#[inline(always)]
pub(super) fn find_frame(scratch: &mut Scratch, layout: &PythonLayout) -> Result<(), StackEnd> {
    scratch.next = 0;
    let pointer = thread_pointer()?;
    let state = state_at(layout, pointer)?;
    // SAFETY: the state has more room.
    if !unsafe { copy_bytes((&raw mut scratch.state).cast(), STATE_BYTES as u64, state) } {
        return Err(StackEnd::Fault);
    }
    if scratch.state_word(layout.thread_id) != pointer.wrapping_add(i64::from(layout.self_at) as u64) {
        return Err(StackEnd::BadState);
    }
    scratch.next = frame(scratch, layout)?;
    Ok(())
}

/// The address of the innermost frame; 0 if the thread runs no Python code.
#[inline(always)]
fn frame(scratch: &Scratch, layout: &PythonLayout) -> Result<u64, StackEnd> {
    let frame = scratch.state_word(layout.frame);
    if layout.current_frame == NONE || frame == 0 {
        return Ok(frame);
    }
    word(frame.wrapping_add(layout.current_frame.into()))
}

/// The thread pointer.
#[inline(always)]
fn thread_pointer() -> Result<u64, StackEnd> {
    let at = current::task() as u64 + u64::from(setting!(thread_pointer));
    kernel_memory::word(at).ok_or(StackEnd::Fault)
}

/// The address of the thread's state, a thread-specific value.
#[inline(always)]
fn state_at(layout: &PythonLayout, pointer: u64) -> Result<u64, StackEnd> {
    let block = word(pointer.wrapping_add(i64::from(layout.block_at) as u64))?;
    if block == 0 {
        return Err(StackEnd::NotPython);
    }
    match word(block.wrapping_add(layout.value_at.into()))? {
        0 => Err(StackEnd::NotPython),
        state => Ok(state),
    }
}

/// Eight bytes of the program.
#[inline(always)]
fn word(from: u64) -> Result<u64, StackEnd> {
    user_memory::word(from).ok_or(StackEnd::Fault)
}
