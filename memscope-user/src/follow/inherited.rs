//! Inherited state of this program, for the program that it starts: ignored and blocked signals, closed standard
//! streams.
//!
//! Rust's runtime changes part of it before `main`: it ignores SIGPIPE, and opens `/dev/null` where a standard stream
//! is closed. So a function that the loader calls earlier reads it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The highest number of a signal.
const SIGNALS: u32 = 64;
/// Bytes of the kernel's set of signals.
const SET_BYTES: usize = 8;
const STANDARD_STREAMS: i32 = 3;

static WAS_READ: AtomicBool = AtomicBool::new(false);
/// One bit for each signal, the first for number 1.
static IGNORED: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);
/// One bit for each closed standard stream.
static CLOSED: AtomicU64 = AtomicU64::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static READ: extern "C" fn() = read;

/// `struct sigaction` as the kernel has it, on x86-64 and aarch64.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Sets the action of a signal, and returns the old one; the C library would leave out some signals.
fn action(signal: u32, new: Option<&Action>) -> Action {
    let mut old = Action::default();
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both are null or of the kernel's layout; no handler is set.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, &raw mut old, SET_BYTES) };
    old
}

extern "C" fn read() {
    let ignored = (1..=SIGNALS).filter(|signal| action(*signal, None).handler == libc::SIG_IGN);
    IGNORED.store(ignored.fold(0, |set, signal| set | bit(signal)), Relaxed);
    let mut blocked = 0_u64;
    // SAFETY: `blocked` has the set's eight bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut blocked, SET_BYTES) };
    BLOCKED.store(blocked, Relaxed);
    // SAFETY: no pointers involved.
    let closed = (0..STANDARD_STREAMS).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } < 0);
    CLOSED.store(closed.fold(0, |set, fd| set | 1 << fd), Relaxed);
    WAS_READ.store(true, Relaxed);
}

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// Lets this process notice the end of its children: an ignored SIGCHLD is inherited, and leaves nothing to wait for.
/// Call at the start.
pub fn notice_children() {
    action(libc::SIGCHLD.cast_unsigned(), Some(&Action::default()));
}

/// Restores the inherited state in a child that is about to execute.
pub(super) fn restore() {
    // If nothing was read: a program's usual state, except for SIGPIPE.
    let (ignored, blocked) = (IGNORED.load(Relaxed), BLOCKED.load(Relaxed));
    for signal in 1..=SIGNALS {
        let handler = if ignored & bit(signal) == 0 { libc::SIG_DFL } else { libc::SIG_IGN };
        action(signal, Some(&Action { handler, ..Action::default() }));
    }
    for fd in (0..STANDARD_STREAMS).filter(|fd| CLOSED.load(Relaxed) >> fd & 1 != 0) {
        // SAFETY: opened by the runtime in place of a closed stream, and unused in this child.
        unsafe { libc::close(fd) };
    }
    // SAFETY: `blocked` has the set's eight bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const blocked, 0, SET_BYTES) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inherited state is read before `main`: Rust's runtime has ignored SIGPIPE by now, which the test's parent had
    /// not.
    #[test]
    fn what_was_inherited_is_read_before_the_runtime_changes_it() {
        assert!(WAS_READ.load(Relaxed));
        let pipe = libc::SIGPIPE.cast_unsigned();
        assert_eq!(action(pipe, None).handler, libc::SIG_IGN);
        assert_eq!(IGNORED.load(Relaxed) & bit(pipe), 0);
    }
}
