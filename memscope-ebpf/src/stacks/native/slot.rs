//! The workspace of a native stack's walk: a slot of map memory, which the verifier does not track.

use core::mem::offset_of;

use memscope_common::{SnapshotRecord, StackRecord, stack::MAX_FRAMES, unwind::STACK_BYTES};

use crate::{
    thread::Thread,
    verifier::{element_mut, masked},
};

/// Bytes of a page.
pub(super) const PAGE: u32 = 4096;
/// A power of two above [`STACK_BYTES`] and a page, so that a mask bounds every index.
const ROOM: usize = 1 << 16;
const _: () = assert!(STACK_BYTES as usize + PAGE as usize <= ROOM);
/// Words of a stack's copy: a page more than a masked index reaches.
const WORDS: usize = (ROOM + PAGE as usize) / 8;

/// A power of two, so that a mask bounds every index.
const FRAMES: usize = 1024;
const _: () = assert!(MAX_FRAMES < FRAMES);

/// A slot.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) walk: Walk,
    /// The stack's record, with its frames.
    pub(super) record: StackRecord,
    pub(super) frames: [u64; FRAMES],
    /// The snapshot's record, with the stack's copy.
    pub(super) snapshot: SnapshotRecord,
    /// The stack, from the stack pointer on.
    pub(super) stack: [u64; WORDS],
}
const _: () = assert!(offset_of!(Slot, frames) == offset_of!(Slot, record) + size_of::<StackRecord>());
const _: () = assert!(offset_of!(Slot, stack) == offset_of!(Slot, snapshot) + size_of::<SnapshotRecord>());

/// A locked slot, and the thread that is walked in it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) slot: *mut Slot,
    pub(super) thread: *const Thread,
}

impl Place {
    /// Eight bytes of the copy. The offset wraps, since the verifier does not know how much was copied.
    ///
    /// # Safety
    ///
    /// The slot is a live map value.
    #[inline(always)]
    pub(super) unsafe fn copied(self, offset: u64) -> u64 {
        let offset = masked::<0xfff8>(offset) as usize;
        // SAFETY: within the slot.
        unsafe { (&raw const (*self.slot).stack).cast::<u64>().byte_add(offset).read() }
    }

    /// The frame with this number, which wraps.
    ///
    /// # Safety
    ///
    /// The slot is a live map value, and nothing else refers to its frames.
    #[inline(always)]
    pub(super) unsafe fn frame<'a>(self, number: u64) -> &'a mut u64 {
        // SAFETY: the caller's.
        element_mut(unsafe { &mut (*self.slot).frames }, number)
    }
}

/// The state of a walk.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Walk {
    pub(super) generation: u64,
    /// The generation, mixed.
    pub(super) salt: u64,
    /// First address of the copy.
    pub(super) base: u64,
    /// Bytes copied.
    pub(super) have: u64,
    /// Address that needs the next rule.
    pub(super) at: u64,
    pub(super) stack_pointer: u64,
    pub(super) frame_pointer: u64,
    /// 0 is unknown.
    pub(super) link_register: u64,
    pub(super) hash: u64,
    /// Return address that replaces the one in memory; 0 is none. Not next to another field that
    /// begins as 0: the compiler would call `memset` for both, a loop over bytes.
    pub(super) instead: u64,
    pub(super) frames: u32,
    /// Open calls not passed yet.
    pub(super) calls: u32,
    /// A [`memscope_common::StackEnd`].
    pub(super) end: u32,
    pub(super) flags: u32,
}

/// In [`Walk::flags`]: no more can be copied.
pub(super) const COPIED: u32 = 1;
/// The frame pointer is unknown.
pub(super) const FP_LOST: u32 = 1 << 1;
/// A rule is missing.
pub(super) const ASK: u32 = 1 << 2;

/// Adds a word to a hash.
#[inline(always)]
pub(super) fn hashed(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}
