//! One small program per row, for kernels without attach cookies (before 5.15): the program itself
//! has to know its row.
//!
//! It leaves its row's number behind and jumps to the program that does the work, which is verified
//! once. User space loads those that it attaches.

use core::ffi::c_void;

use aya_ebpf::{
    macros::map,
    maps::{PerCpuArray, ProgramArray},
    programs::ProbeContext,
};
use memscope_common::{
    Miss,
    row::{JUMP_ENTER, JUMP_LEAVE, JUMP_LEAVE_OWN, JUMPS as JUMP_COUNT, SLOTS},
};

use crate::{current, misses::count};

/// The programs that do the work, by `JUMP_*`.
#[map]
static JUMPS: ProgramArray = ProgramArray::with_max_entries(JUMP_COUNT, 0);

/// The jump in progress on a processor.
#[map]
static JUMPER: PerCpuArray<Jumper> = PerCpuArray::with_max_entries(1, 0);

#[repr(C)]
#[derive(Clone, Copy)]
struct Jumper {
    /// `pid_tgid`.
    thread: u64,
    row: u64,
}

/// Jumps. Returns only if there is nothing to jump to.
#[inline(always)]
fn jump(ctx: *mut c_void, to: u32, row: u16) -> u32 {
    if let Some(jumper) = JUMPER.get_ptr_mut(0) {
        // SAFETY: a live map value.
        unsafe { *jumper = Jumper { thread: current::thread_id(), row: row.into() } };
        // SAFETY: the program's own context, and a map of programs.
        unsafe { JUMPS.tail_call(&ProbeContext::new(ctx), to) };
    }
    count(row, Miss::UnknownRow);
    0
}

/// Row of the probe that has jumped here; 0 if another thread has jumped on this processor
/// meanwhile, which cannot happen on kernels that need these programs.
#[inline(always)]
pub(crate) fn jumper() -> u32 {
    match JUMPER.get(0) {
        Some(Jumper { thread, row }) if *thread == current::thread_id() => *row as u32,
        _ => 0,
    }
}

/// Declares the three programs of a row, given by the digits of its number: `enter_012`,
/// `leave_012`, `leave_own_012`.
macro_rules! row {
    ($hundreds:literal $tens:literal $ones:literal) => {
        const _: () = {
            const ROW: u16 = 100 * $hundreds + 10 * $tens + $ones;
            const _: () = assert!(ROW < SLOTS);

            #[unsafe(export_name = concat!("enter_", $hundreds, $tens, $ones))]
            #[unsafe(link_section = "uprobe")]
            extern "C" fn enter(ctx: *mut c_void) -> u32 {
                jump(ctx, JUMP_ENTER, ROW)
            }

            #[unsafe(export_name = concat!("leave_", $hundreds, $tens, $ones))]
            #[unsafe(link_section = "uretprobe")]
            extern "C" fn leave(ctx: *mut c_void) -> u32 {
                jump(ctx, JUMP_LEAVE, ROW)
            }

            #[unsafe(export_name = concat!("leave_own_", $hundreds, $tens, $ones))]
            #[unsafe(link_section = "uprobe")]
            extern "C" fn leave_own(ctx: *mut c_void) -> u32 {
                jump(ctx, JUMP_LEAVE_OWN, ROW)
            }
        };
    };
}

/// Declares the programs of the rows with these leading digits.
macro_rules! rows {
    ($($hundreds:literal: $($tens:literal)*;)*) => {
        $($(rows!(@tens $hundreds $tens: 0 1 2 3 4 5 6 7 8 9);)*)*
    };
    (@tens $hundreds:literal $tens:literal: $($ones:literal)*) => {
        $(row!($hundreds $tens $ones);)*
    };
}

// Row 0 is "none": its programs are never attached, and keep the numbering plain.
rows! {
    0: 0 1 2 3 4 5 6 7 8 9;
    1: 0 1 2 3 4 5;
}
