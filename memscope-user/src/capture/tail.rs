//! Reads back what a capture has, while it is written: the capture is the queue of a trace that is behind its program.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::CaptureError;
use super::chunks::{Chunks, io_error};

/// Reads the chunks that a [`Writer`](super::Writer) has written since this was made.
#[derive(Debug)]
pub struct Tail {
    path: std::path::PathBuf,
    chunks: Chunks<Part>,
}

/// A file from here to there.
#[derive(Debug)]
struct Part {
    file: File,
    at: u64,
    end: u64,
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let room = buffer.len().min(left);
        let len = self.file.read_at(&mut buffer[..room], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Tail {
    /// From `at`, where the next chunk will be.
    pub(super) fn new(file: File, path: &Path, at: u64) -> Self {
        Self { path: path.to_owned(), chunks: Chunks::new(Part { file, at, end: at }, path, at) }
    }

    /// Bytes of the file before `end` that were not read yet.
    #[must_use]
    pub const fn left_bytes(&self, end: u64) -> u64 {
        end.saturating_sub(self.chunks.offset)
    }

    /// Records of the next chunk before `end`, the size of the file after a whole chunk; `None` after the last.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or is not as it was written.
    pub fn next_chunk(&mut self, end: u64) -> Result<Option<&[u8]>, CaptureError> {
        if self.left_bytes(end) == 0 {
            return Ok(None);
        }
        self.chunks.input.end = end;
        let changed = || io_error(&self.path, io::Error::other("it is not as it was written"));
        self.chunks.next_chunk()?.map(Some).ok_or_else(changed)
    }
}
