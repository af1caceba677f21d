//! All maps. User space sets the sizes of those that grow with the machine before loading.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, PerCpuArray, PerfEventByteArray, RingBuf},
};
use memscope_common::{
    CallRecord, Config, ProbeRow, SitePlaces, TextRecord,
    config::{CHANGES, ImageKey, Offsets, ProcessState},
    miss::{MAX_DEPTH, MISSES_PER_ROW},
    row::{MAX_ROWS, REGISTER_ARGS},
    site::MAX_SITES,
};

/// Frozen before loading; read with `read_volatile` so that the compiler does not fold the default.
#[unsafe(no_mangle)]
pub(crate) static CONFIG: Config = Config {
    transport: 0,
    wake_bytes: 0,
    newtask_pid: 0,
    newtask_flags: 0,
    free_pid: 0,
    task_pid: 0,
    stacks: 0,
    native_depth: 0,
    python_depth: 0,
    loops: 0,
    thread_pointer: 0,
    native_slots: 0,
    stop_user: 0,
    watch: 0,
    task_sighand: 0,
    urgent_handler: 0,
    exchanges: 0,
    seats: 0,
    home_group: 0,
    tracer: 0,
    offsets: Offsets {
        known: 0,
        task_mm: 0,
        task_ptrace: 0,
        task_signal: 0,
        task_tgid: 0,
        task_parent: 0,
        task_blocked: 0,
        task_real_blocked: 0,
        task_sighand: 0,
        child_handler: 0,
        child_flags: 0,
        signal_group: 0,
        pid_number: 0,
        mm_auxv: 0,
        mm_exe_file: 0,
        vma_file: 0,
        file_inode: 0,
        inode_number: 0,
        inode_super: 0,
        inode_generation: 0,
        inode_size: 0,
        super_device: 0,
    },
};

/// One of the frozen settings. Not all at once: each would be read on every use of one.
macro_rules! setting {
    ($name:ident $(. $inner:ident)?) => {
        // SAFETY: a static that is never written after loading.
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::CONFIG.$name $(. $inner)?) }
    };
}
pub(crate) use setting;

/// Records, unless the transport is perf.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 16, 0);

/// Records when the transport is perf.
#[map]
pub(crate) static PERF_EVENTS: PerfEventByteArray = PerfEventByteArray::new(0);

/// Probe rows by number.
#[map]
pub(crate) static ROWS: Array<ProbeRow> = Array::with_max_entries(MAX_ROWS, 0);

/// Where arguments are at probes behind an entry, by the upper half of the cookie.
#[map]
pub(crate) static SITES: Array<SitePlaces> = Array::with_max_entries(MAX_SITES, 0);

/// Traced processes by tgid. Full: children are not traced and counted.
#[map]
pub(crate) static PROCESSES: HashMap<u32, ProcessState> = HashMap::with_max_entries(16384, 0);

/// How often it changed who is traced: what user space and this side have changed, apart.
#[map]
pub(crate) static PROCESS_CHANGES: Array<u64> = Array::with_max_entries(CHANGES, 0);

/// What [`PROCESSES`] said of a process lately, by the end of its number: see [`crate::process::is_traced`].
#[map]
pub(crate) static PROCESSES_KNOWN: Array<u64> = Array::with_max_entries(KNOWN_PROCESSES, 0);

/// Threads that wait until user space has looked at what they have mapped, by `pid_tgid`; user space removes them. Full: a thread
/// does not wait, and is counted.
#[map]
pub(crate) static HOLDS: HashMap<u64, u64> = HashMap::with_max_entries(4096, 0);

/// Loaders that are probed, and programs without a loader that were looked at: whoever runs them is not stopped for it. Files that were
/// looked at: whoever loads no others is not held. Full: further ones are not learnt.
#[map]
pub(crate) static KNOWN_IMAGES: HashMap<ImageKey, u32> = HashMap::with_max_entries(16384, 0);

/// The file that a stopped process runs and that was not known, by tgid.
#[map]
pub(crate) static NEW_IMAGES: HashMap<u32, ImageKey> = HashMap::with_max_entries(4096, 0);

/// Who has stopped a process, by tgid: `STOP_*` bits. Gone when it is continued.
#[map]
pub(crate) static STOPS: HashMap<u32, u32> = HashMap::with_max_entries(16384, 0);

/// A power of two.
pub(crate) const KNOWN_PROCESSES: u32 = 4096;

/// Threads that have made probed calls, by `pid_tgid`. Full: calls of further threads are not reported, and counted.
#[map]
pub(crate) static THREADS: HashMap<u64, Thread> = HashMap::with_max_entries(16384, 0);

/// The same where the kernel can exchange, in one of a few places by the thread's number: finding an entry of a hash map takes a tenth
/// of what a program takes. A thread that finds them all taken is in [`THREADS`].
#[map]
pub(crate) static SEATS: Array<Thread> = Array::with_max_entries(1, 0);

/// An empty [`Thread`], never written: it would not fit on the stack.
#[map]
pub(crate) static EMPTY_THREAD: Array<Thread> = Array::with_max_entries(1, 0);

/// What was seen and not reported: index is [`memscope_common::Miss::counter`].
#[map]
pub(crate) static MISSES: PerCpuArray<u64> = PerCpuArray::with_max_entries(MAX_ROWS * MISSES_PER_ROW, 0);

/// One call that has not returned.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    /// Row number.
    pub(crate) row: u16,
    /// Bit of the row's group, if this call is the outermost of it.
    pub(crate) group: u16,
    /// 1: an inner call of a group, not to be reported.
    pub(crate) nested: u16,
    /// 1: its return is seen at the function's own return instructions.
    pub(crate) own: u16,
    /// Stack pointer at entry; a frame below the current one has been left.
    pub(crate) stack_pointer: u64,
    /// Where it returns to, if a return probe has taken the place of that on the stack; else 0.
    pub(crate) return_address: u64,
    /// Arguments at entry.
    pub(crate) args: [u64; ARG_SLOTS],
}

/// A power of two that holds [`REGISTER_ARGS`], so that a mask bounds every index.
pub(crate) const ARG_SLOTS: usize = 8;
const _: () = assert!(REGISTER_ARGS <= ARG_SLOTS);

/// One thread: the calls that it is inside of, outermost first, and room for the record that it sends.
///
/// Records are built here and not on the stack: the verifier follows every byte of the stack along every path, which
/// is more than it is willing to do, and does not follow map memory. Only the thread's own programs use it, one at a
/// time.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Thread {
    /// In [`SEATS`]: the thread, by `pid_tgid`; 0 is none.
    pub(crate) owner: u64,
    /// Frames in use.
    pub(crate) depth: u32,
    /// Bits of the groups that the thread is inside of.
    pub(crate) groups: u32,
    /// Row of the outermost call of [`memscope_common::row::GROUP_API`]; 0 is none.
    pub(crate) api: u32,
    /// Bytes that it has sent since it asked last how many wait in the ring.
    pub(crate) unasked: u32,
    /// Where the last copy of its stack ended.
    pub(crate) copied_to: u64,
    /// Arguments of the call that is being reported.
    pub(crate) args: [u64; ARG_SLOTS],
    /// A call being reported.
    pub(crate) call: CallRecord,
    /// A part of its text being reported.
    pub(crate) text: TextRecord,
    /// The calls.
    pub(crate) frames: [Frame; MAX_DEPTH],
}
