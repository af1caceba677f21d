//! Makes a process wait until user space has probed its new mappings.
//!
//! A thread that has mapped libraries waits inside a sleepable program (*held*): no signal, invisible to others. On
//! kernels before 6.0, and for programs with a loader that is not probed yet, `SIGSTOP` stops the process.

mod hold;
mod images;
mod stop;

use core::ffi::c_void;

use aya_ebpf::{bindings::pt_regs, macros::map, maps::HashMap};
use memscope_common::{
    Kind, LibraryRecord, Miss, ProbeRow, ProcessRecord,
    config::{ImageKey, PROCESS_HOLD, PROCESS_STOP, Wait},
    record::{WAITS_HELD, WAITS_STOPPED, WITHHELD_ROOM, WITHHELD_SILENT},
};

pub(crate) use self::{hold::hold, stop::on_signal};
use crate::{
    current, filter,
    mappings::{self, loader},
    misses::count,
    regs,
    transport::{header, header_of, send},
    user_memory,
};

/// The unknown file that a stopped process runs, by tgid.
#[map]
static NEW_IMAGES: HashMap<u32, ImageKey> = HashMap::with_max_entries(4096, 0);

/// The dynamic loader has changed the mappings, or is about to.
#[inline(always)]
pub(crate) fn library(ctx: *mut c_void, regs: &pt_regs, row: &ProbeRow, number: u16, tgid: u32) {
    let state = loader_state(regs, row, number);
    if state != loader::ADDING
        && let Some(process) = filter::state_of(tgid)
    {
        // SAFETY: a live map value; a loader reports from one thread at a time, and no other
        // program changes it.
        let process = unsafe { &mut *process };
        let added = state != loader::DELETING && process.unmapping == 0;
        mappings::change(process, state);
        report_library(ctx, number, state, if added { process.flags } else { 0 });
    }
}

/// The loader's state.
#[inline(always)]
fn loader_state(regs: &pt_regs, row: &ProbeRow, number: u16) -> u32 {
    let mut state = loader::UNKNOWN;
    if row.param != 0 {
        let from = regs::instruction_pointer(regs).wrapping_add(row.param as u64);
        if !user_memory::copy(&mut state, from) {
            count(number, Miss::Fault);
            state = loader::UNKNOWN;
        }
    }
    state
}

/// Reports that libraries were mapped, and makes the thread wait.
#[inline(always)]
fn report_library(ctx: *mut c_void, row: u16, state: u32, flags: u32) {
    const LEN: u16 = size_of::<LibraryRecord>() as u16;
    let id = current::thread_id();
    let tgid = current::tgid_of(id);
    let header = header_of(id, Kind::Library, row, LEN);
    let held = Wait { thread: id, since_ns: header.time_ns };
    // Before the record leaves: the answer may come at once.
    let waits = ask(&held, tgid, row, flags);
    let mut record = LibraryRecord { header, state, stopped: waits };
    let sent = send(ctx, (&raw mut record).cast(), LEN.into(), row, true);
    if waits == WAITS_STOPPED {
        stop::stop(tgid, row, sent);
    } else if waits == WAITS_HELD && !sent {
        hold::forget(&held);
    }
}

/// Notes that the thread, or its process, is to wait. Returns how, or why it does not; 0 if it need
/// not.
#[inline(always)]
fn ask(held: &Wait, tgid: u32, row: u16, flags: u32) -> u32 {
    if flags & PROCESS_HOLD != 0 {
        ask_to_hold(held, row)
    } else if flags & PROCESS_STOP != 0 {
        stop::ask(tgid, row)
    } else {
        0
    }
}

/// Notes that the thread is to be held. Returns [`WAITS_HELD`], or why it is not held.
#[inline(always)]
fn ask_to_hold(held: &Wait, row: u16) -> u32 {
    let silent = hold::is_silent(held.thread);
    if !silent && hold::ask(held) {
        return WAITS_HELD;
    }
    count(row, Miss::NotHeld);
    if silent { WITHHELD_SILENT } else { WITHHELD_ROOM }
}

/// Reports that the process runs another program, and stops it unless something makes it wait later.
///
/// A known loader makes it wait, before code of the program or of a library runs. The mappings of a program without a
/// loader are known from an earlier run. `IMAGES`: the file can be found (`bpf_find_vma`, Linux 5.17).
#[inline(always)]
pub(crate) fn report_program<const IMAGES: bool>(ctx: *mut c_void, tgid: u32, flags: u32) {
    const LEN: u16 = size_of::<ProcessRecord>() as u16;
    let holds = IMAGES && flags & PROCESS_HOLD != 0;
    let stops = flags & PROCESS_STOP != 0 && !(holds && runs_known_image(tgid));
    let stopped = if stops { stop::ask(tgid, 0) } else { 0 };
    let mut record = ProcessRecord { header: header(Kind::Exec, 0, LEN), child: 0, stopped };
    let sent = send(ctx, (&raw mut record).cast(), LEN.into(), 0, true);
    if stopped == WAITS_STOPPED {
        stop::stop(tgid, 0, sent);
    }
}

/// Whether the file that the process runs is known. If not, hands it to user space; full: the next
/// process that runs it is stopped, too.
#[inline(always)]
fn runs_known_image(tgid: u32) -> bool {
    let key = images::of_program();
    if images::is_known_program(&key) {
        return true;
    }
    let _ = NEW_IMAGES.insert(&tgid, &key, 0);
    false
}

/// Forgets a process that is gone.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    stop::forget(tgid);
    let _ = NEW_IMAGES.remove(&tgid);
}
