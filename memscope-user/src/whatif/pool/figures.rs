//! Figures of the pool, in the terms of `memory_stats`.

use schemars::JsonSchema;
use serde::Serialize;

/// Figures of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Figures {
    /// Bytes of the blocks that the program has.
    pub allocated_bytes: u64,
    /// Its peak.
    pub allocated_peak_bytes: u64,
    /// Bytes held from the driver.
    pub reserved_bytes: u64,
    /// Its peak.
    pub reserved_peak_bytes: u64,
    /// The allocated part of it at that peak.
    pub allocated_at_peak_bytes: u64,
    /// Bytes of blocks that the program has or streams still use.
    pub active_bytes: u64,
    /// Its peak.
    pub active_peak_bytes: u64,
    /// Requested bytes of the active blocks.
    pub requested_bytes: u64,
    /// Free bytes in plain segments that are in use in part.
    pub inactive_split_bytes: u64,
    /// Plain segments.
    pub segments: u64,
    /// Plain segments made.
    pub segments_made: u64,
    /// Plain segments given back.
    pub segments_freed: u64,
    /// Requests for which the whole cache had to be given back, with a synchronisation of the device.
    pub retries: u64,
    /// Requests that failed.
    pub failures: u64,
}

impl Figures {
    pub(super) const fn hand_out(&mut self, size: u64, asked: u64) {
        self.allocated_bytes += size;
        self.active_bytes += size;
        self.requested_bytes += asked;
        if self.allocated_peak_bytes < self.allocated_bytes {
            self.allocated_peak_bytes = self.allocated_bytes;
        }
        if self.active_peak_bytes < self.active_bytes {
            self.active_peak_bytes = self.active_bytes;
        }
    }

    pub(super) const fn grow(&mut self, bytes: u64) {
        self.reserved_bytes += bytes;
        if self.reserved_peak_bytes < self.reserved_bytes {
            self.reserved_peak_bytes = self.reserved_bytes;
        }
    }
}
