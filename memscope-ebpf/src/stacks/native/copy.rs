//! The copy of a thread's stack: page by page, as far as the walk gets. Reading the program's
//! memory dominates the cost.

use memscope_common::{StackEnd, unwind::STACK_BYTES};

use super::slot::{COPIED, PAGE, Place, Walk};
use crate::{user_memory, verifier::masked};

/// Most bytes copied at once because the thread's last walk needed them.
const AT_ONCE: u64 = 16 << 10;
const _: () = assert!(AT_ONCE <= 0x7fff);

/// Why a step did not reach a caller.
pub(super) enum Stop {
    /// A page was copied, or a return address replaced: take the step again.
    Again,
    /// The walk ends.
    End(StackEnd),
}

/// Eight bytes of the stack.
#[inline(always)]
pub(super) fn read(place: Place, walk: &mut Walk, at: u64) -> Result<u64, Stop> {
    let offset = at.wrapping_sub(walk.base);
    if !offset.is_multiple_of(8) {
        return Err(Stop::End(StackEnd::Fault));
    }
    if offset < walk.have {
        // SAFETY: a live map value.
        return Ok(unsafe { place.copied(offset) });
    }
    if offset < STACK_BYTES.into() && walk.flags & COPIED == 0 {
        next_page(place, walk);
        return Err(Stop::Again);
    }
    user_memory::word(at).ok_or(Stop::End(StackEnd::Fault))
}

/// Copies up to where the thread's last copy ended, if that is near; else up to the end of the page.
#[inline(always)]
pub(super) fn first_pages(place: Place, walk: &mut Walk, last_end: u64) {
    let page = u64::from(PAGE) - (walk.base & u64::from(PAGE - 1));
    let again = last_end.wrapping_sub(walk.base);
    if again > page && again <= AT_ONCE && copy_first(place, walk, again) {
        return;
    }
    if !copy_first(place, walk, page) {
        walk.flags |= COPIED;
    }
}

/// Copies the first `len` bytes. Returns whether they were readable.
#[inline(always)]
fn copy_first(place: Place, walk: &mut Walk, len: u64) -> bool {
    let len = masked::<0x7fff>(len);
    // SAFETY: a live map value with more room.
    let read = unsafe { user_memory::copy_bytes((&raw mut (*place.slot).stack).cast(), len, walk.base) };
    if read {
        walk.have = len;
    }
    read
}

/// Copies the next page. Returns whether it was readable.
#[inline(always)]
pub(super) fn next_page(place: Place, walk: &mut Walk) -> bool {
    let have = masked::<0xffff>(walk.have) as usize;
    // SAFETY: a live map value with room for a page behind what the mask allows.
    let read = unsafe {
        let to = (&raw mut (*place.slot).stack).cast::<u8>().add(have);
        user_memory::copy_bytes(to.cast(), PAGE.into(), walk.base.wrapping_add(walk.have))
    };
    if read {
        walk.have += u64::from(PAGE);
    } else {
        walk.flags |= COPIED;
    }
    read
}
