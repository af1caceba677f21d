//! Rounding of sizes, and sizes of requests to the driver.

use super::{ROUND_CLASSES, Settings};
use crate::whatif::{GIB, MIB, SMALLEST_BYTES};

/// Larger requests count as this: no device has it, and sums do not overflow.
const MOST_BYTES: u64 = 1 << 48;

impl Settings {
    /// Size of the block for a request.
    #[must_use]
    pub fn round(&self, asked_bytes: u64) -> u64 {
        let size = asked_bytes.min(MOST_BYTES) + self.pad_bytes;
        if size <= SMALLEST_BYTES {
            return SMALLEST_BYTES;
        }
        let class = (size.ilog2() as usize).saturating_sub(20).min(ROUND_CLASSES - 1);
        let parts = self.round_divisions[class];
        if parts > 1 && size > SMALLEST_BYTES * parts {
            return to_part_of_power(size, parts);
        }
        size.next_multiple_of(SMALLEST_BYTES)
    }

    /// Segment that the driver is asked for, for a block of this size.
    #[must_use]
    pub const fn segment_bytes(&self, size: u64) -> u64 {
        if size > MIB && self.gigabyte_pages {
            size.next_multiple_of(GIB)
        } else if size <= MIB {
            2 * MIB
        } else if size < 10 * MIB {
            self.large_segment_bytes
        } else {
            size.next_multiple_of(2 * MIB)
        }
    }

    /// Page of an expandable segment.
    #[must_use]
    pub const fn page_bytes(&self, small: bool) -> u64 {
        if small {
            2 * MIB
        } else if self.gigabyte_pages {
            GIB
        } else {
            self.large_page_bytes
        }
    }
}

/// Rounds up to the next of `parts` equal parts between two powers of two.
const fn to_part_of_power(size: u64, parts: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let floor = 1 << size.ilog2();
    match floor >> parts.ilog2() {
        0 => floor << 1,
        part => size.next_multiple_of(part),
    }
}
