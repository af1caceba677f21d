//! A trace that is behind its program: records wait in the capture, not in the ring, so that none is lost.

use std::time::{Duration, Instant};

use super::{disk::Waiting, log::Speaker, text};
use crate::capture::{self, CaptureError, Tail};

/// A burst is shorter.
const LONG: Duration = Duration::from_secs(2);
/// Bytes of a capture that take a while to analyse.
const MANY_BYTES: u64 = 16 << 20;

/// What the capture has and the pipeline has not.
pub(super) struct Behind {
    tail: Tail,
    /// Where the capture ends.
    end: u64,
    waiting: Waiting,
    since: Instant,
}

impl Behind {
    pub(super) fn new(tail: Tail, waiting: Waiting) -> Self {
        Self { tail, end: 0, waiting, since: Instant::now() }
    }

    /// It lasts for so long that the user should know.
    pub(super) fn is_long(&self) -> bool {
        self.since.elapsed() >= LONG
    }

    /// The capture has grown.
    pub(super) fn reaches(&mut self, capture: &capture::Writer) {
        self.end = capture.written_bytes();
        self.waiting.set(self.end, self.tail.left_bytes(self.end));
    }

    /// The next records that are on the disk. Without a `capture`, it ends where it did.
    pub(super) fn next(&mut self, capture: Option<&capture::Writer>) -> Result<Option<&[u8]>, CaptureError> {
        if let Some(capture) = capture {
            self.reaches(capture);
        }
        self.tail.next_chunk(self.end)
    }

    /// The trace ends: the capture is whole. Returns whether much is left to analyse.
    pub(super) fn ends(&mut self, capture: &capture::Writer, speaker: &Speaker) -> bool {
        self.reaches(capture);
        let left_bytes = self.tail.left_bytes(self.end);
        let much = left_bytes > MANY_BYTES;
        if much {
            speaker.info(format_args!(
                "{} of the capture are left to analyse; Ctrl-C leaves them to `memscope-bpf replay`",
                text::size(left_bytes)
            ));
        }
        much
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.waiting.set(self.end, 0);
    }
}
