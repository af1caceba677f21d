//! A trace that is behind its program: records wait in the capture, not in the ring, so that none is lost.

use std::time::{Duration, Instant};

use super::{disk::Waiting, log::Speaker, text};
use crate::{
    capture::{self, CaptureError, Tail},
    decode::pieces,
};

/// A burst is shorter.
const LONG: Duration = Duration::from_secs(2);
/// Records that are analysed before the next look at what has come: about a time slice of work, so that they take one turn where many
/// threads share a processor.
const PIECE_BYTES: usize = 32 << 10;
/// Bytes of a capture that take a while to analyse.
const MANY_BYTES: u64 = 16 << 20;

/// What the capture has and the pipeline has not.
pub(super) struct Behind {
    tail: Tail,
    /// The last one that was read, and how far it was analysed.
    chunk: Vec<u8>,
    done: usize,
    /// Where the capture ends.
    end: u64,
    waiting: Waiting,
    since: Instant,
}

impl Behind {
    pub(super) fn new(tail: Tail, waiting: Waiting) -> Self {
        Self { tail, chunk: Vec::new(), done: 0, end: 0, waiting, since: Instant::now() }
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

    /// Some of the next records that are on the disk. Without a `capture`, it ends where it did.
    pub(super) fn next(&mut self, capture: Option<&capture::Writer>) -> Result<Option<&[u8]>, CaptureError> {
        if self.done == self.chunk.len() {
            if let Some(capture) = capture {
                self.reaches(capture);
            }
            let Some(chunk) = self.tail.next_chunk(self.end)? else { return Ok(None) };
            self.chunk.clear();
            self.chunk.extend_from_slice(chunk);
            self.done = 0;
        }
        let piece = pieces(&self.chunk[self.done..], PIECE_BYTES).next();
        self.done += piece.map_or(0, <[u8]>::len);
        Ok(piece)
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
