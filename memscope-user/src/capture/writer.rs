//! Writing a capture: one `write` per chunk, so that a killed tracer leaves a torn tail and nothing worse.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use lz4_flex::block::{compress_into, get_maximum_output_size};

use super::CaptureError;
use super::format::{CHUNK_HEADER, CaptureHeader, ChunkHeader, Codec, MAGIC, MAX_RAW, VERSION};
use crate::{calm, decode::pieces};

/// How a capture is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriterOptions {
    /// Wait at the end until the file is on the disk.
    pub sync: bool,
}

/// Writes a capture.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
    sync: bool,
    raw: Vec<u8>,
    packed: Vec<u8>,
    written: u64,
    taken: u64,
}

impl Writer {
    /// Creates the file, which must not exist, for its owner alone, and writes the header.
    pub fn create(path: &Path, header: &CaptureHeader, options: WriterOptions) -> Result<Self, CaptureError> {
        let error = |source| io_error("create", path, source);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .map_err(error)?;
        Self::new(file, path, header, options)
    }

    /// Writes the header into a new file; `path` is its name in messages.
    pub fn new(file: File, path: &Path, header: &CaptureHeader, options: WriterOptions) -> Result<Self, CaptureError> {
        let packed = vec![0; CHUNK_HEADER + get_maximum_output_size(MAX_RAW)];
        let raw = Vec::new();
        let mut writer = Self { path: path.to_owned(), file, sync: options.sync, raw, packed, written: 0, taken: 0 };
        let preamble = preamble(header).map_err(|source| io_error("create", path, source.into()))?;
        writer.write(&preamble)?;
        Ok(writer)
    }

    /// A writer over an open file, without a header.
    #[cfg(test)]
    pub(crate) fn over(file: File, path: &Path) -> Self {
        let packed = vec![0; CHUNK_HEADER + get_maximum_output_size(MAX_RAW)];
        Self { path: path.to_owned(), file, sync: false, raw: Vec::new(), packed, written: 0, taken: 0 }
    }

    /// Takes whole records, as they came. They are on their way to the disk after the next [`flush`](Self::flush).
    pub fn append(&mut self, records: &[u8]) -> Result<(), CaptureError> {
        if self.raw.len() + records.len() > MAX_RAW {
            self.flush()?;
        }
        if records.len() <= MAX_RAW {
            self.raw.extend_from_slice(records);
            self.taken += records.len() as u64;
            return Ok(());
        }
        for piece in pieces(records, MAX_RAW).flat_map(|piece| piece.chunks(MAX_RAW)) {
            self.append(piece)?;
        }
        Ok(())
    }

    /// Writes out the buffered records. Call at least twice a second.
    pub fn flush(&mut self) -> Result<(), CaptureError> {
        if self.raw.is_empty() {
            return Ok(());
        }
        let len = self.pack();
        let packed = std::mem::take(&mut self.packed);
        let result = self.write(packed.get(..len).unwrap_or_default());
        self.packed = packed;
        result?;
        let used_bytes = self.raw.len();
        self.raw.clear();
        calm::buffer(&mut self.raw, used_bytes);
        Ok(())
    }

    /// Bytes of records taken so far, those of a failed [`append`](Self::append) included as far as it came.
    #[must_use]
    pub const fn taken_bytes(&self) -> u64 {
        self.taken
    }

    /// The records that are not in the file yet, those of a failed write included.
    #[must_use]
    pub fn unwritten(&self) -> &[u8] {
        &self.raw
    }

    /// To read back what is written from here on.
    ///
    /// # Errors
    ///
    /// As those of [`flush`](Self::flush).
    #[cfg(feature = "trace")]
    pub fn tail(&mut self) -> Result<super::Tail, CaptureError> {
        self.flush()?;
        let file = self.file.try_clone().map_err(|source| io_error("read", &self.path, source))?;
        Ok(super::Tail::new(file, &self.path, self.written))
    }

    /// Bytes on disk so far.
    #[must_use]
    pub const fn written_bytes(&self) -> u64 {
        self.written
    }

    /// Writes out the rest and closes the file.
    pub fn finish(mut self) -> Result<(), CaptureError> {
        self.flush()?;
        if self.sync {
            self.file.sync_data().map_err(|source| io_error("write", &self.path, source))?;
        }
        Ok(())
    }

    /// Makes a chunk of the raw bytes; returns its length.
    fn pack(&mut self) -> usize {
        let (header, body) = self.packed.split_at_mut(CHUNK_HEADER);
        let (codec, len) = match compress_into(&self.raw, body) {
            Ok(len) if len < self.raw.len() => (Codec::Lz4, len),
            _ => {
                body[..self.raw.len()].copy_from_slice(&self.raw);
                (Codec::Plain, self.raw.len())
            }
        };
        header.copy_from_slice(&ChunkHeader::of(&body[..len], self.raw.len(), codec).to_bytes());
        CHUNK_HEADER + len
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CaptureError> {
        self.file.write_all(bytes).map_err(|source| io_error("write", &self.path, source))?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> CaptureError {
    CaptureError::Io { action, path: path.to_owned(), source }
}

/// Everything before the first chunk.
fn preamble(header: &CaptureHeader) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_vec(header)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((json.len() as u32).to_le_bytes());
    bytes.extend(crc32fast::hash(&json).to_le_bytes());
    bytes.extend(json);
    Ok(bytes)
}
