//! The process filter: which processes are traced.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap},
};
use memscope_common::{
    ProbeRow,
    config::{CHANGES, INNER_CHANGES, MAX_REDUCED, OUTER_CHANGES, ProcessState},
    row::ROW_POOL_BLOCK,
};

use crate::{
    current,
    verifier::{add, read_once, write_once},
};

/// Traced processes, by tgid. Full: a child is counted, and not traced.
#[map]
pub(crate) static PROCESSES: HashMap<u32, ProcessState> = HashMap::with_max_entries(16384, 0);

/// Those of them without their calls about blocks of pools.
#[map]
static REDUCED: HashMap<u32, u32> = HashMap::with_max_entries(MAX_REDUCED, 0);

/// Changes of [`PROCESSES`] and [`REDUCED`], counted: those by user space, and those by programs.
#[map]
static PROCESS_CHANGES: Array<u64> = Array::with_max_entries(CHANGES, 0);

/// Cached lookups in [`PROCESSES`], by the lower bits of the tgid: see [`is_traced`].
#[map]
static PROCESSES_KNOWN: Array<u64> = Array::with_max_entries(KNOWN_PROCESSES, 0);

/// A power of two.
const KNOWN_PROCESSES: u32 = 4096;
/// PIDs fit in 22 bits (`PID_MAX_LIMIT`).
const PID_BITS: u32 = 22;
const TRACED_BIT: u64 = 1 << PID_BITS;
const REDUCED_BIT: u64 = TRACED_BIT << 1;

/// A thread of a traced process.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    /// `pid_tgid`.
    pub(crate) id: u64,
    how: u64,
}

impl Caller {
    /// Its process is traced without such calls.
    #[inline(always)]
    pub(crate) fn goes_without(self, row: &ProbeRow) -> bool {
        self.how & REDUCED_BIT != 0 && row.flags & ROW_POOL_BLOCK != 0
    }
}

/// The current thread, if its process is traced.
#[inline(always)]
pub(crate) fn traced_thread() -> Option<Caller> {
    let id = current::thread_id();
    let how = how_traced(current::tgid_of(id));
    (how & TRACED_BIT != 0).then_some(Caller { id, how })
}

/// The state of a traced process. Its threads and user space change it.
#[inline(always)]
pub(crate) fn state_of(tgid: u32) -> Option<*mut ProcessState> {
    PROCESSES.get_ptr_mut(&tgid)
}

/// Whether a process is traced.
#[inline(always)]
pub(crate) fn is_traced(tgid: u32) -> bool {
    how_traced(tgid) & TRACED_BIT != 0
}

/// Whether a process is traced, and reduced: `*_BIT` bits.
///
/// Caches the lookups, which dominate the cost for untraced processes. An entry is valid while the count of changes is the
/// one that it was made at.
#[inline(always)]
fn how_traced(tgid: u32) -> u64 {
    const HOW: u64 = TRACED_BIT | REDUCED_BIT;
    let Some(changes) = changes() else { return 0 };
    let question = changes << (PID_BITS + HOW.count_ones()) | u64::from(tgid);
    let Some(known) = PROCESSES_KNOWN.get_ptr_mut(tgid & (KNOWN_PROCESSES - 1)) else { return 0 };
    // SAFETY: a live map value.
    let answer = unsafe { read_once(known) };
    if answer & !HOW == question {
        return answer & HOW;
    }
    let traced = PROCESSES.get_ptr(&tgid).map_or(0, |_| TRACED_BIT);
    let reduced = REDUCED.get_ptr(&tgid).map_or(0, |_| REDUCED_BIT);
    // SAFETY: as above.
    unsafe { write_once(known, question | traced | reduced) };
    traced | reduced
}

/// A process is gone.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    let _ = PROCESSES.remove(&tgid);
    let _ = REDUCED.remove(&tgid);
    changed();
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
