//! Descriptors of processes: they mean one process, never a later one of its number.

use std::{
    io,
    os::fd::{BorrowedFd, FromRawFd as _, OwnedFd},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Opens one.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers involved.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether the process has ended. `None` if unknown.
#[must_use]
pub fn has_ended(pidfd: BorrowedFd<'_>) -> Option<bool> {
    let mut fds = [PollFd::new(pidfd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).ok().map(|ready| ready > 0)
}
