//! Having a process wait until user space has put probes into what it has just mapped.
//!
//! A thread that has mapped libraries waits inside a sleepable program (*held*): no signal, nothing that others could see. Where the
//! kernel has none, and for programs whose loader is not probed yet, the process is stopped by `SIGSTOP`.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{pt_regs, task_struct},
    helpers::generated::{
        bpf_copy_from_user_task, bpf_find_vma, bpf_get_current_pid_tgid, bpf_get_current_task,
        bpf_get_current_task_btf, bpf_get_current_uid_gid, bpf_ktime_get_ns, bpf_send_signal,
    },
};
use memscope_common::{
    Kind, LibraryRecord, Miss, ProcessRecord,
    config::{
        ANY_USER, HOLD_ASKED, HOLD_TAKEN, IMAGE_LOADER, IMAGE_STATIC, ImageKey, PROCESS_HOLD, PROCESS_STOP, STOP_AGAIN,
        STOP_OURS, STOP_THEIRS,
    },
    record::{WAITS_HELD, WAITS_STOPPED},
};

use crate::{
    emit::{header, send},
    maps::{HOLDS, KNOWN_IMAGES, NEW_IMAGES, STOPS, setting},
    misses::count,
    process::{argument, field, is_traced},
    regs,
    stacks::bpf_loop,
};

/// How long a thread waits until user space has taken notice of it: one that does not answer hangs, or is overloaded.
const UNTAKEN_NS: u64 = 1_000_000_000;
/// How long it waits in all: a large library takes its time.
const TAKEN_NS: u64 = 30_000_000_000;
/// The kernel's most in one call of `bpf_loop`; each turn takes a third of a microsecond and more.
const TURNS: u64 = 1 << 23;
/// So many calls of it are more than [`TAKEN_NS`].
const LOOPS: u32 = 32;

/// Architecture-independent on x86-64 and aarch64.
const SIGSTOP: u32 = 19;
const SIGCONT: u64 = 18;
/// `SIGSTOP`, `SIGTSTP`, `SIGTTIN`, `SIGTTOU`.
const FIRST_STOP: u64 = 19;
const LAST_STOP: u64 = 22;

/// Reports that libraries were mapped, and has the thread wait.
#[inline(always)]
pub(crate) fn report_library(ctx: *mut c_void, row: u16, state: u32, flags: u32) {
    // SAFETY: a helper without arguments.
    let id = unsafe { bpf_get_current_pid_tgid() };
    let mut waits = 0;
    if flags & PROCESS_HOLD != 0 {
        // Before the record leaves: the answer may come at once.
        if HOLDS.insert(&id, &HOLD_ASKED, 0).is_ok() {
            waits = WAITS_HELD;
        } else {
            count(row, Miss::NotHeld);
        }
    } else if flags & PROCESS_STOP != 0 && may_stop((id >> 32) as u32, row) {
        waits = WAITS_STOPPED;
    }
    let mut record =
        LibraryRecord { header: header(Kind::Library, row, size_of::<LibraryRecord>() as u16), state, stopped: waits };
    let sent = send(ctx, (&raw mut record).cast(), size_of::<LibraryRecord>() as u64, row, true);
    if waits == WAITS_STOPPED {
        stop((id >> 32) as u32, row, sent);
    } else if waits == WAITS_HELD && !sent {
        let _ = HOLDS.remove(&id);
    }
}

/// Reports that the process runs another program, and stops it if nothing will have it wait later. A known loader will, before code
/// of the program or of any library runs; of a program without a loader it is known from an earlier time what it holds.
#[inline(always)]
pub(crate) fn report_program<const IMAGES: bool>(ctx: *mut c_void, tgid: u32, flags: u32) {
    let mut stops = flags & PROCESS_STOP != 0;
    if IMAGES && stops && flags & PROCESS_HOLD != 0 {
        let key = image();
        // SAFETY: a live map value, not looked into.
        if key.inode != 0 && unsafe { KNOWN_IMAGES.get(&key) }.is_some() {
            stops = false;
        } else {
            // Full: it is not learnt, so that the next one is stopped, too.
            let _ = NEW_IMAGES.insert(&tgid, &key, 0);
        }
    }
    let stopped = stops && may_stop(tgid, 0);
    let mut record = ProcessRecord {
        header: header(Kind::Exec, 0, size_of::<ProcessRecord>() as u16),
        child: 0,
        stopped: if stopped { WAITS_STOPPED } else { 0 },
    };
    let sent = send(ctx, (&raw mut record).cast(), size_of::<ProcessRecord>() as u64, 0, true);
    if stopped {
        stop(tgid, 0, sent);
    }
}

/// Whether the current process may be stopped: not if it could not be made to go on, and not where others would see it: a debugger,
/// or whoever controls jobs. Takes notice of the stop.
#[inline(always)]
fn may_stop(tgid: u32, row: u16) -> bool {
    let user = setting!(stop_user);
    // SAFETY: a helper without arguments. The lower half is the user.
    if user != ANY_USER && unsafe { bpf_get_current_uid_gid() } as u32 != user {
        return false;
    }
    if setting!(offsets.known) != 0 && is_watched_by_others() {
        count(row, Miss::StopFailed);
        return false;
    }
    // SAFETY: a live map value, which others change.
    let theirs = STOPS.get_ptr(&tgid).is_some_and(|stops| unsafe { stops.read_volatile() } & STOP_THEIRS != 0);
    // A process that is to stop anyway does not need ours.
    if theirs || STOPS.insert(&tgid, &STOP_OURS, 0).is_err() {
        count(row, Miss::StopFailed);
        return false;
    }
    true
}

/// Whether a debugger has the current process, or it is not in the group that `run` has put the program into.
#[inline(always)]
fn is_watched_by_others() -> bool {
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() } as *mut c_void;
    if field::<u32>(task, setting!(offsets.task_ptrace)) != 0 {
        return true;
    }
    let home = setting!(home_group);
    let signal = field::<u64>(task, setting!(offsets.task_signal)) as *mut c_void;
    let group = field::<u64>(signal, setting!(offsets.signal_group)) as *mut c_void;
    home != 0 && field::<u32>(group, setting!(offsets.pid_number)) != home
}

/// Stops the current process once the record that says so has left.
#[inline(always)]
fn stop(tgid: u32, row: u16, sent: bool) {
    // SAFETY: the helper signals the current process.
    if sent && unsafe { bpf_send_signal(SIGSTOP) } == 0 {
        return;
    }
    if sent {
        count(row, Miss::StopFailed);
    }
    let _ = STOPS.remove(&tgid);
}

/// The file that decides what becomes of the program that the current process begins; inode 0 if that is not known.
#[inline(always)]
fn image() -> ImageKey {
    let mut key = ImageKey::default();
    if setting!(offsets.known) == 0 {
        return key;
    }
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() } as *mut c_void;
    let mm = field::<u64>(task, setting!(offsets.task_mm)) as *mut c_void;
    match loader_base(mm) {
        None => {}
        Some(0) => {
            let file = field::<u64>(mm, setting!(offsets.mm_exe_file)) as *mut c_void;
            fill(&mut key, file, IMAGE_STATIC);
        }
        // SAFETY: the callback gets what it expects; a helper without arguments gives the task.
        Some(base) => unsafe {
            bpf_find_vma(bpf_get_current_task_btf(), base, take_vma as *mut c_void, (&raw mut key).cast(), 0);
        },
    }
    key
}

/// `AT_BASE` of a program: where its loader is mapped, 0 if it has none.
#[inline(always)]
fn loader_base(mm: *mut c_void) -> Option<u64> {
    const AT_BASE: u64 = 7;
    const ENTRIES: u32 = 16;
    const ENTRY_BYTES: u32 = 16;
    for index in 0..ENTRIES {
        let at = setting!(offsets.mm_auxv) + index * ENTRY_BYTES;
        if field::<u64>(mm, at) == AT_BASE {
            return Some(field::<u64>(mm, at + 8));
        }
    }
    None
}

#[inline(never)]
unsafe extern "C" fn take_vma(_task: *mut c_void, vma: *mut c_void, key: *mut ImageKey) -> u64 {
    let file = field::<u64>(vma, setting!(offsets.vma_file)) as *mut c_void;
    // SAFETY: the caller's.
    fill(unsafe { &mut *key }, file, IMAGE_LOADER);
    0
}

#[inline(always)]
fn fill(key: &mut ImageKey, file: *mut c_void, kind: u32) {
    let inode = field::<u64>(file, setting!(offsets.file_inode)) as *mut c_void;
    let of = field::<u64>(inode, setting!(offsets.inode_super)) as *mut c_void;
    key.inode = field::<u64>(inode, setting!(offsets.inode_number));
    key.device = field::<u32>(of, setting!(offsets.super_device));
    key.kind = kind;
}

/// `signal_generate`: who stops a traced process, so that ours and theirs are told apart.
#[inline(always)]
pub(crate) fn signalled(ctx: *mut c_void) {
    /// Up to this the sender is the kernel itself (`SEND_SIG_NOINFO`, `SEND_SIG_PRIV`).
    const NO_SENDER: u64 = 1;
    let signal = argument(ctx, 0);
    if !(SIGCONT..=LAST_STOP).contains(&(signal & 0xff)) {
        return;
    }
    let tgid = field::<u32>(argument(ctx, 2) as *mut c_void, setting!(offsets.task_tgid));
    let stops = STOPS.get_ptr_mut(&tgid);
    if signal == SIGCONT {
        let Some(stops) = stops else { return };
        // SAFETY: a helper without arguments.
        let by_tracer = (unsafe { bpf_get_current_pid_tgid() } >> 32) as u32 == setting!(tracer);
        // SAFETY: a live map value; eight bytes at most are written at once.
        if by_tracer && unsafe { stops.read_volatile() } & STOP_THEIRS != 0 {
            // SAFETY: as above.
            unsafe { stops.write_volatile(STOP_AGAIN) };
        } else {
            let _ = STOPS.remove(&tgid);
        }
        return;
    }
    // Ours has no sender. Nor has what a terminal sends, which is never `SIGSTOP`.
    let ours = signal == FIRST_STOP && argument(ctx, 1) <= NO_SENDER;
    if !is_traced(tgid) {
        return;
    }
    // Ours once more: our word of it may have been answered before the signal was sent.
    let bit = if ours { STOP_OURS } else { STOP_THEIRS };
    match stops {
        // SAFETY: as above.
        Some(stops) => unsafe { stops.write_volatile(stops.read_volatile() | bit) },
        // Full: it is not known, as on kernels that do not say.
        None => drop(STOPS.insert(&tgid, &bit, 0)),
    }
}

/// A thread that waits.
#[repr(C)]
struct Waiting {
    id: u64,
    since_ns: u64,
    stack_pointer: u64,
    /// Why it does not wait any more; 0: it does.
    over: u64,
}

const ANSWERED: u64 = 1;
const TOO_LONG: u64 = 2;
const KILLED: u64 = 3;

/// Waits until user space has removed the thread from [`HOLDS`]. Runs behind the program that has put it there.
#[inline(always)]
pub(crate) fn hold(ctx: *mut c_void, number: impl FnOnce() -> u32) {
    // SAFETY: a helper without arguments.
    let id = unsafe { bpf_get_current_pid_tgid() };
    if HOLDS.get_ptr(&id).is_none() {
        return;
    }
    // SAFETY: the context of a uprobe is the thread's registers.
    let stack_pointer = regs::stack_pointer(unsafe { &*ctx.cast::<pt_regs>() });
    // SAFETY: a helper without arguments.
    let since_ns = unsafe { bpf_ktime_get_ns() };
    let mut waiting = Waiting { id, since_ns, stack_pointer, over: 0 };
    for _ in 0..LOOPS {
        // SAFETY: the callback gets what it expects.
        unsafe { bpf_loop(TURNS, wait as *mut c_void, (&raw mut waiting).cast()) };
        // SAFETY: a local variable, which the loop changes.
        if unsafe { (&raw const waiting.over).read_volatile() } != 0 {
            break;
        }
    }
    // SAFETY: as above.
    let over = unsafe { (&raw const waiting.over).read_volatile() };
    if over != ANSWERED {
        let _ = HOLDS.remove(&id);
        if over != KILLED {
            count(number() as u16, Miss::NotHeld);
        }
    }
}

/// One look whether the thread still waits.
#[inline(never)]
unsafe extern "C" fn wait(_index: u32, waiting: *mut Waiting) -> u64 {
    // SAFETY: the caller's.
    let waiting = unsafe { &mut *waiting };
    let Some(state) = HOLDS.get_ptr(&waiting.id) else {
        waiting.over = ANSWERED;
        return 1;
    };
    // SAFETY: a live map value, which others change.
    let taken = unsafe { state.read_volatile() } == HOLD_TAKEN;
    let most_ns = if taken { TAKEN_NS } else { UNTAKEN_NS };
    // SAFETY: a helper without arguments.
    if unsafe { bpf_ktime_get_ns() }.wrapping_sub(waiting.since_ns) > most_ns {
        waiting.over = TOO_LONG;
        return 1;
    }
    let mut word = 0_u64;
    // Lets others have the processor, which a program cannot do by itself, and fails once the thread is killed.
    // SAFETY: `word` has eight bytes; the helper checks the address. The task is the current one.
    let read = unsafe {
        bpf_copy_from_user_task(
            (&raw mut word).cast(),
            8,
            waiting.stack_pointer as *const c_void,
            bpf_get_current_task_btf().cast::<task_struct>(),
            0,
        )
    };
    if read != 0 {
        waiting.over = KILLED;
        return 1;
    }
    0
}
