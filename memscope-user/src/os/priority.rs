//! Priority of our own threads.

use std::time::{Duration, Instant};

/// Work that cannot wait: as any other program's.
pub const NORMAL: i32 = 0;
/// Work that has a time to be done by, as `nice` has it: a ninth of a processor where others want all of it.
pub const LOW: i32 = 10;
/// Work that may take as long as it takes: a thirtieth.
pub const LOWEST: i32 = 15;

/// Has the calling thread, and threads that it starts, give way to others where processors are scarce. Without effect if that fails, as less
/// of it does without the right to.
pub fn give_way(nice: i32) {
    set(nice);
}

/// Sets the priority of the calling thread; returns whether it may have it.
fn set(nice: i32) -> bool {
    // SAFETY: numbers alone. A thread has a priority of its own, and 0 is the calling one.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) == 0 }
}

/// What a thread gains while it hurries.
const GAIN: i32 = 20;
/// Bytes of work without a pause after which a thread hurries.
const BEHIND_BYTES: usize = 4 << 20;
/// How long it goes on to. Threads of a chain that each begin to hurry only when they have waited for a processor together take long enough
/// that records are lost.
const LINGER: Duration = Duration::from_secs(2);

/// A thread that records go through on their way to the capture. Where other programs leave it no time, it takes what it needs, and only
/// while work waits: a record costs it a tenth of what it costs the traced program. Without `CAP_SYS_NICE` it has its share as always.
#[derive(Debug)]
pub struct Haste {
    usual: i32,
    /// Done since no work waited.
    bytes: usize,
    /// While it hurries: when there was last a reason.
    hurries: Option<Instant>,
    may: bool,
}

impl Haste {
    /// For the calling thread.
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: as above. It does not fail for the calling thread.
        let usual = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        Self { usual, bytes: 0, hurries: None, may: true }
    }

    /// More work is there, behind this much.
    pub fn busy(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= BEHIND_BYTES {
            self.hurry();
        }
    }

    /// What waits is in a hurry, however much it is.
    pub fn hurry(&mut self) {
        if self.hurries.is_none() && self.may {
            self.may = set(self.usual - GAIN);
        }
        self.hurries = self.may.then(Instant::now);
    }

    /// No work waits.
    pub fn rest(&mut self) {
        self.bytes = 0;
        if self.hurries.is_some_and(|last| last.elapsed() >= LINGER) {
            self.calm();
        }
    }

    /// No work waits that is in a hurry.
    pub fn calm(&mut self) {
        self.bytes = 0;
        if self.hurries.take().is_some() {
            give_way(self.usual);
        }
    }
}

impl Default for Haste {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nice() -> i32 {
        // SAFETY: as above.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    /// A thread hurries behind 4 MiB without a pause, goes on to for a while, and may stay as it is.
    #[test]
    fn a_thread_hurries_while_work_waits() {
        give_way(5);
        let mut haste = Haste::new();
        haste.busy(3 << 20);
        haste.rest();
        haste.busy(3 << 20);
        assert_eq!(nice(), 5);
        haste.busy(1 << 20);
        let hurried = nice();
        // By who runs the test.
        assert_eq!(hurried, if haste.may { -15 } else { 5 });
        haste.rest();
        assert_eq!(nice(), hurried);
        haste.hurries = Instant::now().checked_sub(LINGER).filter(|_| haste.may);
        haste.rest();
        assert_eq!(nice(), 5);
        haste.hurry();
        assert_eq!(nice(), hurried);
        haste.calm();
        assert_eq!(nice(), 5);
    }
}
