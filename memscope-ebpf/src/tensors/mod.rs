//! Places with arguments that lead to tensors: copies parts of them.
//!
//! With maps of their own, empty unless such rows are used: these records are large.

mod array;
mod copy;
mod list;
mod record;

use core::ffi::c_void;

use aya_ebpf::bindings::pt_regs;
use memscope_common::{Miss, ProbeRow, When};

pub(crate) use self::{array::on_hit as on_array_hit, record::forget};
use self::{
    list::take_values,
    record::{Scratch, begin, finish, known_scratch, scratch, take_stacks},
};
use crate::{current, filter, misses::count, regs, rows::row_of, watch};

/// The probed place is hit.
#[inline(always)]
pub(crate) fn on_hit(ctx: *mut c_void, cookie: u64) {
    let id = current::thread_id();
    let tgid = current::tgid_of(id);
    let Some(state) = filter::state_of(tgid) else { return };
    let number = cookie as u16;
    let Some(row) = row_of(number.into()) else { return };
    let regs = regs::of(ctx);
    let stack_pointer = regs::stack_pointer(regs);
    if watch::is_own_call(tgid, stack_pointer) {
        return;
    }
    if row.when == When::ObjectsCatch as u8 {
        return catch(id, number, stack_pointer);
    }
    let Some(scratch) = scratch(id, number) else { return };
    if !opens_or_ends(scratch, row, number, stack_pointer) {
        return;
    }
    save_slots(scratch, regs, row, id, stack_pointer);
    begin(&mut scratch.record, cookie);
    // SAFETY: a live map value; a change meanwhile does no harm.
    take_stacks(ctx, &mut scratch.record, unsafe { (*state).generation }, row, number);
    take_values(scratch, row, number, stack_pointer);
    finish(ctx, &mut scratch.record, number);
}

/// A handler has begun: the exception has left an open call that was made by the handler's frame,
/// or deeper on the stack. At their entries, the frame's calls have the stack pointer that the
/// handler begins with.
#[inline(always)]
fn catch(id: u64, number: u16, stack_pointer: u64) {
    let Some(scratch) = known_scratch(id) else { return };
    if scratch.open != 0 && scratch.open <= stack_pointer {
        scratch.open = 0;
        count(number, Miss::Thrown);
    }
}

/// Opens or closes the call. Returns whether it is an outermost one.
#[inline(always)]
fn opens_or_ends(scratch: &mut Scratch, row: &ProbeRow, number: u16, stack_pointer: u64) -> bool {
    let open = scratch.open;
    // Deeper on the stack than the open call: inside of it.
    if open != 0 && stack_pointer < open {
        count(number, Miss::Nested);
        return false;
    }
    if row.when != When::ObjectsEnd as u8 {
        if open != 0 {
            // Left without a probed end.
            count(number, Miss::NoReturn);
        }
        scratch.open = if row.when == When::Objects as u8 { stack_pointer } else { 0 };
        return true;
    }
    scratch.open = 0;
    if open != stack_pointer {
        count(number, if open == 0 { Miss::UnknownReturn } else { Miss::NoReturn });
        return false;
    }
    true
}

/// Keeps the registers for arguments and results.
#[inline(always)]
fn save_slots(scratch: &mut Scratch, regs: &pt_regs, row: &ProbeRow, id: u64, stack_pointer: u64) {
    regs::save_slots(regs, &mut scratch.slots);
    #[cfg(bpf_target_arch = "aarch64")]
    result::keep(&mut scratch.slots, row, [id, stack_pointer]);
    #[cfg(not(bpf_target_arch = "aarch64"))]
    let _ = (row, id, stack_pointer);
}

/// The register with the address for the result, which does not survive the call.
#[cfg(bpf_target_arch = "aarch64")]
mod result {
    use aya_ebpf::{macros::map, maps::LruHashMap};
    use memscope_common::{ProbeRow, When, row::RESULT_SLOT};

    use crate::regs::REGISTER_SLOTS;

    /// Addresses of open calls, by `pid_tgid` and stack pointer; the oldest make room. Sized by
    /// user space.
    #[map]
    static RESULTS: LruHashMap<[u64; 2], u64> = LruHashMap::with_max_entries(1, 0);

    /// Keeps the register at the entry of a call, and restores it at its end.
    #[inline(always)]
    pub(super) fn keep(slots: &mut [u64; REGISTER_SLOTS], row: &ProbeRow, key: [u64; 2]) {
        if row.when == When::Objects as u8 {
            let _ = RESULTS.insert(&key, &slots[RESULT_SLOT as usize], 0);
            return;
        }
        slots[RESULT_SLOT as usize] = 0;
        if let Some(result) = RESULTS.get_ptr(&key) {
            // SAFETY: a live map value.
            slots[RESULT_SLOT as usize] = unsafe { *result };
        }
    }
}
