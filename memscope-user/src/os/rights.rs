//! Rights of processes, as the kernel shows them.

use std::{fs, os::unix::fs::MetadataExt as _};

use super::process::is_alive;

/// Whether a process is another user's, or closed to this user: most files in `/proc` of a program with more privileges
/// than its caller belong to root (`proc(5)`). A process that is gone has none.
#[must_use]
pub fn has_other_rights(pid: u32, uid: u32) -> bool {
    let owner = |what: &str| fs::metadata(format!("/proc/{pid}{what}")).map(|about| about.uid());
    match owner("/environ") {
        Err(_) => false,
        Ok(owner) if owner == uid => false,
        // The first thread has ended and has no memory any more, so it belongs to root; the folder does not.
        Ok(_) => is_alive(pid) || owner("").is_ok_and(|owner| owner != uid),
    }
}
