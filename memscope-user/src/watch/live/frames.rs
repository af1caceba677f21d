//! Chains of signal frames: `rt_sigreturn` restores them into a thread, whether we live or not. The layout of a frame
//! is in `arch`.

use super::arch::{self, Others, RED_ZONE, Registers};

/// The saved state of a thread.
#[derive(Clone)]
pub(super) struct Saved {
    pub(super) registers: Registers,
    pub(super) others: Others,
    pub(super) signal_mask: u64,
}

/// One frame: its parts, and the thread's stack pointer when it returns from a signal with it.
pub(super) struct Frame {
    pub(super) at: u64,
    pub(super) writes: Vec<(u64, Vec<u8>)>,
}

/// A chain of frames: bytes with their addresses, and the thread's first registers.
pub(super) struct Chain {
    pub(super) writes: Vec<(u64, Vec<u8>)>,
    pub(super) registers: Registers,
    /// Where the thread is when it has made both calls: stack pointer and instruction pointer.
    pub(super) reported: [u64; 2],
}

/// A system call.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemCall {
    pub(super) number: u64,
    pub(super) args: [u64; 6],
}

/// Room for a text, in front of the frames.
const TEXT_BYTES: u64 = 64;

/// First unused address below the thread's stack.
pub(super) const fn scratch(saved: &Saved) -> u64 {
    let [stack_pointer, _] = arch::place(&saved.registers);
    (stack_pointer - RED_ZONE - 256) & !63
}

/// The thread makes `call`, then `report`, and then continues from its saved state. Each step leads to the next by a
/// frame. `gadgets` are the addresses of code that makes a system call, and that returns from a signal.
pub(super) fn chain(saved: &Saved, call: SystemCall, report: SystemCall, gadgets: [u64; 2]) -> Option<Chain> {
    let Saved { registers, others, signal_mask } = saved;
    let top = scratch(saved).checked_sub(TEXT_BYTES)?;
    let home = arch::frame(top, registers, Some(others), *signal_mask, gadgets[1])?;
    let reporting = arch::calling(registers, report, gadgets, home.at);
    let next = arch::frame(home.at, &reporting, arch::LINKS_HAVE_OTHERS.then_some(others), *signal_mask, gadgets[1])?;
    let registers = arch::calling(registers, call, gadgets, next.at);
    let reported = [home.at, gadgets[0] + arch::SYSTEM_CALL_BYTES];
    Some(Chain { writes: home.writes.into_iter().chain(next.writes).collect(), registers, reported })
}
