//! Whether the kernel keeps the thread that places probes waiting.
//!
//! Where probes are perf events, placing one takes the kernel's lock of trace events. Another tracer that ends keeps it
//! until no thread is inside a program that may wait, and a thread that we hold is: neither goes on. So a held thread gets
//! no sign of life while this lasts, and gives up.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::os::clock::monotonic_ns;

/// Longest time to place the probes of one file: 3000 places in 100 processes take a fifth of it.
const MOST_NS: u64 = 2_000_000_000;

/// When the call that is under way began; 0 if none is.
#[derive(Debug, Default)]
pub struct Placing {
    since_ns: AtomicU64,
}

/// A call under way.
pub(super) struct Call<'a>(&'a Placing);

impl Placing {
    /// A call begins; it ends when this is dropped.
    pub(super) fn begin(&self) -> Call<'_> {
        self.since_ns.store(monotonic_ns(), Ordering::Relaxed);
        Call(self)
    }

    /// Whether a call takes so long that another tracer may wait for the threads that we hold.
    #[must_use]
    pub fn hangs(&self) -> bool {
        self.hangs_at(monotonic_ns())
    }

    fn hangs_at(&self, now_ns: u64) -> bool {
        let since_ns = self.since_ns.load(Ordering::Relaxed);
        since_ns > 0 && now_ns.saturating_sub(since_ns) > MOST_NS
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.since_ns.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a call that is under way hangs, and only after its time.
    #[test]
    fn calls_hang_while_they_last() {
        let placing = Placing::default();
        assert!(!placing.hangs_at(u64::MAX));
        let call = placing.begin();
        let begun_ns = placing.since_ns.load(Ordering::Relaxed);
        assert!(!placing.hangs_at(begun_ns + MOST_NS) && placing.hangs_at(begun_ns + MOST_NS + 1));
        drop(call);
        assert!(!placing.hangs_at(u64::MAX));
    }
}
