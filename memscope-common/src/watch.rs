//! Block watch: the kernel side's reports about threads that it sends to the watch's handler.

use crate::row::REGISTER_ARGS;

/// A watched process: its threads are sent to the handler.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchedProcess {
    /// Start of the handler's own memory, and the handler's address. A thread with its stack there makes our own calls,
    /// which are not reported. 0 during setup: no signal is sent to a program with a handler. [`ANY_HANDLER`]: one is
    /// sent even then, since the handler is an earlier tracer's.
    pub from: u64,
    /// End of that memory.
    pub to: u64,
    /// Graphs being captured: no stream must be waited for meanwhile. Counted by the kernel side.
    pub capturing: u64,
    /// Sides of operators without a signal, since the program had another handler for it, or ignored it. Counted by the
    /// kernel side.
    pub unsent: u64,
    /// `CLOCK_MONOTONIC` of the first of them, in nanoseconds; 0 is none.
    pub unsent_since_ns: u64,
    /// The same of the last.
    pub unsent_until_ns: u64,
}

/// Instead of an address: the process's handler is not the program's own.
pub const ANY_HANDLER: u64 = u64::MAX;

/// Bytes compared of an operator's name, the last one 0.
pub const START_BYTES: usize = 64;

/// The operator at which watching begins: processes without a watched block send threads to the handler only at its
/// end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchStart {
    /// The compared part of its name, padded with zeros; all zeros are no operator.
    pub name: [u64; START_BYTES / 8],
}

impl WatchStart {
    /// Of an operator's whole name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; START_BYTES];
        for (to, from) in bytes[..START_BYTES - 1].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        let mut words = [0; START_BYTES / 8];
        for (word, eight) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*eight);
        }
        Self { name: words }
    }
}

/// Where a thread was when it was last sent to the handler.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchSite {
    /// `CLOCK_MONOTONIC`, in nanoseconds; unique within a thread.
    pub time_ns: u64,
    /// Its stack pointer then.
    pub stack_pointer: u64,
    /// The probed instruction.
    pub instruction_pointer: u64,
    /// The call's arguments at its entry.
    pub args: [u64; REGISTER_ARGS],
    /// Number of the probe row.
    pub row: u16,
    /// 1: the call has returned, or is about to.
    pub returned: u16,
    /// Number of times the thread was sent, this one included.
    pub sent: u32,
    /// Where the call returns to.
    pub caller: u64,
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding: every bit pattern is a value.
    unsafe impl aya::Pod for super::WatchedProcess {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::WatchStart {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::WatchSite {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long name is cut where the kernel's copy of a text is, with a zero behind it.
    #[test]
    fn names_are_cut_as_texts_are() {
        let bytes = |name: &str| {
            let mut bytes = [0; START_BYTES];
            for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(WatchStart::new(name).name) {
                *to = word.to_ne_bytes();
            }
            bytes
        };
        let mut short = [0; START_BYTES];
        short[..2].copy_from_slice(b"ab");
        assert_eq!(bytes("ab"), short);
        let long = [b'x'; 200];
        let mut cut = [b'x'; START_BYTES];
        cut[START_BYTES - 1] = 0;
        assert_eq!(bytes(core::str::from_utf8(&long).expect("plain")), cut);
    }
}
