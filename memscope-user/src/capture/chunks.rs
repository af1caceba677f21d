//! The chunks of a capture, which may be any bytes.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use lz4_flex::block::decompress_into;

use super::CaptureError;
use super::format::{CHUNK_HEADER, ChunkHeader, Codec, MAX_RAW, MAX_STORED};

/// Zeros that are read before they count as an empty tail, which may be of any length.
const MAX_ZEROS: usize = 16 << 20;

/// How the chunks of a capture end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// After a whole chunk.
    Complete {
        /// Chunks read.
        good_chunks: u64,
    },
    /// Within a chunk: the tracer was killed, or the disk was full. Earlier chunks are good.
    Truncated {
        /// Where the torn chunk starts.
        at_offset: u64,
        /// Chunks read.
        good_chunks: u64,
    },
    /// A chunk in the middle is damaged. Earlier chunks are good; later ones cannot be found.
    Corrupt {
        /// Where the damaged chunk starts.
        at_offset: u64,
        /// Chunks read.
        good_chunks: u64,
        /// The damage.
        what: &'static str,
    },
}

/// Why a chunk is not there.
enum Stop {
    End,
    Torn,
    Bad(&'static str),
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Reads the chunks of a capture, from the beginning of one of them.
#[derive(Debug)]
pub(super) struct Chunks<R> {
    path: PathBuf,
    pub(super) input: R,
    pub(super) offset: u64,
    good: u64,
    pub(super) ending: Option<Ending>,
    stored: Vec<u8>,
    raw: Vec<u8>,
}

impl<R: Read> Chunks<R> {
    /// `offset`: where in the file `input` is; `path` is for messages.
    pub(super) fn new(input: R, path: &Path, offset: u64) -> Self {
        let (stored, raw) = (vec![0; MAX_STORED], vec![0; MAX_RAW]);
        Self { path: path.to_owned(), input, offset, good: 0, ending: None, stored, raw }
    }

    /// Records of the next chunk; `None` after the last good one: `ending` then has the reason.
    ///
    /// # Errors
    ///
    /// Only when the file cannot be read; damage is an [`Ending`].
    pub(super) fn next_chunk(&mut self) -> Result<Option<&[u8]>, CaptureError> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let (at_offset, good_chunks) = (self.offset, self.good);
        self.ending = Some(match self.read_chunk() {
            Ok(len) => return Ok(self.raw.get(..len)),
            Err(Stop::Io(source)) => return Err(io_error(&self.path, source)),
            Err(Stop::End) => Ending::Complete { good_chunks },
            Err(Stop::Torn) => Ending::Truncated { at_offset, good_chunks },
            Err(Stop::Bad(what)) => Ending::Corrupt { at_offset, good_chunks, what },
        });
        Ok(None)
    }

    fn read_chunk(&mut self) -> Result<usize, Stop> {
        let mut bytes = [0; CHUNK_HEADER];
        match read_up_to(&mut self.input, &mut bytes)? {
            0 => return Err(Stop::End),
            CHUNK_HEADER => {}
            _ => return Err(Stop::Torn),
        }
        let header = ChunkHeader::from_bytes(bytes);
        let (stored_len, raw_len) = (header.stored_len as usize, header.raw_len as usize);
        if bytes == [0; CHUNK_HEADER] {
            return Err(self.zero_tail()?);
        }
        if raw_len > MAX_RAW || stored_len > MAX_STORED || raw_len == 0 {
            return Err(Stop::Bad("impossible length"));
        }
        let (stored, raw) = (&mut self.stored[..stored_len], &mut self.raw[..raw_len]);
        if read_up_to(&mut self.input, stored)? < stored_len {
            return Err(Stop::Torn);
        }
        if header.checksum(stored) != header.crc {
            return Err(self.damaged()?);
        }
        unpack(header.codec, stored, raw)?;
        self.offset += (CHUNK_HEADER + stored_len) as u64;
        self.good += 1;
        Ok(raw_len)
    }

    /// A crash of the whole machine may leave a file with a tail of zeros.
    fn zero_tail(&mut self) -> Result<Stop, Stop> {
        let mut bytes = [0; 4096];
        for _ in 0..MAX_ZEROS / bytes.len() {
            match read_up_to(&mut self.input, &mut bytes)? {
                0 => break,
                len if bytes[..len].iter().any(|byte| *byte != 0) => {
                    return Ok(Stop::Bad("chunk of zeros"));
                }
                _ => {}
            }
        }
        Ok(Stop::Torn)
    }

    /// A last chunk with a wrong checksum was not written to its end; one in the middle was damaged later.
    fn damaged(&mut self) -> Result<Stop, Stop> {
        match read_up_to(&mut self.input, &mut [0])? {
            0 => Ok(Stop::Torn),
            _ => Ok(Stop::Bad("wrong checksum")),
        }
    }
}

fn unpack(codec: u8, stored: &[u8], raw: &mut [u8]) -> Result<(), Stop> {
    const PLAIN: u8 = Codec::Plain as u8;
    const LZ4: u8 = Codec::Lz4 as u8;
    match codec {
        PLAIN if stored.len() == raw.len() => raw.copy_from_slice(stored),
        LZ4 if decompress_into(stored, raw).is_ok_and(|len| len == raw.len()) => {}
        PLAIN | LZ4 => return Err(Stop::Bad("wrong length")),
        _ => return Err(Stop::Bad("unknown codec")),
    }
    Ok(())
}

/// Reads until `buffer` is full or the input ends; returns the number of bytes.
pub(super) fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut have = 0;
    while let Some(room) = buffer.get_mut(have..).filter(|room| !room.is_empty()) {
        match input.read(room) {
            Ok(0) => break,
            Ok(len) => have += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(have)
}

pub(super) fn io_error(path: &Path, source: io::Error) -> CaptureError {
    CaptureError::Io { action: "read", path: path.to_owned(), source }
}
