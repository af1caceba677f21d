//! Finds the state of a thread.
//!
//! Where the kernel has compare-and-exchange (5.12), in one of a few slots given by the thread's
//! number: a lookup in a hash map costs a tenth of a whole program. Else, and for a thread that
//! finds its slots taken, in a hash map.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap},
};
use memscope_common::Miss;

use crate::{
    misses::count,
    settings::setting,
    thread::Thread,
    verifier::{compare_exchange, read_once, write_once},
};

/// Threads without a slot, by `pid_tgid`. Full: calls of further threads are counted, and not reported.
#[map]
static THREADS: HashMap<u64, Thread> = HashMap::with_max_entries(16384, 0);

/// Open-addressed slots. Sized by user space: a power of two.
#[map]
static THREAD_SLOTS: Array<Thread> = Array::with_max_entries(1, 0);

/// An empty [`Thread`], never written: too large for the BPF stack.
#[map]
static EMPTY_THREAD: Array<Thread> = Array::with_max_entries(1, 0);

/// Slots that one thread can have.
const SLOTS_PER_THREAD: u32 = 8;

/// The thread's state, added on first use.
///
/// `EXCHANGES`: the program may contain [`compare_exchange`].
#[inline(always)]
pub(crate) fn thread<const EXCHANGES: bool>(id: u64, row: u16) -> Option<&'static mut Thread> {
    let slots = EXCHANGES && setting!(thread_slots) != 0;
    if slots && let Some(slot) = slot_of(id) {
        return Some(own(slot));
    }
    if let Some(thread) = THREADS.get_ptr_mut(&id) {
        return Some(own(thread));
    }
    if slots && let Some(slot) = acquire_slot(id) {
        return Some(own(slot));
    }
    insert(id, row)
}

/// The state of the current thread.
#[inline(always)]
fn own(thread: *mut Thread) -> &'static mut Thread {
    // SAFETY: a live map value that only this thread's programs use.
    unsafe { &mut *thread }
}

/// Adds the thread to the hash map.
#[inline(always)]
fn insert(id: u64, row: u16) -> Option<&'static mut Thread> {
    let empty = EMPTY_THREAD.get(0)?;
    if THREADS.insert(&id, empty, 0).is_err() {
        count(row, Miss::ThreadsFull);
        return None;
    }
    THREADS.get_ptr_mut(&id).map(own)
}

/// One of the thread's slots.
///
/// Consecutive numbers are spread: threads of several processes, each numbered consecutively, would
/// take all of one another's.
#[inline(always)]
fn slot_at(id: u64, place: u32) -> Option<*mut Thread> {
    /// 2^32 divided by the golden ratio. The product's upper bits depend on all bits of the number.
    const SPREAD: u32 = 0x9e37_79b9;
    let first = (id as u32).wrapping_mul(SPREAD) >> 12;
    THREAD_SLOTS.get_ptr_mut(first.wrapping_add(place) & (setting!(thread_slots) - 1))
}

/// The thread that has a slot.
#[inline(always)]
fn owner(slot: *mut Thread) -> u64 {
    // SAFETY: a live map value.
    unsafe { read_once(&raw const (*slot).owner) }
}

/// The thread's slot, if it has one.
#[inline(always)]
fn slot_of(id: u64) -> Option<*mut Thread> {
    for place in 0..SLOTS_PER_THREAD {
        let slot = slot_at(id, place)?;
        if owner(slot) == id {
            return Some(slot);
        }
    }
    None
}

/// Takes a free slot for a thread that has none.
#[inline(always)]
fn acquire_slot(id: u64) -> Option<*mut Thread> {
    for place in 0..SLOTS_PER_THREAD {
        let slot = slot_at(id, place)?;
        // SAFETY: a field of a live map value.
        if owner(slot) == 0 && compare_exchange(unsafe { &raw mut (*slot).owner }, 0, id) == 0 {
            // SAFETY: only this thread's programs use it from now on.
            unsafe { ((*slot).depth, (*slot).groups, (*slot).api) = (0, 0, 0) };
            return Some(slot);
        }
    }
    None
}

/// Forgets a thread that ends or runs another program.
#[inline(always)]
pub(crate) fn forget(id: u64) {
    if setting!(thread_slots) != 0
        && let Some(slot) = slot_of(id)
    {
        // A plain write is enough: only the owner gives its slot back, after its last call.
        // SAFETY: a live map value.
        unsafe { write_once(&raw mut (*slot).owner, 0) };
        return;
    }
    let _ = THREADS.remove(&id);
}
