//! Identifies the peer of a connection: by the kernel alone, never by the peer's own data.
//!
//! The numbers are those of the moment of `connect`. A process can end and its number be reused, or it can run a
//! program with other rights, so a pidfd is held and the rights are checked again whenever they matter.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{getsockopt, sockopt},
};
use thiserror::Error;

use crate::os::{pidfd, rights::has_other_rights};

/// A process that is not traced, and why.
#[derive(Debug, Error)]
pub enum PeerError {
    /// In a pid namespace that is not below the daemon's.
    #[error("the process cannot be seen from here: the daemon has to run in the host's pid namespace")]
    Invisible,
    /// It is gone.
    #[error("the process that asked has ended")]
    Ended,
    /// It is not, or is no longer, open to its user.
    #[error(
        "process {pid} has other rights than user {uid}, who asked (set-uid, capabilities, or it forbids to be looked into)"
    )]
    Rights {
        /// The process.
        pid: u32,
        /// The user.
        uid: u32,
    },
    /// The kernel does not report it.
    #[error("the kernel does not name the asking process")]
    Unknown(#[source] io::Error),
}

/// A process, and the user and group that it asked as.
#[derive(Debug)]
pub struct Peer {
    /// The process, by its number here.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Means this process and no later one of that number.
    pub pidfd: OwnedFd,
}

impl Peer {
    /// Of an accepted connection.
    pub fn of(stream: &impl AsFd) -> Result<Self, PeerError> {
        let said = getsockopt(stream, sockopt::PeerCredentials).map_err(unknown)?;
        let pid = u32::try_from(said.pid()).unwrap_or_default();
        if pid == 0 {
            return Err(PeerError::Invisible);
        }
        let pidfd = match getsockopt(stream, sockopt::PeerPidfd) {
            Ok(pidfd) => pidfd,
            // Before Linux 6.5. If the number was reused since, then only by a process that `check` accepts: of the
            // same user.
            Err(Errno::ENOPROTOOPT) => pidfd::open(pid).map_err(|_| PeerError::Ended)?,
            Err(Errno::ESRCH | Errno::EINVAL | Errno::ENODATA) => return Err(PeerError::Ended),
            Err(errno) => return Err(unknown(errno)),
        };
        let peer = Self { pid, uid: said.uid(), gid: said.gid(), pidfd };
        peer.check()?;
        Ok(peer)
    }

    /// Whether it lives, and has exactly the rights of the user. Returns its further groups.
    pub fn check(&self) -> Result<Vec<u32>, PeerError> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).map_err(|_| PeerError::Ended)?;
        let is_other = has_other_rights(self.pid, self.uid);
        // Only now is the process certain.
        if pidfd::has_ended(self.pidfd.as_fd()).unwrap_or(true) {
            return Err(PeerError::Ended);
        }
        let all =
            |name, id| numbers(&status, name).is_some_and(|ids| ids.len() == 4 && ids.iter().all(|own| *own == id));
        if !is_other && all("Uid:", self.uid) && all("Gid:", self.gid) {
            return Ok(numbers(&status, "Groups:").unwrap_or_default());
        }
        Err(PeerError::Rights { pid: self.pid, uid: self.uid })
    }
}

fn unknown(errno: Errno) -> PeerError {
    PeerError::Unknown(errno.into())
}

/// The numbers behind a name in `/proc/<pid>/status`.
fn numbers(status: &str, name: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::MetadataExt as _, net::UnixStream};

    use super::*;

    /// Both ends are this process's.
    #[test]
    fn peer_is_who_connected() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let peer = Peer::of(&one).expect("a peer");
        let own = fs::metadata("/proc/self").expect("own folder");
        assert_eq!((peer.pid, peer.uid, peer.gid), (std::process::id(), own.uid(), own.gid()));
        assert_eq!(pidfd::has_ended(peer.pidfd.as_fd()), Some(false));
    }

    #[test]
    fn other_rights_are_refused() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let mut peer = Peer::of(&one).expect("a peer");
        peer.uid += 1;
        assert!(matches!(peer.check(), Err(PeerError::Rights { .. })));
        peer.uid -= 1;
        peer.gid += 1;
        assert!(matches!(peer.check(), Err(PeerError::Rights { .. })));
    }

    /// A process that is gone is not mistaken for another one.
    #[test]
    fn ended_process_is_refused() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let mut peer = Peer::of(&one).expect("a peer");
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        peer.pidfd = pidfd::open(child.id()).expect("a pidfd");
        child.wait().expect("ended");
        assert!(matches!(peer.check(), Err(PeerError::Ended)));
    }

    #[test]
    fn status_has_numbers() {
        let status = "Name:\tUid: 7\nUid:\t1\t2\t3\t4\nGroups:\t \n";
        assert_eq!(numbers(status, "Uid:"), Some(vec![1, 2, 3, 4]));
        assert_eq!(numbers(status, "Groups:"), Some(vec![]));
        assert_eq!(numbers(status, "Gid:"), None);
    }
}
