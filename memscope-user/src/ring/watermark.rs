//! Which records can still come: the watermark, within a round and after it.
//!
//! A record is placed into the transport at most [`SLACK_NS`] after its time. So once a round has taken all records, those
//! to come are younger than the start of the round less the slack. While records wait, they are younger than the youngest
//! record taken so far less the slack, if the transport keeps the order of placing: a tracer that is behind needs this, or
//! the window that puts records in order has to hold all that were behind.

/// No kernel code that takes long comes between a record's time and its place, but a virtual processor can lose its turn on
/// a busy host: 20 ms were not enough there.
const SLACK_NS: u64 = 100_000_000;

/// The watermark of one trace. Times in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Default)]
pub(super) struct Watermark {
    /// Start of the round, less the slack.
    round: u64,
    /// Time of the youngest record of a transport that keeps the order of placing.
    youngest: u64,
    /// Time of the oldest note that waits for records to be taken: nothing younger leaves before it.
    note: Option<u64>,
}

impl Watermark {
    /// A round begins.
    pub(super) const fn round(&mut self, now_ns: u64) {
        self.round = now_ns.saturating_sub(SLACK_NS);
    }

    /// Sets the time of the oldest note that waits.
    pub(super) const fn notes(&mut self, oldest_ns: Option<u64>) {
        self.note = oldest_ns;
    }

    /// Takes the time of a record, in the order of placing.
    pub(super) fn see(&mut self, time_ns: u64) {
        self.youngest = self.youngest.max(time_ns);
    }

    /// Records that were in the transport at this time have been taken, though others wait.
    pub(super) const fn passed(&self, time_ns: u64) -> bool {
        self.youngest > time_ns
    }

    /// After all records were taken, or while others wait; 0 is unknown.
    pub(super) fn after(&self, all: bool) -> u64 {
        let records_ns = if all { self.round } else { self.youngest.saturating_sub(SLACK_NS).min(self.round) };
        records_ns.min(self.note.unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A tracer that is behind lets records go by their own times, and none that is younger than the round.
    #[test]
    fn behind_the_program() {
        let mut watermark = Watermark::default();
        assert_eq!(watermark.after(false), 0);
        watermark.round(5000 * MS);
        assert_eq!((watermark.after(false), watermark.after(true)), (0, 4900 * MS));
        watermark.see(3000 * MS);
        assert_eq!(watermark.after(false), 2900 * MS);
        watermark.see(2950 * MS);
        assert_eq!(watermark.after(false), 2900 * MS);
        watermark.see(5070 * MS);
        assert_eq!(watermark.after(false), 4900 * MS);
        watermark.round(6000 * MS);
        assert_eq!((watermark.after(false), watermark.after(true)), (4970 * MS, 5900 * MS));
    }

    /// Nothing that is younger than a note leaves before it.
    #[test]
    fn notes_wait_for_records() {
        let mut watermark = Watermark::default();
        watermark.round(4000 * MS);
        watermark.notes(Some(2900 * MS));
        watermark.see(2500 * MS);
        assert_eq!((watermark.after(false), watermark.after(true)), (2400 * MS, 2900 * MS));
        watermark.see(3500 * MS);
        assert_eq!((watermark.after(false), watermark.after(true)), (2900 * MS, 2900 * MS));
        watermark.notes(None);
        assert_eq!((watermark.after(false), watermark.after(true)), (3400 * MS, 3900 * MS));
    }
}
