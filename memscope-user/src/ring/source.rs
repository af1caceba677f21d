//! The two transports behind one interface.

use std::{
    os::fd::{AsFd as _, BorrowedFd},
    time::Duration,
};

use aya::maps::{
    MapData, RingBuf,
    perf::{PerfEvent, PerfEventArrayBuffer},
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Reading end of the transport.
pub enum Source {
    /// BPF ring buffer.
    Ring(Box<RingBuf<MapData>>),
    /// One perf buffer per CPU.
    Perf(Vec<PerfEventArrayBuffer>),
}

impl Source {
    /// Hands out every record that waits, at most about `limit` bytes. Returns the bytes.
    pub fn drain(&mut self, limit: usize, mut take: impl FnMut(&[u8])) -> usize {
        let mut bytes = 0;
        match self {
            Self::Ring(ring) => {
                while bytes < limit {
                    let Some(record) = ring.next() else { break };
                    bytes += record.len();
                    take(&record);
                }
            }
            Self::Perf(buffers) => {
                let mut joined = Vec::new();
                for buffer in buffers {
                    buffer.for_each(|event| {
                        // What was lost is counted by the programs themselves, by row.
                        let PerfEvent::Sample { head, tail } = event else { return };
                        bytes += head.len() + tail.len();
                        if tail.is_empty() {
                            take(head);
                        } else {
                            joined.clear();
                            joined.extend_from_slice(head);
                            joined.extend_from_slice(tail);
                            take(&joined);
                        }
                    });
                }
            }
        }
        bytes
    }

    /// Waits until something is there, or `other` is readable, or the time is over.
    pub fn wait(&self, other: BorrowedFd<'_>, timeout: Duration) {
        let mut fds = vec![PollFd::new(other, PollFlags::POLLIN)];
        match self {
            Self::Ring(ring) => fds.push(PollFd::new(ring.as_fd(), PollFlags::POLLIN)),
            Self::Perf(buffers) => {
                fds.extend(buffers.iter().map(|buffer| PollFd::new(buffer.as_fd(), PollFlags::POLLIN)));
            }
        }
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
        // Interrupted or not, the caller drains next.
        let _ = poll(&mut fds, timeout);
    }
}

/// The clock of the records.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
