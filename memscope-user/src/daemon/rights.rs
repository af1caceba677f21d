//! Gives a peer's tracer the peer's rights to files, and the capabilities for tracing.

use std::io;

use nix::{
    sys::{prctl, signal::Signal},
    unistd::{Gid, Uid, setgroups, setresgid, setresuid},
};

use crate::os::capabilities;

/// Turns this process, root's with one thread, into that of a user: all files are opened with that user's rights from
/// here on. Further capabilities are only those for tracing, none of which opens other users' files by their paths.
pub fn take_on(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
    // Otherwise the next steps would take all capabilities away.
    prctl::set_keepcaps(true)?;
    setgroups(&groups)?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    capabilities::keep_for_user()?;
    // The user may end its own tracer, but not look into it.
    prctl::set_dumpable(false)?;
    // Another user would have taken it away again: the tracer ends in order when the daemon is gone.
    Ok(prctl::set_pdeathsig(Signal::SIGTERM)?)
}
