//! Fields of a record.

use memscope_common::record::TEXT_CHUNK;

use super::DecodeError;

/// Little-endian fields of a slice of checked length; 0 beyond its end.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn array<const N: usize>(self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
    }

    pub(super) fn u8(self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    pub(super) fn u32(self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub(super) fn u64(self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    /// Checks that the record holds `need` bytes.
    pub(super) fn require(self, need: usize) -> Result<(), DecodeError> {
        if self.0.len() < need {
            return Err(DecodeError::Length { kind: self.u16(16), len: self.0.len(), need });
        }
        Ok(())
    }

    /// `len` bytes of text at `at`.
    pub(super) fn text(self, at: usize, len: u32) -> Result<&'a [u8], DecodeError> {
        if len as usize > TEXT_CHUNK {
            return Err(DecodeError::Text { len });
        }
        self.require(at + len as usize)?;
        Ok(self.0.get(at..at + len as usize).unwrap_or_default())
    }
}
