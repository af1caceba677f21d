//! The records of a buffer.

use memscope_common::{Header, Kind};

use super::fields::Fields;
use super::{DecodeError, Record, decode};

/// Bytes of the header that starts every record.
pub(super) const HEADER: usize = size_of::<Header>();

/// Length of the record that `bytes` start with.
pub(super) fn record_len(bytes: &[u8]) -> Result<usize, DecodeError> {
    let have = bytes.len();
    if have < HEADER {
        return Err(DecodeError::Short { have, need: HEADER });
    }
    let fields = Fields(bytes);
    let len = usize::from(fields.u16(20));
    if len < HEADER {
        return Err(DecodeError::Length { kind: fields.u16(16), len, need: HEADER });
    }
    if have < len {
        return Err(DecodeError::Short { have, need: len });
    }
    Ok(len)
}

/// The records of a buffer, in order.
///
/// A record that contradicts itself is an error and is stepped over; a length that leads nowhere ends the buffer.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// The records in `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The records, each with its bytes; those of the last reach to the end of the buffer if its length is wrong.
    pub fn with_bytes(mut self) -> impl Iterator<Item = (&'a [u8], Result<Record<'a>, DecodeError>)> {
        std::iter::from_fn(move || {
            let before = self.rest;
            let record = self.next()?;
            Some((&before[..before.len() - self.rest.len()], record))
        })
    }
}

/// `bytes` in pieces of whole records, each of at most `most_bytes` or of one longer record. A length that leads nowhere ends the last one.
pub fn pieces(mut bytes: &[u8], most_bytes: usize) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let len = record_len(rest).map_or(rest.len(), |len| len.min(rest.len()));
            if at > 0 && at + len > most_bytes {
                break;
            }
            at += len;
        }
        let (piece, rest) = bytes.split_at(at);
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The notes among the records in `bytes`, as they came. Nothing else is decoded.
pub fn notes(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        while let Some((record, rest)) = bytes.split_at_checked(record_len(bytes).ok()?) {
            bytes = rest;
            if Fields(record).u16(16) == Kind::Note as u16 {
                return Some(record);
            }
        }
        None
    })
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match record_len(self.rest) {
            Ok(len) => {
                let (record, rest) = self.rest.split_at_checked(len)?;
                self.rest = rest;
                Some(decode(record))
            }
            Err(error) => {
                self.rest = &[];
                Some(Err(error))
            }
        }
    }
}
