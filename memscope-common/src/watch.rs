//! Block watch: what the kernel side tells of a thread that it has sent to the watch's handler.

use crate::row::REGISTER_ARGS;

/// A process whose threads are sent there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchedProcess {
    /// First address of the handler's own memory, and the handler's; a thread whose stack is there
    /// runs calls of ours, which are nobody's. 0 while it is set up: a program with a handler is
    /// sent nothing. [`ANY_HANDLER`]: one with an earlier tracer's handler is.
    pub from: u64,
    /// Behind the last.
    pub to: u64,
    /// Graphs that are being captured: a stream must not be waited for then. Counted by the kernel
    /// side.
    pub capturing: u64,
    /// Sides of operators at which the program had another handler for the signal, or ignored it:
    /// nothing was sent. Counted by the kernel side.
    pub unsent: u64,
    /// `CLOCK_MONOTONIC` of the first of them, in nanoseconds; 0 is none.
    pub unsent_since_ns: u64,
    /// The same of the last.
    pub unsent_until_ns: u64,
}

/// In place of an address: whatever handler the process has, it is no handler of the program's own.
pub const ANY_HANDLER: u64 = u64::MAX;

/// Bytes of an operator's name that the kernel side compares, the last one 0.
pub const START_BYTES: usize = 64;

/// The operator that watching begins with: in processes where nothing is watched yet, threads are
/// sent to the handler at its end alone.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchStart {
    /// Its name as far as it is compared, then zeros; all zeros are no operator.
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

/// Where a thread was when it was last sent there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchSite {
    /// `CLOCK_MONOTONIC`, in nanoseconds; no two of a thread are the same.
    pub time_ns: u64,
    /// Its stack pointer then.
    pub stack_pointer: u64,
    /// The probed instruction.
    pub instruction_pointer: u64,
    /// The call's arguments, as they were at its entry.
    pub args: [u64; REGISTER_ARGS],
    /// Number of the probe row.
    pub row: u16,
    /// 1: the call has returned, or is about to.
    pub returned: u16,
    /// How often the thread was sent there, this time included.
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

    /// Make sure that a long name is cut where the kernel's copy of a text is, with a zero behind it.
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
