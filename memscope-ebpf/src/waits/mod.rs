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
        ANY_USER, HOLD_ASKED, HOLD_GIVEN_UP, IMAGE_LOADER, IMAGE_OPEN, IMAGE_SEEN, IMAGE_STATIC, ImageKey,
        PROCESS_HOLD, PROCESS_HOLD_ALWAYS, PROCESS_STOP, STOP_AGAIN, STOP_OURS, STOP_THEIRS,
    },
    record::{
        WAITS_HELD, WAITS_STOPPED, WITHHELD_DEBUGGER, WITHHELD_JOB, WITHHELD_PARENT, WITHHELD_ROOM, WITHHELD_SILENT,
        WITHHELD_STOPPED, WITHHELD_USER,
    },
};

use crate::{
    emit::{header, send},
    maps::{HOLDS, KNOWN_IMAGES, NEW_IMAGES, PROCESSES, STOPS, setting},
    misses::count,
    probes::row_of,
    process::{argument, field, is_traced},
    regs,
    stacks::bpf_loop,
};

/// How long a thread waits until user space has taken notice of it: one that does not answer hangs, or is overloaded.
const UNTAKEN_NS: u64 = 1_000_000_000;
/// How long it waits after the last sign of life of one that has: it was stopped, or hangs.
const SILENT_NS: u64 = 3_000_000_000;
/// How long it waits in all: a large library takes its time.
const MOST_NS: u64 = 30_000_000_000;
/// The kernel's most in one call of `bpf_loop`; each turn takes a third of a microsecond and more.
const TURNS: u64 = 1 << 23;
/// That number of calls of it takes more than [`MOST_NS`].
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
        // SAFETY: a live map value, which others change.
        let silent = HOLDS.get_ptr(&id).is_some_and(|state| unsafe { state.read_volatile() } == HOLD_GIVEN_UP);
        // Before the record leaves: the answer may come at once.
        if silent {
            waits = WITHHELD_SILENT;
            count(row, Miss::NotHeld);
        } else if HOLDS.insert(&id, &HOLD_ASKED, 0).is_ok() {
            waits = WAITS_HELD;
        } else {
            waits = WITHHELD_ROOM;
            count(row, Miss::NotHeld);
        }
    } else if flags & PROCESS_STOP != 0 {
        waits = ask_to_stop((id >> 32) as u32, row);
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
    let stopped = if stops { ask_to_stop(tgid, 0) } else { 0 };
    let mut record =
        ProcessRecord { header: header(Kind::Exec, 0, size_of::<ProcessRecord>() as u16), child: 0, stopped };
    let sent = send(ctx, (&raw mut record).cast(), size_of::<ProcessRecord>() as u64, 0, true);
    if stopped == WAITS_STOPPED {
        stop(tgid, 0, sent);
    }
}

/// [`WAITS_STOPPED`] if the current process may be stopped, and takes notice of the stop; else why not.
#[inline(always)]
fn ask_to_stop(tgid: u32, row: u16) -> u32 {
    let why = why_not_stop();
    if why != 0 {
        count(row, Miss::StopFailed);
        return why;
    }
    // SAFETY: a live map value, which others change.
    let theirs = STOPS.get_ptr(&tgid).is_some_and(|stops| unsafe { stops.read_volatile() } & STOP_THEIRS != 0);
    // A process that is to stop anyway does not need ours.
    if theirs || STOPS.insert(&tgid, &STOP_OURS, 0).is_err() {
        count(row, Miss::StopFailed);
        return WITHHELD_STOPPED;
    }
    WAITS_STOPPED
}

/// Why the current process must not be stopped: it could not be made to go on, or others would see it (a debugger, who controls jobs).
/// 0: it may.
#[inline(always)]
fn why_not_stop() -> u32 {
    let user = setting!(stop_user);
    // SAFETY: a helper without arguments. The lower half is the user.
    if user != ANY_USER && unsafe { bpf_get_current_uid_gid() } as u32 != user {
        return WITHHELD_USER;
    }
    if setting!(offsets.known) == 0 {
        return 0;
    }
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() } as *mut c_void;
    if field::<u32>(task, setting!(offsets.task_ptrace)) != 0 {
        return WITHHELD_DEBUGGER;
    }
    let home = setting!(home_group);
    let signal = field::<u64>(task, setting!(offsets.task_signal)) as *mut c_void;
    let group = field::<u64>(signal, setting!(offsets.signal_group)) as *mut c_void;
    if home != 0 && field::<u32>(group, setting!(offsets.pid_number)) != home {
        return WITHHELD_JOB;
    }
    let parent = field::<u64>(task, setting!(offsets.task_parent)) as *mut c_void;
    if takes_child_signals(parent) { WITHHELD_PARENT } else { 0 }
}

/// Whether a process takes `SIGCHLD`, which it gets when a child stops: by a handler, or blocked, to wait for it (`signalfd`, `sigwait`).
/// One that is inside of `waitid` with `WSTOPPED` is not recognised.
#[inline(always)]
fn takes_child_signals(process: *mut c_void) -> bool {
    /// `SIG_DFL` and `SIG_IGN`.
    const NO_HANDLER: u64 = 1;
    /// `SA_NOCLDSTOP`.
    const NOT_FOR_STOPS: u64 = 1;
    const CHILD: u64 = 1 << 16;
    // We do, and know what we see.
    if field::<u32>(process, setting!(offsets.task_tgid)) == setting!(tracer) {
        return false;
    }
    let actions = field::<u64>(process, setting!(offsets.task_sighand)) as *mut c_void;
    let handler = field::<u64>(actions, setting!(offsets.child_handler));
    let flags = field::<u64>(actions, setting!(offsets.child_flags));
    let blocked = field::<u64>(process, setting!(offsets.task_blocked))
        | field::<u64>(process, setting!(offsets.task_real_blocked));
    flags & NOT_FOR_STOPS == 0 && (handler > NO_HANDLER || blocked & CHILD != 0)
}

/// Stops the current process once the record that says so has left.
#[inline(always)]
fn stop(tgid: u32, row: u16, sent: bool) {
    // SAFETY: the helper signals the current process.
    if sent && unsafe { bpf_send_signal(SIGSTOP) } == 0 {
        count(row, Miss::Stopped);
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
    // SAFETY: a live map value, which others change. One that was given up is an earlier one.
    if HOLDS.get_ptr(&id).is_none_or(|state| unsafe { state.read_volatile() } == HOLD_GIVEN_UP) {
        return;
    }
    // SAFETY: the context of a uprobe is the thread's registers.
    let regs = unsafe { &*ctx.cast::<pt_regs>() };
    let number = number();
    let objects = first_object(regs, number, (id >> 32) as u32);
    if all_known::<false>(objects) {
        let _ = HOLDS.remove(&id);
        return;
    }
    count(number as u16, Miss::Held);
    let stack_pointer = regs::stack_pointer(regs);
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
    match over {
        // User space has looked at all of them.
        ANSWERED => drop(all_known::<true>(objects)),
        KILLED => drop(HOLDS.remove(&id)),
        _ => {
            const EXISTS: u64 = 2;
            // User space says so, and removes it.
            let _ = HOLDS.insert(&id, &HOLD_GIVEN_UP, EXISTS);
            count(number as u16, Miss::NotHeld);
        }
    }
}

/// Address of what the loader lists first of all that is loaded (`r_debug.r_map`); 0 if that is not known, or of no use.
#[inline(always)]
fn first_object(regs: &pt_regs, number: u32, tgid: u32) -> u64 {
    /// Before `r_state`.
    const VERSION: u64 = 24;
    const MAP: u64 = 16;
    /// Beyond it the loader has further lists (`dlmopen`).
    const ONE_LIST: u32 = 1;
    // SAFETY: a live map value; only its flags are read, which stay as they are.
    let always = PROCESSES.get_ptr(&tgid).is_none_or(|process| unsafe { (*process).flags } & PROCESS_HOLD_ALWAYS != 0);
    if setting!(offsets.known) == 0 || always {
        return 0;
    }
    let Some(row) = row_of(number) else { return 0 };
    if row.param == 0 {
        return 0;
    }
    let state = regs::instruction_pointer(regs).wrapping_add(row.param as u64);
    let (mut version, mut first) = (0_u32, 0_u64);
    if from_user(state.wrapping_sub(VERSION), &mut version) && version == ONE_LIST {
        from_user(state.wrapping_sub(MAP), &mut first);
    }
    first
}

/// Copies memory of the current process; may wait for it.
#[inline(always)]
fn from_user<T>(address: u64, to: &mut T) -> bool {
    // SAFETY: `to` has the size that is asked for; the helper checks the address. The task is the current one.
    let result = unsafe {
        bpf_copy_from_user_task(
            core::ptr::from_mut(to).cast(),
            size_of::<T>() as u32,
            address as *const c_void,
            bpf_get_current_task_btf().cast::<task_struct>(),
            0,
        )
    };
    result == 0
}

/// A walk along what the loader has loaded.
#[repr(C)]
struct Walk {
    /// Address of the next object (`link_map`); 0 is the end.
    next: u64,
    /// The file of the object.
    key: ImageKey,
    /// 1: all files are noted as known.
    learns: u64,
    /// 1: an object was not known, or not found.
    unknown: u64,
}

/// Whether all files are known that the loader has loaded. `LEARNS`: they are from now on.
#[inline(always)]
fn all_known<const LEARNS: bool>(first: u64) -> bool {
    const MAX_OBJECTS: u32 = 8192;
    if first == 0 {
        return false;
    }
    let mut walk = Walk { next: first, key: ImageKey::default(), learns: LEARNS.into(), unknown: 0 };
    // SAFETY: the callback gets what it expects.
    unsafe { bpf_loop(MAX_OBJECTS.into(), step as *mut c_void, (&raw mut walk).cast()) };
    // SAFETY: a local variable, which the loop changes.
    unsafe { (&raw const walk.unknown).read_volatile() == 0 && (&raw const walk.next).read_volatile() == 0 }
}

/// One object of a [`Walk`].
#[inline(never)]
unsafe extern "C" fn step(_index: u32, walk: *mut Walk) -> u64 {
    /// `l_addr`, `l_name`, `l_ld`, `l_next`.
    const DYNAMIC: usize = 2;
    const NEXT: usize = 3;
    // SAFETY: the caller's.
    let walk = unsafe { &mut *walk };
    let mut object = [0_u64; 4];
    if walk.next == 0 || !from_user(walk.next, &mut object) {
        return 1;
    }
    walk.key = ImageKey::default();
    // SAFETY: the callback gets what it expects; a helper without arguments gives the task.
    let found = unsafe {
        bpf_find_vma(
            bpf_get_current_task_btf(),
            object[DYNAMIC],
            take_seen as *mut c_void,
            (&raw mut walk.key).cast(),
            0,
        )
    };
    walk.next = object[NEXT];
    let known = found == 0 && is_known(&walk.key);
    if walk.learns != 0 && found == 0 && !known {
        let _ = KNOWN_IMAGES.insert(&walk.key, &1, 0);
    } else if !known {
        walk.unknown = 1;
        return 1;
    }
    0
}

/// Whether a file was looked at. What has none is the kernel's own (the vDSO).
#[inline(always)]
fn is_known(key: &ImageKey) -> bool {
    let open = ImageKey { kind: IMAGE_OPEN, generation: 0, size: 0, ..*key };
    // SAFETY: live map values, not looked into.
    key.inode == 0 || unsafe { KNOWN_IMAGES.get(key).is_some() || KNOWN_IMAGES.get(&open).is_some() }
}

#[inline(never)]
unsafe extern "C" fn take_seen(_task: *mut c_void, vma: *mut c_void, key: *mut ImageKey) -> u64 {
    let file = field::<u64>(vma, setting!(offsets.vma_file)) as *mut c_void;
    // SAFETY: the caller's.
    let key = unsafe { &mut *key };
    fill(key, file, IMAGE_SEEN);
    let inode = field::<u64>(file, setting!(offsets.file_inode)) as *mut c_void;
    key.generation = field::<u32>(inode, setting!(offsets.inode_generation));
    key.size = field::<u32>(inode, setting!(offsets.inode_size));
    0
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
    let sign_ns = unsafe { state.read_volatile() };
    let (since_ns, most_ns) = if sign_ns == HOLD_ASKED { (waiting.since_ns, UNTAKEN_NS) } else { (sign_ns, SILENT_NS) };
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if now_ns.saturating_sub(since_ns) > most_ns || now_ns.saturating_sub(waiting.since_ns) > MOST_NS {
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
