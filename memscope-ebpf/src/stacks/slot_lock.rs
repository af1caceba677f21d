//! Room for what does not fit onto the stack, one walk at a time.
//!
//! Memory of a processor is not enough: the program may be interrupted, and another thread's program run on the same processor. So
//! there are a few slots for each, and a walk takes one that nobody has. Where the kernel has compare-and-exchange (5.12), that
//! is one instruction; else an insertion into a hash map that fails if the key is there.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    maps::{Array, HashMap},
};

use crate::{calls::exchange, maps::setting};

/// Who has a slot: 1 or 0. Of its own on a line of the cache, since others are written by other processors.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Owner(u64);

/// Slots that can be taken, by number.
pub(super) struct Claims {
    pub(super) owners: &'static Array<Owner>,
    /// Where there is no compare-and-exchange: those that are taken.
    pub(super) taken: &'static HashMap<u32, u32>,
}

impl Claims {
    /// Takes a slot, unless somebody has it. It must be given back on every path. `EXCHANGES`: the program may have the instruction,
    /// which kernels before 5.12 refuse, even where it is never run.
    #[inline(always)]
    pub(super) fn take<const EXCHANGES: bool>(&self, slot: u32) -> bool {
        if EXCHANGES && setting!(exchanges) != 0 {
            return self.owners.get_ptr_mut(slot).is_some_and(|owner| exchange(owner.cast(), 0, 1) == 0);
        }
        self.taken.insert(&slot, &1, BPF_NOEXIST.into()).is_ok()
    }

    /// Gives a slot back.
    #[inline(always)]
    pub(super) fn give_back<const EXCHANGES: bool>(&self, slot: u32) {
        if EXCHANGES && setting!(exchanges) != 0 {
            if let Some(owner) = self.owners.get_ptr_mut(slot) {
                // Not a plain write: what was written in the slot has to come before it.
                exchange(owner.cast(), 1, 0);
            }
            return;
        }
        let _ = self.taken.remove(&slot);
    }
}
