//! The workspace of a Python stack's walk: a slot of map memory, which the verifier does not track.

use core::ffi::c_void;

use memscope_common::{
    CodeRecord, PythonFrame, PythonLayout, StackRecord,
    python::{CODE_FROM, CODE_WORDS, FRAME_BYTES, STATE_BYTES, TEXT_WORDS},
    stack::MAX_FRAMES,
};

use crate::verifier::{bpf_loop, element};

/// Bytes of a stack's record as the verifier bounds it.
const STACK_ROOM: usize = 1 << 14;
const _: () = assert!(size_of::<StackRecord>() + MAX_FRAMES * size_of::<PythonFrame>() <= STACK_ROOM);
/// Bytes of a code object's texts and line table as the verifier bounds them.
const CODE_ROOM: usize = 1 << 13;
const _: () = assert!(size_of::<CodeRecord>() + 255 + 511 + 4095 <= CODE_ROOM);

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

// Powers of two, so that a mask bounds every index.
const FRAME_SLOTS: usize = 1024;
const KNOWN_SLOTS: usize = 512;
const STATE_SLOTS: usize = 32;
const WINDOW_WORDS: usize = 1024;
const CODE_SLOTS: usize = 32;
const _: () = assert!(
    STATE_BYTES <= 8 * STATE_SLOTS
        && FRAME_BYTES <= 127
        && PAGE as usize + 2 * 127 <= 8 * WINDOW_WORDS
        && CODE_WORDS <= CODE_SLOTS
);

/// A slot.
#[repr(C)]
pub(super) struct Scratch {
    /// The stack's record, with its frames.
    pub(super) stack: StackRecord,
    pub(super) frames: [PythonFrame; FRAME_SLOTS],
    /// Address of the next frame.
    pub(super) next: u64,
    /// Hash over the frames found.
    pub(super) hash: u64,
    /// Frames found.
    pub(super) count: u32,
    /// 1: a code object was not sent, so the stack is sent again.
    pub(super) unsent: u32,
    /// Address of the code object at hand.
    pub(super) pointer: u64,
    /// Walks made in this slot.
    pub(super) walks: u64,
    /// While this is the same, code objects are unchanged.
    pub(super) epoch: u64,
    /// The file name hashed last in this walk, and its hash.
    pub(super) file: u64,
    pub(super) file_hash: u64,
    /// Cached fingerprints of this epoch: programs run the same code again and again.
    pub(super) known: [Known; KNOWN_SLOTS],
    pub(super) fingerprint: u32,
    /// Most frames of this walk.
    pub(super) depth: u32,
    pub(super) code: [u64; CODE_SLOTS],
    pub(super) text: [u64; TEXT_WORDS],
    pub(super) state: [u64; STATE_SLOTS],
    /// Memory of the program with the frame at hand, and maybe others.
    pub(super) window: [u64; WINDOW_WORDS],
    /// The window's address.
    pub(super) window_from: u64,
    /// The window's bytes.
    pub(super) window_len: u64,
    /// Index of the frame at hand in the window.
    pub(super) frame_at: u64,
    /// The text or line table copied last.
    pub(super) part: Part,
    /// A code object's record, with its texts and line table.
    pub(super) record: CodeRecord,
    pub(super) bytes: [u8; CODE_ROOM],
}

/// A copied text or line table.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) len: u64,
    /// Bytes per character.
    pub(super) kind: u8,
    /// 1: it is not whole.
    pub(super) cut: u8,
}

/// The fingerprint of a code object.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) code: u64,
    pub(super) epoch: u64,
    pub(super) fingerprint: u64,
}

impl Scratch {
    /// Eight bytes of the thread's state, by their offset in it.
    #[inline(always)]
    pub(super) fn state_word(&self, offset: u16) -> u64 {
        *element(&self.state, (offset >> 3).into())
    }

    /// Eight bytes of the frame at hand, by their offset in it.
    #[inline(always)]
    pub(super) fn frame_word(&self, offset: u16) -> u64 {
        *element(&self.window, self.frame_at + u64::from(offset >> 3))
    }

    /// One byte of the frame at hand, by its offset in it.
    #[inline(always)]
    pub(super) fn frame_byte(&self, offset: u16) -> u8 {
        (self.frame_word(offset) >> ((offset & 7) * 8)) as u8
    }

    /// Eight bytes of the code object at hand, by their offset in it.
    #[inline(always)]
    pub(super) fn code_word(&self, offset: u16) -> u64 {
        *element(&self.code, (offset.wrapping_sub(CODE_FROM) >> 3).into())
    }
}

/// What the steps of a walk share. The pointers never change.
#[repr(C)]
pub(super) struct Walk {
    pub(super) ctx: *mut c_void,
    pub(super) scratch: *mut Scratch,
    pub(super) layout: *const PythonLayout,
    pub(super) row: u16,
}

/// One step of a walk. Returns 1 if it was the last.
pub(super) type Step = unsafe extern "C" fn(u32, *mut Walk) -> u64;

/// Calls `step` until it returns 1, at most `times` times.
#[inline(always)]
pub(super) fn repeat(times: u32, step: Step, walk: &mut Walk) {
    // SAFETY: the callback takes a number and a walk, which outlives the loop.
    unsafe { bpf_loop(times.into(), step as *mut c_void, (&raw mut *walk).cast()) };
}
