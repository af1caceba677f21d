//! The request that failed.

use super::places::last_oom;
use crate::analyses::{
    Finding, Kind as _,
    oom::{Cause, Oom},
};
use crate::model::Stacks;

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

/// The failed request of a process.
pub(super) fn of(findings: &[&Finding]) -> Option<FailedRequest> {
    let oom = last_oom(findings)?;
    Some(FailedRequest {
        size_bytes: oom.size_bytes,
        attempts: oom.attempts,
        time_ns: oom.time_ns,
        stacks: oom.stacks,
        cause: oom.cause,
        failed: findings.iter().filter(|finding| Oom::of(finding).is_some()).count(),
    })
}
