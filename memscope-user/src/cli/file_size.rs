//! The limit of file sizes (`ulimit -f`, `RLIMIT_FSIZE`): a file that reaches it is like a full disk, not the end of the tracer.

use nix::{
    libc,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
};

/// Makes writes beyond the limit fail (`EFBIG`) instead of ending this process. A program that we start is not
/// affected: `exec` resets handlers of signals, but not ignored ones, so the signal is not ignored here.
pub(super) fn outlive_limit() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing, so it may run at any moment.
    let before = unsafe { sigaction(Signal::SIGXFSZ, &handler) };
    if let Ok(before) = before
        && matches!(before.handler(), SigHandler::SigIgn)
    {
        // SAFETY: this is what there was.
        let _ = unsafe { sigaction(Signal::SIGXFSZ, &before) };
    }
}
