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
    /// Which stacks are taken at all: `STACK_*` bits of [`stack`](crate::stack).
    pub stacks: u32,
    /// Native frames of a stack at most.
    pub native_depth: u32,
    /// Python frames of a stack at most.
    pub python_depth: u32,
    /// Whether the kernel has `bpf_loop` (5.17).
    pub loops: u32,
    /// Where a task has its thread pointer.
    pub thread_pointer: u32,
    /// Native stacks that can be walked at the same time.
    pub native_slots: u32,
    /// Only processes of this user are stopped, since nobody else's can be made to go on;
    /// [`ANY_USER`]: all.
    pub stop_user: u32,
    /// Whether blocks may be watched.
    pub watch: u32,
    /// Where a task has the address of what it has for its signals; 0: not known.
    pub task_sighand: u32,
    /// Where in that the handler for `SIGURG` is.
    pub urgent_handler: u32,
    /// Whether programs may compare and exchange (5.12), and are large enough to be quick.
    pub exchanges: u32,
    /// Threads whose state is found by their number, a power of two; 0 where there is no
    /// compare-and-exchange: by a hash map.
    pub thread_slots: u32,
    /// The process group of the program that `run` starts: processes of other groups are under job
    /// control. 0: none.
    pub home_group: u32,
    /// The tracer's own process.
    pub tracer: u32,
    /// Where the kernel has what is looked up of a task.
    pub offsets: Offsets,
}

/// Offsets in bytes in the kernel's types; all are 0 where the kernel does not describe them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// 1: what follows is known.
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
    /// `real_blocked` of a task: those that it has blocked, but for its wait for some of them
    /// (`sigwaitinfo`).
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

/// A file that decides whether a program has to be stopped when it begins, or a thread held when it
/// loads libraries, as the kernel knows it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImageKey {
    /// Number of the inode.
    pub inode: u64,
    /// Device of the file system: major number above 20 bits of minor number.
    pub device: u32,
    /// One of `IMAGE_*`.
    pub kind: u32,
    /// With [`IMAGE_SEEN`]: tells it from a later file with the same inode number. Else 0.
    pub generation: u32,
    /// With [`IMAGE_SEEN`]: the lower half of its size. Else 0.
    pub size: u32,
}

/// The loader of a program.
pub const IMAGE_LOADER: u32 = 1;
/// A program without a loader.
pub const IMAGE_STATIC: u32 = 2;
/// A file that the tracer has looked at, and keeps open: its inode is no other file's.
pub const IMAGE_OPEN: u32 = 3;
/// A file that was mapped by a thread that the tracer has let go on, so it was looked at.
pub const IMAGE_SEEN: u32 = 4;
/// Bits of a minor device number (`MINORBITS`).
pub const MINOR_BITS: u32 = 20;

/// Of a thread that is held: it waits.
pub const HOLD_ASKED: u64 = 0;
/// Of a thread that was held: it has waited too long and went on. Any other value but
/// [`HOLD_ASKED`] is the time of user space's last sign of life while it looks at the thread's
/// process, in nanoseconds of `CLOCK_MONOTONIC`.
pub const HOLD_GIVEN_UP: u64 = u64::MAX;

/// In a process's stops: we have stopped it, and have to continue it.
pub const STOP_OURS: u32 = 1;
/// Another process has stopped it, too: it stays stopped.
pub const STOP_THEIRS: u32 = 1 << 1;
/// We have continued it although another process had just stopped it: it has to be stopped again.
pub const STOP_AGAIN: u32 = 1 << 2;

/// No user's id: `-1` is none for `setuid`.
pub const ANY_USER: u32 = u32::MAX;

/// In a process's state: children join the trace.
pub const PROCESS_FOLLOW: u32 = 1;
/// In a process's state: stop it when it has mapped a library, until user space has looked.
pub const PROCESS_STOP: u32 = 1 << 1;
/// In a process's state: another process has the same generation, since one is forked from the other.
pub const PROCESS_SHARES: u32 = 1 << 2;
/// In a process's state: a thread that has mapped a library waits until user space has looked.
pub const PROCESS_HOLD: u32 = 1 << 3;
/// In a process's state: it waits even if all that is mapped is known, since user space has to look
/// at the process itself.
pub const PROCESS_HOLD_ALWAYS: u32 = 1 << 4;

/// Where user space counts its changes of who is traced ...
pub const OUTER_CHANGES: u32 = 0;
/// ... and where the kernel side does.
pub const INNER_CHANGES: u32 = 1;
/// How many such places there are.
pub const CHANGES: u32 = 2;

/// What the process filter knows of one traced process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessState {
    /// [`PROCESS_FOLLOW`], [`PROCESS_STOP`], [`PROCESS_HOLD`].
    pub flags: u32,
    /// Process that this one was forked from; 0 for those named by the user.
    pub parent: u32,
    /// Names what is mapped where: changes when the process unmaps a library or runs another
    /// program, and is not used again. A forked child has that of its parent, as it has its
    /// mappings. 0: nothing is known yet.
    pub generation: u64,
    /// The loader has said that it is about to unmap, and not yet that it is done.
    pub unmapping: u32,
    /// Padding, zero.
    pub reserved: u32,
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding: every bit pattern is a value.
    unsafe impl aya::Pod for super::Config {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::ProcessState {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::ImageKey {}
}
