//! Time in a bounded number of intervals of one width.

/// Intervals at most.
pub(super) const MAX_INTERVALS: usize = 256;
/// First width: a run of a second fits without joining any.
pub(super) const FIRST_WIDTH_NS: u64 = 1 << 22;

/// Cuts time into intervals. When they do not suffice, the width is doubled and neighbours become one.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    start_ns: u64,
    width_ns: u64,
}

impl Scale {
    /// From `start_ns` on.
    pub(super) const fn new(start_ns: u64) -> Self {
        Self { start_ns, width_ns: FIRST_WIDTH_NS }
    }

    /// When the first interval begins.
    pub(super) const fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Number of the interval of a time; calls `join` each time neighbours have to be joined.
    pub(super) fn interval(&mut self, time_ns: u64, mut join: impl FnMut()) -> usize {
        let since = time_ns.saturating_sub(self.start_ns);
        while since / self.width_ns >= MAX_INTERVALS as u64 {
            self.width_ns *= 2;
            join();
        }
        (since / self.width_ns) as usize
    }

    /// When an interval ends.
    pub(super) const fn end_of(&self, interval: usize) -> u64 {
        self.start_ns.saturating_add(self.width_ns.saturating_mul(interval as u64 + 1))
    }
}
