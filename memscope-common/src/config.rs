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
    /// Only processes of this user are stopped, since nobody else's can be made to go on; [`ANY_USER`]: all.
    pub stop_user: u32,
    /// Whether blocks may be watched.
    pub watch: u32,
    /// Whether programs may compare and exchange (5.12), and are large enough to be quick.
    pub exchanges: u32,
    /// Threads whose state is found by their number, a power of two; 0 where there is no compare-and-exchange: by a hash map.
    pub seats: u32,
}

/// No user's id: `-1` is none for `setuid`.
pub const ANY_USER: u32 = u32::MAX;

/// In a process's state: children join the trace.
pub const PROCESS_FOLLOW: u32 = 1;
/// In a process's state: stop it when it has mapped a library, until user space has looked.
pub const PROCESS_STOP: u32 = 1 << 1;
/// In a process's state: another process has the same generation, since one is forked from the other.
pub const PROCESS_SHARES: u32 = 1 << 2;

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
    /// [`PROCESS_FOLLOW`] and [`PROCESS_STOP`].
    pub flags: u32,
    /// Process that this one was forked from; 0 for those named by the user.
    pub parent: u32,
    /// Names what is mapped where: changes when the process unmaps a library or runs another program, and is not used
    /// again. A forked child has that of its parent, as it has its mappings. 0: nothing is known yet.
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
}
