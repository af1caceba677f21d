//! How long work may take: processor time of its own, which is its cost, and time by the clock, since a user waits. On busy processors a
//! thread that gives way gets little of one and needs much of the other.

use std::time::{Duration, Instant};

use crate::os::clock;

/// Bounds of a piece of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    /// Processor time of the thread that does it; without one only the clock counts.
    pub(super) work: Option<Duration>,
    /// When it has to be over.
    pub(super) until: Instant,
}

impl Allowed {
    /// The work begins, on this thread.
    pub(super) fn begin(self) -> Deadline {
        let thread_ns = self.work.map(|work| {
            let work_ns = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX);
            clock::thread_ns().saturating_add(work_ns)
        });
        Deadline { thread_ns, until: self.until }
    }
}

/// The end of a piece of work, for the thread that began it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    thread_ns: Option<u64>,
    until: Instant,
}

impl Deadline {
    pub(super) fn is_over(&self) -> bool {
        self.thread_ns.is_some_and(|end| clock::thread_ns() >= end) || Instant::now() >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// Either bound ends it, and sleep is no work.
    #[test]
    fn both_bounds_count() {
        let now = Instant::now();
        let begin = |work: Option<Duration>, until: Instant| Allowed { work, until }.begin();
        assert!(!begin(None, now + LONG).is_over() && !begin(Some(LONG), now + LONG).is_over());
        assert!(begin(Some(LONG), now).is_over() && begin(None, now).is_over());
        assert!(begin(Some(Duration::ZERO), now + LONG).is_over());
        let short = begin(Some(Duration::from_millis(200)), now + LONG);
        std::thread::sleep(Duration::from_millis(300));
        assert!(!short.is_over());
        let begin_ns = clock::thread_ns();
        while clock::thread_ns() - begin_ns < 200_000_000 {
            std::hint::spin_loop();
        }
        assert!(short.is_over());
    }
}
