//! The copy of a thread's stack: by the page, as far as a walk gets, since reading the program's memory is what costs time.

use core::{arch::asm, ffi::c_void};

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use memscope_common::unwind::STACK_BYTES;

use super::walk::{COPIED, Place, Walk};

/// Bytes of a page.
pub(super) const PIECE: u32 = 4096;
/// A power of two, more than [`STACK_BYTES`] and a piece, so that a mask bounds every index.
const ROOM: usize = 1 << 16;
const _: () = assert!(STACK_BYTES as usize + PIECE as usize <= ROOM);
/// Eight-byte words of a copy; a piece more than what a masked index reaches.
pub(super) const WORDS: usize = (ROOM + PIECE as usize) / 8;

/// Most bytes that are copied at once because the walk before has needed them.
const AT_ONCE: u64 = 16 << 10;

/// What reading gives.
pub(super) enum Read {
    Word(u64),
    /// A piece was copied; the step is to be taken anew.
    Again,
    Fault,
}

/// Eight bytes of the stack.
#[inline(always)]
pub(super) fn read(place: Place, walk: &mut Walk, at: u64) -> Read {
    let offset = at.wrapping_sub(walk.base);
    if !offset.is_multiple_of(8) {
        return Read::Fault;
    }
    if offset < walk.have {
        // SAFETY: copied.
        return Read::Word(unsafe { copied(place, offset) });
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

/// Eight bytes that have been copied; the offset is taken modulo what fits, since the verifier does not know how much that is.
///
/// # Safety
///
/// The slot of `place` is a live map value.
#[inline(always)]
pub(super) unsafe fn copied(place: Place, mut offset: u64) -> u64 {
    // SAFETY: changes a register.
    unsafe { asm!("{offset} &= 65528", offset = inout(reg) offset) };
    // SAFETY: within the slot.
    unsafe { (&raw const (*place.slot).stack).cast::<u64>().byte_add(offset as usize).read() }
}

/// Copies up to where the thread's last copy ended, if that is not far; else up to the end of the page.
#[inline(always)]
pub(super) fn first_piece(place: Place, walk: &mut Walk, last_end: u64) {
    let page = u64::from(PIECE) - (walk.base & u64::from(PIECE - 1));
    let again = last_end.wrapping_sub(walk.base);
    if again > page && again <= AT_ONCE && copy_first(place, walk, again) {
        return;
    }
    if !copy_first(place, walk, page) {
        walk.flags |= COPIED;
    }
}

/// Copies so many bytes. Returns whether it could.
#[inline(always)]
fn copy_first(place: Place, walk: &mut Walk, mut len: u64) -> bool {
    // SAFETY: changes a register.
    unsafe { asm!("{len} &= 32767", len = inout(reg) len) };
    // SAFETY: a live map value with more room; the helper checks the address.
    let result =
        unsafe { bpf_probe_read_user((&raw mut (*place.slot).stack).cast(), len as u32, walk.base as *const c_void) };
    if result == 0 {
        walk.have = len;
    }
    result == 0
}
const _: () = assert!(AT_ONCE <= 32767);

/// Copies one more piece. Returns whether there was one.
#[inline(always)]
pub(super) fn next_piece(place: Place, walk: &mut Walk) -> bool {
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
