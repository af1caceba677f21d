//! A pool of scratch buffers, locked for one stack walk each.
//!
//! Per-CPU memory is not enough: a program can be interrupted, and another thread's program run on
//! the same processor. The lock is one compare-and-exchange where the kernel has it (5.12); else an
//! insertion into a hash map, which fails if the key exists.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    maps::{Array, HashMap},
};

use crate::{settings::setting, verifier::compare_exchange};

/// A lock: 1 is locked. On a cache line of its own, since other processors write its neighbours.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Lock(u64);

/// The locks of a pool, by slot number.
pub(super) struct SlotLocks {
    pub(super) locks: &'static Array<Lock>,
    /// Locked slots, on kernels without compare-and-exchange.
    pub(super) locked: &'static HashMap<u32, u32>,
}

impl SlotLocks {
    /// Locks a slot. Returns whether it was free. Release it on every path.
    ///
    /// `EXCHANGES`: the program may contain [`compare_exchange`].
    #[inline(always)]
    pub(super) fn acquire<const EXCHANGES: bool>(&self, slot: u32) -> bool {
        if EXCHANGES && setting!(exchanges) != 0 {
            return self.locks.get_ptr_mut(slot).is_some_and(|lock| compare_exchange(lock.cast(), 0, 1) == 0);
        }
        self.locked.insert(&slot, &1, BPF_NOEXIST.into()).is_ok()
    }

    /// Unlocks a slot.
    #[inline(always)]
    pub(super) fn release<const EXCHANGES: bool>(&self, slot: u32) {
        if EXCHANGES && setting!(exchanges) != 0 {
            if let Some(lock) = self.locks.get_ptr_mut(slot) {
                // Not a plain write: writes to the slot have to come before it.
                compare_exchange(lock.cast(), 1, 0);
            }
            return;
        }
        let _ = self.locked.remove(&slot);
    }
}
