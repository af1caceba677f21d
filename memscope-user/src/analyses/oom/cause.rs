//! Why a request failed: decided here, for the report, the first screen and the page.

use schemars::JsonSchema;
use serde::Serialize;

use super::PoolAtOom;
use crate::model::Pool;

/// Why there was no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Cause {
    /// A free piece of a pool was large enough, and not used: pools keep pieces apart, by stream and by size.
    NotGiven {
        /// The largest free piece in bytes.
        largest_bytes: u64,
    },
    /// The pools' unused bytes would do, were they in one piece.
    Fragmented {
        /// Those bytes.
        unused_bytes: u64,
        /// The largest free piece; `null` if unknown.
        largest_bytes: Option<u64>,
    },
    /// The pool did not ask the driver: the request is beyond its own limit, a memory fraction for instance.
    Limit {
        /// Bytes that the pools do not use.
        unused_bytes: u64,
    },
    /// There is not enough memory.
    Full {
        /// Bytes that the request lacks even if the pools gave back all that they do not use.
        missing_bytes: u64,
        /// Bytes that they do not use.
        unused_bytes: u64,
    },
}

impl Cause {
    /// For a request of this size that failed at this pool, from the state of the pools then.
    pub(crate) fn of(at: Pool, size_bytes: u64, pools: &[PoolAtOom]) -> Self {
        let unused_bytes = pools.iter().map(PoolAtOom::unused_bytes).fold(0, u64::saturating_add);
        if !at.is_base() {
            return Self::Limit { unused_bytes };
        }
        let largest_bytes = pools.iter().filter_map(|pool| pool.largest_free_bytes).max();
        match largest_bytes {
            Some(largest_bytes) if largest_bytes >= size_bytes => Self::NotGiven { largest_bytes },
            _ if unused_bytes >= size_bytes => Self::Fragmented { unused_bytes, largest_bytes },
            _ => Self::Full { missing_bytes: size_bytes - unused_bytes, unused_bytes },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::{LiveGroups, LiveSum};

    fn pool(used_bytes: u64, reserved_bytes: Option<u64>, largest_free_bytes: Option<u64>) -> PoolAtOom {
        PoolAtOom {
            pool: pools::PTA,
            used_bytes,
            reserved_bytes,
            largest_free_bytes,
            groups: LiveGroups::default(),
            live: LiveSum::default(),
            places_left_out: 0,
        }
    }

    /// By hand: 400 + 50 bytes are unused in two pools, the largest piece has 300; a third pool does not report its
    /// reserved bytes.
    #[test]
    fn causes_of_a_failed_request() {
        let pools = [pool(600, Some(1000), Some(300)), pool(50, Some(100), None), pool(77, None, None)];
        let (unused_bytes, largest_bytes) = (450, Some(300));
        for (asked, cause) in [
            (300, Cause::NotGiven { largest_bytes: 300 }),
            (301, Cause::Fragmented { unused_bytes, largest_bytes }),
            (450, Cause::Fragmented { unused_bytes, largest_bytes }),
            (451, Cause::Full { missing_bytes: 1, unused_bytes }),
        ] {
            assert_eq!(Cause::of(pools::HAL, asked, &pools), cause, "{asked}");
        }
        assert_eq!(Cause::of(pools::PTA, 9, &pools), Cause::Limit { unused_bytes: 450 });
        assert_eq!(Cause::of(pools::HAL, 9, &[]), Cause::Full { missing_bytes: 9, unused_bytes: 0 });
    }
}
