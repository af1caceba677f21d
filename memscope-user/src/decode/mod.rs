//! Bytes to records. Any bytes may come in: nothing here panics, allocates or trusts a length.

mod record;
#[cfg(test)]
mod tests;

pub use record::{Body, Call, DecodeError, ObjectCopy, Objects, Phase, Record, Records, TextPart, Values, decode};
