//! Rights of processes, as the kernel shows them.

use std::{fs, os::unix::fs::MetadataExt as _};

use super::process::is_alive;

/// Whether a process is another user's, or one that this user may not look into: most files in `/proc` of a program with
/// more rights than its caller are root's (`proc(5)`). Of a process that is gone nothing is known, so it has none.
#[must_use]
pub fn has_other_rights(pid: u32, uid: u32) -> bool {
    let owner = |what: &str| fs::metadata(format!("/proc/{pid}{what}")).map(|about| about.uid());
    match owner("/environ") {
        Err(_) => false,
        Ok(owner) if owner == uid => false,
        // The first thread has ended and has no memory of its own any more, so it is root's; the folder is not.
        Ok(_) => is_alive(pid) || owner("").is_ok_and(|owner| owner != uid),
    }
}
