//! Why a request failed.

use super::places::last_oom;
use crate::analyses::{Finding, Kind as _, oom::Oom};
use crate::model::Stacks;

/// The cause of an out-of-memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A free piece of a pool was large enough, and not given: pools keep pieces apart, by stream and by size.
    NotGiven {
        /// The largest free piece in bytes.
        largest_bytes: u64,
    },
    /// The pools' unused bytes would do, were they in one piece.
    Fragmented {
        /// Those bytes.
        unused_bytes: u64,
        /// The largest piece of them; `None` if unknown.
        largest_bytes: Option<u64>,
    },
    /// There is not enough memory.
    Full {
        /// Bytes that the request lacks even if the pools gave back all that they do not use.
        missing_bytes: u64,
        /// Bytes that they do not use.
        unused_bytes: u64,
    },
}

/// The last request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Attempts that failed.
    pub attempts: u32,
    /// When the last one failed, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Where it was made.
    pub stacks: Stacks,
    /// Why.
    pub cause: Cause,
    /// Requests that failed in all.
    pub failed: usize,
}

/// That of a process.
pub(super) fn of(findings: &[&Finding]) -> Option<FailedRequest> {
    let oom = last_oom(findings)?;
    let largest_bytes = oom.pools.iter().filter_map(|pool| pool.largest_free_bytes).max();
    let cause = match largest_bytes {
        Some(largest_bytes) if largest_bytes >= oom.size_bytes => Cause::NotGiven { largest_bytes },
        _ if oom.missing_bytes == 0 => Cause::Fragmented { unused_bytes: oom.unused_bytes, largest_bytes },
        _ => Cause::Full { missing_bytes: oom.missing_bytes, unused_bytes: oom.unused_bytes },
    };
    Some(FailedRequest {
        size_bytes: oom.size_bytes,
        attempts: oom.attempts,
        time_ns: oom.time_ns,
        stacks: oom.stacks,
        cause,
        failed: findings.iter().filter(|finding| Oom::of(finding).is_some()).count(),
    })
}
