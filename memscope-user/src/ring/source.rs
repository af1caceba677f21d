//! The two transports behind one interface.

use std::{io, os::fd::AsFd as _, time::Duration};

use aya::maps::{
    MapData, RingBuf,
    perf::{PerfEvent, PerfEventArrayBuffer},
};
use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    eventfd::EventFd,
};

/// Reading end of the transport.
pub enum Source {
    /// BPF ring buffer.
    Ring(Box<RingBuf<MapData>>),
    /// One perf buffer per CPU.
    Perf(Vec<PerfEventArrayBuffer>),
}

/// What a drain took.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Size of the records.
    pub bytes: usize,
    /// No record waits that was there when the drain began.
    pub all: bool,
}

impl Source {
    /// Records come in the order in which they were placed.
    pub(super) const fn keeps_order(&self) -> bool {
        matches!(self, Self::Ring(_))
    }

    /// Hands out every record that waits, of a ring at most about `limit` bytes.
    pub fn drain(&mut self, limit: usize, mut take: impl FnMut(&[u8])) -> Taken {
        let mut bytes = 0;
        match self {
            Self::Ring(ring) => {
                while bytes < limit {
                    let Some(record) = ring.next() else { return Taken { bytes, all: true } };
                    bytes += record.len();
                    take(&record);
                }
                return Taken { bytes, all: false };
            }
            Self::Perf(buffers) => {
                let mut joined = Vec::new();
                for buffer in buffers {
                    buffer.for_each(|event| {
                        // The programs themselves count losses, by row.
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
        Taken { bytes, all: true }
    }

    /// Waits for wake-ups by the kernel side, and by `other`.
    pub(super) fn calls(&self, other: &EventFd) -> io::Result<Calls> {
        let calls = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        calls.add(other, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        // Edges alone: a transport with a record in it is ready all the time, and one record is no reason to hurry.
        let edges = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
        match self {
            Self::Ring(ring) => calls.add(ring.as_fd(), edges)?,
            Self::Perf(buffers) => buffers.iter().try_for_each(|buffer| calls.add(buffer.as_fd(), edges))?,
        }
        Ok(Calls(calls))
    }
}

/// Wakes the drain of the transport.
#[derive(Debug)]
pub(super) struct Calls(Epoll);

impl Calls {
    /// Waits for a call, or until the time is over.
    pub(super) fn wait(&self, timeout: Duration) {
        let timeout = EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::ZERO);
        // Interrupted or not, the caller drains next.
        let _ = self.0.wait(&mut [EpollEvent::empty()], timeout);
    }
}
