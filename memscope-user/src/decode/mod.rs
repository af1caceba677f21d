//! Bytes to records. Any bytes may come in: nothing here panics, allocates or trusts a length.

mod error;
mod fields;
mod record;
mod records;
#[cfg(test)]
mod tests;

pub use error::DecodeError;
pub(crate) use record::word;
pub use record::{
    Body, Call, Code, CodeText, Frames, ObjectCopy, Objects, Phase, Record, Stack, TextPart, Values, decode,
};
pub use records::{Records, notes, pieces};
