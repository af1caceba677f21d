//! Generations of mappings: user space keeps the mappings of a process under these numbers.

use memscope_common::config::{PROCESS_SHARES, ProcessState};

use crate::current;

/// States of a dynamic loader (`r_debug.r_state`).
pub(crate) mod loader {
    /// The mappings are complete.
    pub(crate) const CONSISTENT: u32 = 0;
    /// It is about to map.
    pub(crate) const ADDING: u32 = 1;
    /// It is about to unmap, and reports once more when the mappings are complete.
    pub(crate) const DELETING: u32 = 2;
    /// Unreadable.
    pub(crate) const UNKNOWN: u32 = 255;
}

/// Begins a new generation if the loader's change may give addresses another meaning.
///
/// Mapping alone invalidates no address, but two processes of one generation may map different
/// files at the same address.
#[inline(always)]
pub(crate) fn change(process: &mut ProcessState, state: u32) {
    let shares = process.flags & PROCESS_SHARES != 0;
    if state == loader::CONSISTENT && process.unmapping == 0 && !shares {
        return;
    }
    process.flags &= !PROCESS_SHARES;
    process.unmapping = (state == loader::DELETING).into();
    process.generation = new_generation();
}

/// Begins a new generation for a process that runs another program.
#[inline(always)]
pub(crate) fn replace(process: &mut ProcessState) {
    process.generation = new_generation();
    process.flags &= !PROCESS_SHARES;
    process.unmapping = 0;
}

/// A number that no process has had: the time, and the process, since two may change at once.
#[inline(always)]
fn new_generation() -> u64 {
    const PROCESS_SHIFT: u32 = 40;
    let (now_ns, tgid) = (current::now_ns(), current::tgid());
    now_ns ^ u64::from(tgid) << PROCESS_SHIFT
}
