//! Settings that user space freezes into the BPF object before it is loaded.

/// Records leave through the BPF ring buffer.
pub const TRANSPORT_RING: u32 = 0;
/// Records leave through one perf buffer per CPU.
pub const TRANSPORT_PERF: u32 = 1;

/// Frozen settings (`.rodata`): the verifier drops every branch that they switch off.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// [`TRANSPORT_RING`] or [`TRANSPORT_PERF`].
    pub transport: u32,
    /// The reader is woken only when this many bytes wait in the ring (it also polls by itself).
    pub wake_bytes: u32,
    /// Offset of `pid` in the `task_newtask` event; tracepoint layouts differ between kernels.
    pub newtask_pid: u32,
    /// Offset of `clone_flags` in the `task_newtask` event.
    pub newtask_flags: u32,
    /// Offset of `pid` in the `sched_process_free` event.
    pub free_pid: u32,
    /// Offset of `pid` in a task, for raw tracepoints.
    pub task_pid: u32,
    /// Stacks to take: `STACK_*` bits of [`stack`](crate::stack).
    pub stacks: u32,
    /// Longest native stack, in frames.
    pub native_depth: u32,
    /// Longest Python stack, in frames.
    pub python_depth: u32,
    /// Whether the kernel has `bpf_loop` (5.17).
    pub loops: u32,
    /// Offset of the thread pointer in a task.
    pub thread_pointer: u32,
    /// Native stacks that can be walked at the same time.
    pub native_slots: u32,
    /// Only processes of this user are stopped: the tracer cannot continue those of others. [`ANY_USER`]: all.
    pub stop_user: u32,
    /// Whether blocks may be watched.
    pub watch: u32,
    /// Offset of `sighand` in a task; 0: unknown.
    pub task_sighand: u32,
    /// Offset of the handler for `SIGURG` in a `sighand_struct`.
    pub urgent_handler: u32,
    /// Whether the kernel has compare-and-exchange (5.12), and accepts programs that are large enough to profit.
    pub exchanges: u32,
    /// Slots for threads, by their number: a power of two. 0 without compare-and-exchange: a hash map serves.
    pub thread_slots: u32,
    /// The process group of the program that `run` starts: processes of other groups are under job
    /// control. 0: none.
    pub home_group: u32,
    /// The tracer's own process.
    pub tracer: u32,
    /// Offsets of the fields that programs read of a task.
    pub offsets: Offsets,
}

/// Offsets in bytes in the kernel's types; all are 0 where the kernel does not describe them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// 1: the other fields are known.
    pub known: u32,
    /// `mm` of a task.
    pub task_mm: u32,
    /// `ptrace` of a task.
    pub task_ptrace: u32,
    /// `signal` of a task.
    pub task_signal: u32,
    /// `tgid` of a task.
    pub task_tgid: u32,
    /// `real_parent` of a task.
    pub task_parent: u32,
    /// `blocked` of a task: its signals, number 1 in the lowest bit.
    pub task_blocked: u32,
    /// `real_blocked` of a task: its blocked signals, except during a wait for some of them (`sigwaitinfo`).
    pub task_real_blocked: u32,
    /// `sighand` of a task.
    pub task_sighand: u32,
    /// The handler for `SIGCHLD` in a `sighand_struct`.
    pub child_handler: u32,
    /// The flags of that handler.
    pub child_flags: u32,
    /// The process group among the `pids` of a `signal_struct`.
    pub signal_group: u32,
    /// The number of a `struct pid`.
    pub pid_number: u32,
    /// `saved_auxv` of an `mm_struct`.
    pub mm_auxv: u32,
    /// `exe_file` of an `mm_struct`.
    pub mm_exe_file: u32,
    /// `vm_file` of a `vm_area_struct`.
    pub vma_file: u32,
    /// `f_inode` of a file.
    pub file_inode: u32,
    /// `i_ino` of an inode.
    pub inode_number: u32,
    /// `i_sb` of an inode.
    pub inode_super: u32,
    /// `i_generation` of an inode.
    pub inode_generation: u32,
    /// `i_size` of an inode.
    pub inode_size: u32,
    /// `s_dev` of a superblock.
    pub super_device: u32,
}

/// A file that decides whether a program is stopped at its start, or a thread is held when it loads libraries. Named as
/// the kernel names it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImageKey {
    /// Number of the inode.
    pub inode: u64,
    /// Device of the file system: major number above 20 bits of minor number.
    pub device: u32,
    /// One of `IMAGE_*`.
    pub kind: u32,
    /// With [`IMAGE_SEEN`]: distinguishes it from a later file with the same inode number. Else 0.
    pub generation: u32,
    /// With [`IMAGE_SEEN`]: the lower half of its size. Else 0.
    pub size: u32,
}

/// The loader of a program.
pub const IMAGE_LOADER: u32 = 1;
/// A program without a loader.
pub const IMAGE_STATIC: u32 = 2;
/// A file that the tracer has examined and keeps open: no other file can get its inode.
pub const IMAGE_OPEN: u32 = 3;
/// A file mapped by a thread that the tracer has released, so it was examined.
pub const IMAGE_SEEN: u32 = 4;
/// Bits of a minor device number (`MINORBITS`).
pub const MINOR_BITS: u32 = 20;

/// A wait of a thread. Each has an answer of its own: the answer to a wait that the thread did not need in the end must not end the next one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wait {
    /// The thread, as `pid_tgid`.
    pub thread: u64,
    /// Time of the record that asks for the wait, in nanoseconds of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
}
const _: () = assert!(size_of::<Wait>() == 16);

/// State of a held thread: it waits.
pub const HOLD_ASKED: u64 = 0;
/// State of a held thread: it waited too long and went on. Any other value but [`HOLD_ASKED`] is the time of user
/// space's last sign of life while it examines the thread's process, in nanoseconds of `CLOCK_MONOTONIC`.
pub const HOLD_GIVEN_UP: u64 = u64::MAX;

/// In a process's stops: stopped by us, and ours to continue.
pub const STOP_OURS: u32 = 1;
/// Stopped by another process, too: it stays stopped.
pub const STOP_THEIRS: u32 = 1 << 1;
/// Continued by us although another process had just stopped it: it has to be stopped again.
pub const STOP_AGAIN: u32 = 1 << 2;

/// No user's id: `-1` is none for `setuid`.
pub const ANY_USER: u32 = u32::MAX;

/// In a process's state: children join the trace.
pub const PROCESS_FOLLOW: u32 = 1;
/// In a process's state: stop it when it has mapped a library, until user space has examined it.
pub const PROCESS_STOP: u32 = 1 << 1;
/// In a process's state: another process has the same generation, since one was forked from the other.
pub const PROCESS_SHARES: u32 = 1 << 2;
/// In a process's state: a thread that has mapped a library waits until user space has examined it.
pub const PROCESS_HOLD: u32 = 1 << 3;
/// In a process's state: the thread waits even if all mapped files are known, since user space examines the process
/// itself.
pub const PROCESS_HOLD_ALWAYS: u32 = 1 << 4;

/// Reduced processes at once.
pub const MAX_REDUCED: u32 = 1024;

/// Index of the count of user space's changes to the traced processes.
pub const OUTER_CHANGES: u32 = 0;
/// Index of the kernel side's count of such changes.
pub const INNER_CHANGES: u32 = 1;
/// Number of these counts.
pub const CHANGES: u32 = 2;

/// The process filter's entry for one traced process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessState {
    /// [`PROCESS_FOLLOW`], [`PROCESS_STOP`], [`PROCESS_HOLD`].
    pub flags: u32,
    /// Process that this one was forked from; 0 for those named by the user.
    pub parent: u32,
    /// Names the mappings of a process: changes when the process unmaps a library or runs another program, and is never
    /// used again. A forked child keeps its parent's, as it has its mappings. 0: unknown.
    pub generation: u64,
    /// The loader has reported that it is about to unmap, and not yet that it has finished.
    pub unmapping: u32,
    /// The process's first thread has ended: the number may be another process's once the process is gone.
    pub first_ended: u32,
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding: every bit pattern is a value.
    unsafe impl aya::Pod for super::Config {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::ProcessState {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::ImageKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Wait {}
}
