//! Layout of a capture. All numbers are little-endian.
//!
//! ```text
//! file   = "MSBPFCAP" version:u32 header_len:u32 header_crc:u32 header:JSON chunk*
//! chunk  = stored_len:u32 raw_len:u32 crc:u32 codec:u8 0 0 0  stored bytes
//! stored = records, as they came, whole ones only; lz4 block if codec is 1
//! ```
//!
//! A chunk's `crc` (CRC-32, as in zip) covers its other header fields and the stored bytes.

use serde::{Deserialize, Serialize};

use crate::probes::RowInfo;

/// First bytes of every capture.
pub const MAGIC: [u8; 8] = *b"MSBPFCAP";
/// Format that this program writes, and the latest that it reads.
pub const VERSION: u32 = 1;
/// Raw bytes that one chunk holds at most.
pub const MAX_RAW: usize = 256 << 10;
/// Stored bytes that one chunk holds at most: the worst case of lz4.
pub const MAX_STORED: usize = MAX_RAW + MAX_RAW / 255 + 32;
/// Longest header that a reader takes.
pub const MAX_HEADER: usize = 4 << 20;
/// Bytes before the header's JSON.
pub(super) const PREAMBLE: usize = 20;
/// Bytes before a chunk's stored bytes.
pub(super) const CHUNK_HEADER: usize = 16;

/// Facts that a reader needs before the first record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureHeader {
    /// Version of the program that wrote the capture.
    pub tool_version: String,
    /// Machine, e.g. `aarch64`.
    pub arch: String,
    /// Kernel release.
    pub kernel: String,
    /// `CLOCK_MONOTONIC` at the start, in nanoseconds.
    pub start_mono_ns: u64,
    /// Nanoseconds since the Unix epoch at the same moment.
    pub start_real_ns: u64,
    /// Command line.
    pub options: Vec<String>,
    /// Probe rows: row *n* is at index *n* - 1. Later ones come in [`Note::Rows`](super::Note::Rows).
    pub rows: Vec<RowInfo>,
    /// Native and Python stacks are merged.
    #[serde(default)]
    pub mixed_stacks: bool,
    /// Nothing of a process counts until its script begins to collect.
    #[serde(default)]
    pub deferred: bool,
    /// Blocks do not carry the number of launches before them: the level was not `kernel`.
    #[serde(default)]
    pub uncounted_launches: bool,
    /// Optional data that the kernel side collects; `None` in captures of earlier versions.
    #[serde(default)]
    pub collected: Option<Collected>,
}

/// Optional data that the kernel side of a trace collects. Stored in the capture.
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Frames of C in call stacks, at most.
    pub native_depth: Option<u32>,
    /// Frames of Python.
    pub python_depth: Option<u32>,
    /// Operators' uses of tensors.
    pub accesses: bool,
    /// Blocks are watched.
    pub watch: bool,
    /// Rows go into databases.
    pub db: bool,
    /// Stacks were not asked for: they are for answers, and in no rows.
    #[serde(default)]
    pub automatic_stacks: bool,
}

/// How the stored bytes of a chunk are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    /// Not at all.
    Plain = 0,
    /// An lz4 block.
    Lz4 = 1,
}

/// Header of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkHeader {
    pub(super) stored_len: u32,
    pub(super) raw_len: u32,
    pub(super) crc: u32,
    pub(super) codec: u8,
}

impl ChunkHeader {
    /// The header of a chunk of these bytes.
    pub(super) fn of(stored: &[u8], raw_len: usize, codec: Codec) -> Self {
        let header = Self { stored_len: stored.len() as u32, raw_len: raw_len as u32, crc: 0, codec: codec as u8 };
        Self { crc: header.checksum(stored), ..header }
    }

    /// Checksum over everything but the checksum.
    pub(super) fn checksum(self, stored: &[u8]) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&Self { crc: 0, ..self }.to_bytes());
        crc.update(stored);
        crc.finalize()
    }

    pub(super) fn to_bytes(self) -> [u8; CHUNK_HEADER] {
        let mut bytes = [0; CHUNK_HEADER];
        bytes[..4].copy_from_slice(&self.stored_len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.raw_len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.crc.to_le_bytes());
        bytes[12] = self.codec;
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; CHUNK_HEADER]) -> Self {
        let word = |at: usize| bytes[at..].first_chunk().copied().map_or(0, u32::from_le_bytes);
        Self { stored_len: word(0), raw_len: word(4), crc: word(8), codec: bytes[12] }
    }
}
