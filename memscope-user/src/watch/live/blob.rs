//! The signal handler that a watched process gets, and the memory that we share with it.
//!
//! It begins with code, which the process may run and not write; then come a head and, for each thread in the handler
//! at the same time, a slot: our request, a stack, and room for bytes. The kernel saves and restores all registers
//! around a handler; this one keeps `errno`, works on the slot's own stack (the thread's may be small), and makes only
//! the calls that we request. It does not check the sender of the signal: the kernel keeps one of two, and its data may
//! be of the other. We know the last place from which each thread was sent, and request nothing of one that has
//! reported that place before. A thread that waits for us for two seconds without a sign of life switches all of it
//! off, and continues.
//!
//! The code is in `arch`, and data for us: it is never run in this process.

use std::mem::offset_of;

use super::arch::CODE_BYTES;
use crate::os::memory::Memory;

/// Name of the memory's file.
pub(super) const MEMORY_NAME: &str = "memscope-watch";
/// Most threads in the handler at once; others pass through it.
pub(super) const SLOTS: usize = 32;
/// Offset of the head: on a page of its own, since the process cannot write the code's.
pub(super) const HEAD_AT: usize = CODE_BYTES;
/// Where the slots are.
pub(super) const SLOTS_AT: usize = 2 * CODE_BYTES;
/// The request to the process, in front of a slot's stack.
const SLOT_BYTES: usize = 4096;
const STACK_BYTES: usize = 256 << 10;
/// Bytes that a slot has room for.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// Where a slot's buffer is in it.
pub(super) const BUFFER_AT: usize = SLOT_BYTES + STACK_BYTES;
/// From one slot to the next.
pub(super) const STRIDE: usize = BUFFER_AT + BUFFER_BYTES;
/// Size of the whole.
pub(super) const TOTAL_BYTES: usize = SLOTS_AT + SLOTS * STRIDE;
/// Most calls requested at once.
pub(super) const CALLS: usize = 8;

/// Shared by all slots.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// 0: the handler returns at once.
    pub(super) on: u32,
    /// Rung when a thread has a report.
    pub(super) bell: u32,
    /// Threads that found no slot.
    pub(super) skipped: u32,
    /// A thread has waited for us in vain.
    pub(super) given_up: u32,
    /// Changes while we live.
    pub(super) alive: u32,
    reserved: u32,
    /// `__errno_location` of the process.
    pub(super) errno_function: u64,
    /// `struct timespec`: a thread's wait before it checks whether we live.
    pub(super) patience: [u64; 2],
    /// The action to set for the signal: `struct sigaction` as the kernel takes it.
    pub(super) action: Action,
    /// The old action.
    pub(super) old_action: Action,
}

/// `struct sigaction` as the kernel takes it: the same on x86-64 and aarch64.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Action {
    /// Address of the handler.
    pub(super) handler: u64,
    /// `SA_*`.
    pub(super) flags: u64,
    /// Where handlers return to.
    pub(super) restorer: u64,
    /// Signals blocked meanwhile.
    pub(super) mask: u64,
}

/// One thread in the handler.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// Its number as it knows it; 0: free.
    pub(super) owner: u32,
    /// Number of the thread's reports.
    pub(super) done: u32,
    /// The last of those that we have answered.
    pub(super) order: u32,
    /// Number of requested calls; 0: continue with the program.
    pub(super) count: u32,
    /// Stack pointer where it was interrupted.
    pub(super) stack_pointer: u64,
    /// Instruction pointer there.
    pub(super) instruction_pointer: u64,
    pub(super) errno: u32,
    reserved: [u32; 7],
    /// The calls. The first that returns anything but 0 is the last one made.
    pub(super) calls: [Call; CALLS],
}

/// A call for the thread to make.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Call {
    /// Address of the function.
    pub(super) function: u64,
    /// Its arguments.
    pub(super) args: [u64; 5],
    /// The returned value; only the lower half counts.
    pub(super) returned: u64,
    reserved: u64,
}

impl Call {
    /// A call that has not been made.
    #[must_use]
    pub(super) const fn new(function: u64, args: [u64; 5]) -> Self {
        /// No function returns this: a call that was not made never looks like a successful one.
        const NOT_MADE: u64 = 0x7fff_fffe;
        Self { function, args, returned: NOT_MADE, reserved: 0 }
    }
}

/// [`Head::alive`] of the memory that a process has at `start`.
pub(super) fn alive(memory: &Memory, start: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    memory.read(start + (HEAD_AT + offset_of!(Head, alive)) as u64, &mut bytes)?;
    Some(u32::from_ne_bytes(bytes))
}

const _: () = assert!(size_of::<Head>() <= CODE_BYTES && size_of::<Slot>() <= SLOT_BYTES);
const _: () = assert!(offset_of!(Call, returned) == 48 && size_of::<Call>() == 64);

/// The code, and where in it the function for system calls is; the handler is its beginning.
#[must_use]
pub(super) fn code() -> (&'static [u8], u64) {
    unsafe extern "C" {
        static memscope_watch_begin: u8;
        static memscope_watch_system_call: u8;
        static memscope_watch_end: u8;
    }
    let (begin, end) = (&raw const memscope_watch_begin, &raw const memscope_watch_end);
    let system_call = (&raw const memscope_watch_system_call).addr() - begin.addr();
    // SAFETY: the bytes between two labels of one section.
    (unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }, system_call as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_fits_into_its_page() {
        let (code, system_call) = code();
        assert!(code.len() <= CODE_BYTES && system_call < code.len() as u64, "{} bytes", code.len());
        // `endbr64`, or `bti c`: an indirect call may lead here.
        let pad = if cfg!(target_arch = "x86_64") { [0xf3, 0x0f, 0x1e, 0xfa] } else { [0x5f, 0x24, 0x03, 0xd5] };
        assert_eq!(code[..4], pad);
    }
}
