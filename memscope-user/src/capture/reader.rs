//! Reads a capture: all good chunks, then the way it ends. The file may contain any bytes.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::CaptureError;
use super::chunks::{Chunks, Ending, io_error, read_up_to};
use super::format::{CaptureHeader, MAGIC, MAX_HEADER, PREAMBLE, VERSION};
use crate::regular;

/// Reads a capture.
#[derive(Debug)]
pub struct Reader<R> {
    header: CaptureHeader,
    chunks: Chunks<R>,
}

impl Reader<BufReader<File>> {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let file = regular::open(path).map_err(|source| io_error(path, source))?;
        Self::new(BufReader::new(file), path)
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header; `path` is for messages.
    pub fn new(mut input: R, path: &Path) -> Result<Self, CaptureError> {
        let (header, len) = read_header(&mut input, path)?;
        Ok(Self { header, chunks: Chunks::new(input, path, (PREAMBLE + len) as u64) })
    }

    /// The capture's header.
    #[must_use]
    pub const fn header(&self) -> &CaptureHeader {
        &self.header
    }

    /// The way the capture ends; `None` until all chunks are read.
    #[must_use]
    pub const fn ending(&self) -> Option<Ending> {
        self.chunks.ending
    }

    /// Bytes of the file that were used.
    pub const fn offset(&self) -> u64 {
        self.chunks.offset
    }

    /// Records of the next chunk; `None` after the last good one: [`ending`](Self::ending) then has the reason.
    ///
    /// # Errors
    ///
    /// Only when the file cannot be read; damage is an [`Ending`].
    pub fn next_chunk(&mut self) -> Result<Option<&[u8]>, CaptureError> {
        self.chunks.next_chunk()
    }
}

fn read_header(input: &mut impl Read, path: &Path) -> Result<(CaptureHeader, usize), CaptureError> {
    let error = |source| io_error(path, source);
    let damaged = |what: &str| CaptureError::Header { path: path.to_owned(), what: what.to_owned() };
    let mut start = [0; PREAMBLE];
    let have = read_up_to(input, &mut start).map_err(error)?;
    let [magic @ .., v0, v1, v2, v3, l0, l1, l2, l3, c0, c1, c2, c3] = start;
    if have < MAGIC.len() || magic != MAGIC {
        return Err(CaptureError::NoCapture { path: path.to_owned() });
    }
    if have < PREAMBLE {
        return Err(damaged("cut off"));
    }
    let found = u32::from_le_bytes([v0, v1, v2, v3]);
    if found > VERSION {
        return Err(CaptureError::Newer { path: path.to_owned(), found });
    }
    let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if len > MAX_HEADER {
        return Err(damaged("impossible length"));
    }
    let mut json = Vec::new();
    input.take(len as u64).read_to_end(&mut json).map_err(error)?;
    if json.len() < len {
        return Err(damaged("cut off"));
    }
    if crc32fast::hash(&json) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err(damaged("wrong checksum"));
    }
    let header = serde_json::from_slice(&json).map_err(|error| damaged(&error.to_string()))?;
    Ok((header, len))
}
