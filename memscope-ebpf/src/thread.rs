//! The state of a traced thread: the probed calls that it is inside of, and the record that it sends.

use memscope_common::{CallRecord, TextRecord, miss::MAX_DEPTH, row::REGISTER_ARGS};

use crate::verifier::{element, element_mut};

/// Registers that arguments are kept of; a power of two, so that a mask bounds every index.
pub(crate) const ARG_SLOTS: usize = 8;
const _: () = assert!(REGISTER_ARGS <= ARG_SLOTS);

/// A call that has not returned.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    /// Number of its row.
    pub(crate) row: u16,
    /// Bit of the row's group, if this call is the outermost of it.
    pub(crate) group: u16,
    /// 1: an inner call of a group, not reported.
    pub(crate) nested: u16,
    /// 1: its return is probed at the function's own return instructions.
    pub(crate) own: u16,
    /// Stack pointer at entry. A frame below the current one was left without a return.
    pub(crate) stack_pointer: u64,
    /// Return address, if a return probe has replaced it on the stack; else 0.
    pub(crate) return_address: u64,
    /// Arguments at entry.
    pub(crate) args: [u64; ARG_SLOTS],
}

/// A thread. Only its own programs use it, one at a time.
///
/// Records are built here and not on the BPF stack: the verifier tracks every byte of the stack
/// along every path and gives up, but does not track map memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Thread {
    /// In a slot of [`crate::thread_slots`]: its `pid_tgid`; 0 is a free slot.
    pub(crate) owner: u64,
    /// Frames in use.
    pub(crate) depth: u32,
    /// Bits of the groups that the thread is inside of.
    pub(crate) groups: u32,
    /// Row of the outermost call of [`memscope_common::row::GROUP_API`]; 0 is none.
    pub(crate) api: u32,
    /// Bytes sent since the last `bpf_ringbuf_query`.
    pub(crate) unasked: u32,
    /// 1: much of the ring waited at the last query.
    pub(crate) crowded: u64,
    /// End of the last copy of its stack.
    pub(crate) copied_to: u64,
    /// Arguments of the call being reported.
    pub(crate) args: [u64; ARG_SLOTS],
    /// The call being reported.
    pub(crate) call: CallRecord,
    /// The part of its text being reported.
    pub(crate) text: TextRecord,
    /// Open calls, outermost first.
    pub(crate) frames: [Frame; MAX_DEPTH],
}

impl Thread {
    /// An argument of the call being reported.
    #[inline(always)]
    pub(crate) fn arg(&self, arg: u8) -> u64 {
        *element(&self.args, arg.into())
    }

    /// The frame at this depth.
    #[inline(always)]
    pub(crate) fn frame(&mut self, depth: u32) -> &mut Frame {
        element_mut(&mut self.frames, depth.into())
    }
}
