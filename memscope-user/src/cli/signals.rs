//! Signals as events, with their origin: what the terminal sends reaches the program by itself, what another
//! process sends to us has to be passed on.

use std::io;

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};
use tokio::io::unix::AsyncFd;

const HANDLED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCHLD,
];

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caught {
    /// Which.
    pub(super) signal: Signal,
    /// The kernel sent it to the whole foreground group (Ctrl-C), not a process to us alone.
    pub(super) from_terminal: bool,
}

/// Reads the blocked signals.
pub(super) struct Signals {
    fd: AsyncFd<SignalFd>,
}

impl Signals {
    /// Blocks them, so that they can be read. To be called before other threads start: they inherit the mask.
    pub(super) fn block() -> io::Result<()> {
        Ok(Self::set().thread_block()?)
    }

    /// From here on the signals do again what they do by default: a second Ctrl-C ends the process.
    pub(super) fn unblock() {
        let _ = Self::set().thread_unblock();
    }

    pub(super) fn new() -> io::Result<Self> {
        let fd = SignalFd::with_flags(&Self::set(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // SAFETY: `SignalFd` owns its descriptor for as long as it lives and never hands out another one.
        let fd = unsafe { AsyncFd::register(fd) }?;
        Ok(Self { fd })
    }

    fn set() -> SigSet {
        HANDLED.into_iter().collect()
    }

    /// The next signal.
    pub(super) async fn next(&self) -> io::Result<Caught> {
        loop {
            let mut guard = self.fd.readable().await?;
            let Ok(read) = guard.try_io(|fd| match fd.get_ref().read_signal() {
                Ok(Some(info)) => Ok(info),
                Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
                Err(errno) => Err(errno.into()),
            }) else {
                continue;
            };
            let info = read?;
            if let Ok(signal) = Signal::try_from(info.ssi_signo as i32) {
                return Ok(Caught { signal, from_terminal: info.ssi_code == libc::SI_KERNEL });
            }
        }
    }
}
