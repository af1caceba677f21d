//! Priority of our own threads.

/// Has the calling thread, and threads that it starts, give way to others where processors are scarce. Without effect if that fails.
pub fn give_way() {
    const NICE: i32 = 10;
    // SAFETY: numbers alone. A thread has a priority of its own, and 0 is the calling one.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}
