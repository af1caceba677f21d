//! A tiny process that releases waiting processes when the tracer is gone.
//!
//! The kernel side makes a thread or a process wait while the tracer examines new libraries. If the tracer is killed in
//! that moment, the wait would never end. The guard holds the maps of waiting processes, and one end of a socket: when
//! that closes without a farewell, it continues all of them, except those that another process has stopped.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    os::fd::{AsRawFd, FromRawFd as _, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{SigSet, SigmaskHow, sigprocmask},
        socket::{
            AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg,
            socketpair,
        },
    },
    unistd::{ForkResult, Pid, fork, setsid},
};

use super::waits::Waits;
use crate::os::capabilities;

/// Sent at the end: no process waits.
const FAREWELL: u8 = 0;
/// Sent with the maps.
const MAPS: u8 = 1;
/// After the tracer's death the kernel may still stop a process until the last link is gone.
const VIGIL: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// The tracer's end of the socket.
#[derive(Debug)]
pub struct Guard {
    socket: File,
    pid: Pid,
}

impl Guard {
    /// Forks the guard. To be called while this process has one thread.
    pub fn start() -> io::Result<Self> {
        let (reader, writer) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: the process has one thread, so the child may use everything.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self { socket: File::from(writer), pid: child }),
            ForkResult::Child => {
                drop(writer);
                watch(reader);
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
        }
    }

    /// Puts all waiting threads and processes, from now on, under the guard.
    pub fn give(&self, waits: &Waits) -> io::Result<()> {
        let fds = waits.fds().each_ref().map(AsRawFd::as_raw_fd);
        let rights = [ControlMessage::ScmRights(&fds)];
        let word = [IoSlice::new(&[MAPS])];
        sendmsg::<()>(self.socket.as_raw_fd(), &word, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// Ends the guard: no process waits.
    pub fn dismiss(mut self) {
        let _ = self.socket.write_all(&[FAREWELL]);
        let _ = nix::sys::wait::waitpid(self.pid, None);
    }
}

fn watch(reader: OwnedFd) {
    // Not of the terminal's group any more: Ctrl-C is for the tracer.
    let _ = setsid();
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    // SAFETY: a constant name.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"memscope-guard".as_ptr()) };
    // With more than it needs it works as well.
    let _ = capabilities::keep_for_guard();
    // The tracer died before anything waited, or has ended in order.
    let Some(mut waits) = receive(&reader) else { return };
    let _ = capabilities::try_without_bpf(|| waits.is_readable());
    let mut word = [0];
    if File::from(reader).read_exact(&mut word).is_ok() {
        return;
    }
    let start = Instant::now();
    while start.elapsed() < VIGIL && waits.has_living() {
        waits.release_all();
        waits.resume_all();
        thread::sleep(PAUSE);
    }
}

/// The maps that the tracer sends.
fn receive(socket: &OwnedFd) -> Option<Waits> {
    let mut word = [0];
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; 3]);
    let mut parts = [IoSliceMut::new(&mut word)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags).ok()?;
    let fds = message.cmsgs().ok()?.find_map(|part| match part {
        ControlMessageOwned::ScmRights(fds) => <[i32; 3]>::try_from(fds).ok(),
        _ => None,
    })?;
    // SAFETY: descriptors that have just come, owned here alone.
    Waits::open(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })).ok()
}
