//! Signals as events, with their origin: signals of the terminal reach the program directly, those that another process
//! sends to us have to be passed on.

use std::io;

use nix::{
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::Pid,
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

/// Whether a process is prepared for a signal: a thread catches, blocks or ignores it, or waits for signals (of unknown
/// kinds). Otherwise the signal ends the process.
pub(super) fn is_expected(pid: Pid, signal: Signal) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let bit = 1 << (signal as u32 - 1);
    threads.flatten().any(|thread| {
        let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        arranged(&read("status")) & bit != 0 || waits(&read("syscall"))
    })
}

/// Signals of `/proc/<pid>/status` without their default action, one bit each. A thread that blocks nearly all of them
/// does so for a moment, such as the C library's during a fork: that is ignored.
fn arranged(status: &str) -> u64 {
    const BLOCKED: &str = "SigBlk:";
    const KINDS: [&str; 3] = ["SigCgt:", BLOCKED, "SigIgn:"];
    const NEARLY_ALL: u32 = 24;
    let set = |line: &str| {
        let kind = KINDS.into_iter().find(|kind| line.starts_with(kind))?;
        let set = u64::from_str_radix(line.get(kind.len()..)?.trim(), 16).ok()?;
        (kind != BLOCKED || (set as u32).count_ones() < NEARLY_ALL).then_some(set)
    };
    status.lines().filter_map(set).fold(0, |all, set| all | set)
}

/// Whether the thread of this `/proc/<pid>/syscall` waits for signals.
fn waits(syscall: &str) -> bool {
    syscall.split(' ').next().and_then(|number| number.parse().ok()) == Some(libc::SYS_rt_sigtimedwait)
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

    /// From here on the signals have their default action again: a second Ctrl-C ends the process.
    pub(super) fn unblock() {
        let _ = Self::set().thread_unblock();
    }

    pub(super) fn new() -> io::Result<Self> {
        let fd = Self::without_runtime()?;
        // SAFETY: `SignalFd` owns its descriptor for as long as it lives and never hands out another one.
        let fd = unsafe { AsyncFd::register(fd) }?;
        Ok(Self { fd })
    }

    /// The blocked signals, for a loop that looks for them itself.
    pub(super) fn without_runtime() -> io::Result<SignalFd> {
        Ok(SignalFd::with_flags(&Self::set(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a process that catches SIGHUP, blocks SIGUSR1 and ignores SIGPIPE.
    #[test]
    fn arrangements_are_added_up() {
        let status = "SigQ:\t0/1\nSigPnd:\tffffffffffffffff\nSigBlk:\t0000000000000200\n\
                      SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\nCapInh:\tffff\n";
        let bit = |signal: Signal| 1_u64 << (signal as u32 - 1);
        assert_eq!(arranged(status), bit(Signal::SIGHUP) | bit(Signal::SIGUSR1) | bit(Signal::SIGPIPE));
        assert_eq!(arranged(""), 0);
        // A shell that forks.
        assert_eq!(arranged("SigBlk:\tfffffffe7ffbfeff\nSigCgt:\t0000000000000002\n"), bit(Signal::SIGINT));
    }

    /// A thread in `sigwait`, one in another call, one that runs.
    #[test]
    fn waiting_is_an_arrangement() {
        let line = |number: i64| format!("{number} 0x7ffd 0x0 0x0 0x8 0x0 0x0 0x7ffd 0x7f00\n");
        let found = [line(libc::SYS_rt_sigtimedwait), line(libc::SYS_read), "running\n".to_owned()];
        assert_eq!(found.map(|text| waits(&text)), [true, false, false]);
    }
}
