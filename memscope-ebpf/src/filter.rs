//! The process filter: which processes are traced.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap},
};
use memscope_common::config::{CHANGES, INNER_CHANGES, OUTER_CHANGES, ProcessState};

use crate::{
    current,
    verifier::{add, read_once, write_once},
};

/// Traced processes, by tgid. Full: a child is counted, and not traced.
#[map]
pub(crate) static PROCESSES: HashMap<u32, ProcessState> = HashMap::with_max_entries(16384, 0);

/// Changes of [`PROCESSES`], counted: those by user space, and those by programs.
#[map]
static PROCESS_CHANGES: Array<u64> = Array::with_max_entries(CHANGES, 0);

/// Cached lookups in [`PROCESSES`], by the lower bits of the tgid: see [`is_traced`].
#[map]
static PROCESSES_KNOWN: Array<u64> = Array::with_max_entries(KNOWN_PROCESSES, 0);

/// A power of two.
const KNOWN_PROCESSES: u32 = 4096;
/// PIDs fit in 22 bits (`PID_MAX_LIMIT`).
const PID_BITS: u32 = 22;
const TRACED: u64 = 1 << PID_BITS;

/// The current thread, if its process is traced.
#[inline(always)]
pub(crate) fn traced_thread() -> Option<u64> {
    let id = current::thread_id();
    is_traced(current::tgid_of(id)).then_some(id)
}

/// The state of a traced process. Its threads and user space change it.
#[inline(always)]
pub(crate) fn state_of(tgid: u32) -> Option<*mut ProcessState> {
    PROCESSES.get_ptr_mut(&tgid)
}

/// Whether a process is traced.
///
/// Caches the [`PROCESSES`] lookup, which dominates the cost for untraced processes. An entry is
/// valid while the count of changes is the one that it was made at.
#[inline(always)]
pub(crate) fn is_traced(tgid: u32) -> bool {
    let Some(changes) = changes() else { return false };
    let question = changes << (PID_BITS + 1) | u64::from(tgid);
    let Some(known) = PROCESSES_KNOWN.get_ptr_mut(tgid & (KNOWN_PROCESSES - 1)) else { return false };
    // SAFETY: a live map value.
    let answer = unsafe { read_once(known) };
    if answer & !TRACED == question {
        return answer & TRACED != 0;
    }
    let traced = PROCESSES.get_ptr(&tgid).is_some();
    // SAFETY: as above.
    unsafe { write_once(known, question | if traced { TRACED } else { 0 }) };
    traced
}

/// The count of changes. Read before the lookup: a change in between then outdates the entry.
#[inline(always)]
fn changes() -> Option<u64> {
    let (outer, inner) = (PROCESS_CHANGES.get(OUTER_CHANGES)?, PROCESS_CHANGES.get(INNER_CHANGES)?);
    // SAFETY: live map values.
    Some(unsafe { read_once(outer) + read_once(inner) })
}

/// Counts a change. The process it concerns cannot ask meanwhile: it is being made, or is gone.
#[inline(always)]
pub(crate) fn changed() {
    if let Some(changes) = PROCESS_CHANGES.get_ptr_mut(INNER_CHANGES) {
        add(changes, 1);
    }
}
