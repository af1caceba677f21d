//! Drops privileges that are no longer needed.
//!
//! Capabilities belong to threads (`capabilities(7)`): they are dropped before the first thread is started, so all
//! threads have the rest. A process forked before keeps its own: the traced program is not affected.

use std::io;

/// Bits of `linux/capability.h`.
const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const FOWNER: u32 = 3;
const KILL: u32 = 5;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const PERFMON: u32 = 38;
const BPF: u32 = 39;
const CHECKPOINT_RESTORE: u32 = 40;

/// For tracing processes of all users, signals to them, and outputs of other users (under sudo). `CAP_SYS_ADMIN` is for
/// probes by `perf_event_open` (single links, a script's semaphore), for which `CAP_PERFMON` was not enough where
/// tried, and for reading seccomp filters.
const OF_TRACER: [u32; 10] =
    [CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, KILL, SYS_PTRACE, SYS_ADMIN, PERFMON, BPF, CHECKPOINT_RESTORE];

/// `struct __user_cap_header_struct`, version 3.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// One half of the sets (`struct __user_cap_data_struct`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Keeps the capabilities of a trace: probes, processes, outputs.
pub fn keep_for_trace() -> io::Result<()> {
    keep(&OF_TRACER, false)
}

/// The same for the threads of a trace, which may hurry ([`Haste`](super::priority::Haste)).
pub(crate) fn keep_for_threads() -> io::Result<()> {
    keep(&[OF_TRACER.as_slice(), &[SYS_NICE]].concat(), false)
}

/// For tracing as another user than root: nothing that opens files of others, or changes them.
const OF_USERS_TRACER: [u32; 5] = [SYS_PTRACE, SYS_ADMIN, PERFMON, BPF, CHECKPOINT_RESTORE];

/// Keeps the capabilities of a trace for an ordinary user, and makes them effective again after the change of user.
pub(crate) fn keep_for_user() -> io::Result<()> {
    keep(&OF_USERS_TRACER, true)
}

/// Keeps the capabilities for continuing processes, and for reading the maps of waiting processes, which some kernels
/// restrict.
pub(crate) fn keep_for_guard() -> io::Result<()> {
    keep(&[KILL, BPF], false)
}

/// Gives up `CAP_BPF` for good if `works` without it.
pub(crate) fn try_without_bpf(works: impl FnOnce() -> bool) -> io::Result<()> {
    let before = sets()?;
    let mut lesser = before;
    // `CAP_BPF` is in the upper half.
    lesser[1].effective = 0;
    set(lesser)?;
    if works() { keep(&[KILL], false) } else { set(before) }
}

/// Drops all other capabilities of this thread, for good. The kept ones are effective as before, or (`all`) all of
/// them.
fn keep(bits: &[u32], all: bool) -> io::Result<()> {
    let mask = bits.iter().fold(0_u64, |mask, bit| mask | 1 << bit);
    let mut sets = sets()?;
    for (half, mask) in sets.iter_mut().zip([mask as u32, (mask >> 32) as u32]) {
        half.permitted &= mask;
        half.effective = if all { half.permitted } else { half.effective & mask };
        half.inheritable = 0;
    }
    set(sets)
}

/// Of this version the sets have two halves.
const VERSION_3: u32 = 0x2008_0522;

/// The capabilities of this thread.
fn sets() -> io::Result<[Sets; 2]> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: the kernel fills two halves.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    Ok(sets)
}

fn set(sets: [Sets; 2]) -> io::Result<()> {
    let header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: the kernel reads two halves.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) })
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
