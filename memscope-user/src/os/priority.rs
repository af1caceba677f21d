//! Priority of our own threads.

/// Work that cannot wait: as any other program's.
pub const NORMAL: i32 = 0;
/// Work that has a time to be done by, as `nice` has it: a ninth of a processor where others want all of it.
pub const LOW: i32 = 10;
/// Work that may take as long as it takes: a thirtieth.
pub const LOWEST: i32 = 15;

/// Has the calling thread, and threads that it starts, give way to others where processors are scarce. Without effect if that fails, as less
/// of it does without the right to.
pub fn give_way(nice: i32) {
    // SAFETY: numbers alone. A thread has a priority of its own, and 0 is the calling one.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}
